"""The shards of queues that this broker leads: each is one partition of the internal topic.

`lead` replays a shard's log and begins its work, `drop` ends it and forgets everything of it; to lead it again is to
begin as after a crash. A broker alone leads all of them, from its start on. In a cluster, `follow` applies what is
committed while another broker leads (`FollowedShard`), so that `lead` has the end of the log left to replay.

What must hold: a shard that was dropped writes nothing more, whoever still has hold of it, and what is led has been
told to whoever keeps the names of queues before it hands out anything. They are told of the ends of transactions, and
checkpointed in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, Protocol

from waystation.errors import NotLeader, WaystationError
from waystation.observe.events import event_logger
from waystation.observe.meters import DeathMeter
from waystation.observe.tracing import Tracing
from waystation.queues.shard import snapshot
from waystation.queues.shard.checkpoint import Checkpointer
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.replay import finish, replay, take_in
from waystation.queues.shard.shard import Shard
from waystation.queues.shard.shard_log import ShardLog
from waystation.topics.partitions.partition import Partition
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.topics.partitions.warm_state import WarmState
from waystation.wire.crc32c import crc32c
from waystation.world import World

logger = event_logger("waystation.queues")


class LeadWatcher(Protocol):
    """Who is told which shards this broker leads."""

    def led(self, shard: Shard) -> None:
        """What its log says has been replayed; time does not pass in it yet."""

    def began(self, shard: Shard) -> None:
        """Its work has begun."""

    def dropped(self, shard: Shard) -> None:
        """It is about to forget everything, and those who wait are told right after."""


class _Led(NamedTuple):
    shard: Shard
    checkpointer: Checkpointer


class FollowedShard:
    """A shard in which no time passes, and that nobody knows: what another broker's log has said so far."""

    def __init__(self, shard: Shard, checkpointer: Checkpointer) -> None:
        self.shard = shard
        self.checkpointer = checkpointer

    @property
    def position(self) -> int:
        return self.shard.log.replayed_to

    def apply(self, before: int, most_bytes: int) -> None:
        take_in(self.shard, before, most_bytes)


