"""Group members of three Kafka clients that read while nodes come and go, and that meet no error.

Each reads on, commits what it has read, and fails its test with the first exception that its client lets through: what
a client retries by itself is its own business. For tests in which no node dies: nothing is delivered twice there.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable

from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata
from kafka.structs import TopicPartition as KafkaPythonPartition

from tests.clients import kit
from tests.clients.crash_load import QUIET, Load


class SteadyReading(Load):
    """What every one of them promises: each record once, in order, and none skipped."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        super().__init__()
        self._bootstrap, self._topic, self._group = bootstrap, topic, group
        self.seen: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self._count = 0

    @property
    def progress(self) -> int:
        return self._count

    def _take(self, partition: int, records: Iterable[tuple[int, bytes]]) -> None:
        found = list(records)
        self.seen[partition] += found
        self._count += len(found)

    def check(self, acknowledged: dict[tuple[int, int], bytes]) -> None:
        expected: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        for (partition, offset), value in sorted(acknowledged.items()):
            expected[partition].append((offset, value))
        for partition, records in expected.items():
            seen = self.seen[partition]
            wrong = next((pair for pair in zip(seen, records, strict=False) if pair[0] != pair[1]), None)
            name = type(self).__name__
            assert wrong is None, f"{name}: partition {partition}: {wrong[0]} where {wrong[1]} was written"
            assert len(seen) == len(records), f"{name}: partition {partition}: {len(seen)} of {len(records)} records"


class ConfluentReading(SteadyReading):
    def work(self) -> None:
        fatal: list[KafkaError] = []

        def told(error: KafkaError) -> None:
            if error.fatal():  # all others are for information: the client goes on by itself
                fatal.append(error)

        client: Consumer = kit.consumer(self._bootstrap, self._group, {**QUIET, "error_cb": told})
        client.subscribe([self._topic])
        while not self._stopped.is_set():
            ends: dict[int, int] = {}
            for message in client.consume(500, 0.1):
                if (error := message.error()) is not None:
                    raise KafkaException(error)
                partition, offset = message.partition() or 0, message.offset() or 0
                self._take(partition, [(offset, message.value() or b"")])
                ends[partition] = offset + 1
            if ends:
                offsets = [TopicPartition(self._topic, partition, end) for partition, end in ends.items()]
                for answer in client.commit(offsets=offsets, asynchronous=False):
                    if answer.error is not None:
                        raise KafkaException(answer.error)
            if fatal:
                raise KafkaException(fatal[0])
        client.close()


class KafkaPythonReading(SteadyReading):
    def work(self) -> None:
        client = KafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap.split(","),
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        while not self._stopped.is_set():
            ends: dict[KafkaPythonPartition, OffsetAndMetadata] = {}
            for place, records in client.poll(100).items():
                self._take(place.partition, ((one.offset, one.value) for one in records))
                ends[place] = OffsetAndMetadata(records[-1].offset + 1, "", -1)
            if ends:
                client.commit(ends)
        client.close()


class AioReading(SteadyReading):
    def work(self) -> None:
        asyncio.run(self._read())

    async def _read(self) -> None:
        client = AIOKafkaConsumer(
            self._topic,
            bootstrap_servers=self._bootstrap,
            group_id=self._group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        async with client:
            while not self._stopped.is_set():
                ends: dict[AioPartition, int] = {}
                for place, records in (await client.getmany(timeout_ms=100)).items():
                    self._take(place.partition, ((one.offset, one.value or b"") for one in records))
                    ends[place] = records[-1].offset + 1
                if ends:
                    await client.commit(ends)


READINGS: tuple[type[SteadyReading], ...] = (ConfluentReading, KafkaPythonReading, AioReading)
