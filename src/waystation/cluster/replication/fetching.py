"""The follower's side: a fetcher for each node that leads something which this one follows.

One request after another, each for all partitions of that leader (`peer.Fetch`). What an answer brings is appended as
it is, and synced by one group commit for all of it, before the next request: a fetch offset is a promise. What is done
with an answer is decided by `following.received`: append, truncate to where the logs part, begin again behind the
leader's start, or drop it, since another leader's epoch has begun meanwhile.

On the loop. A fetcher ends when it has no partitions left, or the broker stops.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from waystation.cluster.decisions import following
from waystation.cluster.decisions.replica_fetch import FetchAnswer
from waystation.cluster.decisions.state import PartitionState
from waystation.cluster.decisions.writes import Identity
from waystation.cluster.links.link import LinkLost, NodeLink, PeerRefused
from waystation.cluster.links.peer import Fetch, Fetched, Hurry, Key, PartitionAsk, PartitionGiven, PeerRefusal
from waystation.cluster.replication import snapshots
from waystation.cluster.replication.fetch_size import FetchSize
from waystation.cluster.replication.led import history
from waystation.cluster.replication.throttle import Throttle, moves
from waystation.errors import StorageFailed, UnexpectedOffset, WaystationError
from waystation.log.cleaning import truncation
from waystation.log.commit import GroupCommit
from waystation.observe.events import event_logger
from waystation.topics.partitions.partition import log_of
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.world import World

logger = event_logger("waystation.replication")

WAIT_MS = 500
"""For how long a leader lets a fetch wait that it has nothing for."""
PATIENCE_S = 3.0
"""Longer than that without an answer: the link is given up, and a new one is tried."""
RETRY_S = (0.02, 0.05, 0.1, 0.2, 0.4)
AGAIN_S = 0.3
"""After a partition was refused, or could not be written."""


class Numbers:
    """Of fetches: one more with each of this process, whomever it asks."""

    def __init__(self) -> None:
        self._last = 0

    def next(self) -> int:
        self._last += 1
        return self._last


class Fetcher:
    """From one leader."""

    def __init__(
        self,
        leader: int,
        link: NodeLink,
        world: World,
        commit: GroupCommit,
        identity: Callable[[], Identity],
        state_of: Callable[[Key], PartitionState | None],
        numbers: Numbers,
        incarnation_of: Callable[[int], int],
        refused: Callable[[int, int], None],
        cutting: set[Key],
        cut: Callable[[Key], None],
        recreate: Callable[[ReplicatedPartition], Awaitable[None]],
        throttle: Throttle,
    ) -> None:
        """`refused`: told that the leader's node, of an incarnation, refuses connections. `cutting`: the logs whose
        ends are being cut off, by whichever fetcher; nobody leads one of them, or fetches to it, before `cut` is told
        that it is over. `recreate`: removes a replica, and makes an empty one in its place."""
        self._leader = leader
        self._link = link
        self._world = world
        self._commit = commit
        self._identity = identity
        self._state_of = state_of
        self._numbers = numbers
        self._incarnation_of = incarnation_of
        self._refused = refused
        self._cutting = cutting
        self._cut = cut
        self._recreate = recreate
        self._throttle = throttle  # of the node, whomever it fetches from
        self._held_back: asyncio.TimerHandle | None = None
        self._besides: dict[Key, asyncio.Task[None]] = {}
        self._partitions: dict[Key, ReplicatedPartition] = {}
        self._changed: dict[Key, None] = {}
        self._forgotten: dict[Key, None] = {}
        self._failing: set[Key] = set()  # whose records could not be written the last time
        self._session = 0
        self._size = FetchSize()
        self._refusal = ""  # why the leader takes no session, as it was told last
        self._asking = False
        self._news = asyncio.Event()
        self._failures = 0
        self.heard = world.clock.monotonic()
        """When the leader's node answered last."""
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"fetch-from-{leader}")

    @property
    def silent(self) -> bool:
        """The last question had no answer."""
        return self._failures > 0

    def follow(self, key: Key, partition: ReplicatedPartition) -> None:
        """Also when it is followed already, and the epoch is another."""
        self._partitions[key] = partition
        self._forgotten.pop(key, None)
        self._changed[key] = None
        self._hurry()

    def drop(self, key: Key) -> None:
        """Another node leads it, or nobody does."""
        if self._partitions.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._failing.discard(key)
            self._forgotten[key] = None

    def __len__(self) -> int:
        return len(self._partitions)

    async def close(self) -> None:
        if self._held_back is not None:
            self._held_back.cancel()
        for task in tuple(self._besides.values()):
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _hurry(self) -> None:
        self._news.set()
        if self._asking and self._session:
            task = asyncio.ensure_future(self._ask_hurry())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _ask_hurry(self) -> None:
        await self._link.ask(Hurry(self._identity().node_id, self._session), PATIENCE_S)

    # -- the loop -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            incarnation = self._incarnation_of(self._leader)
            try:
                await self._round()
            except PeerRefused:
                self._lost()
                self._refused(self._leader, incarnation)
            except LinkLost:
                self._lost()
            except StorageFailed as error:
                logger.warning("replica.not_written", "what was fetched cannot be written: {error}", error=error)
                await asyncio.sleep(AGAIN_S)
            except Exception:
                logger.exception("replica.fetch_failed", "fetching from node {leader} failed", leader=self._leader)
                self._lost()
            if self._failures:
                await asyncio.sleep(RETRY_S[min(self._failures, len(RETRY_S)) - 1])

    def _lost(self) -> None:
        self._failures += 1
        self._session = 0
        self._forgotten.clear()
        self._changed = dict.fromkeys(self._partitions)

    async def _round(self) -> None:
        while not self._partitions:
            self._news.clear()
            await self._news.wait()
        if any(self._unsynced(self._partitions[key]) for key in self._changed):
            await self._sync()  # what was appended while this node led: nobody may be waiting for it
        me = self._identity()
        number = self._numbers.next()
        asks = list(self._asks(me, number))
        if not self._session and not asks:
            await self._pause()
            return
        disk = me.disk.state
        request = Fetch(
            me.node_id,
            disk.folder,
            disk.incarnation,
            number,
            self._session,
            tuple(asks),
            tuple(self._forgotten),
            WAIT_MS,
            self._size.bytes,
        )
        self._forgotten.clear()
        for ask in asks:
            self._changed.pop(ask.key, None)
        self._asking = True
        asked_s = self._world.clock.monotonic()
        try:
            answer = await self._link.ask(request, WAIT_MS / 1000 + PATIENCE_S)
        except PeerRefused:
            raise
        except LinkLost:
            self._size.lost()
            raise
        finally:
            self._asking = False
        if isinstance(answer, PeerRefusal):
            began = not self._session
            self._session, self._changed = 0, dict.fromkeys(self._partitions)
            if began:  # else the leader has forgotten the session, and takes a new one
                self._tell_refused(answer)
                await asyncio.sleep(AGAIN_S)
            return
        if not isinstance(answer, Fetched):
            raise LinkLost(f"node {self._leader} answered a fetch with {type(answer).__name__}")
        self._session = answer.session
        self._failures = 0
        self._refusal = ""
        self.heard = self._world.clock.monotonic()
        self._size.answered(sum(len(one.records) for one in answer.partitions), self.heard - asked_s)
        await self._take(answer.partitions)

    def _tell_refused(self, answer: PeerRefusal) -> None:
        if answer.text != self._refusal:
            self._refusal = answer.text
            logger.error(
                "replica.fetch_refused",
                "node {leader} does not let this node copy from it, which is tried again: {error}",
                leader=self._leader,
                error=answer.text,
            )

    async def _pause(self) -> None:
        """Nothing can be asked for now: a log is not durable yet, or the view is about to change."""
        self._news.clear()
        try:
            async with asyncio.timeout(AGAIN_S):
                await self._news.wait()
        except TimeoutError:
            pass

    @staticmethod
    def _unsynced(partition: ReplicatedPartition) -> bool:
        log = log_of(partition)
        return log.durable_offset < log.end_offset and log.failure is None

    def _asks(self, me: Identity, number: int) -> Iterable[PartitionAsk]:
        for key in list(self._changed):
            partition, state = self._partitions[key], self._state_of(key)
            if state is None or state.leader != self._leader:
                continue
            if moves(state, me.node_id) and (wait_s := self._throttle.wait_s()):
                if self._held_back is None:
                    self._held_back = asyncio.get_running_loop().call_later(wait_s, self._go_on)
                continue
            log = log_of(partition)
            if key in self._cutting or log.truncation is not None or log.failure is not None:
                continue
            fetch = following.next_fetch(me, state, history(log), log.durable_offset, number)
            if fetch is not None:
                yield PartitionAsk(*key, fetch.epoch, fetch.offset, fetch.last_epoch)

    def _go_on(self) -> None:
        """What was held back may be asked for."""
        self._held_back = None
        self._hurry()

    # -- answers ------------------------------------------------------------------------------------------------------

    async def _take(self, answers: Iterable[PartitionGiven]) -> None:
        appended = False
        refused: list[Key] = []
        for answer in answers:
            key = answer.key
            partition, state = self._partitions.get(key), self._state_of(key)
            if partition is None or state is None:
                continue
            if answer.refused:
                refused.append(key)
                continue
            if answer.records or answer.diverging is not None or answer.log_start > answer.offset:
                self._changed[key] = None
            if moves(state, self._identity().node_id):
                self._throttle.spend(len(answer.records))
            try:
                appended = await self._apply(partition, state, answer) or appended
            except UnexpectedOffset as error:
                logger.warning("replica.unexpected", "an answer does not fit: {error}", error=error)
                self._changed[key] = None
            except WaystationError as error:
                self._not_copied(partition, key, error)
                refused.append(key)
            else:
                self._failing.discard(key)
        if refused:
            asyncio.get_running_loop().call_later(AGAIN_S, self._ask_again, refused)
        if appended:
            await self._sync()

    def _not_copied(self, partition: ReplicatedPartition, key: Key, error: WaystationError) -> None:
        """Asked for again after a pause, not at once: a full disk stays full for a while. Told once."""
        self._changed.pop(key, None)
        if key not in self._failing:
            self._failing.add(key)
            logger.error(
                "replica.not_copied",
                "{topic}-{partition} cannot be copied: {error}",
                topic=partition.topic.name,
                partition=partition.index,
                error=error,
            )

    async def _sync(self) -> None:
        """One group commit for all that an answer has brought: the next fetch offset is a promise."""
        await self._commit.join()

    def _ask_again(self, keys: list[Key]) -> None:
        for key in keys:
            if key in self._partitions:
                self._changed[key] = None
        self._hurry()

    async def _apply(self, partition: ReplicatedPartition, state: PartitionState, answer: PartitionGiven) -> bool:
        """Whether something was appended that is to be synced."""
        log = log_of(partition)
        given = FetchAnswer(
            answer.leader, answer.epoch, answer.offset, answer.log_start, answer.high_watermark, answer.diverging
        )
        decision = following.received(state, given, history(log), partition.visible_offset)
        if isinstance(decision, following.Append):
            if answer.records:
                log.append_as_is(answer.records, gaps=True)
            partition.advance(decision.high_watermark)
            if decision.log_start > log.start_offset:
                if snapshots.has_snapshots(partition):
                    self._beside(answer.key, partial(self._forget_with_snapshot, partition, answer))
                else:
                    await partition.remove_before(min(decision.log_start, log.end_offset))
            return bool(answer.records)
        if isinstance(decision, following.Drop):
            return False
        if decision.below_high_watermark:
            logger.error(
                "replica.truncated_acknowledged",
                "{topic}-{partition} is truncated to {offset}, below what was acknowledged ({high_watermark}): an"
                " unclean election, or a disk or store that has lost something",
                topic=partition.topic.name,
                partition=partition.index,
                offset=decision.offset,
                high_watermark=partition.visible_offset,
            )
        self._cutting.add(answer.key)
        cut = partial(self._cut_to_the_end, partition, decision, answer)
        if not (snapshots.has_snapshots(partition) and self._beside(answer.key, cut)):
            await cut()
        return False

    async def _cut_to_the_end(
        self,
        partition: ReplicatedPartition,
        decision: following.Truncate | following.BeginAgain,
        answer: PartitionGiven,
    ) -> None:
        try:
            await self._cut_off(partition, decision, answer.epoch)
        finally:
            self._cutting.discard(answer.key)
            self._cut(answer.key)

    def _beside(self, key: Key, work: Callable[[], Awaitable[None]]) -> bool:
        """Done while other partitions are fetched: a snapshot may be large. False: the partition has such work already,
        and this is not begun."""
        if key in self._besides:
            return False
        task = self._besides[key] = asyncio.get_running_loop().create_task(self._work_beside(key, work))
        task.add_done_callback(lambda _: self._besides.pop(key, None))
        return True

    async def _work_beside(self, key: Key, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except WaystationError as error:
            logger.warning(
                "replica.snapshot_not_copied", "a snapshot of queues cannot be copied now: {error}", error=error
            )
            asyncio.get_running_loop().call_later(AGAIN_S, self._ask_again, [key])

    async def _forget_with_snapshot(self, partition: ReplicatedPartition, answer: PartitionGiven) -> None:
        """What is before the leader's start is removed here when the snapshot is here that says what it was. One who is
        behind keeps it: that snapshot speaks of what is not here yet."""
        if partition.end_offset < answer.high_watermark:
            return
        await snapshots.copy(self._link, self._world, partition, answer.epoch, alone=False)
        state = self._state_of(answer.key)
        same = state is not None and state.epoch == answer.epoch and self._partitions.get(answer.key) is partition
        if same and answer.key not in self._cutting:
            await partition.remove_before(min(answer.log_start, partition.end_offset))

    async def _cut_off(
        self, partition: ReplicatedPartition, decision: following.Truncate | following.BeginAgain, epoch: int
    ) -> None:
        log = log_of(partition)
        if isinstance(decision, following.BeginAgain) and decision.offset < log.end_offset:
            await self._recreate(partition)  # its leader has less than what this log has forgotten
            logger.warning(
                "replica.copied_again",
                "{topic}-{partition} is copied again from the beginning: its leader's history is another one from"
                " before the start of the log that was here",
                topic=partition.topic.name,
                partition=partition.index,
            )
            return
        if snapshots.has_snapshots(partition) and (
            isinstance(decision, following.BeginAgain) or decision.below_high_watermark
        ):
            await snapshots.copy(self._link, self._world, partition, epoch, alone=True)
        if isinstance(decision, following.Truncate):
            end = await truncation.truncate(log, decision.offset, self._commit)
            logger.info(
                "replica.truncated",
                "{topic}-{partition} is truncated to {offset}: its leader has another history from there",
                topic=partition.topic.name,
                partition=partition.index,
                offset=end,
            )
            partition.truncated()
        else:
            await truncation.begin_again(log, decision.offset, self._commit)
            partition.begin_again(decision.offset)