class Shards:
    """Constructed by the broker: `count` is how many there are, wherever they are led. Iterating gives those that are
    led here."""

    def __init__(
        self,
        count: int,
        world: World,
        *,
        cache_bytes: int,
        on_dead: Callable[[int, Queue], None],
        deaths: DeathMeter | None = None,
        tracing: Tracing | None = None,
        whereabouts: Callable[[int], str] = lambda _: "led by another broker",
    ) -> None:
        """`whereabouts`: of a shard that is not led here, for people: "on node 2, …"."""
        self.count = count
        self.changes = 0
        """How often one was led or dropped: whoever adds all of them up counts anew."""
        self._world = world
        self._cache_bytes = cache_bytes // count
        self._on_dead = on_dead
        self._deaths = deaths or DeathMeter()
        self._tracing = tracing
        self._whereabouts = whereabouts
        self._max_message_bytes = 1024 * 1024
        self._measured = False
        self._led: dict[int, _Led] = {}
        self._followed: dict[int, WarmState[FollowedShard]] = {}
        self._turns = [asyncio.Lock() for _ in range(count)]  # of checkpoints
        self._watchers: list[LeadWatcher] = []
        self._started = False
        self._task: asyncio.Task[None] | None = None
        self._under_way: asyncio.Task[None] | None = None

    # -- finding ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._led)

    def __iter__(self) -> Iterator[Shard]:
        return iter([led.shard for led in self._led.values()])

    def __getitem__(self, index: int) -> Shard:
        """Raises NotLeader if another broker leads it."""
        led = self._led.get(index)
        if led is None:
            raise NotLeader(f"shard {index} of the queues is {self._whereabouts(index)}")
        return led.shard

    def find(self, index: int) -> Shard | None:
        led = self._led.get(index)
        return None if led is None else led.shard

    def of(self, queue: str) -> Shard:
        """The shard that a queue of this name is on. Raises NotLeader if another broker leads it."""
        index = crc32c(queue.encode(errors="surrogatepass")) % self.count
        led = self._led.get(index)
        if led is None:
            raise NotLeader(f"queue {queue[:300]!r} is {self._whereabouts(index)}")
        return led.shard

    @property
    def checkpointers(self) -> list[Checkpointer]:
        return [led.checkpointer for led in self._led.values()]

    # -- who leads ----------------------------------------------------------------------------------------------------

    def watch(self, watcher: LeadWatcher) -> None:
        """Tells of those that are led already, too."""
        self._watchers.append(watcher)
        for shard in self:
            watcher.led(shard)
            if self._started:
                watcher.began(shard)

    def recover(self, partitions: Iterable[Partition]) -> None:
        """A broker alone leads all of them. Blocks: before protocols listen; `start` begins their work."""
        for partition in partitions:
            self.lead(partition)

    def lead(self, partition: Partition) -> None:
        """From now on this broker does what is asked of the shard's queues: they are what the log says. Blocks.

        The partition takes what is appended. What was in flight when the shard was last led is delivered again.
        """
        index = partition.index
        if index in self._led:
            return
        followed = self._followed.pop(index, None)
        ready = None if followed is None else followed.take()
        if ready is None:
            shard, checkpointer = self._new(partition)
            applied = shard.log.replayed_to
            with _no_collection():
                shard.hide_unreplicated()
                replay(shard, checkpointer.load())
        else:
            shard, checkpointer = ready.shard, ready.checkpointer
            applied = ready.position
            shard.max_message_bytes = self._max_message_bytes
            shard.hide_unreplicated()
            checkpointer.go_on()
            finish(shard)
        logger.debug(
            "queues.shard_led",
            "shard {shard} of the queues is led here: {applied} records were applied before, and {records} now",
            shard=index,
            applied=applied,
            records=shard.log.replayed_to - applied,
        )
        shard.notes = {} if self._measured else None
        self._led[index] = _Led(shard, checkpointer)
        self.changes += 1
        for watcher in self._watchers:
            watcher.led(shard)
        if self._started:
            self._begin(shard)

    def _new(self, partition: Partition) -> tuple[Shard, Checkpointer]:
        index = partition.index
        shard = Shard(
            index,
            ShardLog(partition, self._world.clock, self._world.disk, self._world.keys),
            self._world,
            cache_bytes=self._cache_bytes,
            on_dead=self._on_dead,
        )
        shard.deaths, shard.tracing = self._deaths, self._tracing
        shard.max_message_bytes = self._max_message_bytes
        return shard, Checkpointer(shard, self._world, self._turns[index])

    def follow(self, partition: ReplicatedPartition) -> None:
        """Another broker leads the shard: what is committed is applied as it comes. May be said again."""
        index = partition.index
        if index not in self._led and index not in self._followed:
            self._followed[index] = WarmState(partition, self._world.clock, lambda: self._begin_following(partition))

    async def _begin_following(self, partition: ReplicatedPartition) -> FollowedShard | None:
        """From the newest snapshot, or from the beginning of the log. None: what the snapshot says is not committed
        here yet (it was copied from a leader that was ahead), or the beginning is lost."""
        found = await self._world.offload(snapshot.newest_in, self._world.disk, partition.folder, self._world.keys)
        begin, queues = (0, {}) if found is None else found
        stamps = [queue.stamp for queue in queues.values()]
        if begin < partition.start_offset or max([begin, *stamps]) > partition.visible_offset:
            return None
        followed = FollowedShard(*self._new(partition))
        for queue in queues.values():
            followed.shard.adopt(queue)
        followed.shard.log.begin_replay(begin)
        return followed

    async def catch_up(self, partition: Partition) -> None:
        """The shard is about to be led: what is committed is applied, a slice at a time, so that others go on."""
        followed = self._followed.get(partition.index)
        if followed is not None:
            await followed.catch_up()

    def unfollow(self, index: int) -> None:
        """Nothing of the shard is here any more, or the broker stops."""
        followed = self._followed.pop(index, None)
        if followed is not None:
            followed.close()

    def followed_to(self, index: int) -> int:
        """How far a shard that another broker leads is applied here; -1: not at all."""
        followed = self._followed.get(index)
        return -1 if followed is None else followed.position

    def drop(self, index: int) -> None:
        """Another broker leads the shard: consumers, and whoever waits, are told NotLeader, and all is forgotten.

        Called before the partition follows, so that deliveries which are only noted so far can still be written.
        """
        led = self._led.pop(index, None)
        if led is None:
            return
        self.changes += 1
        for watcher in self._watchers:
            watcher.dropped(led.shard)
        led.shard.drop()

    # -- settings -----------------------------------------------------------------------------------------------------

    def limit_messages(self, max_bytes: int) -> None:
        """The largest payload that a queue takes."""
        self._max_message_bytes = max_bytes
        for shard in self:
            shard.max_message_bytes = max_bytes

    def measure(self, on: bool) -> None:
        """Whether they note what changes, for whoever adds it up (`usage.py`)."""
        self._measured = on
        for shard in self:
            shard.notes = {} if on else None

    # -- work ---------------------------------------------------------------------------------------------------------

    def on_marker(self, partition: int, producer_id: int, producer_epoch: int, commit: bool) -> None:
        led = self._led.get(partition)
        if led is not None:  # else it is found in the log by who leads it next
            led.shard.on_marker(producer_id, commit)

    def start(self, interval_s: Callable[[], float]) -> None:
        self._started = True
        for shard in self:
            self._begin(shard)
        self._task = asyncio.get_running_loop().create_task(self._beat(interval_s), name="queue-checkpoints")

    def _begin(self, shard: Shard) -> None:
        shard.start()
        for watcher in self._watchers:
            watcher.began(shard)

    async def _beat(self, interval_s: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(interval_s())
            # To its end even when the broker stops: a thread may be writing to the file.
            self._under_way = asyncio.ensure_future(self.checkpoint())
            await asyncio.shield(self._under_way)

    async def checkpoint(self, *, force: bool = False) -> None:
        """Writes snapshots of shards that changed much, and frees what they made dead."""
        for index in range(self.count):
            if index in self._led:
                await self._checkpoint(self._led[index].checkpointer, force=force)

    @staticmethod
    async def _checkpoint(checkpointer: Checkpointer, *, force: bool) -> None:
        try:
            await checkpointer.run(force=force)
        except NotLeader:
            pass  # dropped meanwhile
        except (OSError, WaystationError) as error:
            logger.warning("checkpoint.put_off", "queues: no checkpoint now, will be tried again: {error}", error=error)
        except Exception:  # a mistake of ours must not end the checkpoints forever, nor keep a broker from stopping
            logger.exception("checkpoint.failed", "queues: a checkpoint failed")

    async def close(self) -> None:
        """Before the group commit stops; nothing is put or settled any more."""
        for index in list(self._followed):
            self.unfollow(index)
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._under_way is not None:
            await self._under_way
        for shard in self:
            shard.log.flush()
        await self.checkpoint(force=True)
        for shard in self:
            shard.close()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Millions of objects come into being and none becomes garbage. Looking for it, again and again, took four fifths
    of the time for a hundred thousand queues."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
