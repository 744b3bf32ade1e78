"""A machine that follows: its logs copy those of leaders that come and go, and the power goes at any moment.

The leaders are models in memory: a `Leader` is the history that the cluster agrees on; `elect` gives it another end.
What a follower has reported as durable is committed, and no leader is without it. A `Copy` remembers, outside the
machine, what the follower's log holds, what of it must be there after a power cut, and what may be.

`FollowerMachine` is one life. Opening checks every promise: what was durable and not truncated is there byte for byte,
what was truncated durably is not, and epochs, producers, aborted transactions and time indexes are what a replay of the
bytes gives. The work: following (which truncates to where the histories part, found by the log's own epochs),
elections, retention, compaction, checkpoints and readers, all at once, on segments of a few kilobytes.
"""

from __future__ import annotations

import asyncio
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Awaitable, Callable

from tests.simulation.disk import SimDisk
from tests.simulation.encryption import SimKeys
from tests.simulation.promises import Found, expect, insist
from waystation.config import TopicSettings
from waystation.errors import StorageFailed, WaystationError
from waystation.log.aborted import Aborted
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import TRANSACTIONAL
from waystation.log.cleaning import compaction, retention, truncation
from waystation.log.commit import GroupCommit
from waystation.log.epochs import Epochs
from waystation.log.log import Log
from waystation.log.opening.recovery import Trust, open_log
from waystation.log.points import RecoveryPoints
from waystation.log.producers import Producers
from waystation.world import World

ROOT = "/data"
STREAM = "stream"
STATES = "states"
TABLE = "table"
NAMES = (STREAM, STATES, TABLE)
TIERS = {STATES: 1}
EVERYTHING = 2**62


def replay(found: Found) -> tuple[Producers, list[Aborted]]:
    """What batches say about their producers."""
    producers, aborted = Producers(), []
    for data, header in found:
        if header.producer_id < 0:
            continue
        if not header.control:
            producers.record(header, 0)
            continue
        start = producers.end_transaction(header, 0, 0)
        if start is not None and not batches.marker_commits(data, header):
            aborted.append(Aborted(header.producer_id, start, header.last_offset))
    return producers, aborted


def epochs_of(found: Found, start: int = 0) -> list[tuple[int, int]]:
    entries: list[tuple[int, int]] = []
    for _, header in found:
        if not entries or header.leader_epoch > entries[-1][0]:
            entries.append((header.leader_epoch, max(header.base_offset, start)))
    return entries


def described(producers: Producers) -> dict[int, object]:
    """All but when the broker saw them."""
    return {
        state.producer_id: (state.epoch, state.batches, state.transaction_start, state.last_timestamp)
        for state in producers.by_id.values()
    }


