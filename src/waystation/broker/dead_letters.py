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
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from waystation.broker.transacting import OWN_PREFIX
from waystation.errors import Invalid, WaystationError
from waystation.message import Message
from waystation.protocol import RedriveAnswer
from waystation.queues.queue import Death, Queue
from waystation.queues.shard import REJECTED, Shard
from waystation.queues.states import State
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
RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 30.0
MAX_STORY = 20
"""Deaths that a message remembers."""

Waiting = tuple[Shard, Queue]


class DeadLetters:
    """One task moves everything; it sleeps while nobody is dead."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._waiting: dict[int, dict[int, Waiting]] = {}  # shard → queue → itself
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def on_dead(self, shard: Shard, queue: Queue) -> None:
        """Something in the queue waits to be moved."""
        self._waiting.setdefault(shard.index, {})[queue.id] = (shard, queue)
        self._wake.set()

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="dead-letters")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        tx: Tx | None = None
        retry_s = RETRY_FIRST_S
        while True:
            await self._wake.wait()
            self._wake.clear()
            for shard, queue in [waiting for by_id in self._waiting.values() for waiting in by_id.values()]:
                try:
                    tx = tx or await self._broker.transacting.begin(TRANSACTIONAL_ID)
                    while queue.deaths and shard.queues.get(queue.id) is queue:
                        await self._move(tx, shard, queue)
                    self._waiting[shard.index].pop(queue.id, None)
                    retry_s = RETRY_FIRST_S
                except WaystationError as error:
                    logger.warning("dead letters wait: queue=%r target=%r: %s", queue.name, _target(queue), error)
                    tx = None  # begun anew: what was half done is undone
                    asyncio.get_running_loop().call_later(retry_s, self._wake.set)
                    retry_s = min(RETRY_LONGEST_S, retry_s * 2)

    async def _move(self, tx: Tx, shard: Shard, queue: Queue) -> None:
        """Moves some of a queue's dead, in one transaction."""
        entries = list((queue.deaths or {}).items())[:BATCH]
        target = queue.settings.dead_letter
        moved: list[Message] = []
        for entry, death in entries:
            _, message = shard.message_at(queue, entry)
            if target is not None and not _cycles(message, target):
                moved.append(_with_story(message, queue, entry, death, shard))
        if moved and target is not None:
            await _send(self._broker, tx, target, moved)
        await tx.take(shard, queue, None, [(entry, 1) for entry, _ in entries])
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
        if rate < 0:
            raise Invalid(f"rate: {rate} is below zero")
        shard, queue = self._broker.queues.get(name)
        wanted = compile_filter(filter) if filter else None
        answer = RedriveAnswer(0, 0)
        tx: Tx | None = None
        after = queue.newest
        seen = -1
        while not limit or answer.matched < limit:
            room = min(BATCH if not rate else max(1, min(BATCH, int(rate))), limit - answer.matched if limit else BATCH)
            chosen, seen = _choose(shard, queue, seen, after, wanted, set(message_ids), room)
            if not chosen:
                break
            answer.matched += len(chosen)
            if not dry_run:
                tx = tx or await self._broker.transacting.begin(f"{REDRIVE_ID}-{queue.id}")
                moved = await self._send_back(tx, shard, queue, chosen, to)
                answer.moved += moved
                answer.skipped += len(chosen) - moved
                if rate:
                    await asyncio.sleep(len(chosen) / rate)
            else:
                await asyncio.sleep(0)
            if progress is not None:
                progress(answer)
        return answer

    async def _send_back(
        self, tx: Tx, shard: Shard, queue: Queue, chosen: list[tuple[int, Message]], to: str | None
    ) -> int:
        targets: dict[str, list[tuple[int, Message]]] = {}
        for entry, message in chosen:
            target = to or _origin(message)
            if target is not None and target != queue.name and _exists(self._broker, target):
                targets.setdefault(target, []).append((entry, message))
        runs = [(entry, 1) for group in targets.values() for entry, _ in group if queue.open_ledger().take_out(entry)]
        if not runs:
            return 0
        taken = {entry for entry, _ in runs}
        try:
            for target, group in targets.items():
                await _send(self._broker, tx, target, [message for entry, message in group if entry in taken])
            await tx.take(shard, queue, None, sorted(runs))
        except BaseException:
            with contextlib.suppress(WaystationError):
                await tx.end(commit=False)
            shard.give_back(queue, sorted(runs))
            raise
        await tx.end(commit=True)
        return len(runs)


async def _send(broker: Broker, tx: Tx, target: str, messages: list[Message]) -> None:
    if target.startswith(TOPIC_TARGET):
        topic = target.removeprefix(TOPIC_TARGET)
        await broker.messages.ensure(topic)
        await tx.publish(topic, messages)
        return
    if target not in broker.queues:
        await broker.queues.declare(target)  # a dead-letter queue comes into being with its first dead
    await tx.put(target, messages)


def _exists(broker: Broker, target: str) -> bool:
    if target.startswith(TOPIC_TARGET):
        return target.removeprefix(TOPIC_TARGET) in broker.topics
    return target in broker.queues


def _target(queue: Queue) -> str | None:
    return queue.settings.dead_letter


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


def _with_story(message: Message, queue: Queue, entry: int, death: Death, shard: Shard) -> Message:
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


def _cycles(message: Message, target: str) -> bool:
    """Whether it died in `target` before and no consumer has rejected it since."""
    for death in story_of(message):
        if death.get("reason") == REJECTED:
            return False
        if death.get("queue") == target:
            return True
    return False


def _origin(message: Message) -> str | None:
    story = story_of(message)
    source = story[0].get("queue") if story else None
    return source if isinstance(source, str) else None


def _choose(
    shard: Shard, queue: Queue, seen: int, last: int, wanted: Filter | None, ids: set[str], room: int
) -> tuple[list[tuple[int, Message]], int]:
    """The next messages behind `seen` that are to go back, and how far was looked."""
    chosen: list[tuple[int, Message]] = []
    if queue.ledger is None:
        return chosen, seen
    for state, first, count in queue.ledger.alive_runs(after=seen):
        if state not in (State.READY, State.PARKED):
            continue
        for entry in range(max(first, seen + 1), first + count):
            if entry > last or len(chosen) >= room:
                return chosen, seen
            seen = entry
            _, message = shard.message_at(queue, entry)
            known = message.id if message.id is not None else f"{queue.name}#{entry}"
            if (not ids or known in ids) and (wanted is None or wanted.matches(message)):
                chosen.append((entry, message))
    return chosen, seen
