"""Dead letters: moved to where their queue says, with the story of their death, each exactly once; and sent back.

A move is a transaction: the message is put to the target and ended where it died, both or neither, whatever the moment
of a crash. A target that cannot take it now (full, deleted, a disk without room) is tried again; until then the message
waits where it is, out of everybody's reach.

The story is the header `x-death`: a list, the latest death first, as RabbitMQ has it. A message that died in the same
queue for the same reason before counts up instead. Never in a cycle: a message that would come back, by no consumer's
doing, to a queue where it died already is ended instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.broker.transacting import OWN_PREFIX
from waystation.errors import Conflict, Corrupt, Full, Invalid, StorageFailed, TooLarge, WaystationError
from waystation.message import Message
from waystation.protocol import RedriveAnswer
from waystation.queues.bodies import Gone
from waystation.queues.queue import Death, Queue
from waystation.queues.runs import runs_of
from waystation.queues.shard import Shard
from waystation.queues.states import State
from waystation.queues.upkeep import REJECTED
from waystation.routing.filters import Filter, compile_filter

if TYPE_CHECKING:
    from waystation.broker.broker import Broker
    from waystation.broker.transacting import Tx

logger = logging.getLogger("waystation.dead_letters")

X_DEATH = "x-death"
TOPIC_TARGET = "topic:"
TRANSACTIONAL_ID = f"{OWN_PREFIX}dead-letters"
REDRIVE_ID = f"{OWN_PREFIX}redrive"
BATCH = 200
ROUND = 10_000
"""Dead that are looked up at once: to find the first of a dict that loses its first takes longer and longer."""
LOOKED_AT = 500
"""Messages that a redrive looks at before the loop has its turn."""
RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 30.0
MAX_STORY = 20
"""Deaths that a message remembers."""


class DeadLetters:
    """One task moves everything; it sleeps while nobody is dead."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[tuple[int, int], Queue] = {}  # by shard and number
        self._wake = asyncio.Event()
        self._tx: Tx | None = None
        self._redriving: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def on_dead(self, shard: int, queue: Queue) -> None:
        """Something in a queue of that shard waits to be moved."""
        self._waiting[shard, queue.id] = queue
        self._wake.set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="dead-letters")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        retry_s = RETRY_FIRST_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            stuck = False
            for place, queue in [*self._waiting.items()]:
                if await self._move_all(self._broker.shards[place[0]], queue):
                    self._waiting.pop(place, None)
                else:
                    stuck = True
            if stuck:
                asyncio.get_running_loop().call_later(retry_s, self._wake.set)
            retry_s = min(RETRY_LONGEST_S, retry_s * 2) if stuck else RETRY_FIRST_S

    async def _move_all(self, shard: Shard, queue: Queue) -> bool:
        """Moves all the dead of a queue that can be moved now; False if some are left."""
        stuck: set[int] = set()
        while queue.deaths and shard.queues.get(queue.id) is queue:
            entries = list(itertools.islice((entry for entry in queue.deaths if entry not in stuck), ROUND))
            if not entries:
                break
            if not await self._move_round(shard, queue, entries, stuck):
                return False
        return not stuck

    async def _move_round(self, shard: Shard, queue: Queue, entries: list[int], stuck: set[int]) -> bool:
        """Moves these, a batch at a time; those that cannot be are added to `stuck`. False: none can be now."""
        most = BATCH
        while entries and queue.deaths and shard.queues.get(queue.id) is queue:
            batch = entries[:most]
            try:
                self._tx = self._tx or await self._broker.transacting.begin(TRANSACTIONAL_ID)
                # While an end that could not be told apart from a failure was awaited, some may have gone.
                await self._move(self._tx, shard, queue, [entry for entry in batch if entry in queue.deaths])
            except Exception as error:
                self._tx = None  # begun anew: what was half done is undone
                if len(batch) > 1 and isinstance(error, Full | TooLarge | Invalid | Corrupt):
                    most = max(1, len(batch) // 4)  # perhaps it is one of them, or a few fit
                    continue
                _tell(queue, error)
                if isinstance(error, Gone):
                    shard.end_quietly(queue, batch)
                elif isinstance(error, TooLarge | Invalid | Corrupt):
                    stuck.update(batch)  # the others need not wait for it
                else:
                    return False
            del entries[: len(batch)]
        return True

    async def _move(self, tx: Tx, shard: Shard, queue: Queue, entries: list[int]) -> None:
        """Moves some of a queue's dead, in one transaction."""
        if not entries:
            return
        deaths = queue.deaths or {}
        target = queue.settings.dead_letter
        moved: list[Message] = []
        for entry in entries:
            _, message = shard.message_at(queue, entry)
            if target is not None and not _cycles(message, target, deaths[entry].reason):
                moved.append(_with_story(message, queue, entry, deaths[entry]))
        if moved and target is not None:
            await _ensure(self._broker, target)
            await _send(tx, target, moved)
        await tx.take(shard, queue, None, runs_of(entries))
        await tx.end(commit=True)

    # -- back again ----------------------------------------------------------------------------------------------------

    async def redrive(
        self,
        name: str,
        *,
        to: str | None = None,
        filter: str | None = None,
        rate: float = 0.0,
        limit: int = 0,
        dry_run: bool = False,
        message_ids: Sequence[str] = (),
        progress: Callable[[RedriveAnswer], None] | None = None,
    ) -> RedriveAnswer:
        """Sends what is in a dead-letter queue back to where it died, or to `to`, oldest first."""
        if not (math.isfinite(rate) and rate >= 0):
            raise Invalid(f"rate: {rate} is not a number from zero on")
        if limit < 0:
            raise Invalid(f"limit: {limit} is below zero")
        shard, queue = self._broker.queues.of_users(name)
        if to is not None:
            _check_target(self._broker, queue, to)
        chooser = _Chooser(shard, queue, compile_filter(filter) if filter else None, frozenset(message_ids))
        if dry_run:
            return await self._send_all_back(chooser, to, rate, limit, None, progress)
        if queue.id in self._redriving:
            raise Conflict(f"queue {name!r} is being redriven already; wait until that is through")
        self._redriving.add(queue.id)
        try:
            tx = await self._broker.transacting.begin(f"{REDRIVE_ID}-{shard.index}-{queue.id}")
            return await self._send_all_back(chooser, to, rate, limit, tx, progress)
        finally:
            self._redriving.discard(queue.id)

    async def _send_all_back(
        self,
        chooser: _Chooser,
        to: str | None,
        rate: float,
        limit: int,
        tx: Tx | None,
        progress: Callable[[RedriveAnswer], None] | None,
    ) -> RedriveAnswer:
        answer = RedriveAnswer(0, 0)
        at_once = min(BATCH, max(1, int(rate))) if rate else BATCH
        while not chooser.done and (not limit or answer.matched < limit):
            chosen = chooser.next(min(at_once, limit - answer.matched) if limit else at_once)
            answer.matched += len(chosen)
            if tx is None or not chosen:
                await asyncio.sleep(0)
            else:
                moved = await self._send_back(tx, chooser.shard, chooser.queue, chosen, to)
                answer.moved += moved
                answer.skipped += len(chosen) - moved
                if rate:
                    await asyncio.sleep(len(chosen) / rate)
            if progress is not None and chosen:
                progress(answer)
        return answer

    async def _send_back(
        self, tx: Tx, shard: Shard, queue: Queue, chosen: list[tuple[int, Message]], to: str | None
    ) -> int:
        ledger = queue.open_ledger()
        targets: dict[str, list[Message]] = {}
        taken: list[int] = []
        for entry, message in chosen:
            target = to or _origin(message)
            if target is None or target == queue.name or not _exists(self._broker, target):
                continue
            # Only what is ready: what waits for its time could not be given back as it was.
            if ledger.state_of(entry) is State.READY and ledger.take_out(entry):
                taken.append(entry)
                targets.setdefault(target, []).append(message)
        if not taken:
            return 0
        runs = runs_of(taken)
        try:
            for target, messages in targets.items():
                await _send(tx, target, messages)
            await tx.take(shard, queue, None, runs)
        except BaseException:
            shard.give_back(queue, runs)  # the transaction does not know of them yet
            with contextlib.suppress(WaystationError):
                await tx.end(commit=False)
            raise
        await tx.end(commit=True)
        return len(taken)


async def _ensure(broker: Broker, target: str) -> None:
    """A dead-letter target comes into being with its first dead; a topic if the broker's settings allow it."""
    if target.startswith(TOPIC_TARGET):
        await broker.messages.ensure(target.removeprefix(TOPIC_TARGET))
    elif target not in broker.queues:
        await broker.queues.declare(target)


async def _send(tx: Tx, target: str, messages: list[Message]) -> None:
    if target.startswith(TOPIC_TARGET):
        await tx.publish(target.removeprefix(TOPIC_TARGET), messages)
    else:
        await tx.put(target, messages, moved=True)


def _check_target(broker: Broker, queue: Queue, to: str) -> None:
    if to == queue.name:
        raise Invalid(f"to: queue {to!r} cannot be redriven to itself")
    if to.startswith(TOPIC_TARGET):
        broker.topics.get(to.removeprefix(TOPIC_TARGET))
    else:
        broker.queues.of_users(to)


def _exists(broker: Broker, target: str) -> bool:
    if target.startswith(TOPIC_TARGET):
        return target.removeprefix(TOPIC_TARGET) in broker.topics
    return target in broker.queues


def _tell(queue: Queue, error: Exception) -> None:
    target = queue.settings.dead_letter
    if isinstance(error, WaystationError):
        logger.warning("dead letters wait: queue=%r target=%r: %s", queue.name, target, error)
    else:  # a mistake of ours: whatever it is, the others are to be moved
        logger.error("dead letters wait: queue=%r target=%r", queue.name, target, exc_info=error)


def story_of(message: Message) -> list[dict[str, Any]]:
    """The deaths of a message, the latest first."""
    story = message.headers.get(X_DEATH)
    if isinstance(story, str | bytes):
        try:
            story = msgspec.json.decode(story)
        except msgspec.DecodeError:
            return []
    return [death for death in story if isinstance(death, dict)] if isinstance(story, list) else []


def with_death(message: Message, source: str, reason: str, at_ms: int, deliveries: int, error: str | None) -> list[Any]:
    """The story with one more death."""
    story = story_of(message)
    latest: dict[str, Any] = {"queue": source, "reason": reason, "time": at_ms, "count": 1, "deliveries": deliveries}
    if error is not None:
        latest["error"] = error
    for i, death in enumerate(story):
        if death.get("queue") == source and death.get("reason") == reason:
            latest["count"] = int(death.get("count", 1)) + 1
            del story[i]
            break
    return [latest, *story][:MAX_STORY]


def _with_story(message: Message, queue: Queue, entry: int, death: Death) -> Message:
    deliveries = queue.open_ledger().deliveries_of(entry)
    story = with_death(message, queue.name, death.reason, death.at_ms, deliveries, death.error)
    return msgspec.structs.replace(
        message,
        id=message.id if message.id is not None else f"{queue.name}#{entry}",
        headers={**message.headers, X_DEATH: story},
        delay_ms=0,
        deliver_at_ms=None,
        ttl_ms=None,
    )


def _cycles(message: Message, target: str, reason: str) -> bool:
    """Whether it died in `target` before, and no consumer has rejected it since, nor now."""
    if reason == REJECTED:
        return False
    story = story_of(message)
    for death in story:
        if death.get("reason") == REJECTED:
            return False
        if death.get("queue") == target:
            return True
    return len(story) >= MAX_STORY  # what it forgot may have been there; nobody dies so often without a circle


def _origin(message: Message) -> str | None:
    story = story_of(message)
    source = story[0].get("queue") if story else None
    return source if isinstance(source, str) else None


class _Chooser:
    """Goes through what is ready in a queue, oldest first, and picks what is to go back."""

    def __init__(self, shard: Shard, queue: Queue, wanted: Filter | None, ids: frozenset[str]) -> None:
        self.shard = shard
        self.queue = queue
        self.done = False
        self._wanted = wanted
        self._ids = ids
        self._seen = -1
        self._last = queue.newest  # what comes later is not looked at

    def next(self, room: int) -> list[tuple[int, Message]]:
        """Some more; perhaps none of those that were looked at. `done` says whether that was all."""
        chosen: list[tuple[int, Message]] = []
        looked = 0
        if self.queue.ledger is not None and self.shard.queues.get(self.queue.id) is self.queue:
            for _, first, count in self.queue.ledger.alive_runs(State.READY, self._seen):
                for entry in range(first, min(first + count, self._last + 1)):
                    self._seen = entry
                    looked += 1
                    message = self._pick(entry)
                    if message is not None:
                        chosen.append((entry, message))
                    if len(chosen) >= room or looked >= LOOKED_AT:
                        return chosen
                if first + count > self._last:
                    break
        self.done = True
        return chosen

    def _pick(self, entry: int) -> Message | None:
        try:
            _, message = self.shard.message_at(self.queue, entry)
        except (Corrupt, StorageFailed) as error:
            logger.error("a message cannot be read: queue=%r entry=%d: %s", self.queue.name, entry, error)
            return None
        known = message.id if message.id is not None else f"{self.queue.name}#{entry}"
        wanted = (not self._ids or known in self._ids) and (self._wanted is None or self._wanted.matches(message))
        return message if wanted else None
