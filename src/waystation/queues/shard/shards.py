"""All shards of a broker: recovered at the start, told of the ends of transactions, checkpointed in the background."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Iterator, Sequence

from waystation.errors import WaystationError
from waystation.observe.meters import DeathMeter
from waystation.queues.shard.checkpoint import Checkpointer
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.replay import replay
from waystation.queues.shard.shard import Shard
from waystation.queues.shard.shard_log import ShardLog
from waystation.topics.partition import Partition
from waystation.world import World

logger = logging.getLogger("waystation.queues")


class Shards(Sequence[Shard]):
    """Constructed by the broker on the logs of its internal topic."""

    def __init__(
        self,
        partitions: Sequence[Partition],
        world: World,
        *,
        cache_bytes: int,
        on_dead: Callable[[int, Queue], None],
        deaths: DeathMeter | None = None,
    ) -> None:
        self._world = world
        self._shards = [
            Shard(
                index,
                ShardLog(partition, world.clock),
                world,
                cache_bytes=cache_bytes // len(partitions),
                on_dead=on_dead,
            )
            for index, partition in enumerate(partitions)
        ]
        if deaths is not None:
            for shard in self._shards:
                shard.deaths = deaths
        self.checkpointers = [Checkpointer(shard, world) for shard in self._shards]
        self._task: asyncio.Task[None] | None = None
        self._under_way: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._shards)

    def __getitem__(self, index: int) -> Shard:  # type: ignore[override]  # nobody slices shards
        return self._shards[index]

    def __iter__(self) -> Iterator[Shard]:
        return iter(self._shards)

    def recover(self) -> None:
        """Snapshot and log, shard by shard. Blocks: before the doors open."""
        # Millions of objects come into being and none becomes garbage. Looking for it, again and again, took four
        # fifths of the time for a hundred thousand queues.
        collecting = gc.isenabled()
        gc.disable()
        try:
            for shard, checkpointer in zip(self._shards, self.checkpointers, strict=True):
                replay(shard, checkpointer.load())
        finally:
            if collecting:
                gc.enable()

    def limit_messages(self, max_bytes: int) -> None:
        """The largest payload that a queue takes."""
        for shard in self._shards:
            shard.max_message_bytes = max_bytes

    def on_marker(self, partition: int, producer_id: int, producer_epoch: int, commit: bool) -> None:
        self._shards[partition].on_marker(producer_id, commit)

    def start(self, interval_s: Callable[[], float]) -> None:
        for shard in self._shards:
            shard.start()
        self._task = asyncio.get_running_loop().create_task(self._beat(interval_s), name="queue-checkpoints")

    async def _beat(self, interval_s: Callable[[], float]) -> None:
        while True:
            await asyncio.sleep(interval_s())
            # To its end even when the broker stops: a thread may be writing to the file.
            self._under_way = asyncio.ensure_future(self.checkpoint())
            await asyncio.shield(self._under_way)

    async def checkpoint(self, *, force: bool = False) -> None:
        """Writes snapshots of shards that changed much, and frees what they made dead."""
        for checkpointer in self.checkpointers:
            try:
                await checkpointer.run(force=force)
            except (OSError, WaystationError) as error:
                logger.warning("queues: no checkpoint now, will be tried again: %s", error)
            except (
                Exception
            ):  # a mistake of ours must not end the checkpoints for ever, nor keep a broker from stopping
                logger.exception("queues: a checkpoint failed")

    async def close(self) -> None:
        """Before the group commit stops; nothing is put or settled any more."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._under_way is not None:
            await self._under_way
        for shard in self._shards:
            shard.log.flush()
        await self.checkpoint(force=True)
        for shard in self._shards:
            shard.close()
