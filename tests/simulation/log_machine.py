"""A machine that runs logs and a group commit under mixed work, and the clients that remember what they were told.

`Clients` live as long as the test; a `LogMachine` is one life of the machine, from opening its logs to the power cut.
Opening checks every promise before any new work starts. The work: plain, idempotent and transactional batches on data
logs (tier 0), offset commits (tier 1), transaction states (tier 2), readers, retention, delete-records, compaction and
checkpoints, all at once, on segments of a few kilobytes. Those who write to `TIMELESS` send no timestamps.

The transaction protocol here is the smallest honest one: *ongoing* is durable before data is written, the decision is
durable before markers are written, *done* is written behind them. The real coordinator is tested with the broker.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.encryption import SimKeys
from tests.simulation.hanging_up import or_hangs_up
from tests.simulation.promises import Found, KeyedPromises, Promises, committed_batches, expect
from waystation.config import TopicSettings
from waystation.errors import OffsetOutOfRange
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import TRANSACTIONAL
from waystation.log.cleaning import compaction, retention
from waystation.log.commit import GroupCommit
from waystation.log.log import Appended, Log
from waystation.log.opening.recovery import Trust, lead_alone, open_log
from waystation.log.points import RecoveryPoints
from waystation.world import World

ROOT = "/data"
STREAMS = ("stream-0", "stream-1")
TIMELESS = "stream-1"
TRIMMED = "trimmed"
TABLE = "table"
OFFSETS = "offsets"
STATES = "states"
TIERS = {OFFSETS: 1, STATES: 2}
KEYED = (TABLE, OFFSETS, STATES)


@dataclass
class Transaction:
    """As its client knows it: what it wrote, what it asked for, whether it was told that it is done."""

    producer_id: int
    batches: list[tuple[str, bytes]] = field(default_factory=list, repr=False)
    asked: str | None = None
    told: bool = False


@dataclass
class Idempotent:
    """A producer that sends again what was not acknowledged."""

    producer_id: int
    log: str
    next_sequence: int = 0
    in_flight: list[bytes] = field(default_factory=list)


class Clients:
    """Everything that is remembered outside the machine."""

    keys: SimKeys | None = None

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.streams = {name: Promises(name) for name in (*STREAMS, TRIMMED)}
        self.tables = {name: KeyedPromises(name) for name in KEYED}
        self.producers = [Idempotent(number, (*STREAMS, TRIMMED)[number % 3]) for number in range(3)]
        self.transactions: dict[int, Transaction] = {}
        self.numbers = itertools.count(1)
        self.acknowledged = 0

    def settings(self, name: str) -> TopicSettings:
        """Drawn once per life: a restart may come with other settings."""
        keyed = name in KEYED
        return TopicSettings(
            cleanup_policy="compact" if keyed else "delete",
            segment_bytes=self.rng.choice((1_200, 3_000, 20_000)),
            index_interval_bytes=self.rng.choice((0, 300, 4_096)),
            min_cleanable_dirty_ratio=0.01,
            delete_retention_ms=self.rng.choice((0, 1_000, 86_400_000)),
            retention_bytes=self.rng.choice((2_000, 10_000)) if name == TRIMMED else -1,
        )

    def payload(self) -> bytes:
        """Never the same twice, small or large, easy or hard to tell from a batch."""
        number = next(self.numbers)
        filler = self.rng.choice((b"", b"\x02" * 50, bytes(600), self.rng.randbytes(self.rng.choice((20, 700, 5_000)))))
        return b"%d:" % number + filler


class LogMachine:
    """One life."""

    def __init__(
        self, world: World, disk: SimDisk, clients: Clients, commit: Callable[[World], GroupCommit] = GroupCommit
    ) -> None:
        self.world = world
        self.disk = disk
        self.clients = clients
        self.rng = clients.rng
        self.logs: dict[str, Log] = {}
        self.commit = commit(world)
        self.points = RecoveryPoints(disk, ROOT)

    # -- start and stop ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers every log, checks every promise, ends the transactions that the crash interrupted."""
        self.disk.make_folder(ROOT)
        self.points.load()
        for name in (*STREAMS, TRIMMED, *KEYED):
            trust = Trust(self.points.of(name), self.points.clean, self.points.same_boot)
            self.logs[name] = open_log(
                self.world,
                f"{ROOT}/{name}",
                self.clients.settings(name),
                trust,
                tier=TIERS.get(name, 0),
                on_write=self.commit.written,
            )
            lead_alone(self.logs[name], trust)
        self.save_points()
        found = {name: promises.check(self.logs[name]) for name, promises in self.clients.streams.items()}
        values = {name: promises.check(self.logs[name]) for name, promises in self.clients.tables.items()}
        self._check_commits(values[OFFSETS])
        self.commit.start()
        await self._end_transactions(values[STATES], found)

    async def stop(self) -> None:
        """A clean stop."""
        await self.commit.stop()
        for log in self.logs.values():
            log.close(clean=True)
        self._save(clean=True)

    def save_points(self) -> None:
        self._save(clean=False)

    def _save(self, *, clean: bool) -> None:
        points = {name: log.recovery_point for name, log in self.logs.items()}
        self.points.save(points, clean=clean)
        for name, point in points.items():
            self.logs[name].point_saved(point)  # compaction stays behind it

    def _check_commits(self, committed: dict[bytes, bytes | None]) -> None:
        for key, value in committed.items():
            name = key.decode().partition("/")[2]
            end = self.logs[name].end_offset
            expect(value is not None and int(value) <= end, f"{key!r} committed {value!r}, but {name} ends at {end}")

    async def _end_transactions(self, states: dict[bytes, bytes | None], found: dict[str, Found]) -> None:
        owners = {header.producer_id for data in found.values() for _, header in data if header.transactional}
        for producer_id in sorted(owners):
            expect(str(producer_id).encode() in states, f"data of transaction {producer_id}, of which nothing is known")
        fates: list[tuple[Transaction, bool]] = []
        for key, value in sorted(states.items()):
            decision, _, names = (value or b"").decode().partition("|")
            transaction = self.clients.transactions[int(key)]
            if transaction.told:
                expect(
                    decision in (transaction.asked, f"done-{transaction.asked}"), f"{key!r}: told, but it is {decision}"
                )
            if decision == "ongoing":
                decision = "abort"
                await self.durable(STATES, self.put(STATES, key, f"abort|{names}".encode()))
            if not decision.startswith("done"):
                self._write_markers(int(key), names.split(","), decision == "commit")
                self.put(STATES, key, f"done-{decision}|{names}".encode())
            fates.append((transaction, decision.removeprefix("done-") == "commit"))
        for name in STREAMS:
            log = self.logs[name]
            expect(log.stable_offset == log.end_offset, f"{name}: a transaction is still open at {log.stable_offset}")
        visible = {name: {h.base_offset: data for data, h in committed_batches(self.logs[name])} for name in STREAMS}
        for transaction, committed in fates:
            for name, data in transaction.batches:
                base = batches.read_header(data).base_offset
                seen = visible[name].get(base) == data
                expect(seen == committed, f"{name}: batch {base} of {transaction}: visible is {seen}")

    # -- what brokers do -----------------------------------------------------------------------------------------

    def append(self, name: str, batch: bytearray) -> bytes:
        """Appends to a stream; returns the batch as stored."""
        appended = self._hand_over(name, batch)
        expect(not appended.duplicate, f"{name}: a new batch was taken for a duplicate")
        return bytes(batch)

    def put(self, name: str, key: bytes, value: bytes | None) -> bytes:
        """Appends a record to a table; returns the batch as stored."""
        batch = batches.build([(key, value, ())], self.world.clock.now_ms())
        self._hand_over(name, batch)
        return bytes(batch)

    def _hand_over(self, name: str, batch: bytearray) -> Appended:
        promises = self.clients.streams.get(name) or self.clients.tables[name]
        try:
            appended = self.logs[name].append(batch, batches.check_batch(batch))
        except PowerCut:
            promises.place(bytes(batch))  # all of it may have been written
            raise
        if not appended.duplicate:
            promises.place(bytes(batch))
        return appended

    async def durable(self, name: str, stored: bytes) -> bool:
        """Waits as an acknowledgement does, and notes it as told; False if the power went first."""
        await self.commit.durable(self.logs[name], batches.read_header(stored).last_offset + 1)
        if not self.disk.powered:
            return False
        promises = self.clients.streams.get(name) or self.clients.tables[name]
        promises.promise(stored)
        self.clients.acknowledged += 1
        return True

    # -- work ----------------------------------------------------------------------------------------------------

    async def work(self, seconds: float) -> None:
        """All kinds of work at once, for so long in virtual time."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._produce_plain,
            self._produce_plain,
            self._run_transaction,
            self._run_transaction,
            self._commit_offset,
            self._commit_offset,
            self._change_table,
            self._read,
            self._read,
            self._trim,
            self._keep,
            self._compact,
            self._checkpoint,
        ]
        until = self.world.clock.monotonic() + seconds
        jobs: list[Coroutine[Any, Any, None]] = [self._repeat(kind, until) for kind in kinds]
        jobs += [self._repeat(lambda p=producer: self._produce_again(p), until) for producer in self.clients.producers]  # type: ignore[misc]
        async with asyncio.TaskGroup() as tasks:
            for job in jobs:
                tasks.create_task(job)

    async def _repeat(self, kind: Callable[[], Awaitable[None]], until: float) -> None:
        while self.world.clock.monotonic() < until:
            await kind()
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.02)))

    def _batch(self, name: str, *, producer_id: int = -1, sequence: int = -1, attributes: int = 0) -> bytearray:
        records = [(None, self.clients.payload(), ()) for _ in range(self.rng.choice((1, 1, 3)))]
        made_ms = self.world.clock.now_ms() - self.rng.randrange(20)
        return batches.build(
            records,
            -1 if name == TIMELESS else made_ms,
            producer_id=producer_id,
            producer_epoch=0 if producer_id >= 0 else -1,
            base_sequence=sequence,
            attributes=attributes,
        )

    async def _produce_plain(self) -> None:
        name = self.rng.choice((*STREAMS, TRIMMED))
        await self.durable(name, self.append(name, self._batch(name)))

    async def _produce_again(self, producer: Idempotent) -> None:
        """Sends what is in flight again, in order, then a few new batches, then waits for all of them."""
        promises = self.clients.streams[producer.log]
        while len(producer.in_flight) < self.rng.randint(1, 4):
            batch = self._batch(producer.log, producer_id=producer.producer_id, sequence=producer.next_sequence)
            producer.next_sequence = batches.read_header(batch).last_sequence + 1
            producer.in_flight.append(bytes(batch))
        end = 0
        bases: list[int] = []
        for content in producer.in_flight:
            batch = bytearray(content)
            appended = self._hand_over(producer.log, batch)
            bases.append(appended.base_offset)
            end = max(end, appended.last_offset + 1)
            await asyncio.sleep(self.rng.choice((0, 0, 0.002)))
        await self.commit.durable(self.logs[producer.log], end)
        if self.disk.powered:
            for base, content in zip(bases, producer.in_flight, strict=True):
                promises.promised_at(self.logs[producer.log], base, content)
            self.clients.acknowledged += len(bases)
            producer.in_flight.clear()

    async def _run_transaction(self) -> None:
        transaction = Transaction(1_000 + next(self.clients.numbers))
        self.clients.transactions[transaction.producer_id] = transaction
        key = str(transaction.producer_id).encode()
        names = list(self.rng.choice((STREAMS, STREAMS[:1], STREAMS[1:])))
        if not await self.durable(STATES, self.put(STATES, key, b"ongoing|" + ",".join(names).encode())):
            return
        sequence = dict.fromkeys(names, 0)
        for _ in range(self.rng.randint(1, 4)):
            name = self.rng.choice(names)
            batch = self._batch(
                name, producer_id=transaction.producer_id, sequence=sequence[name], attributes=TRANSACTIONAL
            )
            sequence[name] = batches.read_header(batch).last_sequence + 1
            transaction.batches.append((name, self.append(name, batch)))
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.01)))
        decision = self.rng.choice(("commit", "commit", "abort"))
        transaction.asked = decision
        if not await self.durable(STATES, self.put(STATES, key, f"{decision}|{','.join(names)}".encode())):
            return
        self._write_markers(transaction.producer_id, names, decision == "commit")
        self.put(STATES, key, f"done-{decision}|{','.join(names)}".encode())
        transaction.told = self.disk.powered

    def _write_markers(self, producer_id: int, names: list[str], commit: bool) -> None:
        for name in names:
            self.append(name, batches.build_marker(producer_id, 0, commit, 0, self.world.clock.now_ms()))

    async def _commit_offset(self) -> None:
        """A consumer commits what it has read, also what is not durable yet."""
        name = self.rng.choice(STREAMS)
        key = f"group-{self.rng.randrange(3)}/{name}".encode()
        await self.durable(OFFSETS, self.put(OFFSETS, key, str(self.logs[name].written_offset).encode()))

    async def _change_table(self) -> None:
        value = None if self.rng.random() < 0.2 else self.clients.payload()
        await self.durable(TABLE, self.put(TABLE, b"key-%d" % self.rng.randrange(6), value))

    async def _read(self) -> None:
        name = self.rng.choice((*STREAMS, TRIMMED))
        log = self.logs[name]
        offset = self.rng.randint(log.start_offset, log.written_offset)
        data = log.read(offset, self.rng.choice((1, 1_000, 100_000)))
        placed = self.clients.streams[name].placed
        for position, header in batches.scan(data):
            known = data[position : position + header.size] in placed.get(header.base_offset, ())
            expect(known, f"{name}: read a batch at {header.base_offset} that was never sent")
        if offset < log.written_offset:
            first = batches.read_header(data)
            expect(first.base_offset <= offset <= first.last_offset, f"{name}: asked for {offset}, got {first}")

    async def _trim(self) -> None:
        log, promises = self.logs[TRIMMED], self.clients.streams[TRIMMED]
        now_ms = self.world.clock.now_ms()
        if self.rng.random() < 0.5:
            promises.start_asked = max(promises.start_asked, retention.expired_until(log, now_ms))
            await retention.enforce(log, now_ms)
        else:
            offset = self.rng.randint(log.start_offset, log.written_offset)
            promises.start_asked = max(promises.start_asked, offset)
            try:
                if await or_hangs_up(self.rng, retention.remove_before(log, offset)) is None:
                    return
            except OffsetOutOfRange:
                return
        if self.disk.powered:
            promises.start_promised = max(promises.start_promised, log.start_offset)
        await asyncio.sleep(0.05)

    async def _keep(self) -> None:
        """Retention by time, on records that are all fresh: nothing may go."""
        for name in STREAMS:
            gone = await retention.enforce(self.logs[name], self.world.clock.now_ms())
            expect(gone == 0, f"{name}: retention took {gone} fresh segments")
        await asyncio.sleep(0.1)

    async def _compact(self) -> None:
        for name in KEYED:
            plan = compaction.due(self.logs[name], self.world.clock.now_ms())
            if plan is not None:
                await compaction.compact(self.logs[name], plan)
        await asyncio.sleep(self.rng.choice((0.01, 0.1)))

    async def _checkpoint(self) -> None:
        for log in self.logs.values():
            log.checkpoint()
        await self.world.offload(self.save_points)
        await asyncio.sleep(self.rng.choice((0.01, 0.1, 1.0)))

    async def roll(self) -> None:
        """Every log begins a new segment. All else is durable, and noted."""
        for log in self.logs.values():
            await self.commit.durable(log, log.end_offset)
        self.save_points()
        for log in self.logs.values():
            if log.end_offset > log.active.base_offset:
                log.roll(log.end_offset)
