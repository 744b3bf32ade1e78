"""A whole broker on a simulated disk under mixed work, and the clients that remember what it told them.

As `log_machine.py`, one floor up: the calls are those that protocols make (publishing, the group coordinator, the
transaction coordinator), the housekeeping runs by itself at a quick beat, and the catalog is on the same disk, as
durable as SQLite is (`catalog.py`). Names and settings change meanwhile (`name_machine.py`). Transactions write to
several partitions and commit an offset, all or nothing. Jobs stage several transactions and have them committed by one
decision, as Spark's sink does, and replay a sequence that was cut off.
In some lives, another broker coordinates some of the transactions for a moment, now and then: who waits is told, what
was decided stands, and what was not goes on or is ended by its client.
In a life with `faults`, the disk refuses now and then; then any answer may be an error, and what was asked may have
happened or not.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.encryption import SimKeys
from tests.simulation.hanging_up import or_hangs_up
from tests.simulation.name_machine import NameClients, NameMachine
from tests.simulation.promises import (
    Broken,
    KeyedPromises,
    Promises,
    committed_batches,
    expect,
    insist,
    of_another_leader,
)
from waystation.broker.broker import Broker
from waystation.catalog import Catalog
from waystation.config import BrokerSettings
from waystation.errors import Conflict, NotLeader, StorageFailed, WaystationError
from waystation.groups.machines.calls import OffsetToCommit
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import TRANSACTIONAL
from waystation.log.commit import FlushMode
from waystation.log.log import Appended
from waystation.topics.partitions.partition import Partition, log_of
from waystation.topics.partitions.state_log import PartitionStateLog
from waystation.topics.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from waystation.transactions.decision_records import Staged
from waystation.transactions.errors import ConcurrentTransactions, ProducerFenced
from waystation.transactions.machine import Producer
from waystation.world import World

ROOT = "/data"
STREAM = "stream"
TRIMMED = "trimmed"
TABLE = "table"
TIMELESS = (STREAM, 1)
"""Those who write there send no timestamps."""
STREAMS = ((STREAM, 0), (STREAM, 1), (TRIMMED, 0))
TRANSACTIONS_MS = 30_000
FOR_EVER = 1 << 60
QUIET_S = 10.0
"""In virtual time: by then what a failing disk has stopped was tried again."""
NOBODY = Producer(-1, -1)


@dataclass
class Transaction:
    """As its client knows it. `number` is the offset that it commits for its group."""

    number: int
    batches: list[tuple[int, bytes]] = field(default_factory=list, repr=False)  # partition of the stream, as stored
    asked: bool | None = None
    told: bool = False


@dataclass
class TransactionalClient:
    """A transactional id and everything that was ever done under it."""

    name: str
    done: list[Transaction] = field(default_factory=list)
    producer: Producer = field(default=NOBODY)
    sequences: dict[int, int] = field(default_factory=dict)
    unsure: bool = False
    """Its last transaction may be open still: it starts over before the next."""

    @property
    def group(self) -> str:
        return f"group-of-{self.name}"

    def becomes(self, producer: Producer) -> None:
        self.unsure = False
        if producer != self.producer:
            self.producer = producer
            self.sequences = {}


@dataclass
class IdempotentClient:
    place: tuple[str, int]
    producer: Producer | None = None
    next_sequence: int = 0
    in_flight: list[bytes] = field(default_factory=list)


@dataclass
class Job:
    """Transactions staged for one sequence. `told`: whether this job was the one that was committed for it."""

    sequence: int
    parts: list[Transaction] = field(default_factory=list)
    staged: list[Staged] = field(default_factory=list)
    asked: bool = False
    told: bool | None = None
    given_up: bool = False
    """What was staged for it was aborted, unless it was committed before."""


class BrokerClients:
    """Everything that is remembered outside the broker."""

    keys: SimKeys | None = None

    def __init__(self, rng: random.Random, flush: FlushMode = "commit") -> None:
        self.rng = rng
        self.flush = flush
        self.streams = {place: Promises(f"{place[0]}-{place[1]}", markers=place[0] == STREAM) for place in STREAMS}
        self.streams[(TRIMMED, 0)].start_asked = FOR_EVER  # retention moves it by itself
        self.table = KeyedPromises(TABLE)
        self.names = NameClients(rng)
        self.idempotent = [IdempotentClient(place) for place in STREAMS]
        self.transactional = [TransactionalClient(f"tx-{number}") for number in range(2)]
        self.jobs: list[Job] = []
        self.given_up_runs: list[str] = []  # the prefixes under which nothing may begin
        self.sequence = 0
        """The first that was not answered: after a crash it is staged and asked for once more."""
        self.committed: dict[tuple[str, int], int] = {}  # group, partition of the stream → offset
        self.numbers = itertools.count(1)
        self.acknowledged = 0
        self.refused = 0
        self.dropped = 0
        """How often another broker led something of this one."""

    def settings(self) -> BrokerSettings:
        return BrokerSettings(
            {
                "waystation.checkpoint.interval.ms": self.rng.choice(("100", "1000")),
                "log.retention.check.interval.ms": "70",
                "log.cleaner.backoff.ms": self.rng.choice(("20", "150")),
                "log.cleaner.min.cleanable.ratio": "0.01",
                "log.cleaner.delete.retention.ms": self.rng.choice(("0", "1000", "86400000")),
                "log.index.interval.bytes": self.rng.choice(("0", "300", "4096")),
                "log.segment.bytes": self.rng.choice(("1200", "3000", "20000")),
                "offsets.topic.num.partitions": "2",
                "transaction.state.log.num.partitions": "2",
                "waystation.flush": self.flush,
                "waystation.flush.interval.ms": "50",
            }
        )

    def power_was_cut(self) -> None:
        """Records that were acknowledged from the page cache may be gone; not those before a committed offset, and
        nothing that offsets or transactions were told."""
        if self.flush == "commit":
            return
        for (topic, index), promises in self.streams.items():
            read = [offset for (_, of), offset in self.committed.items() if topic == STREAM and of == index]
            promises.power_was_cut(max(read, default=0))
        self.table.power_was_cut()
        for client in self.idempotent:  # it would be told that its sequence is out of order, and start over
            client.producer, client.next_sequence = None, 0
            client.in_flight.clear()

    def payload(self) -> bytes:
        filler = self.rng.choice((b"", b"\x02" * 50, bytes(600), self.rng.randbytes(self.rng.choice((20, 700, 5_000)))))
        return b"%d:" % next(self.numbers) + filler


class BrokerMachine:
    """One life."""

    def __init__(
        self, world: World, disk: SimDisk, catalog: Catalog, clients: BrokerClients, *, faults: bool = False
    ) -> None:
        self.world = world
        self.faults = faults
        self.disk = disk
        self.clients = clients
        self.rng = clients.rng
        disk.make_folder(ROOT)
        self.broker = Broker(world, ROOT, clients.settings(), catalog)
        self._leadership_moves = clients.rng.random() < 0.5
        self.names = NameMachine(self.broker, disk, clients.names, faults=faults)

    # -- start ---------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recovers the broker, ends what clients left open, and checks every promise."""
        await self.broker.start()
        topics = self.broker.topics
        for name, partitions, overrides in (
            (STREAM, 2, {}),
            (TRIMMED, 1, {"retention.bytes": "4000"}),
            (TABLE, 1, {"cleanup.policy": "compact"}),
        ):
            if name not in topics:
                await topics.create(name, partitions, overrides)
        for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC):  # small segments, so that compaction has work
            await topics.alter(name, {"cleanup.policy": "compact"})
        for client in self.clients.transactional:
            client.becomes(await self.broker.transactions.init_producer_id(client.name, TRANSACTIONS_MS))
        await self._go_on_with_job()
        if self.faults:
            await asyncio.sleep(QUIET_S)
        await self.broker.commit.join()
        self.check()

    def partition(self, topic: str, index: int) -> Partition:
        return self.broker.topics.get(topic).partition(index)

    def check(self) -> None:
        for place, promises in self.clients.streams.items():
            promises.check(log_of(self.partition(*place)))
        self.clients.table.check(log_of(self.partition(TABLE, 0)))
        for (group, index), told in self.clients.committed.items():
            found = self.committed_offset(group, index)
            end = log_of(self.partition(STREAM, index)).end_offset
            expect(told <= found <= end, f"{group}: committed {found} of {STREAM}-{index}, told {told}, end {end}")
        visible = [
            {header.base_offset: data for data, header in committed_batches(log_of(self.partition(STREAM, index)))}
            for index in range(2)
        ]
        self.names.check()
        if self.faults and any(log_of(self.partition(STREAM, index)).failure for index in range(2)):
            return  # it takes no markers until the next start, which is audited too: what they say is not seen yet
        for index in range(2):
            log = log_of(self.partition(STREAM, index))
            expect(
                log.stable_offset == log.end_offset, f"{STREAM}-{index}: a transaction is open at {log.stable_offset}"
            )
        for client in self.clients.transactional:
            self._check_transactions(client, visible)
        self._check_jobs(visible)

    def _check_transactions(self, client: TransactionalClient, visible: list[dict[int, bytes]]) -> None:
        newest = -1
        for transaction in client.done:
            seen = [
                visible[index].get(batches.read_header(data).base_offset) == data for index, data in transaction.batches
            ]
            what = f"{client.name}: {transaction}: visible {seen}"
            expect(len(set(seen)) == 1, f"torn: {what}")
            expect(not seen[0] or transaction.asked is True, f"visible but never committed: {what}")
            expect(not transaction.told or seen[0] == transaction.asked, f"not what was told: {what}")
            if seen[0]:
                newest = transaction.number
                transaction.told = True  # consumers may have seen it: it stays
        found = self.committed_offset(client.group, 0)
        expect(found == newest, f"{client.name}: its transactions committed {newest}, but the group is at {found}")

    def _check_jobs(self, visible: list[dict[int, bytes]]) -> None:
        winners: dict[int, int] = {}
        for job in self.clients.jobs:
            written = [piece for part in job.parts for piece in part.batches]
            seen = [visible[index].get(batches.read_header(data).base_offset) == data for index, data in written]
            what = f"job {job}: visible {seen}"
            expect(len(set(seen)) <= 1, f"half a job: {what}")
            if not seen:
                continue
            expect(not seen[0] or job.asked, f"visible but never asked for: {what}")
            expect(job.told is None or seen[0] == job.told, f"not what was told: {what}")
            if seen[0]:
                job.told = True
                winners[job.sequence] = winners.get(job.sequence, 0) + 1
        expect(set(winners.values()) <= {1}, f"a sequence was committed more than once: {winners}")
        answered = set(range(self.clients.sequence))
        expect(answered <= set(winners), f"sequences {answered - set(winners)} were answered and are nowhere")

    def committed_offset(self, group: str, index: int) -> int:
        [found] = self.broker.groups.fetch_offsets(group, [(STREAM, index)], require_stable=True)
        expect(found.error is None, f"{group}: {found}")
        return found.offset

    # -- work ----------------------------------------------------------------------------------------------------

    async def work(self, seconds: float) -> None:
        """All kinds of work at once, for so long in virtual time."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            self.produce,
            self.produce,
            self.change_table,
            self.commit_offset,
            self.commit_offset,
            self.delete_records,
            self.run_job,
            self.give_up_run,
            self.change_names,
            *(lambda client=client: self.produce_again(client) for client in self.clients.idempotent),
            *(lambda client=client: self.transact(client) for client in self.clients.transactional),
        ]
        until = self.world.clock.monotonic() + seconds
        async with asyncio.TaskGroup() as tasks:
            if self._leadership_moves:
                kinds.append(self.move_leadership)
            for kind in kinds:
                tasks.create_task(self._repeat(kind, until))

    async def _repeat(self, kind: Callable[[], Awaitable[None]], until: float) -> None:
        while self.world.clock.monotonic() < until:
            try:
                await kind()
            except WaystationError as error:
                if not self.faults and not (self._leadership_moves and of_another_leader(error)):
                    raise
                self.clients.refused += 1
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.02)))

    async def heal(self) -> None:
        """Everything works again, without a restart, soon after the disk does."""
        kinds: list[Callable[[], Awaitable[None]]] = [
            *(lambda place=place: self.produce(place) for place in STREAMS),
            self.change_table,
            *(lambda group=group: self.commit_offset(group) for group in ("group-0", "group-1")),
            self.run_job,
            self.give_up_run,
            self.change_names,
            *(lambda client=client: self.produce_again(client) for client in self.clients.idempotent),
            *(lambda client=client: self.transact(client) for client in self.clients.transactional),
        ]
        await insist(kinds)

    def batch(
        self,
        place: tuple[str, int],
        *,
        producer: Producer | None = None,
        sequence: int = -1,
        attributes: int = 0,
        key: bytes | None = None,
    ) -> bytearray:
        value = None if key is not None and self.rng.random() < 0.2 else self.clients.payload()
        records = [(key, value, ())] + [(key, self.clients.payload(), ()) for _ in range(self.rng.choice((0, 0, 2)))]
        made_ms = self.world.clock.now_ms() - self.rng.randrange(20)
        return batches.build(
            records,
            -1 if place == TIMELESS else made_ms,
            producer_id=-1 if producer is None else producer.producer_id,
            producer_epoch=-1 if producer is None else producer.epoch,
            base_sequence=sequence,
            attributes=attributes,
        )

    def append(self, place: tuple[str, int], batch: bytearray) -> Appended:
        """As a protocol does it."""
        promises = self.clients.streams.get(place) or self.clients.table
        partition = self.partition(*place)
        header = self.broker.publishing.check(partition, batch)
        try:
            appended = self.broker.publishing.append(partition, batch, header)
        except (PowerCut, StorageFailed):
            promises.place(bytes(batch))  # all of it may have been written
            raise
        if not appended.duplicate:
            promises.place(bytes(batch))
        return appended

    async def durable(self, place: tuple[str, int], end: int) -> bool:
        """Waits as acks=all does; False if the power went first, so that nobody was told."""
        if self.broker.commit.waits:
            await self.broker.commit.durable(log_of(self.partition(*place)), end)
        self.clients.acknowledged += self.disk.powered
        return self.disk.powered

    async def produce(self, place: tuple[str, int] | None = None) -> None:
        place = place or self.rng.choice(STREAMS)
        batch = self.batch(place)
        appended = self.append(place, batch)
        if await self.durable(place, appended.last_offset + 1):
            self.clients.streams[place].promise(bytes(batch))

    async def change_table(self) -> None:
        batch = self.batch((TABLE, 0), key=b"key-%d" % self.rng.randrange(6))
        appended = self.append((TABLE, 0), batch)
        if await self.durable((TABLE, 0), appended.last_offset + 1):
            self.clients.table.promise(bytes(batch))

    async def produce_again(self, client: IdempotentClient) -> None:
        """Sends what is in flight again, in order, then a few new batches, then waits for all of them."""
        if client.producer is None:
            client.producer = await self.broker.transactions.init_producer_id(None, 0)
        while len(client.in_flight) < self.rng.randint(1, 4):
            batch = self.batch(client.place, producer=client.producer, sequence=client.next_sequence)
            client.next_sequence = batches.read_header(batch).last_sequence + 1
            client.in_flight.append(bytes(batch))
        bases: list[int] = []
        end = 0
        for content in client.in_flight:
            appended = self.append(client.place, bytearray(content))
            bases.append(appended.base_offset)
            end = max(end, appended.last_offset + 1)
            await asyncio.sleep(self.rng.choice((0, 0, 0.002)))
        if await self.durable(client.place, end):
            for base, content in zip(bases, client.in_flight, strict=True):
                self.clients.streams[client.place].promised_at(log_of(self.partition(*client.place)), base, content)
            client.in_flight.clear()

    async def commit_offset(self, group: str | None = None) -> None:
        """A consumer commits what it has read, also what is not durable yet."""
        index = self.rng.randrange(2)
        group = group or f"group-{self.rng.randrange(2)}"
        offset = log_of(self.partition(STREAM, index)).written_offset
        [result] = await self.broker.groups.commit_offsets(group, [OffsetToCommit(STREAM, index, offset)])
        expect(result.error is None, f"{group}: {result}")
        if self.disk.powered:
            told = self.clients.committed.get((group, index), -1)
            self.clients.committed[group, index] = max(told, offset)
            self.clients.acknowledged += 1

    async def move_leadership(self) -> None:
        """Another broker coordinates some transactions, and this one again: at once, or after a while."""
        await asyncio.sleep(self.rng.choice((0.005, 0.02, 0.1)))
        partition = self.rng.choice(self.broker.topics.get(TRANSACTIONS_TOPIC).partitions)
        self.broker.transactions.drop(partition.index)
        self.clients.dropped += 1
        away_s = self.rng.choice((None, 0.0, 0.01, 0.2))
        try:
            if away_s is not None:
                partition.follow(partition.epoch)
                await asyncio.sleep(away_s)
        finally:
            partition.lead(partition.epoch)
        await self._lead(PartitionStateLog(partition, self.broker.commit, self.world.clock))

    async def _lead(self, state_log: PartitionStateLog) -> None:
        """Where the disk refuses, nothing has happened, and it is tried again."""
        while True:
            try:
                await self.broker.transactions.lead(state_log)
                return
            except (OSError, StorageFailed):
                if not self.faults:
                    raise
                await asyncio.sleep(0.02)

    async def delete_records(self) -> None:
        partition, promises = self.partition(TRIMMED, 0), self.clients.streams[TRIMMED, 0]
        log = log_of(partition)
        offset = self.rng.randint(log.start_offset, log.written_offset)
        start = await or_hangs_up(self.rng, partition.delete_records(offset))
        if start is not None and self.disk.powered:
            promises.start_promised = max(promises.start_promised, start)
        await asyncio.sleep(0.1)

    async def change_names(self) -> None:
        """A change of the catalog now and then."""
        names = self.names
        await self.rng.choice((names.change_topic, names.change_topic, names.declare_exchange, names.change_setting))()
        await asyncio.sleep(self.rng.choice((0, 0.02, 0.1)))

    async def transact(self, client: TransactionalClient) -> None:
        """A transaction; if it fails, its client starts over, which ends what was open."""
        if client.unsure:
            client.becomes(await self._start_over(client.name))
        try:
            await self._transact(client)
        except WaystationError:
            client.unsure = True
            client.becomes(await self._start_over(client.name))
            raise

    async def _start_over(self, name: str) -> Producer:
        """However often another broker coordinates the id; where the disk refuses, its client tries later."""
        while True:
            try:
                return await self.broker.transactions.init_producer_id(name, TRANSACTIONS_MS)
            except (NotLeader, ConcurrentTransactions):
                if self.faults or not self._leadership_moves:
                    raise
            await asyncio.sleep(0.005)

    async def _transact(self, client: TransactionalClient) -> None:
        """Some batches and one offset, then commit or abort; old and new (KIP-890) clients in turn."""
        transactions = self.broker.transactions
        transaction = Transaction(len(client.done))
        indexes = self.rng.choice(([0], [1], [0, 1]))
        new_client = self.rng.random() < 0.5
        if not new_client:
            await transactions.add_partitions(client.name, client.producer, [(STREAM, index) for index in indexes])
        for _ in range(self.rng.randint(1, 4)):
            index = self.rng.choice(indexes)
            if new_client:
                await transactions.add_implicitly(client.name, *client.producer, STREAM, [index])
            allowed = transactions.check_produce(client.name, *client.producer, STREAM, index)
            expect(allowed, f"{client.name}: may not write to a partition of its transaction")
            self._write(client, transaction, index)
            await asyncio.sleep(self.rng.choice((0, 0.001, 0.01)))
        await self._commit_in(client, transaction)
        transaction.asked = self.rng.random() < 0.7
        producer = await transactions.end(client.name, client.producer, transaction.asked, bumps_epoch=new_client)
        transaction.told = self.disk.powered
        if self.disk.powered:
            client.becomes(producer)
            self.clients.acknowledged += 1

    async def run_job(self) -> None:
        """Stages parts, then asks for all of them; sometimes gives up, or stages one that nobody asks for."""
        transactions = self.broker.transactions
        if self._leadership_moves and self.rng.random() < 0.5:
            for left in self._unanswered()[-1:]:
                await self._ask(left)
        for left in self._unanswered():
            left.given_up = True  # its names are used again
        job = Job(self.clients.sequence)
        self.clients.jobs.append(job)
        for part in range(self.rng.randint(1, 3)):
            await self._stage(f"job/{part}", job)
        if self.rng.random() < 0.3:
            job_of_a_zombie = Job(job.sequence)
            self.clients.jobs.append(job_of_a_zombie)
            await self._stage("job/zombie", job_of_a_zombie)
        if not self.disk.powered:
            return
        if self.rng.random() < 0.2:
            await transactions.abort_all(job.staged)
            return
        await self._ask(job)

    async def give_up_run(self) -> None:
        """Stages parts of a run and gives it up. A task that has not heard of it cannot begin, before or after a
        crash."""
        await self._begin_too_late()
        run = f"run/{next(self.clients.numbers)}."
        job = Job(self.clients.sequence)
        self.clients.jobs.append(job)
        for part in range(self.rng.randint(0, 2)):
            await self._stage(f"{run}{part}", job)
        await self.broker.transactions.abort_prefix(run, fence=True)
        if self.disk.powered:
            self.clients.given_up_runs.append(run)
            self.clients.acknowledged += 1
            await self._begin_too_late()

    async def _begin_too_late(self) -> None:
        runs, transactions = self.clients.given_up_runs, self.broker.transactions
        if not runs:
            return
        late = f"{self.rng.choice(runs[-4:])}late"
        producer = await transactions.init_producer_id(late, TRANSACTIONS_MS)
        try:
            await transactions.add_partitions(late, producer, [(STREAM, 0)])
        except ProducerFenced:
            return
        expect(not self.disk.powered, f"{late} began although its run was given up")

    async def _stage(self, name: str, job: Job) -> None:
        transactions = self.broker.transactions
        producer = await transactions.init_producer_id(name, TRANSACTIONS_MS)
        indexes = self.rng.choice(([0], [1], [0, 1]))
        await transactions.add_partitions(name, producer, [(STREAM, index) for index in indexes])
        part = Transaction(job.sequence)
        job.parts.append(part)
        following: dict[int, int] = {}
        for _ in range(self.rng.randint(1, 3)):
            index = self.rng.choice(indexes)
            expect(transactions.check_produce(name, *producer, STREAM, index), f"{name}: may not write")
            batch = self.batch(
                (STREAM, index), producer=producer, sequence=following.get(index, 0), attributes=TRANSACTIONAL
            )
            following[index] = batches.read_header(batch).last_sequence + 1
            appended = self.append((STREAM, index), batch)
            part.batches.append((index, bytes(batch)))
            await asyncio.sleep(self.rng.choice((0, 0.001)))
            await self.broker.commit.durable(log_of(self.partition(STREAM, index)), appended.last_offset + 1)
        job.staged.append(Staged(name, *producer))

    async def _ask(self, job: Job) -> None:
        job.asked = True
        committed = await self.broker.transactions.commit_all("job", job.sequence, job.staged, abandon="job/")
        if self.disk.powered:
            job.told = committed
            self.clients.sequence = max(self.clients.sequence, job.sequence + 1)
            self.clients.acknowledged += 1

    def _unanswered(self) -> list[Job]:
        return [job for job in self.clients.jobs if job.asked and job.told is None and not job.given_up]

    async def _go_on_with_job(self) -> None:
        """After a crash: the last request is repeated, or it is left and its sequence comes again. Then what is still
        staged is nobody's."""
        unanswered = self._unanswered()
        if unanswered and self.rng.random() < 0.5:
            try:
                await self._ask(unanswered[-1])
            except Conflict as error:
                raise Broken(f"what was staged did not outlive the crash: {error}") from error
        for job in unanswered:
            job.given_up = True  # the power may go while they are aborted
        await self.broker.transactions.abort_prefix("job/")
        await self.broker.transactions.abort_prefix("run/")

    def _write(self, client: TransactionalClient, transaction: Transaction, index: int) -> None:
        sequence = client.sequences.get(index, 0)
        batch = self.batch((STREAM, index), producer=client.producer, sequence=sequence, attributes=TRANSACTIONAL)
        client.sequences[index] = batches.read_header(batch).last_sequence + 1
        appended = self.append((STREAM, index), batch)
        expect(not appended.duplicate, f"{client.name}: a new batch was taken for a duplicate")
        if not transaction.batches:
            client.done.append(transaction)
        transaction.batches.append((index, bytes(batch)))

    async def _commit_in(self, client: TransactionalClient, transaction: Transaction) -> None:
        await self.broker.transactions.add_offsets(client.name, client.producer, client.group)
        [result] = await self.broker.groups.commit_transactional_offsets(
            client.group, *client.producer, [OffsetToCommit(STREAM, 0, transaction.number)]
        )
        expect(result.error is None, f"{client.name}: {result}")
