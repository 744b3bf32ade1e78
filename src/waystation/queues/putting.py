"""Messages into queues: what a full one refuses, waiting until there is room, puts to several queues that come
together, and the same messages for several. `queues/queues.py` calls this, and transactions do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from waystation.errors import Full, WaystationError, without_frames
from waystation.message import Message
from waystation.queues.errors import NeverFits
from waystation.queues.names import INTERNAL_PREFIX, QueueNames, QueuePlace
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import MAX_TOGETHER, PutEach, PutEachOutcome, PutOutcome, PutResult, Shard
from waystation.topics.partitions.partition import Receipt

STEP_QUEUES = 256
"""Queues that take in the same messages in one step: a few milliseconds."""


def put_or_refuse(place: QueuePlace, messages: Sequence[Message]) -> PutResult:
    """All of them, or none: then the queue may want to have them as dead letters."""
    shard, queue = place
    try:
        return shard.put(queue, messages)
    except Full:
        shard.refuse(queue, messages)
        raise


async def put_with_patience(find: Callable[[], QueuePlace], messages: Sequence[Message], wait_s: float) -> PutResult:
    """The same, but waits until there is room, so long at most. `find`: where the queue is; it may go meanwhile."""
    shard, queue = find()
    try:
        return shard.put(queue, messages)
    except Full as error:
        if wait_s <= 0 or isinstance(error, NeverFits):
            shard.refuse(queue, messages)
            raise
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_s
    waited = False
    try:
        while True:
            await queue.room(max(0.0, deadline - loop.time()), first=waited)
            waited = True
            if loop.time() >= deadline:
                return put_or_refuse(find(), messages)
            try:
                now_in, there = find()
                return now_in.put(there, messages)
            except NeverFits:  # its bounds were changed meanwhile
                return put_or_refuse(find(), messages)
            except Full:
                continue
    finally:
        queue.wake_publishers()  # the next one may find room, too


def put_several(
    find: Callable[[str], QueuePlace], puts: Sequence[tuple[str, Sequence[Message]]]
) -> Iterator[Mapping[int, PutOutcome]]:
    """Puts to several queues, step by step: those on one shard share batches. Gives after each step what became of
    which of the puts, by their indexes. `find`: where a queue is."""
    refused: dict[int, PutOutcome] = {}
    by_shard: dict[Shard, list[tuple[int, Queue]]] = {}
    for index, (name, _) in enumerate(puts):
        try:
            shard, queue = find(name)
        except WaystationError as error:
            refused[index] = without_frames(error)
        else:
            by_shard.setdefault(shard, []).append((index, queue))
    if refused:
        yield refused
    for shard, wanted in by_shard.items():
        at = 0
        while at < len(wanted):
            step = wanted[at : at + MAX_TOGETHER]
            outcomes = shard.put_several([(queue, puts[index][1]) for index, queue in step])
            yield {index: outcome for (index, _), outcome in zip(step, outcomes, strict=False)}
            at += len(outcomes)


def put_each_several(
    find: Callable[[str], QueuePlace], puts: Sequence[tuple[str, Sequence[Message]]]
) -> Iterator[Mapping[int, PutEachOutcome]]:
    """The same as if the messages were put one by one: a full queue refuses those that it cannot take, and only those.
    Where one does, its messages are tried by themselves."""
    for step in put_several(find, puts):
        yield {index: _each(find, *puts[index], outcome) for index, outcome in step.items()}


def _each(
    find: Callable[[str], QueuePlace], name: str, messages: Sequence[Message], outcome: PutOutcome
) -> PutEachOutcome:
    if isinstance(outcome, PutResult):
        return PutEach(outcome.receipt, [])
    if not isinstance(outcome, Full):
        return outcome
    try:
        shard, queue = find(name)
        return shard.put_each(queue, messages)
    except WaystationError as error:
        return without_frames(error)


def put_same(
    known: QueueNames, names: Iterable[str], messages: Sequence[Message]
) -> Iterator[tuple[Sequence[str], Receipt]]:
    """The same messages to several queues: a shard writes them once for all of its queues, so many in a step."""
    for step in together(known, names):
        found = [place for name in step if (place := known.get(name)) is not None]  # others were deleted meanwhile
        if len(found) < 2:
            continue
        shard = found[0][0]
        try:
            same = shard.put_same([queue for _, queue in found], messages)
        except WaystationError:
            continue  # whoever puts to each by itself is told why
        if same.receipt is not None:
            left = {queue.id for queue in same.left}
            yield [queue.name for _, queue in found if queue.id not in left], same.receipt


def together(known: QueueNames, names: Iterable[str]) -> Iterator[Sequence[str]]:
    """Names of queues on one shard that may share what is put to them, so many at a time; none that is alone."""
    by_shard: dict[int, list[str]] = {}
    for name in names:
        place = known.get(name)
        if place is not None and not name.startswith(INTERNAL_PREFIX):
            by_shard.setdefault(place[0].index, []).append(name)
    for group in by_shard.values():
        for start in range(0, len(group), STEP_QUEUES):
            step = group[start : start + STEP_QUEUES]
            if len(step) > 1:
                yield step


def alike(pending: Mapping[str, Sequence[Message]]) -> list[list[str]]:
    """Queues that get the same messages as others: what an exchange fans out is written once for many of them."""
    groups: dict[tuple[int, int, int], list[str]] = {}
    for name, messages in pending.items():
        group = groups.setdefault((len(messages), id(messages[0]), id(messages[-1])), [])
        if not group or pending[group[0]] == messages:
            group.append(name)
    return [group for group in groups.values() if len(group) > 1]
