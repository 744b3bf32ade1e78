"""A member of a shared subscription of one of our own protocols (`queues.feed.Feed`): pushed to as its credit allows.

The records come from many partitions; to the consumer they have tags of one kind, given in the order of delivery. A tag
is known as long as its record is not settled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from waystation.errors import WaystationError
from waystation.groups.machines.calls import TopicView
from waystation.message import Delivered, Run
from waystation.observe.events import event_logger
from waystation.observe.spans import TracedPlace
from waystation.observe.tracing import Tracing
from waystation.queues.feed import Deliver, Settled, Verdict
from waystation.queues.ledger.ledger import Grant
from waystation.queues.redriven import as_before
from waystation.routing.filtering.filters import Filter
from waystation.share.machines.delivery import EXPIRED, LIMIT
from waystation.share.machines.members import Subscription
from waystation.share.partition import SharedPartition
from waystation.topics.expiry import early_ms, expired, is_timed
from waystation.topics.partitions.partition import Receipt

if TYPE_CHECKING:
    from waystation.share.group import SharedGroup

logger = event_logger("waystation.shared")

OnEnd = Callable[[WaystationError], None]

TAKE_BYTES = 1024 * 1024
"""Read at most to find what a `take` asks for: it is one step on the loop."""


class Piece:
    """A run of tags and the offsets they stand for."""

    __slots__ = ("count", "first", "offset", "partition")

    def __init__(self, first: int, count: int, partition: SharedPartition, offset: int) -> None:
        self.first = first
        self.count = count
        self.partition = partition
        self.offset = offset


class TagBook:
    """From tags to where their records are. Pure."""

    __slots__ = ("_firsts", "_next", "_pieces", "count")

    def __init__(self) -> None:
        self._pieces: list[Piece] = []
        self._firsts: list[int] = []
        self._next = 1
        self.count = 0
        """Tags that are not settled."""

    def add(self, partition: SharedPartition, offset: int, count: int) -> int:
        """Tags for a run of offsets; returns the first."""
        first = self._next
        self._next += count
        self.count += count
        last = self._pieces[-1] if self._pieces else None
        if (
            last is not None
            and last.partition is partition
            and last.offset + last.count == offset
            and last.first + last.count == first
        ):
            last.count += count
            return first
        self._pieces.append(Piece(first, count, partition, offset))
        self._firsts.append(first)
        return first

    def find(self, runs: Sequence[Run]) -> tuple[list[Piece], list[Run]]:
        """The pieces that these tags are in, cut to them; and the tags that are not known."""
        found: list[Piece] = []
        unknown: list[Run] = []
        for first, count in runs:
            at, end = first, first + max(0, count)
            for piece in self._from(at):
                if piece.first >= end:
                    break
                if piece.first > at:
                    unknown.append((at, piece.first - at))
                begin = max(at, piece.first)
                at = min(end, piece.first + piece.count)
                found.append(Piece(begin, at - begin, piece.partition, piece.offset + begin - piece.first))
            if at < end:
                unknown.append((at, end - at))
        return found, unknown

    def drop(self, pieces: Iterable[Piece]) -> None:
        """These are settled (pieces as `find` gave them)."""
        for settled in pieces:
            i = bisect_right(self._firsts, settled.first) - 1
            piece = self._pieces[i] if i >= 0 else None
            if piece is None or settled.first + settled.count > piece.first + piece.count:
                continue
            left: list[Piece] = []
            if settled.first > piece.first:
                left.append(Piece(piece.first, settled.first - piece.first, piece.partition, piece.offset))
            after = piece.first + piece.count - settled.first - settled.count
            if after:
                begin = settled.first + settled.count
                left.append(Piece(begin, after, piece.partition, piece.offset + begin - piece.first))
            self._pieces[i : i + 1] = left
            self._firsts[i : i + 1] = [one.first for one in left]
            self.count -= settled.count

    def drop_offsets(self, partition: SharedPartition, offsets: Sequence[Run]) -> list[Run]:
        """These offsets are not in flight any longer, as far as they are in here; returns their tags."""
        mine = [piece for piece in self._pieces if piece.partition is partition]
        settled = _tags_of(offsets, mine)
        self.drop(self.find(settled)[0])
        return settled

    def _from(self, tag: int) -> Iterator[Piece]:
        i = bisect_right(self._firsts, tag) - 1
        if i < 0 or self._pieces[i].first + self._pieces[i].count <= tag:
            i += 1
        while i < len(self._pieces):
            yield self._pieces[i]
            i += 1


class SharedFeed:
    """Opened by `SharedGroups.open`. `name` is unique in its group."""

    def __init__(
        self,
        group: SharedGroup,
        name: str,
        subscription: Subscription,
        deliver: Deliver,
        on_end: OnEnd,
        *,
        accepts: Filter | None = None,
        prefetch: int = 0,
        visibility_timeout_ms: int | None = None,
        auto_ack: bool = False,
    ) -> None:
        self.group = group
        self.name = name
        self.subscription = subscription
        self.filter = accepts
        self.partitions: dict[SharedPartition, None] = {}
        self.closed = False
        self.retired = False
        self.opening = True  # whoever opens it has not got it yet
        self.dropped: WaystationError | None = None  # why there is nothing to be had here any more
        self.on_closed: Callable[[SharedFeed], None] | None = None
        self.on_retired: Callable[[SharedFeed], None] | None = None
        self._deliver = deliver
        self._on_end = on_end
        self._prefetch = prefetch
        self._visibility_timeout_ms = visibility_timeout_ms
        self._auto_ack = auto_ack
        self._credit = 0
        self._paused = False
        self._tags = TagBook()
        self._tracing: Tracing | None = None
        self._place: TracedPlace

    def trace(self, tracing: Tracing) -> None:
        """What it delivers from now on is traced where messages ask for it. Called in the request that opens it."""
        self._tracing = tracing
        self._place = TracedPlace("subscription", self.group.id, tracing.protocol, self.name, self.group.id)

    # -- what protocols call (`Feed`) --------------------------------------------------------------------------------

    def pause(self) -> None:
        """Its client does not read: others get the records."""
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        if self.room > 0:
            self.group.pump_soon()

    def credit(self, count: int) -> None:
        self._credit += count
        if self.room > 0:
            self.group.pump_soon()

    def settle(
        self, verdict: Verdict, runs: Sequence[Run], *, delay_ms: int | None = None, error: str | None = None
    ) -> Settled:
        """REJECT and RELEASE differ in the text only: both give the record back, and it has been handed out."""
        pieces, unknown = self._tags.find(runs)
        self._tags.drop(pieces)
        receipt: Receipt | None = None
        for partition, mine in _by_partition(pieces):
            offsets = [(piece.offset, piece.count) for piece in mine]
            verdicts = partition.settle(self.name, verdict, offsets, delay_ms=delay_ms, error=error)
            receipt = _later(receipt, verdicts.receipt)
            unknown += _tags_of(verdicts.unknown, mine)
        if self.room > 0:
            self.group.pump_soon()
        if self._tracing is not None:
            self._tracing.settled(self, verdict.value, runs, *(receipt or (None, 0)), unknown=unknown)
        return Settled(receipt, sorted(unknown))

    def touch(self, runs: Sequence[Run], visibility_timeout_ms: int | None = None) -> list[Run]:
        pieces, unknown = self._tags.find(runs)
        for partition, mine in _by_partition(pieces):
            offsets = [(piece.offset, piece.count) for piece in mine]
            lost = partition.touch(
                self.name,
                offsets,
                visibility_timeout_ms if visibility_timeout_ms is not None else self.visibility_timeout_ms,
            )
            unknown += _tags_of(lost, mine)
        return sorted(unknown)

    def take(self, count: int) -> list[Delivered]:
        """Up to so many messages of those that are there now, whatever the credit. Nothing is waited for."""
        self.check_led()
        got: list[Delivered] = []
        usual = (self._deliver, self._credit)
        self._deliver, self._credit = got.extend, count
        try:
            for one in tuple(self.partitions):
                while self._credit > 0 and self._take_from(one):
                    pass
        finally:
            self._deliver, self._credit = usual
        return got

    def retire(self) -> None:
        """No more deliveries; what is in flight stays so until there is a verdict or the feed is closed."""
        if not self.retired:
            self.retired = True
            if self.on_retired is not None:
                self.on_retired(self)

    def leave(self) -> None:
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        for one in self.partitions:
            one.unwait(self.wake)
        if self._tracing is not None:
            self._tracing.gone(self, "consumer-gone")
        if self.on_closed is not None:
            self.on_closed(self)

    # -- what the group calls ----------------------------------------------------------------------------------------

    @property
    def visibility_timeout_ms(self) -> int:
        return self._visibility_timeout_ms if self._visibility_timeout_ms is not None else self.group.settings.lock_ms

    @property
    def room(self) -> int:
        """How many messages it can be sent now."""
        if self.closed or self.retired or self._paused:
            return 0
        return min(self._credit, self._prefetch - self._tags.count) if self._prefetch else self._credit

    def look(self, topics: TopicView) -> None:
        """Which partitions it gets messages from: topics were created or deleted."""
        names = self.subscription.matching(topics)
        present = dict.fromkeys(one for one in self.group.partitions.values() if one.topic in names)
        for one in self.partitions:
            if one not in present:
                one.unwait(self.wake)
        for one in present:
            one.wait(self.wake)
        self.partitions = present
        self.group.pump_soon()

    def wake(self) -> None:
        if self.room > 0:
            self.group.pump_soon()

    def feed(self, one: SharedPartition, share: int) -> int:
        """Takes up to `share` records of a partition; returns how many were taken from it, sent or not."""
        count = min(share, self.room)
        if count <= 0 or not one.readable:
            return 0
        grants = one.acquire(self.name, count, self.visibility_timeout_ms, budget=0)
        if not grants:
            return 0
        try:
            messages = self._open(one, grants)
        except WaystationError as error:  # the log cannot be read here now: others, or later, may do better
            one.not_readable(self.name, grants, error)
            return 0
        if messages:
            self._credit -= len(messages)
            one.partition.topic.delivered += len(messages)
            if self._tracing is not None:
                self._trace(self._tracing, messages)
            self._deliver(messages)
        return sum(grant.count for grant in grants)

    def lost(self, one: SharedPartition, offsets: Sequence[Run]) -> None:
        """Visibility timeouts of these ended, this feed's among them: their tags are not known any longer."""
        gone = self._tags.drop_offsets(one, offsets)
        if self._tracing is not None:
            self._tracing.lost(self, "expired-hold", gone)

    def end(self, error: WaystationError) -> None:
        """The broker ends it."""
        if not self.closed:
            self.close()
            self._on_end(error)

    def drop(self, error: WaystationError) -> None:
        """Another broker coordinates the group: that ends the member as a crash would. What is in flight to it is not
        its own to settle any more."""
        if self.closed:
            return
        self.dropped = error
        self._tags = TagBook()
        self.close()
        self.partitions = {}
        if self.retired or self.opening:
            return  # it expects nothing, or is told when it is opened
        try:
            self._on_end(error)
        except Exception:
            logger.exception(
                "shared.consumer_failed",
                "a member of group {group} could not be told, and is ended",
                group=self.group.id,
                member=self.name,
            )

    def check_led(self) -> None:
        """Raises NotCoordinator if the group is another broker's by now."""
        if self.dropped is not None:
            raise self.dropped

    # -- parts -------------------------------------------------------------------------------------------------------

    def _trace(self, tracing: Tracing, messages: list[Delivered]) -> None:
        if self._auto_ack:
            tracing.delivered(self._place, messages, outcome="auto-ack")
        else:
            tracing.delivered(self._place, messages, self)

    def _take_from(self, one: SharedPartition) -> int:
        try:
            one.fill(self._credit, TAKE_BYTES)
        except WaystationError as error:
            one.tell(error)
            return 0
        return self.feed(one, self._credit)

    def _open(self, one: SharedPartition, grants: Sequence[Grant]) -> list[Delivered]:
        """The messages to send, with their tags. What does not pass the filter, or is not there, is done; what has
        expired is dead; what is early waits."""
        opened = one.window.opened(grants)
        for first, count, why in opened.broken:
            one.settle(self.name, Verdict.KILL, [(first, count)], error=f"cannot be opened: {why}")
        done = opened.missing
        accepts = self.filter
        passed = opened.found
        if accepts is not None and not one.redriven:  # what was redriven has passed it before
            passed = []
            for message in opened.found:
                if accepts.matches(message.message, topic=one.topic):
                    passed.append(message)
                else:
                    done.append((message.offset, 1))
        if any(map(is_timed, passed)):
            passed = self._timely(one, passed)
        if any(message.message.max_deliveries for message in passed):
            passed = self._within_limits(one, passed)
        if self._auto_ack:
            done += [(message.offset, 1) for message in passed]
        if done:
            one.settle(self.name, Verdict.ACK, _merged(done))
        tagged = [self._tagged(one, message) for message in passed]
        return [as_before(message) for message in tagged] if one.redriven else tagged

    def _timely(self, one: SharedPartition, messages: Sequence[Delivered]) -> list[Delivered]:
        """Those whose time it is."""
        now_ms = self.group.wall_ms()
        timely: list[Delivered] = []
        late: list[Run] = []
        early: dict[int, list[Run]] = {}
        for message in messages:
            if expired(message, now_ms):
                late.append((message.offset, 1))
            elif wait_ms := early_ms(message, now_ms):
                early.setdefault(wait_ms, []).append((message.offset, 1))
            else:
                timely.append(message)
        if late:
            one.give_up(self.name, _merged(late), EXPIRED)
        for wait_ms, runs in early.items():
            one.postpone(self.name, _merged(runs), wait_ms)
        return timely

    def _within_limits(self, one: SharedPartition, messages: Sequence[Delivered]) -> list[Delivered]:
        """Limits that messages have of their own, which go before the group's, are known from now on. Those that were
        delivered that often, before a restart, are dead."""
        within: list[Delivered] = []
        spent: list[Run] = []
        for message in messages:
            limit = message.message.max_deliveries
            if limit:
                one.core.ledger.limit(message.offset, limit)
            if limit and message.deliveries > limit:
                spent.append((message.offset, 1))
            else:
                within.append(message)
        if spent:
            one.give_up(self.name, _merged(spent), LIMIT)
        return within

    def _tagged(self, one: SharedPartition, message: Delivered) -> Delivered:
        tag = 0 if self._auto_ack else self._tags.add(one, message.offset, 1)
        return Delivered(
            tag,
            message.deliveries,
            message.taken_ms,
            message.message,
            message.source,
            message.partition,
            message.offset,
        )


def _by_partition(pieces: Iterable[Piece]) -> Iterable[tuple[SharedPartition, list[Piece]]]:
    found: dict[SharedPartition, list[Piece]] = {}
    for piece in pieces:
        found.setdefault(piece.partition, []).append(piece)
    return found.items()


def _merged(runs: Iterable[Run]) -> list[Run]:
    """In order, neighbours joined."""
    merged: list[Run] = []
    for first, count in sorted(runs):
        if merged and merged[-1][0] + merged[-1][1] == first:
            merged[-1] = merged[-1][0], merged[-1][1] + count
        else:
            merged.append((first, count))
    return merged


def _tags_of(offsets: Sequence[Run], pieces: Sequence[Piece]) -> list[Run]:
    """The tags of runs of offsets, among the pieces that they came from."""
    return [
        (piece.first + first - piece.offset, end - first)
        for offset, count in offsets
        for piece in pieces
        if (first := max(offset, piece.offset)) < (end := min(offset + count, piece.offset + piece.count))
    ]


def _later(one: Receipt | None, other: Receipt | None) -> Receipt | None:
    """All partitions of a group are written to one log: the later receipt holds for both."""
    if one is None or other is None:
        return one or other
    return one if one.offset >= other.offset else other
