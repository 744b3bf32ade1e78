"""Three kinds of work that go on while the broker is killed again and again, each keeping account of what was promised.

Each runs in a thread, survives errors the way an application would (retry, abort, start over) and writes down only what
the broker acknowledged. The checks compare those accounts with what is found afterwards. Used by test_kill_nine.py.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from tests.clients import kit
from tests.support.names import unique
from tests.support.waiting import NotInTime, wait_for

PARTITIONS = 3
PATIENCE_S = 60.0
"""How long a client may keep retrying: longer than any restart."""
HANGS_S = 2.0
"""When to give up on a call that should take 1 s at most."""
QUIET = {"reconnect.backoff.max.ms": 200, "log_level": 0}
"""Clients that come back soon, and do not log every failed try to connect."""


def held_by(bootstrap: str, group: str, topic: str, partitions: list[int]) -> dict[int, int]:
    """The offsets that a group has committed; a coordinator that is still starting is asked again."""
    client = kit.consumer(bootstrap, group, QUIET)
    asked = [TopicPartition(topic, partition) for partition in partitions]
    answers = wait_for(lambda: client.committed(asked, timeout=5), "offsets are told", retry_on=(KafkaException,))
    client.close()
    return {tp.partition: tp.offset for tp in answers}


class Hangs(Exception):
    """A call of the client did not come back in its own time."""


def bounded(call: Callable[[], None]) -> None:
    """A call that may hang for good: librdkafka's send_offsets_to_transaction does, when its coordinator went away
    (librdkafka issues 5456 and 5511). The thread is left behind with its client; a new producer fences it."""
    outcome: list[KafkaException | None] = []

    def attempt() -> None:
        try:
            call()
            outcome.append(None)
        except KafkaException as error:
            outcome.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(HANGS_S)
    if not outcome:
        raise Hangs
    if outcome[0] is not None:
        raise outcome[0]


def insist(call: Callable[[], None]) -> None:
    """Repeat what the client says may be repeated."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise


class Load(ABC):
    """A thread of work that can be stopped; an unexpected exception is kept and raised at the end."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Finish the work in hand and end; raise what went wrong."""
        self._stopped.set()
        self._thread.join(2 * PATIENCE_S)
        self.ensure_well()
        if self._thread.is_alive():
            raise AssertionError(f"{type(self).__name__} did not come to an end")

    def ensure_well(self) -> None:
        """Raise what ended the thread, if anything did."""
        if self._failure is not None:
            raise self._failure

    @property
    @abstractmethod
    def progress(self) -> int:
        """How much was acknowledged so far."""

    @abstractmethod
    def work(self) -> None:
        """What the thread does until `_stopped`."""

    def _guarded(self) -> None:
        try:
            self.work()
        except BaseException as error:
            self._failure = error


def wait_for_progress(goals: Mapping[Load, int]) -> None:
    """Every kind of work gets on by its goal, so that the next kill interrupts all of them."""
    targets = {load: load.progress + goal for load, goal in goals.items()}

    def all_got_on() -> bool:
        for load in targets:
            load.ensure_well()
        return all(load.progress >= target for load, target in targets.items())

    try:
        wait_for(all_got_on, "every load gets on", within_s=2 * PATIENCE_S)
    except NotInTime as error:
        stuck = [type(load).__name__ for load, target in targets.items() if load.progress < target]
        raise NotInTime(f"{error}: {', '.join(stuck)} did not") from None


class Writing(Load):
    """An idempotent producer; promises: what was acknowledged is there, once, at its offset, in order."""

    def __init__(self, bootstrap: str, topic: str, config: kit.Config | None = None) -> None:
        super().__init__()
        base = {"enable.idempotence": True, "message.timeout.ms": int(PATIENCE_S * 1000), "linger.ms": 2}
        self._client: Producer = kit.producer(bootstrap, {**base, **QUIET, **(config or {})})
        self._topic = topic
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.sent = 0

    @property
    def progress(self) -> int:
        return len(self.acknowledged)

    def work(self) -> None:
        while not self._stopped.is_set():
            for _ in range(30):
                partition = self.sent % PARTITIONS
                kit.send(self._client, self._topic, b"%09d" % self.sent, partition=partition, on_delivery=self._report)
                self.sent += 1
            self._client.poll(0.01)
            time.sleep(0.01)  # the crashes are the point, not the volume: keep the final check of a long run short
            while len(self._client) > 3000:  # an application would not pile up messages without end either
                self._client.poll(0.1)
        if self._client.flush(PATIENCE_S):
            raise AssertionError("messages without a delivery report")

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise AssertionError(f"an idempotent producer gave up: {error}")
        self.acknowledged[message.partition() or 0, message.offset() or 0] = message.value() or b""

    def check(self, found: list[Message]) -> None:
        by_place = {(m.partition() or 0, m.offset() or 0): m.value() or b"" for m in found}
        lost = {place: value for place, value in self.acknowledged.items() if by_place.get(place) != value}
        assert not lost, f"{len(lost)} acknowledged messages are lost or moved, like {sorted(lost.items())[:3]}"
        for partition in range(PARTITIONS):
            numbers = [int(by_place[place]) for place in sorted(by_place) if place[0] == partition]
            assert numbers == list(range(partition, self.sent, PARTITIONS)), (
                f"partition {partition}: repeated or reordered"
            )


