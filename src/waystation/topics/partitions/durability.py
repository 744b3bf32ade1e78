"""Waiting until what was written is durable: by a coroutine, or by a callback where a task costs too much.

The one place where that is done for protocols: what an answer waits for besides the disk is waited for here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from copy import copy

from waystation.errors import NotLeader, WaystationError
from waystation.log.commit import GroupCommit
from waystation.topics.partitions.partition import Receipt

Told = Callable[[WaystationError | None], None]
Failures = dict[int, WaystationError]
"""What never will be durable: by its number among the receipts."""
SOON_S = 0.02
"""When what nobody waits for is synced at the latest."""


class Durability:
    """What protocols wait on before they answer."""

    def __init__(self, commit: GroupCommit) -> None:
        self._commit = commit
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, *receipts: Receipt | None) -> None:
        """Returns when all are durable, as the flush setting says; raises StorageFailed if one never will be."""
        wanted = [
            receipt
            for receipt in receipts
            if receipt is not None and receipt.partition.durable_offset < receipt.offset and receipt.partition.waits
        ]
        if len(wanted) == 1:
            await wanted[0].partition.until_durable(wanted[0].offset)
        elif wanted:  # all of them from now on: one may be truncated while another is waited for
            await _all_of(wanted)

    def when_durable(self, receipts: Sequence[Receipt | None], told: Told) -> None:
        """Calls `told` once: with None when all are durable, with the failure of the first that never will be."""
        wanted = [receipt for receipt in receipts if receipt is not None and receipt.partition.waits]
        _Wait(wanted, told).check()

    def when_each_durable(self, receipts: Sequence[Receipt], told: Callable[[Failures], None]) -> None:
        """Calls `told` once, when every receipt is durable or never will be: with the failures of those."""
        if self._commit.waits:
            _EachWait(receipts, told).check()
        else:
            told({})

    def soon(self) -> None:
        """Something was written that has no answer, such as an AMQP client's ack: it is durable in a moment all the
        same, and not only when somebody waits for something else."""
        if self._timer is None and self._commit.waits:
            self._timer = asyncio.get_running_loop().call_later(SOON_S, self._sync)

    def _sync(self) -> None:
        self._timer = None
        self._commit.join()


async def _all_of(receipts: list[Receipt]) -> None:
    over: asyncio.Future[WaystationError | None] = asyncio.get_running_loop().create_future()

    def told(error: WaystationError | None) -> None:
        if not over.done():  # else whoever waited has gone
            over.set_result(error)

    _Wait(receipts, told).check()
    error = await over
    if error is not None:
        raise copy(error)


def _failure(receipt: Receipt, truncations: int, *, tried: bool) -> WaystationError | None:
    """Why this never will be durable, or not soon; None: it may be. `tried`: a round has been meanwhile."""
    partition = receipt.partition
    if partition.truncations != truncations:
        return NotLeader(
            f"{partition.topic.name}-{partition.index} was truncated: what was written may not be there; ask its leader"
        )
    return partition.failure or (partition.stalled if tried else None)


class _Wait:
    __slots__ = ("_receipts", "_told", "_truncations")

    def __init__(self, receipts: list[Receipt], told: Told) -> None:
        self._receipts = receipts
        self._truncations = [receipt.partition.truncations for receipt in receipts]
        self._told = told

    def check(self, round_over: asyncio.Future[None] | None = None) -> None:
        first: Receipt | None = None
        for receipt, truncations in zip(self._receipts, self._truncations, strict=True):
            failure = _failure(receipt, truncations, tried=round_over is not None)
            if receipt.partition.durable_offset >= receipt.offset and not isinstance(failure, NotLeader):
                continue
            if failure is not None:
                self._told(failure)
                return
            first = first or receipt
        if first is None:
            self._told(None)
        else:
            first.partition.next_attempt().add_done_callback(self.check)


class _EachWait:
    __slots__ = ("_failures", "_told", "_waiting")

    def __init__(self, receipts: Sequence[Receipt], told: Callable[[Failures], None]) -> None:
        self._waiting = [(number, receipt, receipt.partition.truncations) for number, receipt in enumerate(receipts)]
        self._told = told
        self._failures: Failures = {}

    def check(self, round_over: asyncio.Future[None] | None = None) -> None:
        waiting = []
        for one in self._waiting:
            number, receipt, truncations = one
            failure = _failure(receipt, truncations, tried=round_over is not None)
            if receipt.partition.durable_offset >= receipt.offset and not isinstance(failure, NotLeader):
                continue
            if failure is not None:
                self._failures[number] = failure
            else:
                waiting.append(one)
        self._waiting = waiting
        if waiting:
            waiting[0][1].partition.next_attempt().add_done_callback(self.check)
        else:
            self._told(self._failures)
