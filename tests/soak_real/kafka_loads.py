"""Kafka clients under the long run: idempotent and keyed writers, a group, transactions, a share group.

The topics are small on purpose: segments of some kilobytes and seconds of retention, so that rolling, deletion and
compaction go on all the time beside the writes. Each load notes in its account what the broker acknowledged.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    AcknowledgeType,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.clients import kit
from tests.clients.crash_load import QUIET
from tests.clients.share_kit import from_the_beginning, share_consumer
from tests.clients.stage import create_topic
from tests.soak_real.audit import Findings, KeysAccount, LogAccount, OffsetsAccount, QueueAccount, TransactionsAccount
from tests.soak_real.ground import PAUSE_S, Ground, Pace, Steady
from tests.soak_real.transformer import COMMITTED, INPUT, OUTPUT
from tests.support.server import ROOT
from tests.support.waiting import wait_for

PARTITIONS = 3
KEYS = 200
RETENTION_MS = 90_000
TOPIC, KEYED, DEAD = "soak.log", "soak.keyed", "soak.share.dead"
GROUP, SHARE_GROUP = "soak-group", "soak-share"
PATIENCE_S = 120.0
"""How long a question of the audit may wait for an answer of a busy broker."""
PATIENT = {"enable.idempotence": True, "message.timeout.ms": 280_000, "linger.ms": 10}


def prepare(ground: Ground) -> None:
    """The topics, and the settings of the share group."""
    admin = AdminClient({"bootstrap.servers": ground.bootstrap, "log_level": 0})
    small = {"segment.bytes": 32_768, "segment.ms": 20_000}
    brief = {**small, "retention.ms": RETENTION_MS}
    create_topic(admin, TOPIC, PARTITIONS, brief)
    # A transaction that has to be begun again under load may take its time: its input is there for longer.
    create_topic(admin, INPUT, 1, {**small, "retention.ms": 4 * RETENTION_MS})
    create_topic(admin, OUTPUT, 2, {**small, "retention.ms": 4 * RETENTION_MS})
    create_topic(admin, DEAD, 1, brief)
    compacting = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0.1, "delete.retention.ms": 1000}
    create_topic(admin, KEYED, 2, {**small, **compacting, "segment.ms": 5_000})
    from_the_beginning(admin, SHARE_GROUP, errors_deadletterqueue_topic_name=DEAD, share_delivery_count_limit="1000")


def number_of(message: Message) -> int:
    return int(message.value() or b"-1")


def watermarks(client: Consumer, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
    """Start and end of each partition; a broker that is starting is asked again."""

    def ask() -> dict[int, tuple[int, int]]:
        return {p: client.get_watermark_offsets(TopicPartition(topic, p), timeout=5) for p in range(partitions)}

    return wait_for(ask, f"watermarks of {topic}", within_s=PATIENCE_S, retry_on=(KafkaException,))


def held_offsets(bootstrap: str, partitions: list[int]) -> dict[int, int]:
    """What the group has committed."""
    client = kit.consumer(bootstrap, GROUP, QUIET)
    asked = [TopicPartition(TOPIC, partition) for partition in partitions]
    try:
        answers = wait_for(
            lambda: client.committed(asked, timeout=10),
            "offsets are told",
            within_s=PATIENCE_S,
            retry_on=(KafkaException,),
        )
    finally:
        client.close()
    return {tp.partition: tp.offset for tp in answers}


class Writing(Steady):
    """An idempotent producer; every report is compared with the only offset that it can have."""

    expected = ()

    def __init__(self, ground: Ground, account: LogAccount, per_s: float, mirror: QueueAccount | None = None) -> None:
        super().__init__(ground)
        self.account = account
        self._mirror = mirror
        self._pace = Pace(per_s * ground.rate / 10)
        self._sent = 0

    @property
    def progress(self) -> int:
        return self.account.acknowledged

    def session(self) -> None:
        client = kit.producer(self.ground.bootstrap, {**PATIENT, **QUIET})
        while not self._stopped.is_set():
            for _ in range(10):
                partition = self._sent % self.account.partitions
                if self._mirror is not None:
                    self._mirror.try_number(self._sent)
                kit.send(
                    client, self.account.name, b"%012d" % self._sent, partition=partition, on_delivery=self._report
                )
                self._sent += 1
            client.poll(0)
            self._pace.wait(self._stopped)
            while len(client) > 2000:  # an application would wait for the broker too
                client.poll(0.1)
        if client.flush(280):
            self.findings.broken("an idempotent producer gets its reports", f"{len(client)} without one")

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.findings.broken("an idempotent producer never gives up", f"{self.account.name}: {error}")
            return
        number = number_of(message)
        self.account.report(message.partition() or 0, message.offset() or 0, number)
        if self._mirror is not None:
            self._mirror.stored(number)


class GroupReading(Steady):
    """A member of a consumer group; several share the accounts. Nothing is skipped, commits stay."""

    expected = (KafkaException,)

    def __init__(self, ground: Ground, account: LogAccount, offsets: OffsetsAccount) -> None:
        super().__init__(ground)
        self.account, self.offsets = account, offsets

    @property
    def progress(self) -> int:
        return sum(self.offsets.promised.values())

    def session(self) -> None:
        timing = {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 500}
        client = kit.consumer(self.ground.bootstrap, GROUP, {**timing, **QUIET})
        try:
            client.subscribe([self.account.name])
            while not self._stopped.is_set():
                self._turn(client)
        finally:
            client.close()

    def _turn(self, client: Consumer) -> None:
        ends: dict[int, int] = {}
        for message in client.consume(200, 0.2):
            if message.error() is not None:
                continue
            partition, offset = message.partition() or 0, message.offset() or 0
            start = 0
            if offset > self.account.seen_end[partition]:  # a gap: only what retention deleted may be missing
                start = watermarks(client, self.account.name, self.account.partitions)[partition][0]
            self.account.read(partition, offset, number_of(message), start)
            ends[partition] = offset + 1
        if not ends:
            return
        wanted = [TopicPartition(self.account.name, partition, end) for partition, end in ends.items()]
        try:
            answers = client.commit(offsets=wanted, asynchronous=False)
        except KafkaException:
            return  # the broker is down, or the group rebalances: the next turn commits more
        for answer in answers or ():
            if answer.error is None:
                self.offsets.committed(answer.partition, answer.offset)


class KeyedWriting(Steady):
    """Versions of keys for the compacted topic, in the order of an idempotent producer."""

    def __init__(self, ground: Ground, account: KeysAccount, per_s: float) -> None:
        super().__init__(ground)
        self.account = account
        self._pace = Pace(per_s * ground.rate / 10)
        self._turns = 0

    @property
    def progress(self) -> int:
        return self.account.acknowledged_count

    def session(self) -> None:
        client = kit.producer(self.ground.bootstrap, {**PATIENT, **QUIET})
        while not self._stopped.is_set():
            for _ in range(10):
                self._turns += 1
                self._write(client, (self._turns * 7919) % KEYS)
            client.poll(0)
            self._pace.wait(self._stopped)
            while len(client) > 2000:
                client.poll(0.1)
        client.flush(280)

    def _write(self, client: Producer, key: int) -> None:
        version = self.account.try_next(key)
        value = None if self.account.is_tombstone(version) else b"%d" % version

        def report(error: KafkaError | None, _message: Message) -> None:
            if error is None:
                self.account.report(key, version)
            else:
                self.findings.broken("an idempotent producer never gives up", f"{self.account.name}: {error}")

        headers = [("version", b"%d" % version)]
        kit.send(
            client, self.account.name, value, key=b"%d" % key, partition=key % 2, headers=headers, on_delivery=report
        )


def found_versions(messages: list[Message]) -> list[tuple[int, int]]:
    """(key, version) of records as they stand."""
    versions = []
    for message in messages:
        headers: dict[str, Any] = dict(message.headers() or [])
        versions.append((int(message.key() or b"-1"), int(headers["version"])))
    return versions


class Transforming(Steady):
    """Consume, transform, produce, in a process that is started again whenever its client gave up."""

    expected = (OSError,)

    def __init__(self, ground: Ground, account: TransactionsAccount) -> None:
        super().__init__(ground)
        self.account = account
        self._committed_input = 0

    @property
    def progress(self) -> int:
        return self.account.transactions

    def session(self) -> None:
        command = [sys.executable, "-m", "tests.soak_real.transformer"]
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        with subprocess.Popen(
            [*command, self.ground.bootstrap, str(self.account.transactions)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
        ) as child:
            try:
                for line in child.stdout or ():
                    self._heard(*json.loads(line))
                    if self._stopped.is_set():
                        return
            finally:
                child.kill()
        self._stopped.wait(PAUSE_S)

    def _heard(self, word: str, *rest: Any) -> None:
        if word == "committed":
            self._committed_input = rest[1]
            self.account.committed(*rest)
        elif word == "aborted":
            self.account.aborted += 1
        elif word == "position" and rest[0] < self._committed_input:
            what = f"{INPUT}: {self._committed_input} became {rest[0]}"
            self.findings.broken("committed offsets stay", what)
        elif word == "skipped":
            self.findings.broken("no record is skipped", rest[0])


class OutputReading(Steady):
    """Reads what was committed, going on where it was: exactly once, whole."""

    expected = (KafkaException,)

    def __init__(self, ground: Ground, account: TransactionsAccount) -> None:
        super().__init__(ground)
        self.account = account
        self._positions = {0: OFFSET_BEGINNING, 1: OFFSET_BEGINNING}

    @property
    def progress(self) -> int:
        return self.account.read_end

    def session(self) -> None:
        client = kit.consumer(self.ground.bootstrap, None, {**QUIET, **COMMITTED})
        try:
            client.assign([TopicPartition(OUTPUT, p, offset) for p, offset in self._positions.items()])
            while not self._stopped.is_set():
                for message in client.consume(200, 0.2):
                    if message.error() is None:
                        self._read(message)
        finally:
            client.close()

    def _read(self, message: Message) -> None:
        partition = message.partition() or 0
        (self.account.read_range if partition else self.account.read_input)(message.value() or b"")
        self._positions[partition] = (message.offset() or 0) + 1


class SharedReading(Steady):
    """A member of a share group that accepts, and rejects one in fifty to the dead-letter topic."""

    expected = (KafkaException,)

    def __init__(self, ground: Ground, account: QueueAccount, dead: QueueAccount) -> None:
        super().__init__(ground)
        self.account, self.dead = account, dead

    @property
    def progress(self) -> int:
        return self.account.acked_count

    @staticmethod
    def is_bad(number: int) -> bool:
        return number % 50 == 7

    def session(self) -> None:
        client = share_consumer(self.ground.bootstrap, SHARE_GROUP, [TOPIC])
        try:
            while not self._stopped.is_set():
                self._turn(client)
        finally:
            threading.Thread(target=client.close, daemon=True).start()  # waits long for a broker that is away

    def _turn(self, client: Any) -> None:
        numbers: list[tuple[int, int]] = []
        for message in client.poll(0.3):
            if message.error() is not None:
                raise KafkaException(message.error())
            number = number_of(message)
            self.account.delivered(number)
            if self.is_bad(number):
                self.dead.try_number(number)
            self.account.ack_sent(number)
            client.acknowledge(message, AcknowledgeType.REJECT if self.is_bad(number) else AcknowledgeType.ACCEPT)
            numbers.append((message.partition() or 0, number))
        if not numbers:
            return
        failures = client.commit_sync(5)
        good = {tp.partition for tp, failure in failures.items() if failure is None}
        for partition, number in numbers:
            if partition in good:
                self.account.acked(number)
                if self.is_bad(number):
                    self.dead.stored(number)


class LetterReading(Steady):
    """Reads the dead-letter topic, going on where it was. A letter may be there twice when the broker was killed
    between writing it and noting that."""

    expected = (KafkaException,)

    def __init__(self, ground: Ground, account: QueueAccount) -> None:
        super().__init__(ground)
        self.account = account
        self._position = OFFSET_BEGINNING

    @property
    def progress(self) -> int:
        return self.account.deliveries

    def session(self) -> None:
        client = kit.consumer(self.ground.bootstrap, None, QUIET)
        try:
            client.assign([TopicPartition(DEAD, 0, self._position)])
            while not self._stopped.is_set():
                for message in client.consume(100, 0.5):
                    if message.error() is None:
                        self.account.delivered(number_of(message))
                        self._position = (message.offset() or 0) + 1
        finally:
            client.close()


class KafkaSide:
    """All of it, with what is checked after each restart and at the end."""

    def __init__(self, ground: Ground, findings: Findings) -> None:
        self.ground = ground
        self.log = LogAccount(TOPIC, PARTITIONS, findings)
        self.input = LogAccount(INPUT, 1, findings)
        self.keys = KeysAccount(KEYED, findings)
        self.output = TransactionsAccount(OUTPUT, findings)
        self.offsets = OffsetsAccount(GROUP, findings)
        self.shared = QueueAccount(SHARE_GROUP, findings)
        self.dead = QueueAccount(DEAD, findings)
        self.findings = findings
        self._starts = dict.fromkeys(range(PARTITIONS), 0)
        self._written: list[tuple[float, list[int]]] = []
        self.kept_keys = 0
        self.writers: list[Steady] = [
            Writing(ground, self.log, 120, self.shared),
            Writing(ground, self.input, 40),
            KeyedWriting(ground, self.keys, 60),
        ]
        self.readers: list[Steady] = [
            GroupReading(ground, self.log, self.offsets),
            GroupReading(ground, self.log, self.offsets),
            Transforming(ground, self.output),
            OutputReading(ground, self.output),
            SharedReading(ground, self.shared, self.dead),
            SharedReading(ground, self.shared, self.dead),
            LetterReading(ground, self.dead),
        ]

    def promised(self) -> dict[str, Any]:
        """What was acknowledged up to now, to be compared after a crash."""
        return {
            "at": time.time(),
            "ends": list(self.log.acknowledged_end),
            "input": list(self.input.acknowledged_end),
            "offsets": self.offsets.promised,
            "keys": self.keys.snapshot(),
        }

    def check(self, promised: dict[str, Any]) -> None:
        """The logs reach as far as was promised, offsets and last values stay, retention takes only what is old."""
        client = kit.consumer(self.ground.bootstrap, None, QUIET)
        try:
            partitions = list(promised["offsets"])
            held = held_offsets(self.ground.bootstrap, partitions) if partitions else {}
            marks = watermarks(client, TOPIC, PARTITIONS)
            self.log.check_ends({p: end for p, (_, end) in marks.items()}, promised["ends"])
            self.offsets.check(promised["offsets"], held, {p: end for p, (_, end) in marks.items()})
            self.input.check_ends({0: watermarks(client, INPUT, 1)[0][1]}, promised["input"])
        finally:
            client.close()
        self._check_retention(time.time(), {p: start for p, (start, _) in marks.items()})
        self._written.append((promised["at"], promised["ends"]))
        found = kit.read_all(self.ground.bootstrap, KEYED, QUIET)
        self.kept_keys = len(found)
        self.keys.check(promised["keys"], found_versions(found))

    def _check_retention(self, now: float, starts: dict[int, int]) -> None:
        """What was behind the end at an earlier look is not old before that look is."""
        self._written = [(at, seen) for at, seen in self._written if at > now - RETENTION_MS / 1000]
        if self._written:
            for partition, oldest in enumerate(self._written[0][1]):
                if starts[partition] > oldest:
                    self.findings.broken(
                        "retention deletes only what is old",
                        f"{TOPIC}-{partition} starts at {starts[partition]}, {oldest} was its end less than "
                        f"{RETENTION_MS // 1000} s ago",
                    )
        for partition, start in starts.items():
            if start < self._starts[partition]:
                self.findings.broken("what was deleted stays so", f"{TOPIC}-{partition}: {start}")
            self._starts[partition] = start

    def drained(self) -> bool:
        return (
            all(seen >= end for seen, end in zip(self.log.seen_end, self.log.acknowledged_end, strict=True))
            and self.output.read_end >= self.input.acknowledged
            and not self.shared.open_numbers()
            and not self.dead.never_seen()
        )

    def finish(self) -> None:
        """Everything is read: what is not there now is lost."""
        self.check(self.promised())
        self.log.finish()
        self.output.finish()
        self.shared.finish()
        for number in self.dead.never_seen():
            self.findings.broken("dead letters are all there", f"{DEAD}: {number} was rejected")

    def figures(self) -> dict[str, object]:
        return {
            "records acknowledged": self.log.acknowledged + self.input.acknowledged + self.keys.acknowledged_count,
            "records deleted by retention": sum(self._starts.values()),
            "expired before the group read them": self.log.expired,
            "keyed records written and kept": [self.keys.acknowledged_count, self.kept_keys],
            "transactions committed and aborted": [self.output.transactions, self.output.aborted],
            "share group: acked, redelivered, dead": [
                self.shared.acked_count,
                self.shared.redeliveries,
                self.dead.stored_count,
            ],
        }
