"""One partition of a topic as one share group consumes it: the core (`machines/delivery.py`) with a log to read from,
a journal to write to, a clock, and those who wait for records.

Records are admitted as they are wanted, so a group that nobody fetches for costs nothing. Batches stay as they are on
the way to Kafka's consumers; they are opened for our own protocols only.

Made by its `SharedGroup`; members fetch and settle through it. On the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from waystation.errors import WaystationError
from waystation.log.batches import batch as batches
from waystation.log.batches.batch import Header
from waystation.message import Run
from waystation.observe.events import event_logger
from waystation.queues.backoff import RetryRule, retries
from waystation.queues.feed import Verdict
from waystation.queues.ledger.ledger import Grant
from waystation.queues.ledger.runs import tidy, without
from waystation.queues.redriven import is_redrive_topic
from waystation.share.machines.delivery import Death, Saved, Settled, SharePartition, fitted
from waystation.share.machines.records import PARTITION, ShareKey, write_value
from waystation.share.machines.window import Batch, SharedWindow
from waystation.share.peer_calls import ABORTED, NOTHING, Offered
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.topics.records.crossing import message_of

if TYPE_CHECKING:
    from waystation.share.group import SharedGroup

logger = event_logger("waystation.shared")

READ_BYTES = 256 * 1024
FILL_BYTES = 8 * 1024 * 1024
"""At most so much is read for one fetch: the loop has others to serve."""

UNREADABLE_MS = 5_000
"""How long records wait that could not be read: a disk may come to its senses."""

NEVER = 1 << 62

RETRY = RetryRule()

Waiter = Callable[[], None]


class Verdicts(NamedTuple):
    """What became of a verdict: what to wait for, and which offsets are not in flight to the member."""

    receipt: Receipt | None
    unknown: list[Run]


class SharedPartition:
    """See the module."""

    def __init__(self, group: SharedGroup, partition: Partition, core: SharePartition) -> None:
        self.group = group
        self.partition = partition
        self.core = core
        self.key = ShareKey(PARTITION, group.id, partition.topic.id, partition.index)
        self.name = f"{partition.topic.id}/{partition.index}\0{group.id}"
        self.redriven = is_redrive_topic(partition.topic.name)
        """What is in it came from other topics."""
        self.members: set[str] = set()
        """Those who took something here, and have not left."""
        self.waiters: dict[Waiter, None] = {}
        self.closed = False
        """Its topic, or its group's position in it, was deleted: nothing is written any more."""
        self.trouble = ""
        """Why it could not be read, the last time that this was so."""
        self._due_ms = NEVER
        """Before this moment of the wall clock, nothing that waits is due."""
        self._watching = False
        self.window = SharedWindow(partition, group.opened)
        self._waking = False

    @property
    def topic(self) -> str:
        return self.partition.topic.name

    def encode(self) -> bytes:
        return write_value(self.core.saved())

    # -- waiting -----------------------------------------------------------------------------------------------------

    def wait(self, waiter: Waiter) -> None:
        """`waiter` is called when there may be records to take; it stays until `unwait`."""
        self.waiters[waiter] = None
        if not self._watching:
            self._watching = True
            self.partition.watchers.add(self.wake)

    def unwait(self, waiter: Waiter) -> None:
        self.waiters.pop(waiter, None)
        if not self.waiters and self._watching:
            self._watching = False
            self.partition.watchers.discard(self.wake)

    def wake(self) -> None:
        """Something was requeued, or the log has grown. Whoever waits longest is asked first."""
        if self._waking:
            self.group.wake_soon(self)  # by one of those who are being asked
            return
        self._waking = True
        try:
            for waiter in tuple(self.waiters):
                waiter()
        finally:
            self._waking = False

    # -- handing out -------------------------------------------------------------------------------------------------

    @property
    def has_more(self) -> bool:
        """Whether a fetch may find something: it costs nothing to ask."""
        return self.core.ready > 0 or (self.core.end < self._limit() and self._room() > 0)

    @property
    def readable(self) -> bool:
        """Whether this broker has all records of the window: the group's window may be ahead of a follower."""
        return self.partition.leads or self.core.end <= self.partition.visible_offset

    def acquire(self, member: str, count: int, visibility_timeout_ms: int, budget: int = FILL_BYTES) -> list[Grant]:
        """Up to `count` records for a member; fewer where there are no more, or reading them would take long."""
        now_ms = self.group.now_ms()
        self.lapse()
        self.fill(count, budget)
        core = self.core
        if not core.ready:
            return []
        self._attach(member)
        grants = core.acquire(member, count, now_ms, visibility_timeout_ms)
        self._taken()
        return grants

    def acquire_bytes(
        self, member: str, count: int, size: int, visibility_timeout_ms: int, *, whole: bool
    ) -> list[Grant]:
        """Up to `count` records whose batches have about `size` bytes, at least one batch.

        `whole`: a batch that is begun is taken to its end, so that it need not be sent again for its other records.
        """
        now_ms = self.group.now_ms()
        self.lapse()
        self.fill(count, min(size, FILL_BYTES))
        core = self.core
        if not core.ready:
            return []
        self._attach(member)
        grants: list[Grant] = []
        seen: set[int] = set()
        used = taken = 0
        largest = self.window.largest
        while taken < count and (used < size or not grants):
            step = max(1, min(count - taken, (size - used) // largest))
            got = core.acquire(member, step, now_ms, visibility_timeout_ms)
            if not got:
                break
            grants += got
            for batch in self.window.of(got):
                if batch.base not in seen:
                    seen.add(batch.base)
                    used += batch.size
            taken += sum(grant.count for grant in got)
        if whole and grants:
            end = grants[-1].first + grants[-1].count - 1
            rest = max((batch.last - end for batch in self.window.of(grants[-1:])), default=0)
            if rest > 0:
                grants += core.acquire(member, rest, now_ms, visibility_timeout_ms)
        self._taken()
        return _joined(grants)

    def tell(self, error: WaystationError) -> None:
        """It cannot be read: one line in the log for each reason."""
        if self.trouble != str(error):
            self.trouble = str(error)
            logger.warning(
                "shared.unreadable",
                "records for group {group} cannot be read: {error}",
                group=self.group.id,
                topic=self.topic,
                error=error,
            )

    # -- verdicts ----------------------------------------------------------------------------------------------------

    def settle(
        self,
        member: str,
        verdict: Verdict,
        runs: Sequence[Run],
        *,
        delay_ms: int | None = None,
        error: str | None = None,
    ) -> Verdicts:
        """What is not in flight to the member is not touched."""
        core = self.core
        self._attach(member)
        was_full = self._room() <= 0
        if verdict is Verdict.ACK:
            settled = core.ack(member, runs)
        elif verdict is Verdict.KILL:
            settled = core.reject(member, runs)
        elif verdict is Verdict.REJECT and delay_ms is None:
            settled = self._back_off(member, runs)
        else:
            settled = core.release(member, runs, self.group.wall_ms() + delay_ms if delay_ms else None)
        receipt = self._note(settled.deaths, error) if settled.changed else None
        if verdict is not Verdict.ACK:
            self._rearm()
            self.group.wake_soon(self)
        elif was_full:
            self.group.wake_soon(self)
        return Verdicts(receipt, settled.unknown)

    def _back_off(self, member: str, runs: Sequence[Run]) -> Settled:
        """They failed: each waits for as long as it has failed often."""
        asked = list(runs)
        tidy(asked)
        waits = retries(self.core.ledger, asked, RETRY, self.group.wall_ms())
        rejects = [run for rejected in waits.values() for run in rejected]
        tidy(rejects)
        settled = Settled(unknown=without(asked, rejects))
        for until_ms, rejected in waits.items():
            released = self.core.release(member, rejected, until_ms)
            settled.changed |= released.changed
            settled.deaths += released.deaths
            settled.unknown += released.unknown
        settled.unknown.sort()
        return settled

    def touch(self, member: str, runs: Sequence[Run], visibility_timeout_ms: int) -> list[Run]:
        self._attach(member)
        unknown = self.core.touch(member, runs, self.group.now_ms(), visibility_timeout_ms)
        self._rearm()
        return unknown

    def release_all(self, member: str) -> None:
        """The member has left; what was in flight to it is requeued."""
        if member not in self.members:
            return
        self.members.discard(member)
        settled = self.core.detach(member)
        if settled.changed:
            self._note(settled.deaths, None)
        self._rearm()
        self.group.wake_soon(self)

    def give_up(self, member: str, runs: Sequence[Run], reason: str) -> None:
        """These records were taken, and are dead: EXPIRED before they were delivered, or delivered often enough."""
        settled = self.core.give_up(member, runs, reason)
        if settled.changed:
            self._note(settled.deaths, None)

    def postpone(self, member: str, runs: Sequence[Run], wait_ms: int) -> None:
        """These records say that they are not to be delivered yet: as if they had not been taken."""
        self.core.postpone(member, runs, self.group.wall_ms() + wait_ms)
        self._taken()

    def not_readable(self, member: str, grants: Sequence[Grant], error: WaystationError) -> None:
        """These records were taken and could not be sent: they have not been delivered, and others come first."""
        self.postpone(member, [(grant.first, grant.count) for grant in grants], UNREADABLE_MS)
        self.tell(error)

    def buried(self, death: Death) -> None:
        """The dead letters of these records are written, or will never be."""
        self.core.buried(death.first, death.count)
        self._note([], None)

    # -- time --------------------------------------------------------------------------------------------------------

    def lapse(self) -> None:
        """What was to wait until now may be taken."""
        now_ms = self.group.wall_ms()
        if now_ms >= self._due_ms:
            self.core.lapse(now_ms)

    def ring(self) -> None:
        """The moment has come that something waits for."""
        self.lapse()
        self._rearm()
        self.group.wake_soon(self)

    def end_locks(self) -> None:
        """Acquisition locks have run out. Only the alarm calls it: what members have sent is read before."""
        settled = self.core.end_locks(self.group.now_ms())
        if settled.changed:
            self._note(settled.deaths, None)
        if settled.returned:
            for feed in self.group.feeds.values():
                feed.lost(self, settled.returned)
        self._rearm()
        self.group.wake_soon(self)

    # -- the window --------------------------------------------------------------------------------------------------

    def fill(self, wanted: int, budget: int) -> None:
        """Admits records until `wanted` are ready, the window is full, or the log has no more."""
        partition = self.partition
        if not partition.here:
            return  # its leader tells what there is (`take_in`)
        if partition.leads and partition.epoch >= self.core.log_epoch:  # else it is deposed, and does not know it
            self._read_by(partition.epoch, partition.end_offset)
        core = self.core
        changed = core.log_begins_at(partition.start_offset)
        limit = self._limit()
        while core.ready < wanted and core.end < limit and self._room() > 0 and budget > 0:
            data = partition.read(core.end, min(budget, READ_BYTES), limit)
            if not data:
                break
            budget -= len(data)
            for _, header in batches.scan(data):
                if core.ready >= wanted or self._room() <= 0:
                    break
                changed |= self._admit(header)
                if core.end <= header.last_offset:
                    break  # the window is full in the middle of this batch; what follows is not behind a gap
        self._filled(changed=changed)

    def take_in(self, offered: Offered, wanted: int) -> None:
        """As `fill`, from what the partition's leader says that its log has: this broker is another one.

        What it says may be late, and older than what was heard since. Within one leader epoch a log only grows, and the
        next leader has all that could be read before: so a log has lost its tail only if a later epoch says so.
        """
        if offered.epoch > self.core.log_epoch:
            self._read_by(offered.epoch, offered.log_end)
        core = self.core
        changed = core.log_begins_at(offered.log_start)
        limit = offered.stable if self.group.committed_only else offered.visible
        if offered.first <= core.end:  # else there is something between that was not told
            for batch in offered.batches:
                if core.ready >= wanted or self._room() <= 0 or batch.last >= limit:
                    break
                empty = batch.kind == NOTHING or (batch.kind == ABORTED and self.group.committed_only)
                changed |= self._admit_batch(Batch(batch.base, batch.last, batch.size), empty=empty)
                if core.end <= batch.last:
                    break
        self._filled(changed=changed)

    def _filled(self, *, changed: bool) -> None:
        core = self.core
        if changed:
            deaths, core.dead_again = core.dead_again, []
            self._note(deaths, None)
        self.window.prune(core.start)

    def _read_by(self, epoch: int, end: int) -> None:
        """The leader of this epoch has a log that ends there."""
        lost = end < self.core.known_end
        self.core.log_epoch = epoch
        if lost:
            self._refit(end)

    def _admit(self, header: Header) -> bool:
        self.core.log_epoch = max(self.core.log_epoch, header.leader_epoch)
        empty = header.control or header.record_count == 0 or self._aborted(header)
        return self._admit_batch(Batch(header.base_offset, header.last_offset, header.size), empty=empty)

    def _admit_batch(self, batch: Batch, *, empty: bool) -> bool:
        core = self.core
        end = batch.last + 1
        if end <= core.end:
            return False
        if batch.base > core.end:
            core.skip(batch.base)
        if empty:
            core.skip(end)
            return bool(core.dead_again)
        own_limits = self._own_limits(core.spent(end))
        self.window.add_batch(batch)
        changed = False
        while core.end < end and (room := self._room()) > 0:  # what is done already takes no room
            changed |= core.admit(min(end, core.end + room), own_limits)
        return changed

    def _own_limits(self, spent: Sequence[Run]) -> dict[int, int]:
        """What these records say of how often they may be delivered. After a restart alone, and seldom then."""
        found: dict[int, int] = {}
        for first, count in spent if self.group.ours and self.partition.here else ():
            for record in self.window.records(first, count):
                message = message_of(record.key, record.value, record.headers, record.timestamp)
                if message.max_deliveries:
                    found[record.offset] = message.max_deliveries
        return found

    def _aborted(self, header: Header) -> bool:
        if not header.transactional or not self.group.committed_only:
            return False
        return any(
            one.producer_id == header.producer_id and one.first_offset <= header.base_offset
            for one in self.partition.aborted.overlapping(header.base_offset, header.last_offset + 1)
        )

    def _room(self) -> int:
        return self.group.settings.max_locks - self.core.in_flight

    def _limit(self) -> int:
        partition = self.partition
        return partition.stable_offset if self.group.committed_only else partition.visible_offset

    def hide_uncommitted(self) -> None:
        """Until now the group saw records of open and aborted transactions, and from now on it must not. Where there
        are some in the window, it is filled again from what is remembered of it, as after a crash: nothing is in flight
        then, and what is not settled is redelivered, counted."""
        core, partition = self.core, self.partition
        if core.end > partition.stable_offset or partition.aborted.overlapping(core.start, core.end):
            self._begin_again(core.saved())

    def _refit(self, end: int) -> None:
        """The log has lost its tail: an operator let a replica lead that did not have it. Other records get those
        offsets."""
        self._begin_again(fitted(self.core.saved(), end))
        self._note([], None)

    def _begin_again(self, saved: Saved) -> None:
        core = self.core
        limit = core.ledger.max_deliveries
        self.core = SharePartition(
            saved, max_deliveries=limit, keeps_dead=core.keeps_dead, keeps_expired=core.keeps_expired
        )
        self.members.clear()
        self.window.clear()
        self._rearm()

    def reset(self, start: int) -> Receipt | None:
        """The group goes on at `start`, as if it had not taken anything; nothing is in flight."""
        self.core.reset(start, self.core.epoch + 1)
        self.members.clear()
        self.window.clear()
        self._rearm()
        return self._note([], None)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _attach(self, member: str) -> None:
        if member not in self.members:
            self.members.add(member)
            self.core.ledger.attach(member)

    def _taken(self) -> None:
        if not self.closed:
            self.group.journal.note_soon(self.key, self.encode)
        self._rearm()

    def _rearm(self) -> None:
        """After everything that may bring the next moment nearer; an acknowledgement cannot."""
        ledger = self.core.ledger
        due_ms = ledger.next_ms()
        self._due_ms = NEVER if due_ms is None else due_ms
        self.group.calendar.set(self.name, None if self.closed else due_ms)
        self.group.alarm.set(self.name, None if self.closed else ledger.next_visibility_ms())

    def _note(self, deaths: list[Death], error: str | None) -> Receipt | None:
        if self.closed:
            return None
        if deaths:
            self.group.bury(self, deaths, error)
        return self.group.journal.note(self.key, self.encode)


def _joined(grants: list[Grant]) -> list[Grant]:
    """Neighbours that were handed out equally often as one."""
    joined: list[Grant] = []
    for grant in grants:
        last = joined[-1] if joined else None
        if last is not None and last.first + last.count == grant.first and last.deliveries == grant.deliveries:
            joined[-1] = last._replace(count=last.count + grant.count)
        else:
            joined.append(grant)
    return joined
