"""Who leads what: this node's replicas take the roles that the store gives them, and ask the store for others.

What is decided is in `elections.py`, `in_sync.py`, `reassignment.py` and `promises.py`, which are pure; here their
decisions meet clocks, the store and the logs. What must hold:

- A replica acts on what the watch has told it (`StoreView`), never on what it has written itself: a write is a wish.
- A change of the in-sync set counts from when it is sent until its outcome is known (`LeaderState.proposed`).
- Whoever has state in a partition (a coordinator, a queue shard) leads after the partition does, when everything that
  an earlier leader acknowledged is known to be there, and is dropped before the partition follows.

There is one task that looks at all replicas, soon after something changed and at least every quarter of a second, and
one at a time that writes. On the loop's thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Container, Coroutine, Iterable, Mapping
from typing import Any, Protocol

from waystation.catalog.follower import CatalogFollower
from waystation.cluster.decisions import elections, in_sync, reassignment
from waystation.cluster.decisions.promises import LeaderState
from waystation.cluster.decisions.state import (
    DISKS,
    NOBODY,
    NODES,
    PARTITIONS,
    NodeState,
    PartitionState,
    disk_key,
    node_of,
    partition_key,
    partition_of,
)
from waystation.cluster.decisions.writes import Portions, StoreEntry, Write
from waystation.cluster.links.link import LinkLost, Links, PeerRefused
from waystation.cluster.links.peer import Hurry, Key, Leaving
from waystation.cluster.membership import ClusterMembership
from waystation.cluster.min_in_sync import min_in_sync
from waystation.cluster.replication.fetching import Fetcher, Numbers
from waystation.cluster.replication.led import Led, history
from waystation.cluster.replication.serving import FetchServer
from waystation.cluster.replication.throttle import Throttle
from waystation.cluster.store import Store
from waystation.cluster.store_view import StoreView
from waystation.config import BrokerSettings
from waystation.errors import RevisionConflict, StorageFailed, WaystationError
from waystation.log.commit import GroupCommit
from waystation.observe.events import event_logger
from waystation.observe.meters import ClusterMeter
from waystation.topics.partitions.partition import Partition
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.topics.topics import Topics
from waystation.world import World

logger = event_logger("waystation.cluster")

INTERNAL_REPLICAS = 3
LOOK_S = 0.25
PAUSE_S = 0.005
"""Between two looks at least: what changes together is looked at together."""
STAGGER_S = 0.1
"""Between the attempts of two replicas to take over."""
SILENT_S = 1.2
"""A leader that has not answered for so long is silent: a fetch is answered after half a second at the latest."""
LAG_S = 5.0
"""A member of the in-sync set that did not have everything for so long is taken out."""
CUT_OFF_S = 3.0
"""A leader that has heard too few members for so long, though they live, resigns."""
STILL_S = 1.5
"""A member that did not have everything for so long is handed nothing: between two fetches is half a second."""
PREFERRED_S = 3.0
"""For how long a preferred leader has to be in sync before it leads again."""
RESIGNED_S = 2.0
UNLED_S = 3.0
"""For how long the store may name this node as a leader that does not lead, though it could claim the epoch."""
AGAIN_S = 1.0
"""After something of a replica could not be done: its files, or the state that it stores."""
LONGEST_S = 30.0
"""Between two attempts to make a coordinator's or a shard's state of its log, which may be long."""
LEAVING_S = 1.0
"""How long a node that stops waits until the others know."""
REACH_S = (0.02, 0.05, 0.1, 0.2, 0.4)
"""Between the attempts to reach a follower whose connection has ended."""
NO_SESSION = 0
APPLIED_S = 1.0
"""How long a writer waits for its own write to be told, before it looks again."""


class Homes(Protocol):
    """What has its state in partitions of the broker's own topics."""

    def has(self, topic: str) -> bool:
        """Whether somebody has state in this topic."""

    def follow(self, partition: ReplicatedPartition) -> None:
        """Another broker leads: what is committed is applied ahead of time. May be said again."""

    async def catch_up(self, partition: Partition) -> None:
        """It is about to be led: what is committed and not applied yet is applied, while others go on."""

    async def lead(self, partition: Partition) -> None:
        """This broker does from now on what is asked of that state: it is what the log says."""

    def drop(self, partition: Partition) -> None:
        """Another one does. Before the partition follows."""

    def forget(self, partition: Partition) -> None:
        """There is no replica here any more: what was applied ahead of time is let go of."""


