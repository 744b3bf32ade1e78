"""Dead letters: moved to where their queue says, with their failure history, each exactly once.

A move is one batch of the shard's log where all targets are queues of the shard that the message died in, else a
transaction: the message is put to all its targets and ended where it died, everything or nothing, whatever the moment
of a crash. What an open transaction has, be it one whose end is not known or one of the node that led the shard before,
is left alone until that ends. A target that cannot take it now (full, deleted, a disk without room) is tried again;
until then the message waits where it is, out of everybody's reach. A message that has nowhere to go is ended.

`dead_letter_targets.py` says what goes where, `failure_history.py` what the history is, `redriving.py` redrives them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import TYPE_CHECKING

from waystation.errors import Corrupt, Full, Invalid, TooLarge, WaystationError
from waystation.message import Message
from waystation.observe.events import event_logger
from waystation.queues.dead_letter_targets import dead_letters_of, send
from waystation.queues.failure_history import TOPIC_TARGET
from waystation.queues.ledger.runs import runs_of
from waystation.queues.redriving import Redriving
from waystation.queues.shard.bodies import Gone
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import Shard
from waystation.transactions.transacting import OWN_PREFIX

if TYPE_CHECKING:
    from waystation.core import Core
    from waystation.transactions.transacting import Tx

logger = event_logger("waystation.dead_letters")

TRANSACTIONAL_ID = f"{OWN_PREFIX}dead-letters"
BATCH = 200
ROUND = 10_000
"""Dead that are looked up at once: to find the first of a dict that loses its first takes longer and longer."""
RETRY_FIRST_S, RETRY_LONGEST_S = 0.1, 30.0


class DeadLetters:
    """One task moves everything; it sleeps while nobody is dead."""

    def __init__(self, broker: Core) -> None:
        self._broker = broker
        self._waiting: dict[Queue, int] = {}  # with the number of its shard
        self._wake = asyncio.Event()
        self._tx: Tx | None = None
        self.redriving = Redriving(broker)
        self.redrive = self.redriving.redrive
        self._task: asyncio.Task[None] | None = None

    def on_dead(self, shard: int, queue: Queue) -> None:
        """Something in a queue of that shard waits to be moved."""
        self._waiting[queue] = shard
        self._wake.set()

    def forget(self, shard: Shard) -> None:
        """Another broker leads the shard, and moves what is dead in it."""
        for queue in [queue for queue in self._waiting if shard.queues.get(queue.id) is queue]:
            del self._waiting[queue]

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
            stuck = await self._round()
            if stuck:
                asyncio.get_running_loop().call_later(retry_s, self._wake.set)
            retry_s = min(RETRY_LONGEST_S, retry_s * 2) if stuck else RETRY_FIRST_S

    async def _round(self) -> bool:
        """Moves what can be moved now; says whether some is left. By itself, so that no queue stays in memory for the
        sake of a task that sleeps."""
        stuck = False
        for queue, index in [*self._waiting.items()]:
            shard = self._broker.shards.find(index)
            if shard is None or await self._move_all(shard, queue):
                self._waiting.pop(queue, None)
            elif queue in self._waiting:  # else it was dropped meanwhile
                stuck = True
        return stuck

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
                free = _free(shard, queue, batch)
                if len(free) < len(batch) and self._tx is None:
                    self._tx = await self._begin()  # ends an earlier one of ours
                    free = _free(shard, queue, batch)
                stuck.update(set(batch) - set(free))
                await self._move(shard, queue, free)
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

    async def _begin(self) -> Tx:
        return await self._broker.transacting.begin_own(TRANSACTIONAL_ID)

    async def _move(self, shard: Shard, queue: Queue, entries: list[int]) -> None:
        """Moves some of a queue's dead, all together."""
        if not entries:
            return
        deaths = queue.deaths or {}
        shares: dict[str, list[Message]] = {}
        for entry in entries:
            _, message = shard.message_at(queue, entry)
            for target, dead_letter in dead_letters_of(self._broker, queue, entry, message, deaths[entry]):
                shares.setdefault(target, []).append(dead_letter)
        if not shares:
            shard.end_quietly(queue, entries)
            return
        if queue.settings.dead_letter in shares:
            await _ensure(self._broker, queue.settings.dead_letter)
        beside = self._beside(shard, shares)
        if beside is None:
            tx = self._tx = self._tx or await self._begin()
            if _free(shard, queue, entries) == entries:  # else they are looked at again
                await self._move_far(tx, shard, queue, entries, shares)
        elif shard.queues.get(queue.id) is queue:  # else it was deleted while its target was made
            partition, end = shard.move(queue, runs_of(entries), beside)
            await partition.until_durable(end)  # nobody waits for it, but it is to reach the disk

    def _beside(self, shard: Shard, shares: dict[str, list[Message]]) -> dict[Queue, list[Message]] | None:
        """What each queue gets; None if some of it goes to a topic, or to another shard."""
        if any(target.startswith(TOPIC_TARGET) for target in shares):
            return None
        found = [(*self._broker.queues.of_users(target), share) for target, share in shares.items()]
        return {known: share for _, known, share in found} if all(one is shard for one, _, _ in found) else None

    @staticmethod
    async def _move_far(
        tx: Tx, shard: Shard, queue: Queue, entries: list[int], shares: dict[str, list[Message]]
    ) -> None:
        """In a transaction, over shards and topics."""
        await tx.enter(shard, [target for target in shares if not target.startswith(TOPIC_TARGET)])
        for target, share in shares.items():
            await send(tx, target, share)
        await tx.take(shard, queue, None, runs_of(entries))
        await tx.end(commit=True)


def _free(shard: Shard, queue: Queue, entries: list[int]) -> list[int]:
    """Those of the dead that are there still, and that no open transaction has."""
    deaths = queue.deaths or {}
    taken = shard.open.taken().get(queue.id, ()) if len(shard.open) else ()
    return [entry for entry in entries if entry in deaths and entry not in taken]


async def _ensure(broker: Core, target: str) -> None:
    """A dead-letter target comes into being with its first dead; a topic if the broker's settings allow it."""
    if target.startswith(TOPIC_TARGET):
        await broker.messages.ensure(target.removeprefix(TOPIC_TARGET))
    elif target not in broker.queues:
        await broker.queues.declare(target)


def _tell(queue: Queue, error: Exception) -> None:
    if isinstance(error, WaystationError):
        logger.warning(
            "dead_letters.wait", "dead letters of queue {queue} wait: {error}", queue=queue.name, error=error
        )
    else:  # a mistake of ours: whatever it is, the others are to be moved
        logger.exception("dead_letters.wait", "dead letters of queue {queue} wait", queue=queue.name, cause=error)
