"""A small world of clients around one coordinator, and the checks that must hold in it at every moment.

Clients behave as Kafka's do: one request at a time each, an unanswered end is repeated with the same outcome, a fenced
client that does not know it yet goes on trying. The broker may crash at any point. The stateful tests drive this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from tests.transactions.kit import Broker, Data, Disk, VirtualLoop, outcomes
from waystation.errors import Conflict, StorageFailed, Unavailable, WaystationError
from waystation.transactions.decision_records import Staged
from waystation.transactions.errors import TransactionAbortable
from waystation.transactions.machine import PREPARED, Producer, TransactionState

TOPIC = "t"
TIMEOUT_MS = 30_000


@dataclass(slots=True)
class Tag:
    """One transaction as its client sees it."""

    number: int
    asked_commit: bool = False
    """By its client, before that was fenced."""
    answer: bool | None = None
    """Committed, aborted, or not answered."""
    batches: dict[int, int] = field(default_factory=dict)
    """Partition → batches stored when a commit was answered."""


@dataclass(slots=True, eq=False)
class Client:
    name: str
    producer: Producer
    bumps_epoch: bool
    fenced: bool = False
    dead: bool = False
    tag: Tag | None = None
    ending: bool | None = None
    """An end was asked for and not answered: which outcome."""
    must_abort: bool = False
    request: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        return self.request is not None and not self.request.done()


@dataclass(slots=True, eq=False)
class Job:
    """Transactions that somebody else wants committed together, under one sequence."""

    sequence: int
    staged: list[Staged]
    tags: list[Tag]
    answer: bool | None = None
    refused: bool = False
    request: asyncio.Task[None] | None = None


class TransactionWorld:
    """Everything a test needs to play, crash and check."""

    def __init__(self, disk: Disk | None = None) -> None:
        self.loop = VirtualLoop()
        self.clients: list[Client] = []
        self.tags: list[Tag] = []
        self.jobs: list[Job] = []
        self.handed_out: list[tuple[str | None, Producer]] = []
        self._numbers = count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self.broker = self.loop.run_until_complete(self._boot(disk or Disk()))

    async def _boot(self, disk: Disk) -> Broker:
        return await Broker(disk).start()

    def close(self) -> None:
        self._cancel_all()
        self.loop.close()

    # -- what clients do --------------------------------------------------------------------------------------------

    def start_producer(self, name: str, bumps_epoch: bool) -> None:
        async def request() -> None:
            producer = await self.broker.transactions.init_producer_id(name, TIMEOUT_MS)
            for client in self.clients:
                client.fenced |= client.name == name
            self.handed_out.append((name, producer))
            self.clients.append(Client(name, producer, bumps_epoch))

        self._play(request())

    def start_loose_producer(self) -> None:
        async def request() -> None:
            self.handed_out.append((None, await self.broker.transactions.init_producer_id(None, 0)))

        self._play(request())

    def go_on(self, client: Client) -> None:
        """The client asks for a new epoch, as after an error; its open transaction is aborted by that."""

        async def request() -> None:
            client.producer = await self.broker.transactions.init_producer_id(client.name, TIMEOUT_MS, client.producer)
            client.tag, client.ending, client.must_abort = None, None, False

        self._play(request(), client)

    def add(self, client: Client, partition: int) -> None:
        async def request() -> None:
            if client.bumps_epoch:
                await self.broker.transactions.add_implicitly(client.name, *client.producer, TOPIC, [partition])
            else:
                await self.broker.transactions.add_partitions(client.name, client.producer, [(TOPIC, partition)])
            if client.tag is None:
                client.tag = Tag(next(self._numbers))
                self.tags.append(client.tag)

        self._play(request(), client)

    def write(self, client: Client, partition: int) -> None:
        """A batch, if the client has a transaction to put it in. One that comes late does not tell the client much."""
        if client.tag is None or client.dead:
            return
        try:
            accepted = self.broker.write(client.producer, TOPIC, partition, client.tag.number)
        except WaystationError:
            return
        assert not (accepted and client.fenced), f"{client} wrote although it is fenced"

    def end(self, client: Client, commit: bool) -> None:
        tag = client.tag
        client.ending = commit
        if tag is not None and commit and not client.fenced:
            tag.asked_commit = True

        async def request() -> None:
            try:
                producer = await self.broker.transactions.end(
                    client.name, client.producer, commit, bumps_epoch=client.bumps_epoch
                )
            except TransactionAbortable:
                client.ending, client.must_abort = None, True
                return
            client.producer = producer
            if tag is not None:
                tag.answer = commit
                tag.batches = self._stored(tag) if commit else {}
            client.tag, client.ending, client.must_abort = None, None, False

        self._play(request(), client)

    def hand_over(self, clients: list[Client]) -> None:
        """The clients' open transactions become one job; they themselves are done."""
        job = Job(len(self.jobs), [], [])
        for client in clients:
            if client.tag is not None:
                job.staged.append(Staged(client.name, *client.producer))
                job.tags.append(client.tag)
                client.tag.asked_commit |= not client.fenced
                client.dead = True
        self.jobs.append(job)
        self.decide(job)

    def decide(self, job: Job) -> None:
        """Asks for the newest job, perhaps again; older ones have been given up."""
        if job.refused or job.answer is not None or (job.request is not None and not job.request.done()):
            return

        async def request() -> None:
            try:
                job.answer = await self.broker.transactions.commit_all("job", job.sequence, job.staged)
            except Conflict:
                job.refused = True

        before = self._tasks.copy()
        self._play(request())
        job.request = next(iter(self._tasks - before), None)

    # -- what happens to the broker ---------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def settle(self) -> None:
        """Lets everything run that can run without time passing."""

        async def breathe() -> None:
            for _ in range(12):
                await asyncio.sleep(0)

        self.loop.run_until_complete(breathe())

    def hold_flushes(self) -> None:
        if self.broker.disk.gate is None:
            self.broker.disk.gate = asyncio.Event()

    def flush(self) -> None:
        if self.broker.disk.gate is not None:
            self.broker.disk.gate.set()
            self.broker.disk.gate = None
        self.settle()

    def crash(self, extra_state: Callable[[int], int], extra_data: Callable[[int], int], *, power: bool = True) -> None:
        """Power off and on, or only the process. Clients live on; their requests under way stay without an answer."""
        self._cancel_all()
        disk = self.broker.disk.crashed(extra_state, extra_data, power=power)
        disk.unsafe = self.broker.disk.unsafe
        self.broker = self.loop.run_until_complete(self._boot(disk))

    def _cancel_all(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.settle()
        self.loop.run_until_complete(self.broker.transactions.close())

    def _play(self, request: Coroutine[Any, Any, None], client: Client | None = None) -> None:
        async def guarded() -> None:
            try:
                await request
            except (Unavailable, StorageFailed):
                pass  # the client asks again
            except WaystationError:
                if client is not None:
                    client.dead = True

        task = self.loop.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        if client is not None:
            client.request = task
        self.settle()

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        seen: dict[int, set[bool]] = {}
        for (topic, partition), entries in self.broker.disk.data.items():
            ends = outcomes(entries)
            numbers = [number for number, _ in ends]
            assert len(set(numbers)) == len(numbers), f"{topic}-{partition}: data after its transaction's end: {ends}"
            for number, committed in ends:
                assert isinstance(number, int)
                if committed is not None:
                    seen.setdefault(number, set()).add(committed)
        for tag in self.tags:
            found = seen.get(tag.number, set())
            assert len(found) <= 1, f"{tag} has two outcomes"
            if True in found:
                assert tag.asked_commit, f"{tag} was committed, and nobody asked for it or a fenced producer did"
            if tag.answer is False:
                assert True not in found, f"{tag} was answered as aborted"
            if tag.answer is True:
                assert False not in found, f"{tag} was answered as committed"
                assert self._stored(tag) == tag.batches, f"{tag} lost data, or gained some"
                assert None not in self._ends_of(tag), f"{tag} was answered as committed and is not everywhere"
        for job in self.jobs:
            outcomes_of = [seen.get(tag.number, set()) for tag in job.tags]
            found = set().union(*outcomes_of)
            assert len(found) <= 1, f"half of {job} is committed: {outcomes_of}"
            assert not (job.refused and True in found), f"{job} was refused"
            assert not (job.answer is True and False in found), f"{job} was answered as committed"
            assert not (job.answer is False and True in found), f"{job} was answered as fenced"
        self._check_nothing_hangs()
        self._check_producer_ids()

    def check_all_ended(self) -> None:
        for tag in self.tags:
            assert None not in self._ends_of(tag), f"{tag} never ended"

    def _stored(self, tag: Tag) -> dict[int, int]:
        return {
            partition: stored
            for (_, partition), entries in self.broker.disk.data.items()
            if (stored := sum(isinstance(entry, Data) and entry.tag == tag.number for entry in entries))
        }

    def _ends_of(self, tag: Tag) -> set[bool | None]:
        return {
            committed
            for entries in self.broker.disk.data.values()
            for number, committed in outcomes(entries)
            if number == tag.number
        }

    def _check_nothing_hangs(self) -> None:
        """Data of an unfinished transaction is known to the coordinator, which will end it."""
        known = {entry.txn.producer.producer_id: entry.txn for entry in self.broker.transactions._table}
        for log, entries in self.broker.disk.data.items():
            open_tags = {number for number, committed in outcomes(entries) if committed is None}
            for entry in entries:
                if isinstance(entry, Data) and entry.tag in open_tags:
                    txn = known[entry.producer_id]
                    assert txn.state is TransactionState.ONGOING or txn.state in PREPARED, (
                        f"{entry} hangs in {log}: {txn}"
                    )
                    assert log in txn.partitions, f"{entry} hangs in {log}: {txn}"

    def _check_producer_ids(self) -> None:
        assert len(set(self.handed_out)) == len(self.handed_out), "the same producer was handed out twice"
        owners: dict[int, str | None] = {}
        for name, producer in self.handed_out:
            owner = owners.setdefault(producer.producer_id, name)
            assert owner is not None or name is None, "a producer id went to two producers"
            assert owner == name, "a producer id went to two transactional ids"