class Reading(Load):
    """A group member that commits as it goes; promises: commits never go back, no message is skipped."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__()
        timing = {"session.timeout.ms": 30_000, "heartbeat.interval.ms": 500}
        self._client: Consumer = kit.consumer(bootstrap, group, {**timing, **QUIET})
        self._topic = topic
        self.committed: dict[int, int] = {}
        self.seen: dict[int, set[int]] = defaultdict(set)

    @property
    def progress(self) -> int:
        return sum(self.committed.values())

    def work(self) -> None:
        self._client.subscribe([self._topic])
        while not self._stopped.is_set():
            self._turn()
        self._client.close()

    def _turn(self) -> None:
        ends: dict[int, int] = {}
        for message in self._client.consume(200, 0.1):
            if message.error() is None:
                partition, offset = message.partition() or 0, message.offset() or 0
                self.seen[partition].add(offset)
                ends[partition] = offset + 1
        if not ends:
            return
        offsets = [TopicPartition(self._topic, partition, end) for partition, end in ends.items()]
        try:
            answers = self._client.commit(offsets=offsets, asynchronous=False)
        except KafkaException:
            return  # the broker is down, or the group rebalances: the next turn commits more
        for answer in answers:
            if answer.error is None:
                self.committed[answer.partition] = max(answer.offset, self.committed.get(answer.partition, 0))

    def check_commits(self, bootstrap: str, group: str, promised: dict[int, int]) -> None:
        """`promised` is what was acknowledged before the crash."""
        held = held_by(bootstrap, group, self._topic, list(promised))
        for partition, offset in promised.items():
            assert held[partition] >= offset, (
                f"the commit of partition {partition} went back: {offset}, {held[partition]}"
            )

    def check_seen(self) -> None:
        for partition, offsets in self.seen.items():
            assert offsets == set(range(max(offsets) + 1)), f"partition {partition}: the group skipped messages"


class Transacting(Load):
    """Transactions over two partitions and a group's offset; promises: all or nothing, and what committed stays."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__()
        self._bootstrap, self._topic = bootstrap, topic
        self._name = unique("crash-tx")
        self._group = kit.consumer(bootstrap, group, QUIET)
        self.committed: list[int] = []
        self.aborted: list[int] = []

    @property
    def progress(self) -> int:
        return len(self.committed)

    def work(self) -> None:
        client: Producer | None = None
        number = 0
        while not self._stopped.is_set():
            client = client or self._begin_again()
            number += 1
            try:
                committed = self._transaction(client, number)
            except (KafkaException, Hangs):
                client = None  # the outcome of `number` is unknown: it may be there, but then whole
                continue
            (self.committed if committed else self.aborted).append(number)
        self._group.close()

    def _begin_again(self) -> Producer:
        """A new producer of the same name, which fences the one before wherever that hangs."""
        base = {"transactional.id": self._name, "transaction.timeout.ms": int(PATIENCE_S * 1000)}
        client = kit.producer(self._bootstrap, {**base, **QUIET, "message.timeout.ms": 50_000})
        insist(lambda: client.init_transactions(5))
        return client

    def _transaction(self, client: Producer, number: int) -> bool:
        """Whether it was committed (else aborted); raises when nobody can know."""
        client.begin_transaction()
        try:
            for partition in (0, 1):
                client.produce(self._topic, b"%d" % number, partition=partition)
            offsets = [TopicPartition(self._topic, 0, number)]
            metadata = self._group.consumer_group_metadata()
            insist(lambda: bounded(lambda: client.send_offsets_to_transaction(offsets, metadata, 1)))
            insist(lambda: client.commit_transaction(5))
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
            insist(lambda: client.abort_transaction(5))
            return False
        return True

    def check(self, found: list[Message], offset: int) -> None:
        halves: list[list[int]] = [[], []]
        for message in found:
            halves[message.partition() or 0].append(int(message.value() or b"-1"))
        assert halves[0] == halves[1], "a transaction is there by half"
        visible = halves[0]
        assert visible == sorted(set(visible)), "a transaction is there twice or out of order"
        assert set(self.committed) <= set(visible), f"lost: {sorted(set(self.committed) - set(visible))[:5]}"
        assert not set(self.aborted) & set(visible), "an aborted transaction is visible"
        assert offset == max(visible), "the offset of the last committed transaction is not the group's"
