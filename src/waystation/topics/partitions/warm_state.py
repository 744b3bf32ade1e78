"""State that follows a partition which another broker leads, so that to lead it costs the end of its log and not all.

Whatever has its state in a log (`StateMachine`) applies here what is committed, a slice at a time, as the high
watermark moves. What must hold:

- Nothing from the high watermark on is applied: another leader's log may be another one there.
- What was applied and is taken back (the log was cut below the high watermark, emptied, or replaced, which needs an
  unclean election or a replica that was left behind) takes the state with it. It is begun again.
- Whoever takes the state has it alone: nothing is applied any more.

A slice is bounded in bytes, and the loop belongs to others for as long as the slice took. Only what the state itself
holds is in memory, never what it was read from. On the loop; the owner of the state constructs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

from waystation.errors import WaystationError
from waystation.observe.events import event_logger
from waystation.topics.partitions.replicated_partition import ReplicatedPartition
from waystation.world.clock import Clock

logger = event_logger("waystation.state")

SLICE_BYTES = 128 * 1024
"""Of log: some milliseconds of work."""
TOGETHER_S = 0.1
"""What is committed in this time is applied together. It is also what a takeover finds unapplied while little is
written."""
AGAIN_S = 1.0
"""After the disk has refused."""


class StateMachine(Protocol):
    """State that is made of a log."""

    @property
    def position(self) -> int:
        """Everything before it is applied."""

    def apply(self, before: int, most_bytes: int) -> None:
        """Goes on from `position`: about so many bytes, one batch at least, and nothing that reaches `before`."""


M = TypeVar("M", bound=StateMachine)


class WarmState(Generic[M]):
    """Of one partition. `begin` makes the state that the following begins with; None: not now, it is asked again when
    more is committed."""

    def __init__(self, partition: ReplicatedPartition, clock: Clock, begin: Callable[[], Awaitable[M | None]]) -> None:
        self._partition = partition
        self._clock = clock
        self._begin = begin
        self._machine: M | None = None
        self._taken_back = -1
        self._hurried = False
        self._closed = False
        self._refused = False  # and that was told
        self._turn = asyncio.Lock()
        self._news = asyncio.Event()
        self._news.set()
        partition.watchers.add(self._news.set)
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"follow-{partition.topic.name}-{partition.index}"
        )

    @property
    def position(self) -> int:
        """Everything before it is applied; -1: there is no state yet."""
        return -1 if self._machine is None or self._is_stale(self._machine) else self._machine.position

    async def catch_up(self) -> None:
        """Applies without rests what is committed by now: somebody is about to take it."""
        self._hurried = True
        await self._attempt()

    def take(self) -> M | None:
        """Nothing is applied any more. None: there is no state, or not of the log as it is now."""
        self.close()
        machine, self._machine = self._machine, None
        return None if machine is None or self._is_stale(machine) else machine

    def close(self) -> None:
        self._closed = True
        self._partition.watchers.discard(self._news.set)
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if not await self._attempt():
                self._news.set()
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(TOGETHER_S)

    async def _attempt(self) -> bool:
        """False: it is to be tried again, though nobody tells."""
        try:
            async with self._turn:
                await self._go_on()
        except (WaystationError, OSError) as error:
            self._machine = None
            if not self._refused:
                logger.warning(
                    "state.not_followed",
                    "what {topic}-{partition} says cannot be applied ahead of time, it is tried again: {error}",
                    topic=self._partition.topic.name,
                    partition=self._partition.index,
                    error=error,
                )
            self._refused = True
            return False
        except Exception:  # a mistake of ours: whoever leads replays all of it
            self._machine = None
            logger.exception(
                "state.following_failed",
                "what {topic}-{partition} says could not be applied ahead of time",
                topic=self._partition.topic.name,
                partition=self._partition.index,
            )
            return False
        self._refused = False
        return True

    async def _go_on(self) -> None:
        partition = self._partition
        while not self._closed and not partition.truncating:
            machine = self._machine
            if machine is None or self._is_stale(machine):
                self._machine = None
                taken_back = partition.taken_back
                machine = await self._begin()
                if machine is None or self._closed:
                    return
                self._machine, self._taken_back = machine, taken_back
                continue
            committed, reached = partition.visible_offset, machine.position
            if reached >= committed:
                return
            began_s = self._clock.monotonic()
            machine.apply(committed, SLICE_BYTES)
            if machine.position == reached:
                return  # the high watermark is within a batch
            await asyncio.sleep(0 if self._hurried else self._clock.monotonic() - began_s)

    def _is_stale(self, machine: M) -> bool:
        partition = self._partition
        return partition.taken_back != self._taken_back or machine.position < partition.start_offset
