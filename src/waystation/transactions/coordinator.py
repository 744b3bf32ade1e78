"""The transaction coordinator: the shell around the state machine. It persists, waits, and keeps time.

How a transaction ends, and why one wait for the disk is enough:

1. *Prepare* is appended to the state log, and is durable before anything else happens. From here the outcome stands.
2. A marker is appended to every partition. Readers see it at once.
3. *Complete* is appended to the state log, and the client is answered without waiting for it. State logs are written
   after data logs, so Complete is never durable before the markers.

After a crash, a Prepare without Complete is simply carried out again: a second marker ends nothing. An open
transaction is still open and its timeout runs on. Many transactions can be committed by one record: `decisions.py`.

Invariants: a partition's data is accepted only when the log durably says that it belongs to the transaction
(`check_produce`); no answer promises what is not durable; an end, once prepared, is carried out however often the disk
refuses, also when the client has disconnected.

Protocols call the public methods, on the event loop, between `start` and `close`. Errors are those of `errors.py`, and
StorageFailed, after which the request may be repeated.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence

from waystation.errors import Full, Invalid, ProducerEpochStale, StorageFailed, Unavailable, WaystationError
from waystation.groups.machines.errors import NotCoordinator
from waystation.log.state import StateLog
from waystation.observe.events import event_logger
from waystation.transactions.decision_records import Decision, Staged
from waystation.transactions.decisions import Decisions
from waystation.transactions.ends import Ends
from waystation.transactions.entry import TransactionEntry
from waystation.transactions.errors import (
    ConcurrentTransactions,
    InvalidProducerMapping,
    InvalidTransactionTimeout,
    KeepPreparedUnsupported,
    ProducerFenced,
    TransactionalIdNotFound,
    TwoPhaseCommitOff,
)
from waystation.transactions.fences import Fences
from waystation.transactions.listing import Listing, TransactionFilter, select
from waystation.transactions.machine import PREPARED, Next, Producer, TopicPartition, Transaction, TransactionState
from waystation.transactions.markers import MarkerWriter
from waystation.transactions.producer_ids import Ids, ProducerIds
from waystation.transactions.records import partition_for, partition_for_name
from waystation.transactions.settings import (
    EXPIRY_CHECK_MS,
    MAX_ID_BYTES,
    MAX_ROUNDS,
    MAX_STAGED,
    MAX_TRANSACTIONAL_IDS,
    PRODUCER_ID_BLOCK,
    RETRY_FIRST_MS,
    TransactionSettings,
)
from waystation.transactions.table import Table
from waystation.world.alarm import Alarm
from waystation.world.clock import Clock, monotonic_ms
from waystation.world.random import Random

_log = event_logger(__name__)


class TransactionCoordinator:
    """All transactional ids of this broker, and the producer ids it hands out."""

    def __init__(
        self,
        clock: Clock,
        random: Random,
        settings: TransactionSettings,
        log_for: Callable[[int], StateLog],
        partition_count: int,
        markers: MarkerWriter,
        offsets_partition_of: Callable[[str], TopicPartition],
        ids: Ids | None = None,
    ) -> None:
        """`ids`: where producer ids come from in a cluster; None: the first state log."""
        self._clock = clock
        self._settings = settings
        self._log_for = log_for
        self._partition_count = partition_count
        self._markers = markers
        self._offsets_partition_of = offsets_partition_of
        self._table = Table(self.partition_of)
        self._ids: Ids = ids or ProducerIds(log_for(0), PRODUCER_ID_BLOCK)
        self._ends = Ends(clock, random, self._table, markers, spreads=ids is not None)
        self._decisions = Decisions(clock, self._table, self._ends, self._log_of_name)
        self._fences = Fences(clock, self._log_of_id)
        self._alarm: Alarm[str | None] = Alarm(clock, self._ring)  # transactional ids; None: it is time to expire ids
        self._aborting: set[asyncio.Task[None]] = set()
        self._led: set[int] = set()
        self._open = False

    # -- life ------------------------------------------------------------------------------------------------------

    def recover(self) -> None:
        """A broker alone leads all state logs: reads them from their beginning. Before `start`; touches no data log."""
        # All of them first: a decision of an earlier version may name transactions whose state is in another log.
        decisions: dict[str, Decision] = {}
        for number in range(self._partition_count):
            decisions |= self._replay(self._log_for(number))
        self._decisions.recover(decisions)

    async def start(self) -> None:
        """Carries out the ends that a crash interrupted, and starts the timers. Data logs and groups are open."""
        self._open = True
        await self._resume([*self._table], self._decisions.names)
        self._alarm.set(None, monotonic_ms(self._clock) + EXPIRY_CHECK_MS)

    async def lead(self, state_log: StateLog) -> None:
        """This broker coordinates the transactions of a state log from now on: they are what the log says. Returns when
        what its predecessor had decided is carried out, or goes on in the background. Between `start` and `close`."""
        decisions = self._replay(state_log)
        self._decisions.recover(decisions)
        await self._resume([entry for entry in self._table if entry.log is state_log], decisions)

    def drop(self, partition: int) -> None:
        """Another broker coordinates the transactions of a state log: whoever waits is told, and they are forgotten.

        Called before the partition follows. What is prepared is carried out by the next one who leads it.
        """
        self._led.discard(partition)
        dropped = self._table.drop(partition)
        for entry in dropped:
            self._alarm.set(entry.txn.transactional_id, None)
        self._ends.drop(dropped)
        self._decisions.drop(partition)
        self._fences.drop(partition)

    def _replay(self, state_log: StateLog) -> dict[str, Decision]:
        try:
            found = self._table.replay(state_log)
        except BaseException:
            self._table.drop(state_log.partition)  # it can be led another time
            raise
        if found.ids_end:
            self._ids.restore(found.ids_end)
        self._fences.recover(found.fences, state_log)
        self._led.add(state_log.partition)
        return found.decisions

    async def _resume(self, entries: Sequence[TransactionEntry], decisions: Iterable[str]) -> None:
        """Goes on with what the log says of these.

        What is open or prepared is written once more: after a crash of the process alone, the state logs may hold
        records that were never flushed. A marker must not become durable before the Prepare that it belongs to, nor
        data before its transaction.
        """
        decided = self._decisions.holds()
        open_ones = [entry for entry in entries if entry.txn.state is TransactionState.ONGOING]
        for entry in open_ones:
            entry.reopening = True
        reopening = [self._reopen(entry) for entry in open_ones]
        prepared = [entry for entry in entries if entry.txn.state in PREPARED and entry not in decided]
        resuming = [self._ends.resume(entry) for entry in prepared]
        await asyncio.gather(*reopening, *resuming, self._decisions.start(decisions))
        now_ms = self._clock.now_ms()
        for entry in [one for one in entries if one in self._table.ongoing]:
            # What is left of its time by the wall clock, which may have been set meanwhile: at most all of it.
            self._set_deadline(entry, min(entry.txn.timeout_ms, max(0, entry.txn.deadline_ms - now_ms)))

    async def close(self) -> None:
        """Stops the timers and waits for the ends under way. One that cannot be finished is, at the next start."""
        self._open = False
        self._alarm.close()
        await self._decisions.close()
        await self._ends.close()
        await asyncio.gather(*self._aborting, return_exceptions=True)

    # -- what producers ask for ------------------------------------------------------------------------------------

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        expected: Producer | None = None,
        *,
        two_phase: bool = False,
        keep_prepared: bool = False,
    ) -> Producer:
        """A producer starts. Without a transactional id it only gets an id; with one, it fences its predecessors.

        `expected` is who the producer says it is when it goes on after an error (KIP-360).
        """
        self._check_open()
        if transactional_id is None:
            return Producer(await self._ids.allocate(), 0)
        self._check_init(transactional_id, timeout_ms, two_phase, keep_prepared)
        fresh_id: int | None = None
        for _ in range(MAX_ROUNDS):
            self._check_led(transactional_id)
            entry = self._table.find(transactional_id)
            if entry is None:
                if fresh_id is None:
                    fresh_id = await self._ids.allocate()
                    continue
                return await self._create(transactional_id, fresh_id, timeout_ms)
            step = entry.txn.init(expected, timeout_ms, self._clock.now_ms(), fresh_id)
            if isinstance(step, Transaction):
                self._table.apply(entry, step)
                await entry.committed()
                return step.producer
            if step is Next.ABORT:
                await self._ends.carry_out(entry, entry.txn.fenced_by_init(expected, self._clock.now_ms()))
            elif step is Next.PRODUCER_ID:
                fresh_id = await self._ids.allocate()
            else:
                await self._ends.join(entry)
        raise self._fought_over(transactional_id)

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> None:
        """Partitions join the transaction (AddPartitionsToTxn); durable when this returns."""
        await self._add(self._entry(transactional_id), producer, frozenset(partitions), bumps_epoch=False)

    async def add_offsets(self, transactional_id: str, producer: Producer, group_id: str) -> None:
        """A group's offsets join the transaction (AddOffsetsToTxn); durable when this returns."""
        partition = self._offsets_partition_of(group_id)
        await self._add(self._entry(transactional_id), producer, frozenset({partition}), bumps_epoch=False)

    async def add_implicitly(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int, topic: str, partitions: Iterable[int]
    ) -> None:
        """Partitions join because data for them arrived (KIP-890: Produce 12 and up); durable when this returns.

        Raises as `check_produce` does. Afterwards `check_produce` is true for all of them until the caller awaits
        something else.
        """
        self._check_open()
        entry = self._writer(transactional_id, producer_id)
        producer = Producer(producer_id, producer_epoch)
        joining = frozenset((topic, partition) for partition in partitions)
        try:
            await self._add(entry, producer, joining, bumps_epoch=True)
            entry.txn.check(producer)
        except ProducerFenced as error:
            raise ProducerEpochStale(str(error)) from error
        if not all(entry.may_write(partition) for partition in joining):
            raise ConcurrentTransactions(
                f"the transaction of {entry.txn.transactional_id!r} ended meanwhile; ask again"
            )

    async def add_offsets_implicitly(self, transactional_id: str, producer: Producer, group_id: str) -> None:
        """As `add_implicitly`, for a group's offsets (TxnOffsetCommit 5 and up)."""
        topic, partition = self._offsets_partition_of(group_id)
        await self.add_implicitly(transactional_id, *producer, topic, [partition])

    def check_produce(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int, topic: str, partition: int
    ) -> bool:
        """Whether transactional data may be appended to a partition now: True, or False if it must be added first.

        The append has to follow without an `await` between, else the transaction may have ended before it. Raises
        InvalidProducerMapping, ProducerEpochStale or ConcurrentTransactions if the producer may not write at all.
        """
        entry = self._writer(transactional_id, producer_id)
        txn = entry.txn
        if txn.producer.epoch != producer_epoch:
            raise ProducerEpochStale(
                f"{txn.transactional_id!r} is at epoch {txn.producer.epoch}, the batch carries {producer_epoch}"
            )
        if txn.state in PREPARED:
            raise ConcurrentTransactions(f"transactional id {txn.transactional_id!r} is ending its last transaction")
        if txn.state is TransactionState.ONGOING and (topic, partition) in entry.ready:
            return True
        if entry.reopening:
            raise ConcurrentTransactions(f"the open transaction of {txn.transactional_id!r} is being read; ask again")
        return False

    def check_offsets(self, transactional_id: str, producer: Producer, group_id: str) -> bool:
        """As `check_produce`, for a group's offsets (TxnOffsetCommit before 5)."""
        return self.check_produce(transactional_id, *producer, *self._offsets_partition_of(group_id))

    def verify_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, bool]:
        """Which of the partitions are in the present transaction (AddPartitionsToTxn with `verify_only`)."""
        entry = self._entry(transactional_id)
        entry.txn.check(producer)
        if entry.txn.state in PREPARED:
            raise ConcurrentTransactions(f"transactional id {transactional_id!r} is ending its last transaction")
        return {partition: entry.may_write(partition) for partition in partitions}

    async def end(self, transactional_id: str, producer: Producer, commit: bool, *, bumps_epoch: bool) -> Producer:
        """Commits or aborts (EndTxn). Returns who the producer is from now on: with `bumps_epoch` (EndTxn 5 and up), at
        a new epoch. When this returns, the outcome is durable and every partition has its marker."""
        fresh_id: int | None = None
        for _ in range(MAX_ROUNDS):
            entry = self._entry(transactional_id)
            step = entry.txn.end(producer, commit, bumps_epoch, self._clock.now_ms(), fresh_id)
            if isinstance(step, Transaction):
                return await self._ends.carry_out(entry, step)
            if step is Next.DONE:
                return entry.txn.producer
            if step is Next.PRODUCER_ID:
                fresh_id = await self._ids.allocate()
            else:
                await self._ends.join(entry)
        raise self._fought_over(transactional_id)

    # -- many at once ----------------------------------------------------------------------------------------------

    async def commit_all(self, name: str, sequence: int, staged: Sequence[Staged], *, abandon: str = "") -> bool:
        """Commits all of these open transactions by one decision, or none. False: fenced, and they are aborted.

        `sequence` grows under a `name`; the same request may be repeated. After it is decided, whatever else is open
        and has a transactional id that begins with `abandon` is aborted: nobody will ask for it. Raises Conflict if
        one of them is not open any more; then nothing was committed.
        """
        self._check_open()
        self._check_decision(name, sequence, staged)
        self._log_of_name(name)
        if await self._decisions.commit(name, sequence, staged):
            if abandon:
                await self._decisions.abort_prefix(abandon)
            return True
        _log.info(
            "commit.fenced", "commit {name} is fenced at {sequence}", name=name, sequence=sequence, staged=len(staged)
        )
        await self._decisions.abort(staged)
        return False

    async def abort_all(self, staged: Iterable[Staged]) -> int:
        """Aborts those that are still open and not decided; returns how many. Their producers are fenced."""
        self._check_open()
        staged = list(staged)
        for one in staged:
            self._check_led(one.transactional_id)
        return await self._decisions.abort(staged)

    async def abort_prefix(self, prefix: str, *, fence: bool = False) -> int:
        """The same for every open transaction whose transactional id begins so. `fence`: and none can begin any more;
        the prefix is then `NAME/RUN.`."""
        self._check_open()
        if not prefix:
            raise Invalid("prefix: an empty one means every transaction there is; say which")
        if not fence:
            return await self._decisions.abort_prefix(prefix)
        log = self._fences.add(prefix)  # first, so that nothing begins behind the look at what is open
        aborted = await self._decisions.abort_prefix(prefix)
        await log.committed()
        return aborted

    def decided(self, name: str) -> Decision | None:
        """The last decision of a name, or None. It may not be durable yet."""
        self._check_open()
        self._log_of_name(name)
        return self._decisions.last(name)

    async def durably_decided(self, name: str) -> Decision | None:
        """The same, for one who acts on it: what is lost with this broker was never decided."""
        last = self.decided(name)
        if last is not None:
            await self._log_of_name(name).committed()
            self._log_of_name(name)
        return last

    # -- what operators ask for ------------------------------------------------------------------------------------

    def describe(self, transactional_id: str) -> Transaction:
        """The present value of a transactional id, or TransactionalIdNotFound."""
        self._check_open()
        if not transactional_id:
            raise Invalid("a transactional id cannot be empty")
        self._check_led(transactional_id)
        entry = self._table.find(transactional_id)
        if entry is None:
            raise TransactionalIdNotFound(f"no producer uses the transactional id {transactional_id!r}")
        return entry.txn

    def listing(self, wanted: TransactionFilter) -> Listing:
        """The transactional ids that a filter selects."""
        self._check_open()
        return select((entry.txn for entry in self._table), wanted, self._clock.now_ms())

    def write_marker(
        self, topic: str, partition: int, producer: Producer, commit: bool, coordinator_epoch: int
    ) -> None:
        """An operator ends a transaction that hangs on one partition (WriteTxnMarkers); no state here knows of it."""
        self._check_open()
        _log.warning(
            "marker.by_request",
            "a marker was written by request to {topic}-{partition}",
            topic=topic,
            partition=partition,
            producer=producer,
            commit=commit,
        )
        self._markers.write_marker(topic, partition, *producer, commit, coordinator_epoch)

    def on_topics_deleted(self, topics: Iterable[str]) -> None:
        """Deleted topics leave open transactions. The next record of each tells the log."""
        self._table.drop_topics(frozenset(topics))

    # -- what time brings ------------------------------------------------------------------------------------------

    def expire_idle(self) -> list[str]:
        """Forgets the transactional ids that nobody used for a long time, and returns them. A timer calls it."""
        now_ms, idle_ms = self._clock.now_ms(), self._settings.id_expiration_ms
        idle = [entry for entry in self._table if entry.txn.may_expire(now_ms, idle_ms)]
        for entry in idle:
            self._table.forget(entry, entry.txn.expired(now_ms))
        self._decisions.expire()
        self._fences.expire()
        return [entry.txn.transactional_id for entry in idle]

    async def _time_out(self, entry: TransactionEntry) -> None:
        fresh_id: int | None = None
        try:
            while entry.txn.state is TransactionState.ONGOING and entry.deadline_ms <= monotonic_ms(self._clock):
                step = entry.txn.timed_out(self._clock.now_ms(), fresh_id)
                if isinstance(step, Transaction):
                    _log.info(
                        "transaction.timed_out",
                        "transaction {id} timed out and is aborted",
                        id=entry.txn.transactional_id,
                    )
                    await self._ends.carry_out(entry, step)
                else:
                    fresh_id = await self._ids.allocate()
        except WaystationError as error:  # not yet prepared: the timer comes again; prepared: `Ends` goes on with it
            if entry.dropped:
                return
            _log.warning(
                "transaction.not_aborted",
                "transaction {id} timed out and is not aborted yet: {error}",
                id=entry.txn.transactional_id,
                error=error,
            )

    def _set_deadline(self, entry: TransactionEntry, left_ms: int) -> None:
        entry.deadline_ms = monotonic_ms(self._clock) + left_ms
        self._alarm.set(entry.txn.transactional_id, entry.deadline_ms)

    def _ring(self, transactional_id: str | None) -> None:
        if transactional_id is None:
            self._expire_idle_if_it_can_be()
            return
        entry = self._table.find(transactional_id)
        if entry is None or entry.txn.state is not TransactionState.ONGOING:
            return
        now_ms = monotonic_ms(self._clock)
        self._alarm.set(transactional_id, max(entry.deadline_ms, now_ms + RETRY_FIRST_MS))  # the disk may refuse
        if entry.deadline_ms <= now_ms:
            task = asyncio.get_running_loop().create_task(self._time_out(entry))
            self._aborting.add(task)
            task.add_done_callback(self._aborting.discard)

    def _expire_idle_if_it_can_be(self) -> None:
        self._alarm.set(None, monotonic_ms(self._clock) + EXPIRY_CHECK_MS)
        try:
            self.expire_idle()
        except StorageFailed as error:
            _log.warning(
                "transactions.not_expired", "idle transactional ids are not forgotten yet: {error}", error=error
            )

    # -- parts of the above ----------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if not self._open:
            raise Unavailable("the transaction coordinator is not running; ask again")

    def _entry(self, transactional_id: str) -> TransactionEntry:
        self._check_open()
        if not transactional_id:
            raise Invalid("a transactional id cannot be empty")
        self._check_led(transactional_id)
        return self._table.get(transactional_id)

    def _writer(self, transactional_id: str | None, producer_id: int) -> TransactionEntry:
        """Whose transactional batch this is."""
        try:
            return self._table.writer(transactional_id, producer_id)
        except InvalidProducerMapping:
            if transactional_id is not None:
                self._check_led(transactional_id)
            raise

    def own_id(self, name: str) -> str:
        """A transactional id for the broker's own use, which it coordinates itself: the name, or the name and a number.
        NotCoordinator: it leads no state log now."""
        if not self._led:
            raise NotCoordinator(f"this broker coordinates no transactions now, which {name!r} needs")
        numbered = (f"{name}-{number}" for number in itertools.count(1))
        return next(one for one in itertools.chain((name,), numbered) if self.partition_of(one) in self._led)

    def _check_led(self, transactional_id: str) -> None:
        if self.partition_of(transactional_id) not in self._led:
            raise NotCoordinator(
                f"this broker is not the coordinator of transactional id {transactional_id!r}; ask which one is"
            )

    def partition_of(self, transactional_id: str) -> int:
        """Where its state is."""
        return partition_for(transactional_id, self._partition_count)

    def _check_init(self, transactional_id: str, timeout_ms: int, two_phase: bool, keep_prepared: bool) -> None:
        if not 0 < len(transactional_id.encode()) <= MAX_ID_BYTES:
            raise Invalid(f"a transactional id has 1 to {MAX_ID_BYTES} bytes")
        if keep_prepared:
            raise KeepPreparedUnsupported("keeping a prepared transaction (KIP-939) is not offered")
        if two_phase:
            raise TwoPhaseCommitOff("two-phase commit with an outside coordinator (KIP-939) is not offered")
        if not 0 < timeout_ms <= self._settings.max_timeout_ms:
            raise InvalidTransactionTimeout(
                f"transaction.timeout.ms {timeout_ms} is not between 1 and {self._settings.max_timeout_ms} "
                "(transaction.max.timeout.ms)"
            )

    def _check_decision(self, name: str, sequence: int, staged: Sequence[Staged]) -> None:
        if not 0 < len(name.encode()) <= MAX_ID_BYTES:
            raise Invalid(f"name: a decision's name has 1 to {MAX_ID_BYTES} bytes")
        if not 0 <= sequence < 2**63:
            raise Invalid(f"sequence: {sequence} is not between 0 and 2^63 - 1")
        if len(staged) > MAX_STAGED:
            raise Invalid(f"staged: {len(staged)} transactions; one decision commits at most {MAX_STAGED}")
        if len({one.transactional_id for one in staged}) != len(staged):
            raise Invalid("staged: one transactional id is there twice; an id has one open transaction")
        elsewhere = next((one.transactional_id for one in staged if not _is_part(one.transactional_id, name)), None)
        if elsewhere is not None:
            raise Invalid(
                f"staged: transactional id {elsewhere!r} is not one of {name!r}; what is committed under one "
                "name has one coordinator, so the ids are NAME/PART, where PART has no slash"
            )

    def _log_of_name(self, name: str) -> StateLog:
        """The state log of a name's decisions. Raises NotCoordinator if another broker leads it."""
        partition = partition_for_name(name, self._partition_count)
        if partition not in self._led:
            raise NotCoordinator(f"this broker does not coordinate {name!r}; ask which one does")
        return self._log_for(partition)

    def _log_of_id(self, transactional_id: str) -> StateLog:
        self._check_led(transactional_id)
        return self._log_for(self.partition_of(transactional_id))

    async def _create(self, transactional_id: str, producer_id: int, timeout_ms: int) -> Producer:
        if len(self._table) >= MAX_TRANSACTIONAL_IDS:
            raise Full(f"{MAX_TRANSACTIONAL_IDS} transactional ids are in use; let idle ones expire or reuse ids")
        log = self._log_for(self.partition_of(transactional_id))
        created = Transaction(transactional_id, Producer(producer_id, 0), timeout_ms, self._clock.now_ms())
        await self._table.create(created, log).committed()
        return created.producer

    async def _add(
        self, entry: TransactionEntry, producer: Producer, joining: frozenset[TopicPartition], *, bumps_epoch: bool
    ) -> None:
        txn = entry.txn.add(producer, joining, self._clock.now_ms(), bumps_epoch=bumps_epoch)
        if txn is entry.txn and joining <= entry.ready:
            return
        if txn is not entry.txn or entry.unsaved:
            begins = entry.txn.state is not TransactionState.ONGOING
            if begins:
                self._fences.check(txn.transactional_id)
            self._table.apply(entry, txn)
            if begins:
                self._set_deadline(entry, txn.timeout_ms)
        await self._wait_ready(entry, joining)

    async def _reopen(self, entry: TransactionEntry) -> None:
        try:
            self._table.apply(entry, entry.txn)
            await self._wait_ready(entry, entry.txn.partitions)
        except WaystationError as error:  # its producer is told to add its partitions again, or to abort
            if not entry.dropped:
                _log.warning(
                    "transaction.not_saved",
                    "open transaction {id} is not saved yet: {error}",
                    id=entry.txn.transactional_id,
                    error=error,
                )
        finally:
            entry.reopening = False

    async def _wait_ready(self, entry: TransactionEntry, partitions: frozenset[TopicPartition]) -> None:
        serial = entry.serial
        await entry.committed()
        if entry.serial == serial:
            entry.ready |= partitions

    def _fought_over(self, transactional_id: str) -> ConcurrentTransactions:
        return ConcurrentTransactions(f"producers fight over transactional id {transactional_id!r}; ask again")


def _is_part(transactional_id: str, name: str) -> bool:
    return transactional_id.rpartition("/")[0] == name
