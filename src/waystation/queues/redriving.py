"""Sends dead letters back to where they died, or elsewhere: oldest first, as many and as fast as is asked for.

What a group of subscribers gave up goes to that group alone (`redriven.py`), not to the topic that others read too.

Each batch is a transaction, so that stopping in the middle, or a crash, neither loses nor doubles a message. Only what
is ready goes. `queues/queues.py` calls this, and `admin/views/view_dead_letters.py` for what is done in the background.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.errors import AlreadyExists, Conflict, Invalid, NotLeader, UnknownTopic, WaystationError
from waystation.message import Message
from waystation.protocol import RedriveAnswer
from waystation.queues.dead_letter_targets import send
from waystation.queues.failure_history import TOPIC_TARGET, failure_history_of
from waystation.queues.inspection import read_or_tell
from waystation.queues.ledger.runs import runs_of
from waystation.queues.ledger.states import State
from waystation.queues.redriven import origin_of, redrive_topic
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import Shard
from waystation.routing.filtering.filters import Filter, compile_filter
from waystation.transactions.transacting import OWN_PREFIX

if TYPE_CHECKING:
    from waystation.core import Core
    from waystation.topics.topics import Topics
    from waystation.transactions.transacting import Tx


GROUP_TARGET = "group:"
"""Before a group's name, where a queue's might stand."""
REDRIVE_ID = f"{OWN_PREFIX}redrive"
BATCH = 200
TARGETS_SHOWN = 1_000
"""Places that a dry run names; messages may name ever others."""
PAUSE_S = 1.0
"""A slow one sleeps no longer than this without asking whether it is still wanted."""
LOOKED_AT = 500
"""Messages that a redrive looks at before the loop has its turn."""


class Redrive(msgspec.Struct, omit_defaults=True):
    """Which of them, where to, and how fast."""

    to: Annotated[str, Meta(description="instead of where each one died")] | None = None
    filter: Annotated[str, Meta(description="only those that this filter expression matches")] | None = None
    message_ids: list[str] = []
    rate: Annotated[float, Meta(ge=0, description="messages per second; 0: as fast as can be")] = 0.0
    limit: Annotated[int, Meta(ge=0, description="the most to send; 0: all")] = 0
    dry_run: Annotated[bool, Meta(description="say how many match, send none")] = False


class Chooser:
    """Goes through what is ready in a queue, oldest first, and picks what is to go back."""

    def __init__(self, shard: Shard, queue: Queue, wanted: Filter | None, ids: frozenset[str]) -> None:
        self.shard = shard
        self.queue = queue
        self.done = False
        self.looked = 0
        self._wanted = wanted
        self._ids = ids
        self._seen = -1
        self._last = queue.newest  # what comes later is not looked at

    def next(self, room: int) -> list[tuple[int, Message]]:
        """Some more; perhaps none of those that were looked at. `done` says whether that was all."""
        chosen: list[tuple[int, Message]] = []
        end = self.looked + LOOKED_AT
        self.shard.log.check_led()
        if self.queue.ledger is not None and self.shard.queues.get(self.queue.id) is self.queue:
            for _, first, count in self.queue.ledger.alive_runs(State.READY, self._seen):
                for entry in range(first, min(first + count, self._last + 1)):
                    self._seen = entry
                    self.looked += 1
                    message = self._pick(entry)
                    if message is not None:
                        chosen.append((entry, message))
                    if len(chosen) >= room or self.looked >= end:
                        return chosen
                if first + count > self._last:
                    break
        self.done = True
        return chosen

    def _pick(self, entry: int) -> Message | None:
        read = read_or_tell(self.shard, self.queue, entry)
        if read is None:
            return None
        message = read[1]
        known = message.id if message.id is not None else f"{self.queue.name}#{entry}"
        wanted = (not self._ids or known in self._ids) and (self._wanted is None or self._wanted.matches(message))
        return message if wanted else None


Progress = Callable[[RedriveAnswer], None]
"""Told how far it is, between two transactions; what it raises ends the redrive there."""
Pause = Callable[[float], Awaitable[None]]
MayGoTo = Callable[[str], bool]
"""Whether who redrives may send messages to a place that they name themselves: `x-death` is a header, and anybody who
puts a message into a dead-letter queue can write one."""


class Plan(msgspec.Struct, frozen=True):
    """A redrive that makes sense, not begun yet."""

    chooser: Chooser
    may_go_to: MayGoTo
    to: str | None
    rate: float
    limit: int
    dry_run: bool


class Redriving:
    """Constructed with the mover of dead letters. One redrive of a queue at a time."""

    def __init__(self, broker: Core) -> None:
        self._broker = broker
        self._redriving: set[tuple[int, int]] = set()  # by shard and number

    async def redrive(
        self, name: str, asked: Redrive, may_go_to: MayGoTo, progress: Progress | None = None
    ) -> RedriveAnswer:
        """Sends what is in a dead-letter queue back to where it died, or elsewhere, oldest first."""
        return await self.run(self.plan(name, asked, may_go_to), progress)

    def plan(self, name: str, asked: Redrive, may_go_to: MayGoTo) -> Plan:
        """Checks all that can be wrong with it, and raises; nothing has happened then."""
        if not (math.isfinite(asked.rate) and asked.rate >= 0):
            raise Invalid(f"rate: {asked.rate} is not a number from zero on")
        if asked.limit < 0:
            raise Invalid(f"limit: {asked.limit} is below zero")
        shard, queue = self._broker.queues.of_users(name)
        if asked.to is not None:
            _check_target(self._broker, queue, asked.to)
        wanted = compile_filter(asked.filter) if asked.filter else None
        if not asked.dry_run:
            self._check_alone(shard, queue)
        chooser = Chooser(shard, queue, wanted, frozenset(asked.message_ids))
        return Plan(chooser, may_go_to, asked.to, asked.rate, asked.limit, asked.dry_run)

    def _check_alone(self, shard: Shard, queue: Queue) -> None:
        if (shard.index, queue.id) in self._redriving:
            raise Conflict(f"queue {queue.name!r} is being redriven already; wait until that is through")

    async def run(self, plan: Plan, progress: Progress | None = None, pause: Pause = asyncio.sleep) -> RedriveAnswer:
        """Does what was planned. `pause` is what a slow one waits by."""
        shard, queue = plan.chooser.shard, plan.chooser.queue
        if plan.dry_run:
            return await self._send_all_back(plan, None, progress, pause)
        self._check_alone(shard, queue)
        self._redriving.add((shard.index, queue.id))
        try:
            tx = await self._broker.transacting.begin_own(f"{REDRIVE_ID}-{shard.index}-{queue.id}")
            return await self._send_all_back(plan, tx, progress, pause)
        finally:
            self._redriving.discard((shard.index, queue.id))

    async def _send_all_back(self, plan: Plan, tx: Tx | None, progress: Progress | None, pause: Pause) -> RedriveAnswer:
        chooser, rate, limit = plan.chooser, plan.rate, plan.limit
        answer = RedriveAnswer(0, 0)
        at_once = min(BATCH, max(1, int(rate))) if rate else BATCH
        while not chooser.done and (not limit or answer.matched < limit):
            chosen = chooser.next(min(at_once, limit - answer.matched) if limit else at_once)
            answer.matched += len(chosen)
            if tx is None or not chosen:
                self._foresee(plan, chosen, answer)
                await asyncio.sleep(0)
            else:
                moved = await self._send_back(tx, plan, chosen)
                answer.moved += moved
                answer.skipped += len(chosen) - moved
            if progress is not None:
                progress(answer)
            if tx is not None and chosen and rate:
                await _wait(len(chosen) / rate, answer, progress, pause)
        return answer

    def _foresee(self, plan: Plan, chosen: list[tuple[int, Message]], answer: RedriveAnswer) -> None:
        """What a dry run can say of these: how many would go where, and how many have nowhere to go."""
        for _, message in chosen:
            target = self._target(plan, message)
            if target is None:
                answer.skipped += 1
            elif target in answer.targets or len(answer.targets) < TARGETS_SHOWN:
                answer.targets[target] = answer.targets.get(target, 0) + 1

    def _target(self, plan: Plan, message: Message) -> str | None:
        """Where a message goes back to; None if there is no such place, or it may not go there."""
        target = plan.to or _origin(message)
        if target is None or target == plan.chooser.queue.name or not _exists(self._broker, target):
            return None
        return target if plan.to or plan.may_go_to(target) else None

    async def _send_back(self, tx: Tx, plan: Plan, chosen: list[tuple[int, Message]]) -> int:
        shard, queue = plan.chooser.shard, plan.chooser.queue
        ledger = queue.open_ledger()
        targets: dict[str, list[Message]] = {}
        taken: list[int] = []
        for entry, message in chosen:
            target = self._target(plan, message)
            if target is None:
                continue
            # Only what is ready: what waits for its time could not be requeued as it was.
            if ledger.state_of(entry) is State.READY and ledger.take_out(entry):
                taken.append(entry)
                targets.setdefault(target, []).append(message)
        if not taken:
            return 0
        runs = runs_of(taken)
        try:
            for target, messages in targets.items():
                await self._send(tx, target, messages)
            await tx.take(shard, queue, None, runs)
        except BaseException:
            shard.give_back(queue, runs)  # the transaction does not know of them yet
            with contextlib.suppress(WaystationError):
                await tx.end(commit=False)
            raise
        try:
            await tx.end(commit=True)
        except NotLeader:  # it is not committed: else they would be out of reach until its time ran out
            with contextlib.suppress(WaystationError):
                await tx.end(commit=False)
            raise
        return len(taken)

    async def _send(self, tx: Tx, target: str, messages: list[Message]) -> None:
        if not target.startswith(GROUP_TARGET):
            await send(tx, target, messages)
            return
        topic = redrive_topic(target.removeprefix(GROUP_TARGET))
        if topic not in self._broker.topics:
            with contextlib.suppress(AlreadyExists):
                await self._broker.topics.create(topic, 1, internal=True)
        await tx.publish(topic, messages, internal=True)


async def delete_redriven(topics: Topics, group: str) -> None:
    """A group was deleted: another one of its name begins without what was redriven to it."""
    topic = redrive_topic(group)
    if topic in topics:
        with contextlib.suppress(UnknownTopic):
            await topics.delete(topic, internal=True)


async def _wait(seconds: float, answer: RedriveAnswer, progress: Progress | None, pause: Pause) -> None:
    """In small steps: whoever asked may go meanwhile, and others cannot redrive the queue as long as this lasts."""
    while seconds > 0:
        step = min(seconds, PAUSE_S)
        await pause(step)
        seconds -= step
        if progress is not None:
            progress(answer)


def _check_target(broker: Core, queue: Queue, to: str) -> None:
    if to == queue.name:
        raise Invalid(f"to: queue {to!r} cannot be redriven to itself")
    if to.startswith(TOPIC_TARGET):
        broker.topics.get(to.removeprefix(TOPIC_TARGET))
    else:
        broker.queues.of_users(to)


def _exists(broker: Core, target: str) -> bool:
    if target.startswith(GROUP_TARGET):
        return _takes_redriven(broker, target.removeprefix(GROUP_TARGET))
    if target.startswith(TOPIC_TARGET):
        return target.removeprefix(TOPIC_TARGET) in broker.topics
    return target in broker.queues


def _takes_redriven(broker: Core, group: str) -> bool:
    """Kafka's share consumers alone cannot be given what is not in their topics."""
    if group in broker.shared:
        return broker.shared.get(group).ours
    return broker.groups.exists(group)


def _origin(message: Message) -> str | None:
    origin = origin_of(message)
    if origin is not None:
        return GROUP_TARGET + origin.group
    history = failure_history_of(message)
    source = history[0].get("queue") if history else None
    return source if isinstance(source, str) else None
