"""A shard: many queues and the one log that holds everything that happens to them.

A change is written to the log and applied in memory in one go, on the loop's thread; whoever asked for it is answered
when the log is durable up to there (the receipt). What somebody asks for is written first, so that a disk that refuses
leaves nothing behind: a publish, and a verdict too, for what is really in flight to the consumer. What time does, or a
consumer that goes, happens in memory anyway; it is written with the next command if the disk refuses now.

Invariants:
- What memory says is what a replay of the log would say, but for visibility timeouts (nothing is in flight after a
  restart) and the
  last deliveries that were noted.
- A transaction's commands are written when they are made, and mean nothing until its marker says that it committed.
  What it takes from a queue is out of reach of others until then.
- Nothing is delivered early, and nothing that is expired; time is let pass before anything is handed out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from waystation.errors import Full, NotFound, StorageFailed, WaystationError, without_frames
from waystation.message import Message, Run
from waystation.observe.events import event_logger
from waystation.observe.tracing import Tracing
from waystation.queues.backoff import RetryRule, retries
from waystation.queues.feed import Settled, Verdict
from waystation.queues.ledger.ledger import Grant
from waystation.queues.ledger.runs import joined, tidy
from waystation.queues.settings import QueueSettings, check_delay, check_visibility_timeout
from waystation.queues.shard.commands import (
    Alter,
    Bury,
    Command,
    Declare,
    Delay,
    Delete,
    Done,
    Enqueue,
    Forgive,
    count_of,
    entries_of,
    payload_bytes,
)
from waystation.queues.shard.publish import check_all, check_room, drop_overflow, fan_out, leave_out_seen, make_blocks
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.upkeep import DELIVERY_LIMIT, EXPIRED, OVERFLOW, REJECTED, Upkeep
from waystation.topics.partitions.partition import Receipt
from waystation.world.clock import monotonic_ms

logger = event_logger("waystation.queues")

FORGET_IDS = 1_000
"""Used ids that are let go of with each publish, beside twice as many as it brings: the work is spread."""

MAX_REFUSED_DEAD = 10_000
"""Dead letters that may wait in a queue that makes dead letters of what it refuses: their target may be full, too."""

BROKERS_OWN = "__"
"""Queues whose names begin so keep something for somebody else; what is put there is on its way."""

MAX_TOGETHER = 64
MAX_TOGETHER_BYTES = 64 * 1024
"""Puts to several queues that share a batch: so many at most, with so much payload; a larger one has its own. A
consumer whose message is not in memory reads the whole batch, and more of them hardly make it cheaper."""

Producer = tuple[int, int]
Block = tuple[Enqueue, list[Message]]


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """What a publish gave."""

    first: int  # the first entry
    count: int
    duplicates: list[int]  # indexes of messages that were left out
    receipt: Receipt
    bytes: int = 0  # of their payloads


PutOutcome = PutResult | WaystationError
"""What became of one of several puts."""


class PutEach(NamedTuple):
    """What a publish of messages that stand alone gave."""

    receipt: Receipt | None  # None: nothing was taken
    refused: list[int]  # indexes of messages for which there was no room


PutEachOutcome = PutEach | WaystationError


class PutSame(NamedTuple):
    """What a publish of the same messages to several queues gave."""

    receipt: Receipt | None  # None: no queue took them
    left: list[Queue]  # these did not: the caller puts to each of them by itself


class _Checked(msgspec.Struct, frozen=True, gc=False):
    """A publish that its queue can take."""

    queue: Queue
    messages: list[Message]  # without duplicates; there may be none left
    sizes: list[int]
    size: int
    plain: bool
    duplicates: list[int]


class Shard(Upkeep):
    """Constructed by the broker, one per partition of the internal topic."""

    # -- queues come and go -------------------------------------------------------------------------------------------

    def declare(self, name: str, settings: QueueSettings) -> tuple[Queue, Receipt]:
        queue_id = self.log.partition.end_offset  # given once: offsets only ascend
        written = self.log.write([Declare(queue_id, name, settings)])
        queue = self.new_queue(queue_id, name, settings)
        self.touch(queue)
        return queue, written.receipt

    def alter(self, queue: Queue, settings: QueueSettings) -> Receipt:
        written = self.log.write([Alter(queue.id, settings)])
        self.change(queue, settings)
        return written.receipt

    def delete(self, queue: Queue) -> Receipt:
        written = self.log.write([Delete(queue.id)])
        self.note_use(queue)
        self.queues.pop(queue.id, None)
        self.alarm.set(queue.id, None)
        self.calendar.set(queue.id, None)
        if self.tracing is not None:
            self.tracing.gone(queue, "queue-deleted")
        return written.receipt

    # -- publish ------------------------------------------------------------------------------------------------------

    def put(
        self, queue: Queue, messages: Sequence[Message], producer: Producer | None = None, *, moved: bool = False
    ) -> PutResult:
        """Writes messages to a queue. All of them (but duplicates), or none. `moved`: by the broker, whatever ids."""
        now_ms = self.world.clock.now_ms()
        checked = self._check(queue, messages, now_ms, producer, moved=moved)
        if not checked.messages:
            return self._known_already(checked)
        first = -1 if producer is not None else queue.newest + 1
        blocks = _blocks_of(checked, first, now_ms, moved=moved)
        written = self.log.write([block for block, _ in blocks], producer)
        if producer is None:
            waited = self._enter(queue, blocks, len(checked.messages), written.first)
            self._admitted(queue, waited, now_ms)
        else:
            if queue.settings.dedup_window_ms and not moved:
                ids = [message.id for message in checked.messages if message.id is not None]
                self.open.note_ids(producer[0], queue.id, ids)
            for offset, (block, content) in enumerate(blocks, written.first):
                self.open.add(producer[0], offset, block)
                self._remember(offset, block, content)
        return self._was_put(checked, first, written.receipt, moved=moved)

    def put_several(self, puts: Sequence[tuple[Queue, Sequence[Message]]]) -> list[PutOutcome]:
        """Writes messages to several queues in one batch, and does to each queue what a `put` of its own would do. What
        a queue refuses is told in its place and harms no other; it is not the queue's dead letter (`refuse`).

        Returns what became of the first of them, as many as belong into one batch; the caller goes on with the others.
        Where a queue comes again another batch begins, since that put has to find what the one before it has done.
        """
        now_ms = self.world.clock.now_ms()
        outcomes: list[PutOutcome | None] = []
        ready: list[tuple[int, _Checked]] = []
        seen: set[Queue] = set()
        size = 0
        for index, (queue, messages) in enumerate(puts[:MAX_TOGETHER]):
            if size >= MAX_TOGETHER_BYTES or queue in seen:
                break
            seen.add(queue)
            outcomes.append(None)
            try:
                self._check_there(queue)
                checked = self._check(queue, messages, now_ms)
            except WaystationError as error:
                outcomes[index] = without_frames(error)
                continue
            if checked.messages:
                if ready and size + checked.size > MAX_TOGETHER_BYTES:
                    del outcomes[index]  # a large one is no burden on those that read the small ones
                    break
                size += checked.size
                ready.append((index, checked))
            else:
                outcomes[index] = self._known_already(checked)
        self._put_ready(ready, outcomes, now_ms)
        return [outcome for outcome in outcomes if outcome is not None]

    def _put_ready(self, ready: Sequence[tuple[int, _Checked]], outcomes: list[PutOutcome | None], now_ms: int) -> None:
        """Writes and enters puts that were all checked, and notes for each what became of it."""
        cut: list[tuple[int, _Checked, list[Block]]] = []
        for index, checked in ready:
            try:
                cut.append((index, checked, _blocks_of(checked, checked.queue.newest + 1, now_ms)))
            except WaystationError as error:
                outcomes[index] = without_frames(error)
        if not cut:
            return
        try:
            written = self.log.write([block for _, _, blocks in cut for block, _ in blocks])
        except WaystationError as error:
            for index, _, _ in cut:
                outcomes[index] = without_frames(error)
            return
        offset = written.first
        waiting: list[int] = []
        for _, checked, blocks in cut:
            waiting.append(self._enter(checked.queue, blocks, len(checked.messages), offset))
            offset += len(blocks)
        for (index, checked, blocks), waited in zip(cut, waiting, strict=True):
            self._admitted(checked.queue, waited, now_ms)
            outcomes[index] = self._was_put(checked, blocks[0][0].first, written.receipt)

    def _check_there(self, queue: Queue) -> None:
        """Of a queue that was found a while ago: it may have been deleted since, or another broker may lead it."""
        if self.queues.get(queue.id) is not queue:
            self.log.check_led()
            raise NotFound(f"queue {queue.name!r} was deleted")

    def _check(
        self,
        queue: Queue,
        messages: Sequence[Message],
        now_ms: int,
        producer: Producer | None = None,
        *,
        moved: bool = False,
    ) -> _Checked:
        """What of a publish is to be written; raises unless the queue can take it."""
        sizes, plain = check_all(messages, self.max_message_bytes)
        wanted: list[Message] = list(messages)
        duplicates: list[int] = []
        if queue.settings.dedup_window_ms and not moved:
            self.forget_old_ids(queue, FORGET_IDS + 2 * len(wanted))
            pending = self.open.ids(producer[0], queue.id) if producer is not None else ()
            wanted, sizes, duplicates = leave_out_seen(queue, messages, sizes, now_ms, pending)
        size = sum(sizes)
        if wanted:
            self._check_room(queue, len(wanted), size)
        return _Checked(queue, wanted, sizes, size, plain, duplicates)

    def _known_already(self, checked: _Checked) -> PutResult:
        """Nothing had to be written. They are durable when the first of their ids is, which may not be yet."""
        receipt = Receipt(self.log.partition, self.log.partition.end_offset)
        return PutResult(checked.queue.newest + 1, 0, checked.duplicates, receipt)

    def _enter(self, queue: Queue, blocks: Sequence[Block], count: int, offset: int) -> int:
        """Applies in memory a publish that was written from `offset` on; returns how many were ready before it."""
        waited = queue.ledger.ready if queue.ledger is not None else 0
        self.note_use(queue)
        self._take_in(queue, blocks, offset)
        queue.put += count
        return waited

    def _was_put(self, checked: _Checked, first: int, receipt: Receipt, *, moved: bool = False) -> PutResult:
        if self.tracing is not None:
            _trace_put(self.tracing, checked.queue, checked.messages, first, receipt, own=moved)
        return PutResult(first, len(checked.messages), checked.duplicates, receipt, checked.size)

    def put_same(
        self, queues: Sequence[Queue], messages: Sequence[Message], producer: Producer | None = None
    ) -> PutSame:
        """Writes the same messages to several queues, once for all of them. A queue that might leave some out, since
        it is full or looks at their ids, is left to the caller; so are all where that leaves less than two."""
        now_ms = self.world.clock.now_ms()
        sizes, plain = check_all(messages, self.max_message_bytes)
        able: list[Queue] = []
        left: list[Queue] = []
        for queue in queues:
            (able if self._takes_all(queue, len(sizes), sum(sizes)) else left).append(queue)
        if len(able) < 2:
            return PutSame(None, list(queues))
        firsts = [(queue, -1 if producer is not None else queue.newest + 1) for queue in able]
        blocks = make_blocks(able[0], list(messages), sizes, firsts[0][1], now_ms, plain=plain)
        shared = fan_out(blocks, firsts)
        written = self.log.write(shared, producer)
        for offset, (block, content) in enumerate(blocks, written.first):
            self._remember(offset, block, content, len(able))
        own = zip(*(block.each() for block in shared), strict=True)  # each queue's blocks
        for (queue, first), parts in zip(firsts, own, strict=True):
            if producer is None:
                waited = queue.ledger.ready if queue.ledger is not None else 0
                self.note_use(queue)
                if self.unreplicated is not None:
                    self.unreplicated.hide(queue, first)
                for offset, (part, (_, content)) in enumerate(zip(parts, blocks, strict=True), written.first):
                    queue.admit(part, part.first, offset, content)
                queue.put += len(sizes)
                self._admitted(queue, waited, now_ms)
            else:
                for offset, part in enumerate(parts, written.first):
                    self.open.add(producer[0], offset, part)
            if self.tracing is not None:
                _trace_put(self.tracing, queue, messages, first, written.receipt, own=False)
        return PutSame(written.receipt, left)

    def _takes_all(self, queue: Queue, count: int, size: int) -> bool:
        if queue.settings.dedup_window_ms:
            return False
        try:
            self._check_room(queue, count, size)
        except Full:
            return False
        return True

    def _check_room(self, queue: Queue, count: int, size: int) -> None:
        """Raises Full. Consumers of an AMQP queue that have room for what waits get it first: it does not count."""
        coming = self.open.coming(queue.id)
        try:
            check_room(queue, count, size, coming)
        except Full:
            if not queue.feeds or queue.settings.queue_type is None:
                raise
            self.dispatcher.now(queue)
            check_room(queue, count, size, coming)

    def put_each(self, queue: Queue, messages: Sequence[Message]) -> PutEach:
        """The same as to put them one by one: a full queue refuses those that it cannot take, and only those."""
        refused: list[int] = []
        receipt = self._put_halves(queue, messages, 0, refused)
        if refused:
            self.refuse(queue, [messages[i] for i in refused])
        return PutEach(receipt, refused)

    def _put_halves(self, queue: Queue, messages: Sequence[Message], at: int, refused: list[int]) -> Receipt | None:
        """All, or each half by itself; returns the receipt of the last that was taken."""
        try:
            return self.put(queue, messages).receipt
        except Full:
            half = len(messages) // 2
            if not half:
                refused.append(at)
                return None
        first = self._put_halves(queue, messages[:half], at, refused)
        return self._put_halves(queue, messages[half:], at + half, refused) or first

    def refuse(self, queue: Queue, messages: Sequence[Message]) -> None:
        """A full queue did not take these, and their sender is told so. Where it says so, they are dead letters, too:
        they are in the queue for a moment, dead from the beginning."""
        settings = queue.settings
        if settings.overflow != "reject-dead-letter" or not settings.keeps_dead:
            return
        if len(queue.deaths or ()) + len(messages) > MAX_REFUSED_DEAD:
            logger.warning(
                "dead_letters.full",
                "queue {queue} is full and has too many dead letters to keep those that it refuses",
                queue=queue.name,
            )
            return
        now_ms, first = self.world.clock.now_ms(), queue.newest + 1
        wanted, runs = list(messages), [(first, len(messages))]
        # They count as moved: whoever sends them again, with the same ids, is not to be told that they are here.
        blocks = make_blocks(queue, wanted, list(map(_payload_size, wanted)), first, now_ms, moved=True)
        try:
            written = self.log.write([*(block for block, _ in blocks), Bury(queue.id, runs, OVERFLOW, now_ms)])
        except StorageFailed as error:
            logger.warning(
                "dead_letters.not_written",
                "what queue {queue} refused is no dead letter, the disk refuses: {error}",
                queue=queue.name,
                error=error,
            )
            return
        self.note_use(queue)
        self._take_in(queue, blocks, written.first)
        for entry in entries_of(runs):
            queue.open_ledger().take_out(entry)
        self._buried(queue, runs, OVERFLOW, None, now_ms)

    def _take_in(self, queue: Queue, blocks: Sequence[Block], offset: int) -> None:
        """Blocks that were written from `offset` on."""
        if self.unreplicated is not None:
            self.unreplicated.hide(queue, blocks[0][0].first)
        for block, content in blocks:
            queue.admit(block, block.first, offset, content)
            self._remember(offset, block, content)
            offset += 1

    def _remember(self, offset: int, block: Enqueue, content: list[Message], queues: int = 1) -> None:
        """What was just written is likely to be delivered soon."""
        payloads = payload_bytes(block.sizes, block.count)
        self.bodies.keep(offset, block.taken_ms, content, payloads, len(block.messages), queues)

    def _admitted(self, queue: Queue, waited: int, now_ms: int) -> None:
        settings = queue.settings
        if settings.max_length is not None or settings.max_bytes is not None:
            self._drop_overflow(queue, waited, now_ms)
        self._arm(queue)
        self.dispatcher.wake(queue)

    def _drop_overflow(self, queue: Queue, waited: int, now_ms: int) -> None:
        """Old messages make room for new ones, where the queue says so; but first consumers get what they can take."""
        if queue.feeds and not queue.settings.refuses:
            self.dispatcher.now(queue)
        dropped = drop_overflow(queue, waited) if not queue.settings.refuses else []
        if not dropped:
            return
        if queue.settings.buries_oldest:
            self._write_quietly(self._buried(queue, dropped, OVERFLOW, None, now_ms))
        else:
            queue.open_ledger().finish(dropped)  # a queue with a dead-letter target keeps them until it is told
            self._write_quietly(self._done(queue, dropped))

    def move(self, queue: Queue, runs: Sequence[Run], dead_letters: Mapping[Queue, Sequence[Message]]) -> Receipt:
        """Puts messages to queues of this shard and ends entries that died in another one of it, in one batch: all of
        that survives a crash, or nothing. Raises Full."""
        now_ms = self.world.clock.now_ms()
        moved: list[tuple[Queue, list[Block]]] = []
        for target, messages in dead_letters.items():
            sizes, plain = check_all(messages, self.max_message_bytes)
            self._check_room(target, len(sizes), sum(sizes))
            first = target.newest + 1
            moved.append((target, make_blocks(target, list(messages), sizes, first, now_ms, plain=plain, moved=True)))
        commands: list[Command] = [block for _, blocks in moved for block, _ in blocks]
        written = self.log.write([*commands, Done(queue.id, list(runs))])
        offset = written.first
        for target, blocks in moved:
            waited = self._enter(target, blocks, len(dead_letters[target]), offset)
            offset += len(blocks)
            if self.tracing is not None:
                self.tracing.put(target.name, dead_letters[target], blocks[0][0].first, *written.receipt, own=True)
            self._admitted(target, waited, now_ms)
        self.note_use(queue)
        queue.finish(runs, self.bodies.done)
        self._settled(queue)
        return written.receipt

    # -- delivery -----------------------------------------------------------------------------------------------------

    def acquire(
        self, queue: Queue, consumer: str, count: int, since_ms: int, visibility_timeout_ms: int
    ) -> list[Grant]:
        """Entries for a consumer, from `since_ms` of the monotonic clock on. The caller notes what it delivers."""
        ledger = queue.open_ledger()
        self.note_use(queue)
        grants = ledger.acquire(consumer, count, since_ms, visibility_timeout_ms)
        if grants:
            queue.delivered += sum([grant.count for grant in grants])
        return grants

    def note_delivered(self, queue: Queue, grants: Sequence[Grant]) -> None:
        """They are about to leave: whatever happens to the broker from now on, this delivery counts."""
        self.log.note(queue.id, joined([(grant.first, grant.count) for grant in grants]))

    def acquire_now(self, queue: Queue, consumer: str, count: int, visibility_timeout_ms: int) -> list[Grant]:
        """The same for one that asks, whosever turn it is."""
        self._let_pass(queue, self.world.clock.now_ms())
        try:
            return self.acquire(queue, consumer, count, monotonic_ms(self.world.clock), visibility_timeout_ms)
        finally:
            self._arm(queue)

    def renew(
        self, queue: Queue, consumer: str, runs: Sequence[Run], visibility_timeout_ms: int, deliveries: int = 0
    ) -> list[Run]:
        """More time for what is in flight to a consumer; returns what is not. `deliveries`: see `settle`."""
        check_visibility_timeout(visibility_timeout_ms)
        stale: list[Run] = []
        ledger = queue.open_ledger()
        current = ledger.of_delivery(runs, deliveries, stale)
        unknown = ledger.touch(consumer, current, monotonic_ms(self.world.clock), visibility_timeout_ms)
        self._arm(queue)
        return _all_of(unknown, stale)

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
        deliveries: int = 0,
    ) -> Settled:
        """A consumer's verdict on what is in flight to it. It is written before it takes effect: StorageFailed means
        that it is in flight as before. `deliveries`: which delivery of these messages is meant, as it was counted when
        they were handed out; another one is not this one's to settle. 0: whichever it is."""
        check_delay(delay_ms)
        now_ms = self.world.clock.now_ms()
        unknown: list[Run] = []
        stale: list[Run] = []
        ledger = queue.open_ledger()
        in_flight = ledger.in_flight_of(consumer, ledger.of_delivery(runs, deliveries, stale), unknown)
        unknown = _all_of(unknown, stale)
        if verdict is Verdict.ACK:
            receipt = self._acknowledge(queue, consumer, in_flight)
        elif verdict is Verdict.KILL:
            receipt = self._kill(queue, consumer, in_flight, error, now_ms)
        else:
            waits = self._waits(queue, verdict, in_flight, delay_ms, now_ms)
            receipt = self._release(queue, consumer, waits, error, now_ms, forgiven=verdict is Verdict.RELEASE)
        self._settled(queue)
        if self.tracing is not None:
            kept = receipt or (None, 0)
            self.tracing.settled(queue, verdict.value, runs, *kept, consumer=consumer, unknown=unknown)
        return Settled(receipt, unknown)

    def _acknowledge(self, queue: Queue, consumer: str, in_flight: Sequence[Run]) -> Receipt | None:
        if not in_flight:
            return None
        receipt = self.log.write([Done(queue.id, joined(in_flight))]).receipt
        self.note_use(queue)
        done = queue.open_ledger().ack(consumer, in_flight).done
        queue.acked += count_of(done)
        self._done(queue, done)
        return receipt

    def _kill(
        self, queue: Queue, consumer: str, in_flight: Sequence[Run], error: str | None, now_ms: int
    ) -> Receipt | None:
        if not in_flight:
            return None
        receipt = self.log.write(self.burial(queue, joined(in_flight), REJECTED, error, now_ms)).receipt
        self.note_use(queue)
        self._buried(queue, queue.open_ledger().reject(consumer, in_flight).done, REJECTED, error, now_ms)
        return receipt

    def _waits(
        self, queue: Queue, verdict: Verdict, in_flight: Sequence[Run], delay_ms: int | None, now_ms: int
    ) -> Iterable[tuple[int | None, Sequence[Run]]]:
        """Until when each of these waits for its next delivery; None: not at all."""
        settings = queue.settings
        if verdict is Verdict.RELEASE or delay_ms is not None or not settings.retry_base_ms:
            return [(now_ms + delay_ms if delay_ms else None, in_flight)]
        return retries(queue.open_ledger(), in_flight, RetryRule.of(settings), now_ms, self.world.random).items()

    def _release(
        self,
        queue: Queue,
        consumer: str,
        waits: Iterable[tuple[int | None, Sequence[Run]]],
        error: str | None,
        now_ms: int,
        *,
        forgiven: bool,
    ) -> Receipt | None:
        ledger = queue.open_ledger()
        wanted: list[Command] = []
        for until_ms, runs in waits:
            planned = ledger.plan_release(consumer, runs, forgiven=forgiven)
            if planned.forgiven:
                wanted.append(Forgive(queue.id, planned.forgiven))
            if until_ms is not None and planned.returned:
                wanted.append(Delay(queue.id, until_ms, planned.returned))
            wanted += self.burial(queue, planned.expired, EXPIRED, error, now_ms)
            wanted += self.burial(queue, planned.exhausted, DELIVERY_LIMIT, error, now_ms)
        receipt = self.log.write(wanted).receipt if wanted else None
        self.note_use(queue)
        for until_ms, runs in waits:
            outcome = ledger.release(consumer, runs, until_ms, forgiven=forgiven)
            self._buried(queue, outcome.expired, EXPIRED, error, now_ms)
            self._buried(queue, outcome.exhausted, DELIVERY_LIMIT, error, now_ms)
        return receipt

    def write_off(self, queue: Queue, consumer: str, runs: list[Run]) -> None:
        """Acknowledges what nobody has seen yet. Written first: if the disk refuses, nothing has happened."""
        self.log.write([Done(queue.id, runs)])
        self.note_use(queue)
        done = queue.open_ledger().ack(consumer, runs).done
        queue.acked += count_of(done)
        self._done(queue, done)
        self._settled(queue)

    def detach(self, queue: Queue, consumer: str, *, forgiven: bool = False) -> None:
        """A consumer goes; what was in flight to it is redelivered to others. `forgiven`: that was no failure of
        theirs."""
        if queue.ledger is None:
            return
        now_ms = self.world.clock.now_ms()
        self.note_use(queue)
        lapsed = queue.ledger.detach(consumer, forgiven=forgiven)
        if self.tracing is not None:
            self.tracing.gone(queue, "release" if forgiven else "consumer-gone", consumer)
        given_back: list[Command] = [Forgive(queue.id, lapsed.forgiven)] if lapsed.forgiven else []
        self._write_quietly(
            given_back
            + self._buried(queue, lapsed.expired, EXPIRED, None, now_ms)
            + self._buried(queue, lapsed.exhausted, DELIVERY_LIMIT, None, now_ms)
        )
        self._settled(queue)

    def end(self, queue: Queue, runs: Sequence[Run]) -> Receipt | None:
        """Takes living entries out for good, whatever their state: cancelled, purged."""
        receipt = self.log.write([Done(queue.id, list(runs))]).receipt if runs else None
        self.note_use(queue)
        queue.finish(runs, self.bodies.done)
        self._settled(queue)
        return receipt

    # -- transactions -------------------------------------------------------------------------------------------------

    def take(
        self, queue: Queue, consumer: str | None, runs: Sequence[Run], producer: Producer, deliveries: int = 0
    ) -> list[Run]:
        """Ends entries in a transaction: those in flight to `consumer`, or (None) ones that the broker has taken out.

        Returns what is not in flight to the consumer; then nothing was done. `deliveries`: see `settle`.
        """
        if consumer is not None:
            ledger = queue.open_ledger()
            stale: list[Run] = []
            ledger.of_delivery(runs, deliveries, stale)
            if stale:
                return stale
            unknown = ledger.touch(consumer, runs, monotonic_ms(self.world.clock), queue.settings.hold_ms)
            if unknown:
                return unknown
            self.note_use(queue)
            ledger.reserve(consumer, runs)
        command = Done(queue.id, list(runs))
        try:
            written = self.log.write([command], producer)
        except WaystationError:
            if consumer is not None:
                self.give_back(queue, runs)
            raise
        self.open.add(producer[0], written.first, command)
        if self.tracing is not None:
            self.tracing.settled(queue, Verdict.ACK.value, runs, *written.receipt, consumer=consumer)
        return []

    def give_back(self, queue: Queue, runs: Sequence[Run]) -> None:
        """What a transaction had taken is ready again; the dead stay dead."""
        if queue.ledger is None:
            return
        if queue.deaths:
            runs = [(entry, 1) for entry in entries_of(runs) if entry not in queue.deaths]
        self.note_use(queue)
        queue.ledger.restore(runs)
        self._settled(queue)

    def on_marker(self, producer_id: int, commit: bool) -> None:
        """The end of a transaction has been written to the log."""
        now_ms = self.world.clock.now_ms()
        for queue in self.apply_transaction(producer_id, commit, self.log.partition.end_offset):
            self._admitted(queue, len(queue), now_ms)
            self._settled(queue)

    def apply_transaction(self, producer_id: int, commit: bool, ended: int) -> Iterable[Queue]:
        """`ended`: the offset of the marker, or anything behind it. Returns the queues that it meant something to."""
        touched: dict[int, Queue] = {}
        for offset, command in self.open.end(producer_id):
            queue = self.queues.get(command.queue)
            if isinstance(command, Enqueue) and (queue is None or not commit):
                self.bodies.forget(offset)
            if queue is None or ended < queue.stamp:
                continue  # deleted meanwhile, or from a snapshot that knew of the end already
            touched[queue.id] = queue
            self.note_use(queue)
            if isinstance(command, Enqueue):
                if commit:
                    if self.unreplicated is not None:
                        self.unreplicated.hide(queue, queue.newest + 1)
                    queue.put += queue.admit_late(command, offset, self.bodies.done)
            elif isinstance(command, Done):
                if commit:
                    died = len(queue.deaths or ())
                    done = count_of(queue.finish(command.runs, self.bodies.done))
                    queue.acked += done - (died - len(queue.deaths or ()))
                else:
                    self.give_back(queue, command.runs)
        return touched.values()


def _blocks_of(checked: _Checked, first: int, now_ms: int, *, moved: bool = False) -> list[Block]:
    return make_blocks(checked.queue, checked.messages, checked.sizes, first, now_ms, plain=checked.plain, moved=moved)


def _trace_put(
    tracing: Tracing, queue: Queue, messages: Sequence[Message], first: int, receipt: Receipt, *, own: bool
) -> None:
    if not queue.name.startswith(BROKERS_OWN):
        tracing.put(queue.name, messages, first, *receipt, own=own)


def _payload_size(message: Message) -> int:
    return len(message.payload)


def _all_of(unknown: list[Run], stale: list[Run]) -> list[Run]:
    """Both, tidy."""
    if stale:
        unknown += stale
        tidy(unknown)
    return unknown
