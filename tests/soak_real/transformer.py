"""Consume, transform, produce in a process of its own, which says on standard output what it did, a JSON list a line.

A process, since librdkafka's send_offsets_to_transaction may hang for good when its coordinator went away (librdkafka
issues 5456 and 5511): the process ends then, and its connections with it. Started by `kafka_loads.Transforming` with
the bootstrap address and the number of the first transaction; ends when its standard input does.
"""

from __future__ import annotations

import json
import os
import sys
import threading

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.clients import kit
from tests.clients.crash_load import HANGS_S, QUIET, Hangs, bounded, insist

INPUT, OUTPUT, GROUP = "soak.input", "soak.output", "soak-tx"
COMMITTED = {"isolation.level": "read_committed"}
ABORT_EVERY = 7


def say(*words: object) -> None:
    print(json.dumps(words), flush=True)


class Transformer:
    """Transactions under one name: a new one fences the one before, wherever that hangs."""

    def __init__(self, bootstrap: str, number: int) -> None:
        base = {"transactional.id": "soak-transformer", "transaction.timeout.ms": 60_000, "message.timeout.ms": 50_000}
        self._client: Producer = kit.producer(bootstrap, {**base, **QUIET})
        self._source: Consumer = kit.consumer(bootstrap, GROUP, {**QUIET, **COMMITTED})
        self._number = number
        self._position = 0

    def begin(self) -> None:
        insist(lambda: self._client.init_transactions(5))
        held = self._source.committed([TopicPartition(INPUT, 0)], timeout=10)[0].offset
        self._position = max(held, 0)
        say("position", self._position)
        self._source.assign([TopicPartition(INPUT, 0, self._position)])

    def turn(self) -> None:
        values = [int(m.value() or b"-1") for m in self._source.consume(50, 0.2) if m.error() is None]
        if not values:
            say("idle")
            return
        if values != list(range(self._position, self._position + len(values))):
            say("skipped", f"{INPUT}: {values[:3]} at {self._position}")
        self._number += 1
        if self._number % ABORT_EVERY == 0:
            self._abort(values)
        end = self._position + len(values)
        if self._commit(values, end):
            say("committed", self._position, end)
            self._position = end
        else:
            self._source.seek(TopicPartition(INPUT, 0, self._position))

    def _abort(self, values: list[int]) -> None:
        self._client.begin_transaction()
        for value in values:
            self._client.produce(OUTPUT, b"abort %d" % value, partition=0)
        self._client.produce(OUTPUT, b"abort", partition=1)
        self._client.flush(1)
        insist(lambda: self._client.abort_transaction(5))
        say("aborted")

    def _commit(self, values: list[int], end: int) -> bool:
        """Whether it was committed (else aborted); raises when nobody can know."""
        client = self._client
        client.begin_transaction()
        try:
            for value in values:
                client.produce(OUTPUT, b"%d" % value, partition=0)
            client.produce(OUTPUT, b"%d %d" % (values[0], end), partition=1)
            metadata = self._source.consumer_group_metadata()
            offsets = [TopicPartition(INPUT, 0, end)]
            insist(lambda: bounded(lambda: client.send_offsets_to_transaction(offsets, metadata, HANGS_S / 2)))
            insist(lambda: client.commit_transaction(5))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            insist(lambda: client.abort_transaction(5))
            return False
        return True


def main() -> None:
    told_to_stop = threading.Event()

    def watch() -> None:
        sys.stdin.read()
        told_to_stop.set()

    threading.Thread(target=watch, daemon=True).start()
    transformer = Transformer(sys.argv[1], int(sys.argv[2]))
    try:
        transformer.begin()
        while not told_to_stop.is_set():
            transformer.turn()
    except (KafkaException, Hangs) as error:
        say("ended", type(error).__name__)
    os._exit(0)  # without waiting for a client that hangs


if __name__ == "__main__":
    main()
