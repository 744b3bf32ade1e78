"""What a shard does by itself: time passes in its queues, what dies is buried, what was done is written down.

The verbs that protocols ask for are in `shard.py`, which is this and they. Nobody else builds one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from waystation.errors import Corrupt, NotLeader, StorageFailed
from waystation.message import Message, Run
from waystation.observe.events import event_logger
from waystation.observe.meters import DeathMeter
from waystation.observe.tracing import Tracing
from waystation.queues.ledger.outcomes import Lapsed
from waystation.queues.ledger.states import State
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.bodies import Bodies, Gone
from waystation.queues.shard.commands import Bury, Command, Done, count_of
from waystation.queues.shard.dispatcher import Dispatcher
from waystation.queues.shard.open_transactions import OpenTransactions
from waystation.queues.shard.queue import Death, Queue
from waystation.queues.shard.shard_log import ShardLog, not_leader
from waystation.queues.shard.unreplicated import Unreplicated
from waystation.queues.shard.usage import Notes, usage_of
from waystation.world import World
from waystation.world.alarm import Alarm, CalendarAlarm
from waystation.world.clock import monotonic_ms

logger = event_logger("waystation.queues")

REJECTED, EXPIRED, DELIVERY_LIMIT, OVERFLOW = "rejected", "expired", "delivery-limit", "overflow"
UNREADABLE_DELAY_MS = 60_000
"""A message that the disk does not give is tried again after this long."""
EXPIRE_AGAIN_MS = 10_000
"""A queue that is to go, but the disk refuses to say so."""


class Upkeep:
    """Queues, the log, and what happens between them without anybody asking."""

    def __init__(
        self, index: int, shard_log: ShardLog, world: World, *, cache_bytes: int, on_dead: Callable[[int, Queue], None]
    ) -> None:
        self.index = index
        self.log = shard_log
        self.world = world
        self.bodies = Bodies(shard_log.partition, cache_bytes)
        self.queues: dict[int, Queue] = {}
        self.open = OpenTransactions()
        # Queues are known to them by number, so that one that is deleted is not kept for the sake of its next moment.
        self.alarm = Alarm(world.clock, self._end_late)  # the ends of visibility timeouts, and of unused queues
        self.calendar = CalendarAlarm(world.clock, self._ring)  # delays and expiries of messages
        self.dispatcher = Dispatcher(world.clock, self._let_pass, self._arm)
        self.unreplicated: Unreplicated | None = None  # a broker alone shows what it has written
        self.max_message_bytes = 1024 * 1024
        self.notes: Notes | None = None  # what was used since somebody looked; None: nobody looks
        self.deaths = DeathMeter()
        self.tracing: Tracing | None = None
        self.on_idle: Callable[[Queue], None] = lambda queue: None  # a queue that nobody used for too long
        self._on_dead = on_dead
        self._settings: dict[QueueSettings, QueueSettings] = {}  # queues that are alike share one

    # -- queues -------------------------------------------------------------------------------------------------------

    def new_queue(self, queue_id: int, name: str, settings: QueueSettings) -> Queue:
        queue = Queue(queue_id, name, self._settings.setdefault(settings, settings))
        self.queues[queue_id] = queue
        return queue

    def change(self, queue: Queue, settings: QueueSettings) -> None:
        queue.change(self._settings.setdefault(settings, settings))
        queue.wake_publishers()

    def touch(self, queue: Queue) -> None:
        """Somebody uses the queue: one that expires starts to count anew."""
        if queue.settings.expires_ms is not None:
            queue.used_ms = monotonic_ms(self.world.clock)
            self.alarm.arm(queue.id, queue.used_ms + queue.settings.expires_ms)

    def note_use(self, queue: Queue) -> None:
        """The queue is about to change: whoever measures may want to know what it was like."""
        notes = self.notes
        if notes is not None and queue not in notes:
            notes[queue] = usage_of(queue)

    def adopt(self, queue: Queue) -> None:
        """A queue from a snapshot."""
        queue.settings = self._settings.setdefault(queue.settings, queue.settings)
        self.queues[queue.id] = queue

    def hide_unreplicated(self) -> None:
        """What is taken in from now on may not be on every replica that counts."""
        partition = self.log.partition
        if partition.replicated:
            self.unreplicated = Unreplicated(partition, self.dispatcher.wake)

    def start(self) -> None:
        """Everything is replayed: time may go on."""
        self.log.flush()
        for queue in self.queues.values():
            queue.stamp = -1
            if queue.ledger is not None:
                exhausted = queue.ledger.exhaust()
                self._write_quietly(
                    self._buried(queue, exhausted, DELIVERY_LIMIT, None, self.world.clock.now_ms()),
                )
            self._arm(queue)
            self.touch(queue)
            if queue.deaths:
                self._on_dead(self.index, queue)

    def close(self) -> None:
        self._stop()
        self.log.close()

    def drop(self) -> None:
        """Another broker leads the log: whoever waits is told, nothing happens here any more, and nothing is kept. Who
        has hold of this shard still finds no queue in it, and can write nothing."""
        self._stop()
        self.log.drop()
        dropped, self.queues = self.queues, {}
        self.open = OpenTransactions()
        self.bodies = Bodies(self.log.partition, 0)
        self.notes = None
        error = not_leader(self.log.partition)
        for queue in dropped.values():
            if self.tracing is not None:
                self.tracing.gone(queue, "not-leader")
            queue.drop(error)

    def _stop(self) -> None:
        if self.unreplicated is not None:
            self.unreplicated.close()
        self.alarm.close()
        self.calendar.close()
        self.dispatcher.close()

    def forget_old_ids(self, queue: Queue, most: int) -> None:
        """Those that were used before the queue's window, and before anything that a transaction may yet put."""
        now_ms = min(self.world.clock.now_ms(), self.open.coming(queue.id).since_ms)
        queue.forget_old_ids(now_ms, most)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _let_pass(self, queue: Queue, now_ms: int) -> None:
        """Time of the wall clock passes: what is delayed may be due, what waits may have expired."""
        ledger = queue.ledger
        if ledger is None:
            return
        when = ledger.next_ms()
        if when is None or when > now_ms:
            return
        self.note_use(queue)
        self._lapsed(queue, ledger.lapse(now_ms), now_ms)

    def _lapsed(self, queue: Queue, lapsed: Lapsed, now_ms: int) -> None:
        if lapsed.expired or lapsed.exhausted:
            self._write_quietly(
                self._buried(queue, lapsed.expired, EXPIRED, None, now_ms)
                + self._buried(queue, lapsed.exhausted, DELIVERY_LIMIT, None, now_ms)
            )
            queue.wake_publishers()

    def _arm(self, queue: Queue) -> None:
        ledger = queue.ledger
        if ledger is None:
            return
        due_ms = ledger.next_ms()
        if due_ms is not None:
            self.calendar.arm(queue.id, due_ms)
        visibility_ms = ledger.next_visibility_ms()
        if visibility_ms is not None:
            self.alarm.arm(queue.id, visibility_ms)

    def _ring(self, queue_id: int) -> None:
        """A moment of the wall clock has come for a queue."""
        queue = self.queues.get(queue_id)
        if queue is not None:
            self._let_pass(queue, self.world.clock.now_ms())
            self.dispatcher.wake(queue)
            self._arm(queue)

    def _end_late(self, queue_id: int) -> None:
        """A moment of the monotonic clock has come for a queue. Visibility timeouts end here and nowhere else: the
        alarm has let sockets be read before, so that a verdict that was sent in time is not late because we are."""
        queue = self.queues.get(queue_id)
        if queue is None:
            return
        ledger, since_ms = queue.ledger, monotonic_ms(self.world.clock)
        if ledger is not None:
            now_ms = self.world.clock.now_ms()
            self._let_pass(queue, now_ms)
            self.note_use(queue)
            lapsed = ledger.lapse_visibility(since_ms)
            if self.tracing is not None:
                self.tracing.lapsed(queue, lambda entry: ledger.state_of(entry) is State.IN_FLIGHT)
            self._lapsed(queue, lapsed, now_ms)
        self.dispatcher.wake(queue)
        self._arm(queue)
        if queue.settings.expires_ms is not None:
            self._expire(queue, queue.settings.expires_ms, since_ms)

    def _expire(self, queue: Queue, expires_ms: int, since_ms: int) -> None:
        """A queue that nobody used for so long is deleted."""
        if queue.feeds:
            queue.used_ms = since_ms
        if since_ms - queue.used_ms < expires_ms:
            self.alarm.arm(queue.id, queue.used_ms + expires_ms)
            return
        self.on_idle(queue)
        if queue.id in self.queues:
            self.alarm.arm(queue.id, since_ms + EXPIRE_AGAIN_MS)

    # -- what becomes of messages -------------------------------------------------------------------------------------

    def _settled(self, queue: Queue) -> None:
        self._arm(queue)
        self.dispatcher.wake(queue)
        if queue.waiting_room:
            queue.wake_publishers()

    def _done(self, queue: Queue, runs: list[Run]) -> list[Command]:
        if not runs:
            return []
        queue.finished(runs, self.bodies.done)
        return [Done(queue.id, runs)]

    def _buried(self, queue: Queue, runs: list[Run], reason: str, error: str | None, now_ms: int) -> list[Command]:
        """What the ledger gave up: on its way to the dead-letter target, or gone."""
        if not runs:
            return []
        count = count_of(runs)
        queue.dead += count
        self.deaths.add(reason, count, kept=queue.settings.keeps_dead)
        if not queue.settings.keeps_dead:
            return self._done(queue, runs)
        queue.bury(runs, Death(reason, now_ms, error))
        self._on_dead(self.index, queue)
        return self.burial(queue, runs, reason, error, now_ms)

    @staticmethod
    def burial(queue: Queue, runs: list[Run], reason: str, error: str | None, now_ms: int) -> list[Command]:
        """What is written of entries that die."""
        if not runs:
            return []
        return [Bury(queue.id, runs, reason, now_ms, error) if queue.settings.keeps_dead else Done(queue.id, runs)]

    def _write_quietly(self, wanted: list[Command]) -> None:
        """What time does: nobody waits for it, and it would be done again after a restart."""
        if wanted:
            try:
                self.log.write(wanted, done=True)
            except (StorageFailed, NotLeader) as error:
                logger.warning(
                    "queues.changes_wait", "what happened in a queue cannot be written now: {error}", error=error
                )

    def end_quietly(self, queue: Queue, entries: Iterable[int]) -> None:
        """Entries that are known to be over."""
        self.note_use(queue)
        done = queue.finish([(entry, 1) for entry in entries], self.bodies.done)
        self._write_quietly([Done(queue.id, done)])

    def unreadable(self, queue: Queue, consumer: str, run: Run, error: Exception) -> None:
        """The disk does not give what is to be delivered: it is put aside, others go on."""
        if isinstance(error, Gone):
            # Its end was not written, since the disk refused, and the snapshot that knew of it is lost.
            logger.error(
                "message.end_unknown",
                "a message of queue {queue} was found whose end was not noted: {error}",
                queue=queue.name,
                run=run,
                error=error,
            )
            self.end_quietly(queue, range(run[0], sum(run)))
            return
        logger.error(
            "messages.unreadable",
            "messages of queue {queue} cannot be read, trying again later: {error}",
            queue=queue.name,
            run=run,
            error=error,
        )
        self.note_use(queue)
        queue.open_ledger().postpone(consumer, [run], self.world.clock.now_ms() + UNREADABLE_DELAY_MS)

    # -- looking at messages -------------------------------------------------------------------------------------------

    def message_at(self, queue: Queue, entry: int) -> tuple[int, Message]:
        """(when it was taken in, the message) of a living entry."""
        if queue.places is None:
            raise Corrupt(f"queue {queue.name!r} has no entry {entry}")
        offset, index = queue.places.find(entry)
        block = self.bodies.get(offset)
        return block.taken(index), block.messages[index]

    def look_at(self, queue: Queue, entries: Iterable[int]) -> Iterator[tuple[int, int, Message]]:
        """(entry, when it was taken in, the message) of living entries here and there, in no order: a block is opened
        once for all of its own. What the disk does not give is left out."""
        blocks: dict[int, list[tuple[int, int]]] = {}
        for entry in entries:
            if queue.places is not None and queue.ledger is not None and queue.ledger.state_of(entry):
                offset, index = queue.places.find(entry)
                blocks.setdefault(offset, []).append((entry, index))
        for offset, wanted in blocks.items():
            try:
                found = self.bodies.some(offset, [index for _, index in wanted])
            except (Corrupt, StorageFailed) as error:
                logger.error(
                    "messages.unreadable",
                    "messages of queue {queue} cannot be read: {error}",
                    queue=queue.name,
                    offset=offset,
                    error=error,
                )
                continue
            for (entry, _), (taken_ms, message) in zip(wanted, found, strict=True):
                yield entry, taken_ms, message

    def taken_ms(self, queue: Queue, entry: int) -> int:
        """When a living entry was taken in."""
        if queue.places is None:
            raise Corrupt(f"queue {queue.name!r} has no entry {entry}")
        return self.bodies.taken_ms(*queue.places.find(entry))