class _Replica:
    """One partition that this node has a copy of."""

    __slots__ = ("due", "fetching", "home", "key", "led", "partition", "preferred_since", "resigned", "store_key")

    def __init__(self, key: Key, partition: ReplicatedPartition) -> None:
        self.key = key
        self.store_key = partition_key(*key)
        self.partition = partition
        self.led: Led | None = None
        self.fetching: int | None = None
        self.home: asyncio.Task[None] | None = None  # leads, or is about to
        self.due: float | None = None  # when it may take over
        self.resigned = float("-inf")
        self.preferred_since: float | None = None


class Leadership:
    """One per broker in a cluster."""

    def __init__(
        self,
        world: World,
        store: Store,
        follower: CatalogFollower,
        view: StoreView,
        membership: ClusterMembership,
        topics: Topics,
        commit: GroupCommit,
        links: Links,
        server: FetchServer,
        homes: Homes,
        settings: BrokerSettings,
        meter: ClusterMeter,
    ) -> None:
        self._settings = settings
        self._meter = meter
        self._world = world
        self._store = store
        self._follower = follower
        self._view = view
        self._membership = membership
        self._topics = topics
        self._commit = commit
        self._links = links
        self._server = server
        self._homes = homes
        self._node_id = membership.node_id
        self._replicas: dict[Key, _Replica] = {}
        self._fetchers: dict[int, Fetcher] = {}
        self._numbers = Numbers()
        self._throttle = Throttle(world.clock, lambda: settings.integer("follower.replication.throttled.rate"))
        self._cutting: set[Key] = set()  # logs that an answer of a leader is cutting
        self._moving: set[Key] = set()  # partitions whose files are being made or removed here
        self._not_added: set[Key] = set()  # those whose files could not be made, and that was told
        self._unled: dict[Key, float] = {}  # named as their leader, this node does not lead them; since when
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._writing: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._stopping = False

    # -- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Takes the roles that the store gives. The topics are open."""
        self._view.subscribe(self._changed)
        self._topics.subscribe_changes(self._topics_changed)
        self._topics_changed()
        self._task = asyncio.get_running_loop().create_task(self._look_forever(), name="leadership")

    async def stop(self) -> None:
        """Nothing is led or fetched any more, and the other nodes know. What the store says stays, unless
        `hand_over_all` came before."""
        self._stopping = True
        for task in (self._task, self._writing, *self._under_way):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        for fetcher in self._fetchers.values():
            await fetcher.close()
        self._fetchers.clear()
        await self._tell_leaving()
        for replica in self._replicas.values():
            if replica.home is not None:
                replica.home.cancel()
                await asyncio.gather(replica.home, return_exceptions=True)

    async def _tell_leaving(self) -> None:
        """No leader waits for this node's fetches. One that does not hear of it finds out by itself, a little later."""
        disk = self._membership.identity.disk.state
        leaving = Leaving(self._node_id, disk.incarnation, self._numbers.next())
        others = [one for one in self._view.living if one != self._node_id]
        asking = [asyncio.ensure_future(self._links.to(one).ask(leaving, LEAVING_S)) for one in others]
        if asking:
            await asyncio.wait(asking, timeout=LEAVING_S)
        for one in asking:
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)

    async def hand_over_all(self, timeout_s: float) -> None:
        """Before a clean stop: other replicas lead what this node leads, as far as they can."""
        give_up = self._world.clock.monotonic() + timeout_s
        while self._world.clock.monotonic() < give_up:
            nodes = self._view.living
            writes = [write for led in self.led() if (write := self._hand_over(led, nodes)) is not None]
            if not writes:
                return
            await self._write(writes)
            await asyncio.sleep(0)

    def step_down(self) -> None:
        """What could not be handed over is not led any more, either: whoever waits for followers that may have ended is
        told now. The store goes on naming this node, which claims the next epoch when it starts again."""
        self._stopping = True
        for replica in self._replicas.values():
            self._depose(replica)

    # -- what other nodes tell ----------------------------------------------------------------------------------------

    def leaving(self, request: Leaving) -> None:
        """The process of another node stops: it is not waited for."""
        self._server.left(request)
        self._woken.set()

    def disconnected(self, connection: str) -> None:
        """A connection has ended. Whoever fetched by it may be dead, or connect again."""
        for node_id, incarnation in self._server.disconnected(connection):
            if not self._stopping:
                self._woken.set()
                self._begin(self._reach(node_id, incarnation))

    async def _reach(self, node_id: int, incarnation: int) -> None:
        """Whether a follower that has fetched by a connection which is no more refuses another one."""
        for pause_s in REACH_S:
            if self._server.is_connected(node_id):
                return
            try:
                await self._links.to(node_id).ask(Hurry(self._node_id, NO_SESSION), SILENT_S)
                return  # it answers, whatever it is asked
            except PeerRefused:
                self._refused(node_id, incarnation)
                return
            except LinkLost:
                await asyncio.sleep(pause_s)

    # -- what is told about it ----------------------------------------------------------------------------------------

    def led(self) -> list[Led]:
        return [replica.led for replica in self._replicas.values() if replica.led is not None]

    def replication_lags(self) -> dict[int, int]:
        """By node: how many records it has yet to copy from this one, all partitions together."""
        lags: Counter[int] = Counter()
        for led in self.led():
            for node_id in led.state.view.state.replicas:
                if node_id != self._node_id:
                    follower = led.state.followers.get(node_id)
                    start = led.partition.start_offset
                    lags[node_id] += max(0, led.state.end - (start if follower is None else follower.offset))
        return dict(lags)

    def high_watermarks(self) -> dict[str, int]:
        return {f"{key[0]}/{key[1]}": one.partition.visible_offset for key, one in self._replicas.items()}

    # -- what the store tells -----------------------------------------------------------------------------------------

    def _changed(self, keys: Iterable[str]) -> None:
        if self._stopping:
            return
        keys = list(keys)
        if disk_key(self._node_id) in keys and self._membership.superseded(self._view.disks.get(self._node_id)):
            self.step_down()
            return
        for key in keys:
            if key.startswith(PARTITIONS):
                try:
                    self._learn(partition_of(key))
                except Exception:  # a mistake of ours: the others take their places all the same
                    logger.exception("partition.not_learned", "what the store says of {key} was not done", key=key)
            elif key.startswith(NODES) and node_of(key) == self._node_id:
                self._membership.look()
            elif key.startswith(DISKS) and node_of(key) not in self._view.disks:
                self._server.forget(node_of(key))
        self._woken.set()

    def _topics_changed(self) -> None:
        for key, _ in self._view.partitions():
            if key not in self._replicas:
                self._learn(key)
        for key in [key for key in self._replicas if self._handle(key) is None]:
            self._forget(key)
        self._woken.set()

    def _handle(self, key: Key) -> ReplicatedPartition | None:
        topic = self._topics.find_id(key[0])
        if topic is None or key[1] >= len(topic.partitions):
            return None
        partition = topic.partitions[key[1]]
        return partition if isinstance(partition, ReplicatedPartition) else None

    def _learn(self, key: Key) -> None:
        """A partition's entry is another one, or its topic is there now."""
        self._take_place(key)
        known, replica = self._view.partition(*key), self._replicas.get(key)
        named = known is not None and known.state.leader == self._node_id
        if named and (replica is None or replica.led is None):
            self._unled.setdefault(key, self._world.clock.monotonic())
        else:
            self._unled.pop(key, None)

    def _take_place(self, key: Key) -> None:
        partition, known = self._handle(key), self._view.partition(*key)
        if partition is None or known is None:
            self._forget(key)
            return
        if self._node_id not in known.state.replicas:
            self._forget(key)
            partition.follow(known.state.epoch, known.state.leader)
            if partition.here and key not in self._moving:
                self._moving.add(key)
                self._begin(self._remove_replica(key, partition))
            return
        if not partition.here:
            if key not in self._cutting and key not in self._moving:  # else it is being re-created, or will be
                self._moving.add(key)
                self._begin(self._add_replica(key, partition))
            return
        replica = self._replicas.get(key)
        if replica is None:
            replica = self._replicas[key] = _Replica(key, partition)
        self._take_role(replica, known)

    def _forget(self, key: Key) -> None:
        replica = self._replicas.pop(key, None)
        if replica is not None:
            self._depose(replica)
            self._homes.forget(replica.partition)
            self._fetch_from(replica, None)

    def _take_role(self, replica: _Replica, known: StoreEntry[PartitionState]) -> None:
        if replica.led is not None:
            members = len(replica.led.state.view.state.in_sync)
            if replica.led.state.learned(known):
                self._meter.shrunk += len(known.state.in_sync) < members
                self._meter.grown += len(known.state.in_sync) > members
                if replica.led.state.pending is None:
                    replica.led.proposal = None
                replica.led.advance()
                return
            self._depose(replica)
        state = known.state
        log_epoch = history(replica.partition).last_epoch
        barred = self._membership.barred.get(replica.store_key, -1)
        replica.due = None
        truncating = self._is_cut(replica)
        if not self._stopping and elections.may_lead(
            self._membership.identity, state, barred, log_epoch, truncating=truncating
        ):
            self._lead(replica, known)
            return
        replica.partition.follow(state.epoch, state.leader)
        if elections.store_went_back(state, log_epoch):
            logger.error(
                "partition.store_went_back",
                "{topic}-{partition} has records of leader epoch {epoch}, but the cluster's store says {known}: it was"
                " put back from a backup. Nothing is copied there until `waystation cluster elect --unclean`",
                topic=replica.partition.topic.name,
                partition=replica.partition.index,
                epoch=log_epoch,
                known=state.epoch,
            )
            self._fetch_from(replica, None)
            return
        if self._homes.has(replica.partition.topic.name) and not self._stopping:
            self._homes.follow(replica.partition)
        self._fetch_from(replica, None if state.leader in (NOBODY, self._node_id) else state.leader)

    def _is_cut(self, replica: _Replica) -> bool:
        """Its end is being cut off: what it has is not yet what its leader had. `_learn` is told when it is over."""
        return replica.key in self._cutting or replica.partition.truncating

    # -- roles ------------------------------------------------------------------------------------------------------

    def _lead(self, replica: _Replica, known: StoreEntry[PartitionState]) -> None:
        self._fetch_from(replica, None)
        partition = replica.partition
        try:
            partition.lead(known.state.epoch)
        except WaystationError as error:
            logger.error(
                "partition.not_led",
                "{topic}-{partition} cannot be led: {error}",
                topic=partition.topic.name,
                partition=partition.index,
                error=error,
            )
            return
        partition.leader = self._node_id
        led = replica.led = Led(
            replica.key,
            partition,
            known,
            self._node_id,
            self._min_in_sync(replica, known.state),
            self._world.clock.monotonic(),
        )
        if self._homes.has(partition.topic.name):
            led.on_settled = lambda: self._settled(replica)
        self._server.begin(led)
        led.advance()
        self._meter.led += 1
        logger.debug(
            "partition.led",
            "{topic}-{partition} is led here in epoch {epoch}, from offset {offset} on",
            topic=partition.topic.name,
            partition=partition.index,
            epoch=known.state.epoch,
            offset=partition.led_from,
        )

    def _settled(self, replica: _Replica) -> None:
        """Whoever has state in the partition may answer from now on."""
        previous = replica.home
        replica.home = asyncio.get_running_loop().create_task(self._lead_home(replica, replica.led, previous))

    async def _lead_home(self, replica: _Replica, led: Led | None, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.gather(previous, return_exceptions=True)
        pause_s = AGAIN_S
        while led is not None and replica.led is led:
            try:
                await self._homes.catch_up(replica.partition)
                if replica.led is led:
                    await self._homes.lead(replica.partition)
                return
            except Exception as error:
                if pause_s == AGAIN_S:
                    logger.log(
                        logging.ERROR,
                        "home.not_led",
                        "what {topic}-{partition} stores cannot be used here, which is tried again: {error}",
                        cause=None if isinstance(error, WaystationError | OSError) else error,
                        topic=replica.partition.topic.name,
                        partition=replica.partition.index,
                        error=error,
                    )
            if replica.led is led:
                self._homes.drop(replica.partition)  # half of what the log says would be told as if it were all
            again = self._world.clock.monotonic() + pause_s
            while replica.led is led and self._world.clock.monotonic() < again:  # noqa: ASYNC110 - whichever comes first
                await asyncio.sleep(min(LOOK_S, pause_s))  # whoever leads next waits for the end of this
            pause_s = min(LONGEST_S, 2 * pause_s)

    def _depose(self, replica: _Replica) -> None:
        led, replica.led = replica.led, None
        if led is None:
            return
        try:
            if self._homes.has(replica.partition.topic.name):
                self._homes.drop(replica.partition)
        except Exception:  # a mistake of ours, or of whoever is told: it leads no longer for that
            logger.exception(
                "home.not_dropped",
                "what {topic}-{partition} stores was not dropped properly",
                topic=replica.partition.topic.name,
                partition=replica.partition.index,
            )
        self._server.end(replica.key)
        known = self._view.partition(*replica.key)
        epoch, leader = (led.state.epoch, NOBODY) if known is None else (known.state.epoch, known.state.leader)
        replica.partition.follow(epoch, leader)

    def _fetch_from(self, replica: _Replica, leader: int | None) -> None:
        if replica.fetching is not None and replica.fetching != leader and replica.fetching in self._fetchers:
            self._fetchers[replica.fetching].drop(replica.key)
        replica.fetching = leader
        if leader is not None and not self._stopping:
            self._fetcher(leader).follow(replica.key, replica.partition)

    def _fetcher(self, leader: int) -> Fetcher:
        fetcher = self._fetchers.get(leader)
        if fetcher is None:
            fetcher = self._fetchers[leader] = Fetcher(
                leader,
                self._links.to(leader),
                self._world,
                self._commit,
                lambda: self._membership.identity,
                self._state_of,
                self._numbers,
                self._incarnation_of,
                self._refused,
                self._cutting,
                self._learn,
                self._recreate,
                self._throttle,
            )
        return fetcher

    def _state_of(self, key: Key) -> PartitionState | None:
        known = self._view.partition(*key)
        return None if known is None else known.state

    def _incarnation_of(self, node_id: int) -> int:
        state = self._view.node_state(node_id)
        return -1 if state is None else state.incarnation

    # -- replicas that come and go ------------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._over)

    def _over(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("replica.not_moved", "a replica cannot be added or removed: {error}", error=error)

    async def _add_replica(self, key: Key, partition: ReplicatedPartition) -> None:
        """The store says that this node is to have a copy. Where the disk refuses, it is tried again."""
        try:
            log = await self._world.offload(self._topics.open_log_of, partition.topic, partition.index)
        except (OSError, WaystationError) as error:
            if key not in self._not_added:
                self._not_added.add(key)
                logger.error(
                    "replica.not_added",
                    "the files of {topic}-{partition} cannot be made, which is tried again: {error}",
                    topic=partition.topic.name,
                    partition=partition.index,
                    error=error,
                )
            await asyncio.sleep(AGAIN_S)
            self._moving.discard(key)
            if not self._stopping:
                self._learn(key)
            return
        except BaseException:
            self._moving.discard(key)
            raise
        self._moving.discard(key)
        self._not_added.discard(key)
        known = self._view.partition(*key)
        if partition.here or known is None or self._node_id not in known.state.replicas:
            log.close(clean=False)
            return
        partition.use(log)
        self._learn(key)

    async def _recreate(self, partition: ReplicatedPartition) -> None:
        """Nothing of this replica is of use to its leader's history: it is copied from its beginning. A crash in
        between leaves no replica, which is the same."""
        await self._topics.remove_copy(partition)
        partition.use(await self._world.offload(self._topics.open_log_of, partition.topic, partition.index))

    async def _remove_replica(self, key: Key, partition: ReplicatedPartition) -> None:
        """The store says, at a revision, that the partition has moved away: its files are removed."""
        try:
            await self._topics.remove_copy(partition)
        finally:
            self._moving.discard(key)
            if not self._stopping:
                self._learn(key)  # it may have come back meanwhile

    async def _finish_cutting(self, replica: _Replica) -> None:
        """The disk has interrupted a truncation: until the rest is done, the replica neither follows nor leads."""
        self._cutting.add(replica.key)
        try:
            await replica.partition.finish_truncation()
        except StorageFailed:
            await asyncio.sleep(LOOK_S)
        finally:
            self._cutting.discard(replica.key)
        if replica.key in self._replicas:
            self._learn(replica.key)

    # -- looking ------------------------------------------------------------------------------------------------------

    async def _look_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            try:
                self._look()
            except Exception:
                logger.exception("leadership.failed", "looking after the partitions failed")
            await asyncio.sleep(PAUSE_S)

    def _look(self) -> None:
        self._server.refresh()
        now = self._world.clock.monotonic()
        nodes = self._view.living
        writes: list[Write] = []
        for replica in list(self._replicas.values()):
            if replica.partition.truncation_interrupted and replica.key not in self._cutting:
                self._begin(self._finish_cutting(replica))
            if replica.led is None:
                write = self._take_over(replica, nodes, now)
            else:
                write = self._tend(replica, replica.led, nodes, now)
            if write is not None:
                writes.append(write)
        writes += self._give_up(now)
        if writes and (self._writing is None or self._writing.done()):
            self._writing = asyncio.get_running_loop().create_task(self._write(writes), name="leadership-write")

    def _take_over(self, replica: _Replica, living: Container[int], now: float) -> Write | None:
        known = self._view.partition(*replica.key)
        if known is None or self._is_cut(replica) or replica.partition.failure is not None:
            return None
        state, me = known.state, self._membership.identity
        log_epoch = history(replica.partition).last_epoch
        if state.leader == self._node_id:
            barred = self._membership.barred.get(replica.store_key, -1)
            return None if state.epoch > max(barred, log_epoch) else elections.claim(me, known, log_epoch)
        silent = state.leader == NOBODY or self._silent(state.leader, now)
        write = elections.takeover(me, known, living, self._min_in_sync(replica, state), log_epoch, silent=silent)
        if write is None:
            replica.due = None
            return None
        if replica.due is None:
            resigned = (self._node_id,) if now - replica.resigned < RESIGNED_S else ()
            replica.due = now + STAGGER_S * elections.turn(self._node_id, state, living, resigned)
        if now < replica.due:
            asyncio.get_running_loop().call_later(replica.due - now, self._woken.set)
            return None
        return write

    def _give_up(self, now: float) -> list[Write]:
        """Of partitions that the store gives to this node, and that it cannot lead: their files cannot be made, or
        their log has failed. Nobody else may take over while this node lives, so it says that there is no leader."""
        writes = []
        for key, since in list(self._unled.items()):
            known, replica = self._view.partition(*key), self._replicas.get(key)
            if known is None or now - since < UNLED_S or self._stopping:
                continue
            if replica is not None:
                log_epoch = history(replica.partition).last_epoch
                if elections.store_went_back(known.state, log_epoch):
                    continue
                barred = self._membership.barred.get(replica.store_key, -1)
                if known.state.epoch <= max(barred, log_epoch) and replica.partition.failure is None:
                    continue  # it claims the next epoch
                replica.resigned = now
            write = elections.resign(self._membership.identity, known)
            if write is not None:
                logger.warning(
                    "partition.not_led_here",
                    "{key} is given to this node, which cannot lead it; another one may",
                    key=known.key,
                )
                writes.append(write)
                self._unled[key] = now  # if it is refused: not again at once
        return writes

    def _silent(self, leader: int, now: float) -> bool:
        fetcher = self._fetchers.get(leader)
        return fetcher is None or fetcher.silent or now - fetcher.heard > SILENT_S

    def _min_in_sync(self, replica: _Replica, state: PartitionState) -> int:
        return min_in_sync(self._settings, replica.partition.topic, state)

    def _tend(
        self, replica: _Replica, led: Led, nodes: Mapping[int, StoreEntry[NodeState]], now: float
    ) -> Write | None:
        """What a leader asks the store for."""
        state, me, known = led.state, self._membership.identity, led.state.view
        state.min_in_sync = self._min_in_sync(replica, known.state)
        members = known.state.in_sync
        behind = state.fell_behind(now, LAG_S, self._ended(state, nodes, now))
        led.keeping_up = sum(one not in behind and one not in state.broken for one in members)
        if replica.partition.failure is not None:
            replica.resigned = now
            return elections.resign(me, known)
        away = self._full_disk(replica, led, nodes, now)
        if away is not None:
            return away
        if state.pending is not None:
            return led.proposal  # no answer says nothing: the same again
        joiners = [  # else it would be taken out at once
            one for one in state.may_join() if one.node_id in nodes and not self._server.has_ended(one.node_id)
        ]
        write = in_sync.grow(me, known, joiners, self._view.disks)
        if write is None:
            write = in_sync.shrink(me, known, behind, state.min_in_sync, state.broken)
        if write is not None:
            proposed = write.changes[replica.store_key]
            if isinstance(proposed, PartitionState):
                state.proposed(proposed.in_sync)
                led.proposal = write
            return write
        if state.cut_off(now, CUT_OFF_S, list(nodes)):
            logger.warning(
                "partition.resigned",
                "{topic}-{partition}: too few followers fetch from this node, though they live; another one may lead",
                topic=replica.partition.topic.name,
                partition=replica.partition.index,
            )
            replica.resigned = now
            return elections.resign(me, known)
        caught_up = state.caught_up()
        moved = reassignment.advance(me, known, state.min_in_sync, nodes, caught_up)
        if moved is None and replica.partition.topic.internal:
            moved = self._widen(known, state.min_in_sync, nodes)
        if moved is not None:
            return moved
        if self._membership.draining:
            return self._hand_over(led, nodes)
        return self._prefer(replica, led, nodes, now)

    def _ended(self, state: LeaderState, nodes: Container[int], now: float) -> list[int]:
        """Members whose process has ended."""
        return [
            one
            for one in state.view.state.in_sync
            if one != self._node_id
            and (self._server.has_ended(one) or (one not in nodes and not self._hears(state, one, now)))
        ]

    def _hears(self, state: LeaderState, node_id: int, now: float) -> bool:
        """Whether a follower has fetched just now: it lives, though its node entry is lost."""
        follower = state.followers.get(node_id)
        return follower is not None and now - follower.heard <= SILENT_S and self._server.is_connected(node_id)

    def _full_disk(
        self, replica: _Replica, led: Led, nodes: Mapping[int, StoreEntry[NodeState]], now: float
    ) -> Write | None:
        """This leader's disk takes no writes now. Another member that lives may have room; if there is none, or it was
        asked for just now, this one goes on trying."""
        refusal = replica.partition.disk_refuses
        if refusal is None:
            return None
        state = led.state.view.state
        if now - replica.resigned < RESIGNED_S or not any(
            one in nodes for one in state.in_sync if one != self._node_id
        ):
            return None
        logger.warning(
            "partition.disk_full",
            "{topic}-{partition}: this node's disk takes no writes, another one may lead: {error}",
            topic=replica.partition.topic.name,
            partition=replica.partition.index,
            error=refusal,
        )
        replica.resigned = now
        return self._hand_over(led, nodes) or elections.resign(self._membership.identity, led.state.view)

    def _widen(
        self, known: StoreEntry[PartitionState], min_in_sync: int, nodes: Mapping[int, StoreEntry[NodeState]]
    ) -> Write | None:
        """The broker's own topics get more replicas when nodes join a cluster that began with fewer than three."""
        state = known.state
        if state.adding or state.removing or len(state.replicas) >= min(INTERNAL_REPLICAS, len(nodes)):
            return None
        others = [one for one in nodes if one not in state.replicas and not nodes[one].state.draining]
        if not others:
            return None
        racks = {nodes[one].state.rack for one in state.replicas if one in nodes}
        load = Counter(one for _, other in self._view.partitions() for one in other.state.replicas)
        others.sort(key=lambda one: (nodes[one].state.rack in racks, load[one], one))
        missing = min(INTERNAL_REPLICAS, len(nodes)) - len(state.replicas)
        return reassignment.begin(known, (*state.replicas, *others[:missing]), list(nodes), min_in_sync)

    def _prefer(
        self, replica: _Replica, led: Led, nodes: Mapping[int, StoreEntry[NodeState]], now: float
    ) -> Write | None:
        """The preferred leader leads again, when it has been fit for it for a while."""
        to = elections.preferred(led.state.view.state, nodes, self._fit(led))
        if to is None or to == self._node_id:
            replica.preferred_since = None
            return None
        if replica.preferred_since is None:
            replica.preferred_since = now
        if now - replica.preferred_since < PREFERRED_S:
            return None
        replica.preferred_since = None
        return elections.hand_over(self._membership.identity, led.state.view, to, nodes[to])

    def _hand_over(self, led: Led, nodes: Mapping[int, StoreEntry[NodeState]]) -> Write | None:
        to = elections.heir(led.state.view.state, nodes, self._fit(led))
        return None if to is None else elections.hand_over(self._membership.identity, led.state.view, to, nodes[to])

    def _fit(self, led: Led) -> frozenset[int]:
        """Who could go on from here at once: not a member that stands still, though nothing is acknowledged without it
        and it lacks nothing of what is. Its disk may be full."""
        now = self._world.clock.monotonic()
        ended = self._ended(led.state, self._view.living, now)
        return led.state.caught_up() - led.state.fell_behind(now, STILL_S, ended)

    # -- writing ------------------------------------------------------------------------------------------------------

    async def _write(self, writes: list[Write]) -> None:
        """Asks the store for all of it. What is refused is decided again, from what the watch tells by then."""
        portions = Portions(writes)
        latest = 0
        while (write := portions.next()) is not None:
            try:
                latest = await self._world.offload_store(self._store.write, write.encoded(), write.expected)
            except RevisionConflict:
                if not portions.refused(self._may_be_made):
                    await self._look_up(write)
            except WaystationError as error:  # StoreUnavailable, or a store that does not let this node in any more
                logger.warning("store.no_answer", "the cluster's store cannot be written: {error}", error=error)
                await asyncio.sleep(LOOK_S)
                break
        if latest:
            try:
                async with asyncio.timeout(APPLIED_S):
                    await self._follower.applied(latest)
            except (TimeoutError, WaystationError):
                pass
        self._woken.set()

    def _may_be_made(self, write: Write) -> bool:
        """As far as the watch has told. (Else it is decided again, and an earlier attempt is known.)"""
        for key in write.changes:
            known = self._view.partition(*partition_of(key)) if key.startswith(PARTITIONS) else None
            if known is not None and known.revision > write.expected.get(key, known.revision):
                return False
        return True

    async def _look_up(self, write: Write) -> None:
        """A change of an in-sync set was refused: was it, or was an earlier attempt made? Not of several changes in one
        write: which was refused is not known, and an earlier attempt at another one may still be made."""
        if len(write.changes) != 1:
            return
        for key in write.changes:
            replica = self._replicas.get(partition_of(key)) if key.startswith(PARTITIONS) else None
            if replica is None or replica.led is None or replica.led.proposal is None:
                continue
            try:
                entry = await self._world.offload_store(self._store.get, key)
            except WaystationError:
                return
            if replica.led is not None and entry is not None:
                replica.led.state.refused(entry.revision)
                if replica.led.state.pending is None:
                    replica.led.proposal = None
                replica.led.advance()

    def _refused(self, node_id: int, incarnation: int) -> None:
        """A node refuses connections: its process is dead, and others need not wait for its lease to run out."""
        if self._stopping:
            return
        self._server.refused(node_id, incarnation)
        self._woken.set()
        known = self._view.living.get(node_id)
        if known is None:
            return
        write = elections.evict(known, incarnation)
        if write is not None:
            logger.warning("node.evicted", "node {node} refuses connections: it is taken for dead", node=node_id)
            self._begin(self._evict(write))

    async def _evict(self, write: Write) -> None:
        try:
            await self._world.offload_store(self._store.write, write.encoded(), write.expected)
        except WaystationError:
            pass  # it is back, or somebody else was faster, or its lease runs out
