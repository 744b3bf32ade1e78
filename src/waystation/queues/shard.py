"""A shard: many queues and the one log that holds everything that happens to them.

A change is written to the log and applied in memory in one go, on the loop's thread; whoever asked for it is answered
when the log is durable up to there (the receipt). A publish is written first, so that a disk that refuses leaves
nothing behind; a verdict is applied first, since it may only be written for what the consumer really holds. If it
cannot be written, the consumer is told so, and after a restart the message may come again.

Invariants:
- What memory says is what a replay of the log would say, but for holds (nobody holds anything after a restart) and the
  last deliveries that were noted.
- A transaction's commands are written when they are made, and mean nothing until its marker says that it committed.
  What it takes from a queue is out of reach of others until then.
- Nothing is delivered early, and nothing that is expired; time is let pass before anything is handed out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

import msgspec

from waystation.errors import Corrupt, StorageFailed
from waystation.message import Message
from waystation.queues.alarm import Alarm
from waystation.queues.backoff import retry_at_ms
from waystation.queues.bodies import Bodies
from waystation.queues.commands import Alter, Bury, Command, Declare, Delete, Done, Enqueue, Park, Run, entries_of
from waystation.queues.feed import Receipt, Settled, Verdict
from waystation.queues.ledger import Grant, Outcome
from waystation.queues.publish import check_all, check_room, leave_out_seen, make_blocks
from waystation.queues.queue import Death, Queue
from waystation.queues.settings import QueueSettings
from waystation.queues.shard_log import ShardLog
from waystation.world import World

logger = logging.getLogger("waystation.queues")

REJECTED, EXPIRED, DELIVERY_LIMIT, OVERFLOW = "rejected", "expired", "delivery-limit", "overflow"
UNREADABLE_PARK_MS = 60_000
"""A message that the disk does not give is tried again after this long."""

Producer = tuple[int, int]


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """What a publish gave."""

    first: int  # the first entry
    count: int
    duplicates: list[int]  # indexes of messages that were left out
    receipt: Receipt


class Shard:
    """Constructed by the broker, one per partition of the internal topic."""

    def __init__(
        self,
        index: int,
        shard_log: ShardLog,
        world: World,
        *,
        cache_bytes: int,
        on_dead: Callable[[Shard, Queue], None],
    ) -> None:
        self.index = index
        self.log = shard_log
        self.world = world
        self.bodies = Bodies(shard_log.log, cache_bytes)
        self.queues: dict[int, Queue] = {}
        self.open: dict[int, list[tuple[int, Command]]] = {}  # transactions: producer id → what they wrote, and where
        self.alarm = Alarm(world.clock, self._ring)
        self.max_message_bytes = 1024 * 1024
        self.on_idle: Callable[[Queue], None] = lambda queue: None  # a queue that nobody used for too long
        self._on_dead = on_dead
        self._settings: dict[QueueSettings, QueueSettings] = {}  # queues that are alike share one

    # -- queues come and go -------------------------------------------------------------------------------------------

    def declare(self, name: str, settings: QueueSettings) -> tuple[Queue, Receipt]:
        queue_id = self.log.log.end_offset  # given once: offsets only ascend
        written = self.log.write([Declare(queue_id, name, settings)])
        queue = self.new_queue(queue_id, name, settings)
        self.touch(queue)
        return queue, written.receipt

    def new_queue(self, queue_id: int, name: str, settings: QueueSettings) -> Queue:
        queue = Queue(queue_id, name, self._settings.setdefault(settings, settings))
        self.queues[queue_id] = queue
        return queue

    def alter(self, queue: Queue, settings: QueueSettings) -> Receipt:
        written = self.log.write([Alter(queue.id, settings)])
        self.change(queue, settings)
        return written.receipt

    def change(self, queue: Queue, settings: QueueSettings) -> None:
        queue.change(self._settings.setdefault(settings, settings))

    def delete(self, queue: Queue) -> Receipt:
        written = self.log.write([Delete(queue.id)])
        self.queues.pop(queue.id, None)
        return written.receipt

    def touch(self, queue: Queue) -> None:
        """Somebody uses the queue: one that expires starts to count anew."""
        if queue.settings.expires_ms is not None:
            queue.used_ms = self.world.clock.now_ms()
            self.alarm.arm(queue, queue.used_ms + queue.settings.expires_ms)

    # -- publish ------------------------------------------------------------------------------------------------------

    def put(self, queue: Queue, messages: Sequence[Message], producer: Producer | None = None) -> PutResult:
        """Writes messages to a queue. All of them (but duplicates), or none."""
        now_ms = self.world.clock.now_ms()
        sizes = check_all(messages, self.max_message_bytes)
        wanted, sizes, duplicates = leave_out_seen(queue, messages, sizes, now_ms)
        if not wanted:
            # They are kept when the first of their ids is, which may not be yet.
            return PutResult(queue.newest + 1, 0, duplicates, Receipt(self.log.log, self.log.log.end_offset))
        check_room(queue, len(wanted), sum(sizes))
        first = -1 if producer is not None else queue.newest + 1
        blocks = make_blocks(queue, wanted, sizes, first, now_ms)
        written = self.log.write([block for block, _ in blocks], producer)
        offset = written.first
        for block, content in blocks:
            if producer is None:
                queue.admit(block, block.first, offset, content)
                self.bodies.keep(offset, now_ms, content, sum(map(_payload_size, content)))
            else:
                self.open.setdefault(producer[0], []).append((offset, block))
            offset += 1
        if producer is None:
            self._admitted(queue, len(wanted), now_ms)
        return PutResult(first, len(wanted), duplicates, written.receipt)

    def _admitted(self, queue: Queue, count: int, now_ms: int) -> None:
        queue.put += count
        settings = queue.settings
        if settings.max_length is not None or settings.max_bytes is not None:
            self._drop_overflow(queue, now_ms)
        self._arm(queue)
        self.wake(queue)

    def _drop_overflow(self, queue: Queue, now_ms: int) -> None:
        """Old messages make room for new ones, where the queue says so."""
        ledger, settings = queue.open_ledger(), queue.settings
        count, size = len(ledger) - ledger.leaving, queue.bytes - queue.dead_bytes()
        dropped: list[Run] = []
        while (settings.max_length is not None and count > settings.max_length) or (
            settings.max_bytes is not None and size > settings.max_bytes
        ):
            entry = ledger.drop_oldest()
            if entry is None:
                break
            count -= 1
            size -= queue.places.bytes_of(entry, 1)  # type: ignore[union-attr]
            dropped.append((entry, 1))
        if not dropped:
            return
        if settings.overflow == "dead-letter":
            self._write_quietly(self._buried(queue, dropped, OVERFLOW, None, now_ms))
        else:
            ledger.finish(dropped)  # a queue with a dead-letter target keeps them until it is told
            self._write_quietly(self._done(queue, dropped))

    # -- delivery -----------------------------------------------------------------------------------------------------

    def wake(self, queue: Queue) -> None:
        """There may be something to deliver."""
        if queue.feeds and not queue.pumping and queue.ledger is not None and queue.ledger.ready:
            queue.pumping = True
            asyncio.get_running_loop().call_soon(self._pump, queue)

    def _pump(self, queue: Queue) -> None:
        queue.pumping = False
        self.pump_now(queue)

    def pump_now(self, queue: Queue) -> None:
        """Hands out what is ready, in turn to everybody who can take something."""
        ledger, feeds = queue.ledger, queue.feeds
        if ledger is None or not feeds:
            return
        now_ms = self.world.clock.now_ms()
        self._let_pass(queue, now_ms)
        idle = 0
        while ledger.ready and feeds and idle < len(feeds):
            queue.turn = (queue.turn + 1) % len(feeds)
            share = max(1, min(1024, ledger.ready // len(feeds)))
            idle = 0 if feeds[queue.turn].feed(share, now_ms) else idle + 1
        self._arm(queue)

    def acquire(self, queue: Queue, consumer: str, count: int, now_ms: int, hold_ms: int) -> list[Grant]:
        """Entries for a consumer. Deliveries are noted."""
        ledger = queue.open_ledger()
        grants = ledger.acquire(consumer, count, now_ms, hold_ms)
        if grants:
            self.log.note(queue.id, [(grant.first, grant.count) for grant in grants])
            queue.delivered += sum(grant.count for grant in grants)
        return grants

    def unreadable(self, queue: Queue, consumer: str, grant: Grant, error: Exception, now_ms: int) -> None:
        """The disk does not give what is to be delivered: it is put aside, others go on."""
        logger.error(
            "a message cannot be read, trying again later: queue=%r entry=%d: %s", queue.name, grant.first, error
        )
        queue.open_ledger().release(consumer, [(grant.first, grant.count)], now_ms + UNREADABLE_PARK_MS)

    def _let_pass(self, queue: Queue, now_ms: int) -> None:
        ledger = queue.ledger
        if ledger is None:
            return
        when = ledger.next_ms()
        if when is None or when > now_ms:
            return
        lapsed = ledger.lapse(now_ms)
        self._write_quietly(
            self._buried(queue, lapsed.expired, EXPIRED, None, now_ms)
            + self._buried(queue, lapsed.exhausted, DELIVERY_LIMIT, None, now_ms)
        )

    def _arm(self, queue: Queue) -> None:
        when = queue.ledger.next_ms() if queue.ledger is not None else None
        if when is not None:
            self.alarm.arm(queue, when)

    def _ring(self, queue: Queue, now_ms: int) -> None:
        """A queue's time has come."""
        if self.queues.get(queue.id) is not queue:
            return
        self._let_pass(queue, now_ms)
        self.wake(queue)
        self._arm(queue)
        expires_ms = queue.settings.expires_ms
        if expires_ms is not None:
            if queue.feeds:
                queue.used_ms = now_ms
            if now_ms - queue.used_ms >= expires_ms:
                self.on_idle(queue)
            else:
                self.alarm.arm(queue, queue.used_ms + expires_ms)

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def settle(
        self,
        queue: Queue,
        consumer: str,
        verdict: Verdict,
        runs: Sequence[Run],
        *,
        delay_ms: int | None = None,
        error: str | None = None,
    ) -> Settled:
        """A consumer's verdict on what it holds."""
        now_ms = self.world.clock.now_ms()
        ledger = queue.open_ledger()
        wanted: list[Command] = []
        if verdict is Verdict.ACK:
            outcome = ledger.ack(consumer, runs)
            wanted += self._done(queue, outcome.done)
            queue.acked += sum(count for _, count in outcome.done)
        elif verdict is Verdict.KILL:
            outcome = ledger.reject(consumer, runs)
            wanted += self._buried(queue, outcome.done, REJECTED, error, now_ms)
        elif verdict is Verdict.RELEASE or not queue.settings.retry_base_ms:
            until_ms = now_ms + delay_ms if delay_ms else None
            outcome = self._release(queue, consumer, runs, until_ms, error, now_ms, wanted)
        else:
            outcome = Outcome()
            for entry in entries_of(runs):
                until_ms = now_ms + delay_ms if delay_ms is not None else self._retry_at(queue, entry, now_ms)
                part = self._release(queue, consumer, [(entry, 1)], until_ms, error, now_ms, wanted)
                outcome.unknown += part.unknown
        receipt = self.log.write(wanted).receipt if wanted else None
        self._settled(queue)
        return Settled(receipt, outcome.unknown)

    def _retry_at(self, queue: Queue, entry: int, now_ms: int) -> int:
        deliveries = queue.open_ledger().deliveries_of(entry)
        return retry_at_ms(queue.settings, deliveries, now_ms, self.world.random)

    def _release(
        self,
        queue: Queue,
        consumer: str,
        runs: Sequence[Run],
        until_ms: int | None,
        error: str | None,
        now_ms: int,
        wanted: list[Command],
    ) -> Outcome:
        outcome = queue.open_ledger().release(consumer, runs, until_ms)
        if until_ms is not None and outcome.returned:
            wanted.append(Park(queue.id, until_ms, outcome.returned))
        wanted += self._buried(queue, outcome.expired, EXPIRED, error, now_ms)
        wanted += self._buried(queue, outcome.exhausted, DELIVERY_LIMIT, error, now_ms)
        return outcome

    def detach(self, queue: Queue, consumer: str) -> None:
        """A consumer goes; what it held is delivered to others."""
        if queue.ledger is None:
            return
        now_ms = self.world.clock.now_ms()
        lapsed = queue.ledger.detach(consumer)
        self._write_quietly(
            self._buried(queue, lapsed.expired, EXPIRED, None, now_ms)
            + self._buried(queue, lapsed.exhausted, DELIVERY_LIMIT, None, now_ms)
        )
        self._settled(queue)

    def end(self, queue: Queue, runs: Sequence[Run]) -> Receipt | None:
        """Takes entries out for good, whatever their state: cancelled, purged, dropped."""
        ended = queue.finish(runs)
        receipt = self.log.write([Done(queue.id, ended)]).receipt if ended else None
        self._settled(queue)
        return receipt

    def _settled(self, queue: Queue) -> None:
        self._arm(queue)
        self.wake(queue)
        if queue.waiting_room:
            queue.wake_publishers()

    def _done(self, queue: Queue, runs: list[Run]) -> list[Command]:
        if not runs:
            return []
        for offset in queue.finished(runs):
            self.bodies.forget(offset)
        return [Done(queue.id, runs)]

    def _buried(self, queue: Queue, runs: list[Run], reason: str, error: str | None, now_ms: int) -> list[Command]:
        """What the ledger gave up: on its way to the dead-letter target, or gone."""
        if not runs:
            return []
        queue.dead += sum(count for _, count in runs)
        if queue.settings.dead_letter is None:
            return self._done(queue, runs)
        queue.bury(runs, Death(reason, now_ms, error))
        self._on_dead(self, queue)
        return [Bury(queue.id, runs, reason, now_ms, error)]

    def _write_quietly(self, wanted: list[Command]) -> None:
        """What time does is done again after a restart, so a disk that refuses loses nothing."""
        if wanted:
            try:
                self.log.write(wanted)
            except StorageFailed as error:
                logger.warning("not written, to be done again after a restart: %s", error)

    # -- transactions -------------------------------------------------------------------------------------------------

    def take(self, queue: Queue, consumer: str | None, runs: Sequence[Run], producer: Producer) -> list[Run]:
        """Ends entries in a transaction: those that `consumer` holds, or (None) dead ones that are moved.

        Returns what the consumer does not hold; then nothing was done.
        """
        if consumer is not None:
            outcome = queue.open_ledger().reserve(consumer, runs)
            if outcome.unknown:
                self.give_back(queue, outcome.done)
                return outcome.unknown
        command = Done(queue.id, list(runs))
        try:
            written = self.log.write([command], producer)
        except StorageFailed:
            if consumer is not None:
                self.give_back(queue, runs)
            raise
        self.open.setdefault(producer[0], []).append((written.first, command))
        return []

    def give_back(self, queue: Queue, runs: Sequence[Run]) -> None:
        """What a transaction had taken is ready again; the dead stay dead."""
        if queue.ledger is None:
            return
        if queue.deaths:
            runs = [(entry, 1) for entry in entries_of(runs) if entry not in queue.deaths]
        queue.ledger.restore(runs)
        self._settled(queue)

    def on_marker(self, producer_id: int, commit: bool) -> None:
        """The end of a transaction has been written to the log."""
        now_ms = self.world.clock.now_ms()
        touched = self.apply_transaction(producer_id, commit)
        for queue in touched:
            self._admitted(queue, 0, now_ms)
            self._settled(queue)

    def apply_transaction(self, producer_id: int, commit: bool) -> Iterable[Queue]:
        touched: dict[int, Queue] = {}
        for offset, command in self.open.pop(producer_id, ()):
            queue = self.queues.get(command.queue)
            if queue is None:
                continue  # deleted meanwhile
            touched[queue.id] = queue
            if isinstance(command, Enqueue):
                if commit:
                    queue.admit(command, queue.newest + 1, offset)
                    queue.put += command.count
            elif isinstance(command, Done):
                if commit:
                    queue.acked += sum(count for _, count in queue.finish(command.runs))
                else:
                    self.give_back(queue, command.runs)
        return touched.values()

    # -- start --------------------------------------------------------------------------------------------------------

    def adopt(self, queue: Queue) -> None:
        """A queue from a snapshot."""
        queue.settings = self._settings.setdefault(queue.settings, queue.settings)
        self.queues[queue.id] = queue

    def start(self) -> None:
        """Everything is replayed: time may go on."""
        for queue in self.queues.values():
            queue.stamp = -1
            self._arm(queue)
            self.touch(queue)
            if queue.deaths:
                self._on_dead(self, queue)

    def close(self) -> None:
        self.alarm.cancel()
        self.log.close()

    # -- looking at messages -------------------------------------------------------------------------------------------

    def message_at(self, queue: Queue, entry: int) -> tuple[int, Message]:
        """(when it was taken in, the message) of a living entry."""
        if queue.places is None:
            raise Corrupt(f"queue {queue.name!r} has no entry {entry}")
        offset, index = queue.places.find(entry)
        block = self.bodies.get(offset)
        return block.taken(index), block.messages[index]


def _payload_size(message: Message) -> int:
    return len(message.payload)