class Leader:
    """The history of one partition, as its present leader has it."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self._rng = rng
        self._keyed = name == TABLE
        self._number = 0
        self._producers = Producers()
        self.epoch = 0
        self.batches: Found = []
        self.bases: list[int] = []
        self.committed = 0

    @property
    def end(self) -> int:
        return self.batches[-1][1].last_offset + 1 if self.batches else 0

    def write(self, now_ms: int) -> None:
        batch = self._make(now_ms)
        batches.place(batch, self.end, self.epoch)
        stored = bytes(batch), batches.read_header(batch)
        self.batches.append(stored)
        self.bases.append(stored[1].base_offset)
        header = stored[1]
        if header.control:
            self._producers.end_transaction(header, 0, 0)
        elif header.producer_id >= 0:
            self._producers.record(header, 0)

    def _make(self, now_ms: int) -> bytearray:
        rng = self._rng
        at = now_ms - rng.randrange(50)
        producer_id = rng.choice((-1, 1, 2, 11, 12, 13))
        if self._keyed or producer_id < 0:
            return batches.build(self._records(), at)
        state = self._producers.by_id.get(producer_id)
        epoch = 0 if state is None else state.epoch
        if producer_id > 10 and producer_id in self._producers.open and rng.random() < 0.5:
            return batches.build_marker(producer_id, epoch, rng.random() < 0.5, 0, at)
        renewed = rng.random() < 0.1 and producer_id not in self._producers.open
        sequence = 0 if state is None or renewed else state.last_sequence + 1
        return batches.build(
            self._records(),
            at,
            producer_id=producer_id,
            producer_epoch=epoch + renewed,
            base_sequence=sequence,
            attributes=TRANSACTIONAL if producer_id > 10 else 0,
        )

    def _records(self) -> list[tuple[bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]]:
        made = []
        for _ in range(self._rng.choice((1, 1, 1, 3, 7))):
            self._number += 1
            key = b"key-%d" % self._rng.randrange(5) if self._keyed else None
            filler = self._rng.choice((b"", b"", b"\x02" * 50, self._rng.randbytes(self._rng.choice((20, 300, 900)))))
            made.append((key, b"%d:" % self._number + filler, ()))
        return made  # type: ignore[return-value]

    def elect(self) -> None:
        """Another replica leads: it has all that is committed, and perhaps some of the rest."""
        keep = self._rng.randint(bisect_left(self.bases, self.committed), len(self.bases))
        del self.batches[keep:], self.bases[keep:]
        self._producers = replay(self.batches)[0]
        self.epoch += self._rng.randint(1, 3)

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(the largest epoch not above `epoch` that it has, where that ended); -1 and its start if it has none."""
        found, end = -1, 0
        for number, start in [*epochs_of(self.batches), (EVERYTHING, self.end)]:
            if number > epoch:
                return (found, start) if found >= 0 else (-1, 0)
            found, end = number, start
        return found, end

    def fetch(self, offset: int, count: int) -> Found:
        first = bisect_left(self.bases, offset)
        return self.batches[first : first + count]


class Copy:
    """What one log of the follower holds; outlives crashes."""

    def __init__(self, name: str, leader: Leader) -> None:
        self.name = name
        self.leader = leader
        self.content: Found = []  # from offset 0 on, also what retention has removed
        self.durable = 0
        self.allowed: dict[int, set[bytes]] = defaultdict(set)
        self.start_asked = 0
        self.start_promised = 0
        self.truncated = 0

    @property
    def compacts(self) -> bool:
        return self.name == TABLE

    def may_be_there(self, found: Found) -> None:
        for data, header in found:
            self.allowed[header.base_offset].add(data)

    def holds(self, found: Found) -> None:
        self.content += found

    def will_be_truncated(self, offset: int) -> int:
        """Returns where it must end then, if all of it is written."""
        end = 0
        for _, header in self.content:
            if header.last_offset >= offset:
                break
            end = header.last_offset + 1
        self.durable = min(self.durable, end)
        return end

    def is_truncated(self, end: int) -> None:
        self.content = [(data, header) for data, header in self.content if header.last_offset < end]
        self.allowed = defaultdict(set, {base: found for base, found in self.allowed.items() if base < end})
        self.durable = end
        self.truncated += 1

    # -- audits --------------------------------------------------------------------------------------------------

    def check_names(self, names: list[str]) -> None:
        """Before recovery sets things right: no segment is back that was truncated."""
        known = [batches.read_header(data).last_offset + 1 for found in self.allowed.values() for data in found]
        end = max([self.start_asked, *known])
        back = [name for name in names if name.endswith(".log") and int(name[:-4]) > end]
        expect(not back, f"{self.name}: may end at {end}, but there are {back}")

    def check_recovered(self, log: Log) -> None:
        found = list(log.batches_from(log.start_offset))
        bounds = f"{self.start_promised} <= {log.start_offset} <= {self.start_asked}"
        expect(self.start_promised <= log.start_offset <= self.start_asked, f"{self.name}: the start: {bounds}")
        expect(log.durable_offset == log.end_offset, f"{self.name}: opened with data that is not durable")
        for data, header in found:
            known = data in self.allowed[header.base_offset] or (
                self.compacts and header.last_offset < self.leader.committed
            )
            expect(known, f"{self.name}: the batch at {header.base_offset} was truncated, or never there")
        expect(log.end_offset >= self.durable, f"{self.name}: ends at {log.end_offset}, durable was {self.durable}")
        safe = self.leader.committed if self.compacts else 0
        before = [(data, header) for data, header in self.content if header.last_offset < max(safe, log.start_offset)]
        kept = [(data, header) for data, header in found if header.last_offset >= max(safe, log.start_offset)]
        promised = [(data, header) for data, header in self.content if header.last_offset < self.durable]
        self.content = before + kept
        expect(self.content[: len(promised)] == promised, f"{self.name}: what was durable is lost or has changed")
        self.check(log)
        self.durable = log.end_offset
        self.allowed.clear()
        self.may_be_there(self.content)

    def check(self, log: Log) -> None:
        """That the log shows its content, and knows about it what a replay says."""
        found = list(log.batches_from(log.start_offset))
        end = self.content[-1][1].last_offset + 1 if self.content else 0
        expect(log.end_offset == max(end, log.start_offset), f"{self.name}: ends at {log.end_offset}, expected {end}")
        if self.compacts:
            self._check_keys(found)
            return
        visible = [
            (data, header)
            for data, header in self.content
            if log.start_offset <= header.last_offset < log.written_offset
        ]
        expect(found == visible, f"{self.name}: its batches are not those that its leaders have sent")
        self._check_epochs(log, found)
        self._check_producers(log)
        self._check_times(log, found)

    def _check_epochs(self, log: Log, found: Found) -> None:
        expected = epochs_of(found, log.start_offset)
        entries = log.epochs.entries
        if not found:
            expected = entries[:1] if entries and entries[0][1] == log.end_offset else []
        expect(entries == expected, f"{self.name}: epochs {entries}, but the batches say {expected}")

    def _check_producers(self, log: Log) -> None:
        producers, aborted = replay(self.content)
        seen, expected = described(log.producers), described(producers)
        for producer_id in sorted(seen.keys() | expected.keys()):
            here, there = seen.get(producer_id), expected.get(producer_id)
            expect(here == there, f"{self.name}: producer {producer_id} is {here}, but the batches say {there}")
        expect(log.producers.open == producers.open, f"{self.name}: open transactions {log.producers.open}")
        ranges = [one for one in log.aborted.overlapping(0, EVERYTHING) if one.last_offset >= log.start_offset]
        expected_ranges = [one for one in aborted if one.last_offset >= log.start_offset]
        expect(ranges == expected_ranges, f"{self.name}: aborted {ranges}, but the batches say {expected_ranges}")

    def _check_keys(self, found: Found) -> None:
        there = {
            (record.offset, record.key, record.value)
            for data, header in found
            for record in batches.records_of(data, header)
        }
        newest = {}
        for data, header in self.content:
            for record in batches.records_of(data, header):
                newest[record.key] = (record.offset, record.key, record.value)
        for one in newest.values():
            expect(one in there, f"{self.name}: the newest value of {one[1]!r} at {one[0]} is lost")

    def _check_times(self, log: Log, found: Found) -> None:
        data_batches = [header for _, header in found if not header.control]
        for header in data_batches[:: max(1, len(data_batches) // 5)]:
            expected = next(one for one in data_batches if one.max_timestamp >= header.max_timestamp)
            at = log.find_time(header.max_timestamp)
            right = at is not None and max(expected.base_offset, log.start_offset) == at[0]
            expect(right, f"{self.name}: time {header.max_timestamp} is at {expected.base_offset}, not at {at}")
        for header in data_batches[:: max(1, len(data_batches) // 5)]:
            offset = max(header.base_offset, log.start_offset)
            read = batches.read_header(log.read(offset, 1))
            expect(read.base_offset == header.base_offset, f"{self.name}: reading at {offset} gives {read.base_offset}")


class Cluster:
    """Everything that is remembered outside the machine."""

    keys: SimKeys | None = None

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.copies = {name: Copy(name, Leader(rng, name)) for name in NAMES}

    def settings(self, name: str) -> TopicSettings:
        """Drawn once per life: a restart may come with other settings."""
        return TopicSettings(
            cleanup_policy="compact" if name == TABLE else "delete",
            retention_ms=self.rng.choice((-1, -1, 100)),
            retention_bytes=self.rng.choice((-1, 2_000, 10_000)),
            segment_bytes=self.rng.choice((900, 3_000, 20_000)),
            index_interval_bytes=self.rng.choice((0, 300, 4_096)),
            min_cleanable_dirty_ratio=0.01,
        )


class FollowerMachine:
    """One life. `power_goes`: most of all around truncations. `faults`: the disk may refuse, and who is refused tries
    again."""

    loses_power_after = 0.2
    """The share of truncations after which the power goes at once."""

    def __init__(
        self, world: World, disk: SimDisk, cluster: Cluster, *, power_goes: bool = False, faults: bool = False
    ) -> None:
        self.world = world
        self.disk = disk
        self.cluster = cluster
        self.rng = cluster.rng
        self.power_goes = power_goes
        self.faults = faults
        self.logs: dict[str, Log] = {}
        self.following = dict.fromkeys(NAMES, -1)  # the epoch of the leader that each log agrees with
        self.commit = GroupCommit(world)
        self.points = RecoveryPoints(disk, ROOT)

    # -- start and stop ------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.disk.make_folder(ROOT)
        self.points.load()
        for name in NAMES:
            self.cluster.copies[name].check_names(self.disk.list(f"{ROOT}/{name}"))
            self.logs[name] = open_log(
                self.world,
                f"{ROOT}/{name}",
                self.cluster.settings(name),
                Trust(self.points.of(name), self.points.clean, self.points.same_boot),
                tier=TIERS.get(name, 0),
                on_write=self.commit.written,
            )
        self._save_points(clean=False)
        self.check()
        self.commit.start()

    def check(self, name: str | None = None) -> None:
        """Of one log while it works; of all of them when they were just opened."""
        if name is not None:
            self.cluster.copies[name].check(self.logs[name])
            return
        for each, copy in self.cluster.copies.items():
            copy.check_recovered(self.logs[each])

    async def stop(self) -> None:
        await self.commit.stop()
        for log in self.logs.values():
            log.close(clean=True)
            if log.failure is None and not self.faults:
                saved = Epochs(self.disk, log.folder)
                saved.load()
                expect(saved.entries == log.epochs.entries, f"{log.folder}: epochs {saved.entries} are saved")
        try:
            self._save_points(clean=all(log.failure is None for log in self.logs.values()))
        except OSError:
            if not self.faults:
                raise

    def _save_points(self, *, clean: bool) -> None:
        points = {name: log.recovery_point for name, log in self.logs.items()}
        self.points.save(points, clean=clean)
        for name, point in points.items():
            self.logs[name].point_saved(point)

    # -- work ----------------------------------------------------------------------------------------------------

    async def work(self, seconds: float) -> None:
        """All kinds of work at once, for so long in virtual time."""
        until = self.world.clock.monotonic() + seconds
        kinds: list[Callable[[], Awaitable[None]]] = [self._lead, self._elect, self._compact]
        kinds += [self._checkpoint, self._read]
        if not self.faults:  # retention may forget producers rather than fill the disk
            kinds.append(self._trim)
        kinds += [lambda name=name: self.follow(name) for name in NAMES]  # type: ignore[misc]
        async with asyncio.TaskGroup() as tasks:
            for kind in kinds:
                tasks.create_task(self._repeat(kind, until))

    async def _repeat(self, kind: Callable[[], Awaitable[None]], until: float) -> None:
        while self.world.clock.monotonic() < until:
            try:
                await kind()
            except (WaystationError, OSError) as error:
                if not self.faults or (isinstance(error, WaystationError) and not isinstance(error, StorageFailed)):
                    raise
                await asyncio.sleep(0.02)
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.02)))

    async def _lead(self) -> None:
        leader = self.cluster.copies[self.rng.choice(NAMES)].leader
        for _ in range(self.rng.randint(1, 6)):
            leader.write(self.world.clock.now_ms())

    async def _elect(self) -> None:
        await asyncio.sleep(self.rng.choice((0.01, 0.05, 0.1)))
        self.cluster.copies[self.rng.choice((STREAM, STREAM, STATES, TABLE))].leader.elect()

    async def follow(self, name: str) -> None:
        """One fetch, after the log agrees with its leader."""
        log, copy = self.logs[name], self.cluster.copies[name]
        leader = copy.leader
        if self.following[name] != leader.epoch:
            await self._agree(name)
            return
        fetched = leader.fetch(log.end_offset, self.rng.choice((1, 2, 5)))
        if fetched:
            self._append(log, copy, fetched)
        if self.rng.random() < 0.6:
            await self._report(name, log.end_offset)

    def _append(self, log: Log, copy: Copy, fetched: Found) -> None:
        copy.may_be_there(fetched)
        begin = log.end_offset
        try:
            log.append_as_is(b"".join(data for data, _ in fetched))
        finally:
            copy.holds([one for one in fetched if begin <= one[1].base_offset and one[1].last_offset < log.end_offset])

    async def _report(self, name: str, end: int) -> None:
        """The leader hears what is durable here, and takes it as committed if it still leads."""
        log, copy, epoch = self.logs[name], self.cluster.copies[name], self.following[name]
        await self.commit.durable(log, end)
        if self.disk.powered:
            copy.durable = max(copy.durable, end)
            if copy.leader.epoch == epoch and self.rng.random() < 0.4:  # else another follower has not got so far
                copy.leader.committed = max(copy.leader.committed, end)

    async def _agree(self, name: str) -> None:
        """Truncates to where this log and its leader's part, which both know from their epochs."""
        log, copy = self.logs[name], self.cluster.copies[name]
        leader, epoch = copy.leader, copy.leader.epoch
        if self.rng.random() < 0.3 and leader.committed < log.end_offset:
            await self.truncate(name, self.rng.randint(leader.committed, log.end_offset))  # also within a batch
        while True:
            own = log.epochs.latest
            known, end = leader.end_of_epoch(own)
            if known != own and known >= 0:
                end = min(end, log.epochs.end_offset_for(known, log.end_offset)[1])
            end = max(min(end, log.end_offset), log.start_offset)
            if not await self.truncate(name, end) or leader.epoch != epoch:
                return  # another one leads meanwhile, or it was cancelled
            if known == own or log.end_offset == log.start_offset:
                break
        self.following[name] = epoch
        if not copy.compacts:
            size = len(copy.content)
            expect(copy.content == leader.batches[:size], f"{name}: agrees with its leader, but has another history")

    async def truncate(self, name: str, offset: int) -> bool:
        """False: it was not done."""
        log, copy = self.logs[name], self.cluster.copies[name]
        if offset >= log.end_offset and log.truncation is None:
            end = await truncation.truncate(log, offset, self.commit)
            expect(end == log.end_offset, f"{name}: nothing to be truncated, but it ends at {end}")
            return True
        expected = copy.will_be_truncated(offset)
        self._lose_power(0.1, 25)
        work = asyncio.ensure_future(truncation.truncate(log, offset, self.commit))
        cancels = self.rng.random() < 0.1
        if cancels:
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.01)))
            work.cancel()
        try:
            end = await work
        except asyncio.CancelledError:
            if not cancels or not self.disk.powered:
                raise
            end = log.end_offset
            if end > expected or log.truncation is not None or log.failure is not None:
                return False  # it had not begun, or was interrupted by the disk
        if not self.disk.powered:
            return False
        right = copy.durable <= end <= expected if log.tier else end == max(expected, log.start_offset)
        expect(right and log.end_offset == end, f"{name}: truncated to {offset}, ends at {end}, expected {expected}")
        copy.is_truncated(end)
        self.check(name)
        self._lose_power(self.loses_power_after, 2)
        return True

    def _lose_power(self, share: float, operations: int) -> None:
        """Now and then, of the disk's next operations one is the last: a truncation is a small part of the work."""
        if self.power_goes and self.rng.random() < share:
            self.disk.fail_at(self.disk.operations + 1 + self.rng.randrange(operations))

    async def die_truncating(self) -> None:
        """The power goes in one of the last steps of a truncation. When the log is cut in memory and nothing is removed
        yet, a checkpoint may save the recovery points."""
        log, copy = self.logs[STREAM], self.cluster.copies[STREAM]
        while self.following[STREAM] != copy.leader.epoch:
            await self.follow(STREAM)
        for _ in range(self.rng.randint(1, 6)):
            copy.leader.write(self.world.clock.now_ms())
        self._append(log, copy, copy.leader.fetch(log.end_offset, 100))
        if self.rng.random() < 0.7:
            await self.commit.durable(log, log.end_offset)
            copy.durable = log.end_offset
            self._save_points(clean=False)
        kind, more = self.rng.choice((("remove", 20), ("truncate", 2), ("truncate", 2)))  # removals come first
        noted = self.rng.random() < 0.5

        def step(now: str) -> int:
            nonlocal noted
            if log.truncation is None or log.truncation.last is None:
                return 0
            if not noted:
                noted = True
                self._save_points(clean=False)
            if now == kind:
                self.disk.on_operation = None
                self.disk.fail_at(self.disk.operations + 1 + self.rng.randrange(more))
            return 0

        self.disk.on_operation = step
        offset = self.rng.randint(max(copy.leader.committed, log.start_offset), log.end_offset - 1)
        await self.truncate(STREAM, offset)

    async def _trim(self) -> None:
        log, copy = self.logs[STREAM], self.cluster.copies[STREAM]
        if self.rng.random() < 0.5:
            await self._retain(log, copy)
        else:
            await self._delete_records(log, copy)
        await asyncio.sleep(self.rng.choice((0.02, 0.2)))

    async def _retain(self, log: Log, copy: Copy) -> None:
        now_ms, committed = self.world.clock.now_ms(), copy.leader.committed
        copy.start_asked = max(copy.start_asked, retention.expired_until(log, now_ms, before=committed))
        await retention.enforce(log, now_ms, before=committed)
        if self.disk.powered:
            copy.start_promised = max(copy.start_promised, log.start_offset)

    async def _delete_records(self, log: Log, copy: Copy) -> None:
        """Never beyond what is committed: a leader would not tell its followers to."""
        offset = self.rng.randint(0, min(copy.leader.committed, log.end_offset))
        bases = [header.base_offset for _, header in copy.content if header.base_offset <= offset]
        offset = bases[-1] if bases else 0  # at the beginning of a batch: a leader may part there
        if offset > log.start_offset:
            copy.start_asked = max(copy.start_asked, offset)
            await retention.remove_before(log, offset)
            if self.disk.powered:
                copy.start_promised = max(copy.start_promised, log.start_offset)

    async def _compact(self) -> None:
        log, copy = self.logs[TABLE], self.cluster.copies[TABLE]
        plan = compaction.due(log, self.world.clock.now_ms(), before=copy.leader.committed)
        if plan is not None:
            await compaction.compact(log, plan)
        await asyncio.sleep(self.rng.choice((0.01, 0.1)))

    async def _checkpoint(self) -> None:
        """As the broker does it: what is saved may have been true a while ago."""
        points = {}
        for name, log in self.logs.items():
            points[name] = log.recovery_point
            log.checkpoint()
            await asyncio.sleep(self.rng.choice((0, 0, 0.01)))
        await self.world.offload(lambda: self.points.save(points, clean=False))
        for name, point in points.items():
            self.logs[name].point_saved(point)
        await asyncio.sleep(self.rng.choice((0.01, 0.1)))

    async def _read(self) -> None:
        name = self.rng.choice((STREAM, STATES))
        log, copy = self.logs[name], self.cluster.copies[name]
        offset = self.rng.randint(log.start_offset, max(log.start_offset, log.written_offset))
        known = {data for data, _ in copy.content}
        data = log.read(offset, self.rng.choice((1, 1_000, 100_000)))
        for position, header in batches.scan(data):
            here = data[position : position + header.size] in known
            expect(here, f"{name}: read a batch at {header.base_offset} that is not there")

    # -- after a fault -------------------------------------------------------------------------------------------

    async def heal(self) -> None:
        """Everything works again: each log truncates, catches up with a new leader, and is durable."""
        await insist([lambda name=name: self._catch_up(name) for name in NAMES])  # type: ignore[misc]

    async def _catch_up(self, name: str) -> None:
        log, leader = self.logs[name], self.cluster.copies[name].leader
        while log.truncation is not None:
            await self.truncate(name, log.end_offset)
        leader.elect()
        leader.write(self.world.clock.now_ms())
        while self.following[name] != leader.epoch or log.end_offset < leader.end:
            await self.follow(name)
        await self._report(name, log.end_offset)
