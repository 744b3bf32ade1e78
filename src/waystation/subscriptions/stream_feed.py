"""One stream consumer: a consumer group's offsets, in order, each partition with one consumer at a time.

The consumer is a member of the Kafka consumer group of that name (see `membership`), so native and Kafka consumers of a
group divide its partitions among them. What it acknowledges is committed up to the first message that it has not; the
receipt is the offset's place in the offsets log. A message it rejects or releases is delivered to it again, and nothing
new of that partition until it is done; `max_deliveries` and `dead_letter` end that.

Partitions that are taken back: nothing more is read, what was delivered may be acknowledged for `LET_GO_S`, then they
are given up; what comes later for them is unknown.

On the loop's thread only. Made by `Streams.open`; protocols know it as a `Feed`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from waystation.errors import Conflict, WaystationError
from waystation.groups.machines.calls import OffsetToCommit, TopicPartition
from waystation.groups.machines.errors import UnknownMember
from waystation.message import Delivered, Run
from waystation.observe.events import event_logger
from waystation.queues.feed import Deliver, Settled, Verdict
from waystation.queues.redriven import as_before, is_redrive_topic
from waystation.subscriptions.log_feed import LogFeed
from waystation.subscriptions.membership import GroupMembership
from waystation.subscriptions.selection import Selection
from waystation.subscriptions.stream_retries import Retries, is_hidden, message_at
from waystation.subscriptions.stream_share import StreamShare
from waystation.subscriptions.stream_terms import Hub, Terms
from waystation.topics.expiry import expired
from waystation.topics.partitions.partition import Receipt
from waystation.world.alarm import PatientTimer

logger = event_logger("waystation.streams")

LET_GO_S = 5.0
"""How long what was delivered of a partition that is taken back may still be acknowledged."""

UNSTABLE_RETRY_S = 0.1

OnEnd = Callable[[WaystationError], None]


class StreamFeed(LogFeed[StreamShare]):
    """One consumer (`queues.feed.Feed`). Made by `Streams.open`."""

    def __init__(
        self, hub: Hub, group: str, selection: Selection, terms: Terms, deliver: Deliver, on_end: OnEnd
    ) -> None:
        super().__init__(hub.topics, hub.now_ms, terms.filter)
        self.group = group
        self.selection = selection
        self._hub = hub
        self._terms = terms
        self._deliver = deliver
        self._on_end = on_end
        self._names = hub.names_for(group, selection)
        self._known_topics = hub.sizes()
        self._next_tag = 0
        self._in_flight: dict[int, tuple[StreamShare, int]] = {}
        self._shares: dict[TopicPartition, StreamShare] = {}
        self._again: dict[StreamShare, None] = {}  # those with something to deliver again
        self._retries = Retries(hub, group, terms, self._due_again, self._buried)
        self._durability = False  # at most once: what is to be delivered waits until its offset is durable
        self.member: GroupMembership

    @property
    def passed_over(self) -> int:
        """Messages that are dead and had no dead-letter target."""
        return self._retries.passed_over

    # -- the feed ---------------------------------------------------------------------------------------------------

    def credit(self, count: int) -> None:
        """The consumer can take this many more messages."""
        if count > 0 and not self._closed:
            self._credit += count
            self._soon()

    def settle(
        self, verdict: Verdict, runs: Sequence[Run], *, delay_ms: int | None = None, error: str | None = None
    ) -> Settled:
        """A verdict on messages that were delivered and whose partitions are still this consumer's."""
        unknown: list[Run] = []
        touched: dict[StreamShare, None] = {}
        for tag in self._known(runs, unknown):
            share, offset = self._in_flight.pop(tag)
            del share.tags[offset]
            touched[share] = None
            if verdict is Verdict.ACK:
                share.done(offset)
            else:
                self._retries.put_back(share, offset, verdict, delay_ms, error)
        try:
            receipt = self._commit(touched)
        except UnknownMember:
            self.lost()  # it was taken for dead, and what it says does not count
            self.member.nudge()
            return Settled(None, list(runs))
        for share in touched:
            self._resume(share)
        return Settled(receipt, unknown)

    def touch(self, runs: Sequence[Run], visibility_timeout_ms: int | None = None) -> list[Run]:
        """Nothing runs out while the consumer is in the group; returns what is not in flight to it."""
        unknown: list[Run] = []
        for _ in self._known(runs, unknown):
            pass
        return unknown

    def leave(self) -> None:
        self.close()

    def close(self) -> None:
        """Leaves the group; others go on from what was committed."""
        if self._closed:
            return
        self._closed = True
        self.lost()
        self._hub.closed(self)

    async def claim(self, runs: Sequence[Run]) -> list[tuple[str, int, int]]:
        """For a transaction that acknowledges these: the offsets (topic, partition, offset) that it is to commit.

        A group's position has no holes, so what was delivered before them must be done first: this waits for it. What
        comes before them but was delivered after them, because it failed, cannot be waited for: the consumer may have
        to be done with these first. They stay with the consumer until the transaction has committed.
        """
        unknown: list[Run] = []
        shares: dict[StreamShare, dict[int, int]] = {}
        for tag in self._known(runs, unknown):
            share, offset = self._in_flight[tag]
            shares.setdefault(share, {})[offset] = tag
        for share, wanted in shares.items():
            while wanted.items() <= share.tags.items() and (first := share.settled_with(wanted)) < max(wanted):
                if share.tags.get(first, self._next_tag) > min(wanted.values()):
                    raise Conflict(
                        f"{share.partition.topic.name}-{share.partition.index}@{first} is to be redelivered, and"
                        " what is after it cannot be acknowledged in a transaction before it"
                    )
                await share.moved()
        if unknown or any(not wanted.items() <= share.tags.items() for share, wanted in shares.items()):
            raise Conflict(f"messages {list(runs)} are not all in flight at this consumer; they may be redelivered")
        return [
            (share.partition.topic.name, share.partition.index, share.settled_with(wanted))
            for share, wanted in shares.items()
        ]

    def offsets_moved(self) -> None:
        """A transaction has committed offsets of the group: what is before them is done."""
        for share in list(self._shares.values()):
            if share.begun:
                newest = self._hub.groups.newest_offset(self.group, share.partition.topic.name, share.partition.index)
                if newest > share.committed:
                    share.committed = newest
                    for tag in share.done_before(newest):
                        self._in_flight.pop(tag, None)
                    self._try_commit([share])  # what was acknowledged behind it without a transaction
                    self._resume(share)

    # -- what the membership says -----------------------------------------------------------------------------------

    def owned(self) -> frozenset[TopicPartition]:
        return frozenset(self._shares)

    def names(self) -> tuple[str, ...]:
        return self._names

    def assigned(self, partitions: frozenset[TopicPartition]) -> None:
        for key, share in list(self._shares.items()):
            if key not in partitions and not share.leaving:
                self._let_go(share)
        for key in partitions:
            known = self._shares.get(key)
            if known is None:
                self._take_on(key)
            elif known.leaving:  # back before it was closed
                known.leaving = False
                self._due_again(known)
                self._follow(known) if known.begun else self._begin(known)

    def heartbeat(self) -> None:
        """Now and then: what was passed over without being delivered (by a filter) is not read again either."""
        self._try_commit(self._shares.values())

    def lost(self) -> None:
        for share in list(self._shares.values()):
            self._drop(share)
        self._in_flight.clear()
        self._again.clear()

    def failed(self, error: WaystationError) -> None:
        if isinstance(error, UnknownMember):
            self.lost()  # it was taken for dead; it will join again
            self.member.nudge()
        elif not self._closed:
            self.close()
            self._on_end(error)

    def topics_changed(self) -> None:
        names = self._hub.names_for(self.group, self.selection)
        if names != self._names:
            self._names = names
            self.member.nudge()

    # -- partitions that come and go --------------------------------------------------------------------------------

    def _take_on(self, key: TopicPartition) -> None:
        try:
            partition = self._hub.topics.by_id(key[0]).partition(key[1])
        except WaystationError:
            return  # deleted meanwhile; the group will notice too
        redriven = is_redrive_topic(partition.topic.name)
        share = self._shares[key] = StreamShare(self._hub.readers.of(partition), self._woken, redriven=redriven)
        self._begin(share)

    def _begin(self, share: StreamShare) -> None:
        """Finds out from where to read; while a transaction holds the offset back, or this broker has no replica, that
        has to wait.

        What the group has committed may be above the high watermark that a broker knows which has just begun to
        coordinate it, or to lead the partition. It is above the log's end only where the log has lost its end.
        """
        if share.dropped or share.begun or share.leaving:
            return
        partition = share.partition
        name = partition.topic.name
        [found] = self._hub.groups.fetch_offsets(self.group, [(name, partition.index)], require_stable=True)
        if found.error is not None or not partition.here:
            asyncio.get_running_loop().call_later(UNSTABLE_RETRY_S, self._begin, share)
            return
        if found.offset >= 0:
            position = min(max(found.offset, partition.start_offset), partition.end_offset)
            share.begin(position, found.offset if found.offset <= position else -1)
        else:
            share.begin(self._first_offset(share), -1)
            self._try_commit([share])  # so that a new group's beginning stays where it is, whatever comes next
        self._follow(share)

    def _first_offset(self, share: StreamShare) -> int:
        """Where a group begins that was never here."""
        partition, terms = share.partition, self._terms
        if share.redriven:
            return partition.start_offset
        if terms.start_ms is not None:
            found = partition.find_time(terms.start_ms)
            return partition.stable_offset if found is None else found[0]
        is_new = share.partition.index >= self._known_topics.get(share.partition.topic.id, 0)
        return partition.start_offset if terms.start == "earliest" or is_new else partition.stable_offset

    def _follow(self, share: StreamShare) -> None:
        share.reader.listen(share.woken)
        self._resume(share)

    def _let_go(self, share: StreamShare) -> None:
        share.leaving = True
        share.reader.unlisten(share.woken)
        self._ready.pop(share, None)
        if share.tags and self._is_there(share):
            PatientTimer(LET_GO_S, lambda: self._time_is_up(share))
        else:
            self._give_up(share)

    def _time_is_up(self, share: StreamShare) -> None:
        if share.leaving and not share.dropped:
            self._give_up(share)

    def _give_up(self, share: StreamShare) -> None:
        self._try_commit([share])
        self._drop(share)
        self.member.nudge()

    def _drop(self, share: StreamShare) -> None:
        share.dropped = True
        share.reader.unlisten(share.woken)
        self._ready.pop(share, None)
        partition = share.partition
        self._shares.pop((partition.topic.id, partition.index), None)
        for tag in share.tags.values():
            self._in_flight.pop(tag, None)
        share.tags.clear()
        share.wake_waiters()

    # -- verdicts ---------------------------------------------------------------------------------------------------

    def _known(self, runs: Sequence[Run], unknown: list[Run]) -> Iterable[int]:
        """The tags of `runs` that are in flight; runs of others are added to `unknown`."""
        for first, count in runs:
            last = min(first + count, self._next_tag)
            tags: Iterable[int] = range(max(first, 0), last)
            if count > 4 * len(self._in_flight):  # a long run of tags that are mostly over: do not count through it
                tags = sorted(tag for tag in self._in_flight if first <= tag < last)
            expected = first
            for tag in tags:
                if tag in self._in_flight:
                    if tag > expected:
                        unknown.append((expected, tag - expected))
                    expected = tag + 1
                    yield tag
            if expected < first + count:
                unknown.append((expected, first + count - expected))

    def _due_again(self, share: StreamShare) -> None:
        if not share.dropped:
            self._again[share] = None
            self._soon()

    def _buried(self, share: StreamShare, offset: int) -> None:
        """A dead letter is kept."""
        if not share.dropped:
            share.done(offset)
            self._try_commit([share])
            self._resume(share)

    def _resume(self, share: StreamShare) -> None:
        """There were verdicts: there is room, or the partition is not stuck any more, or free to go."""
        if share.leaving:
            if not share.tags:
                self._give_up(share)
        elif share.begun and not share.dropped and not share.stuck and share.behind:
            self._ready[share] = None
        self._soon()

    def _commit(self, shares: Iterable[StreamShare]) -> Receipt | None:
        """Writes the offsets that moved; None if none did."""
        offsets: list[OffsetToCommit] = []
        for share in shares:
            settled = share.settled
            if share.begun and settled > share.committed and not share.dropped:
                offsets.append(OffsetToCommit(share.partition.topic.name, share.partition.index, settled))
                share.committed = settled
        if not offsets:
            return None
        try:
            self._hub.groups.write_offsets(self.group, offsets, self.member.member_id)
        except WaystationError:
            for share in shares:
                share.committed = -1  # written with the next one
            raise
        return self._hub.receipt(self.group)

    def _try_commit(self, shares: Iterable[StreamShare]) -> None:
        """Where nobody is promised anything: a disk without room keeps nobody from reading."""
        with suppress(WaystationError):
            self._commit(shares)

    # -- delivering -------------------------------------------------------------------------------------------------

    def _woken(self, share: StreamShare) -> None:
        if not share.stuck:
            self._ready[share] = None
            self._pump()

    @property
    def _room(self) -> int:
        return 0 if self._durability else min(self._credit, self._terms.prefetch - len(self._in_flight))

    def _before_new(self) -> bool:
        """What is to be delivered again, in order."""
        now = asyncio.get_running_loop().time()
        for share in list(self._again):
            while self._room > 0:
                offset = None if share.dropped or share.leaving else share.take_due(now)
                if offset is None:  # a timer will tell; or whoever gets the partition gets the message too
                    del self._again[share]
                    break
                found = message_at(share, offset)
                if found is not None and not expired(found, self._now_ms()):
                    self._hand_over(share, [self._tagged(share, found, share.deliveries.get(offset, 1))])
                elif found is None and is_hidden(share, offset):
                    self._retries.later(share, offset)
                else:  # retention has taken it, or its time is over
                    share.done(offset)
                    self._resume(share)
        for share in [share for share in self._ready if share.stuck]:
            del self._ready[share]
        return bool(self._again)

    def _took(self, share: StreamShare, messages: list[Delivered]) -> None:
        if not self._terms.auto_ack:
            share.delivered(messages)
        self._hand_over(share, [self._tagged(share, one, 1) for one in messages])

    def _missed(self, share: StreamShare, offsets: int) -> None:
        logger.warning(
            "retention.overtook",
            "retention overtook group {group!r}: it missed {missed} offsets of {topic}-{partition}",
            group=self.group,
            missed=offsets,
            topic=share.partition.topic.name,
            partition=share.partition.index,
        )

    def _tagged(self, share: StreamShare, one: Delivered, deliveries: int) -> Delivered:
        tag = self._next_tag
        self._next_tag += 1
        if not self._terms.auto_ack:
            self._in_flight[tag] = (share, one.offset)
            share.tags[one.offset] = tag
        told = as_before(one) if share.redriven else one
        return Delivered(tag, deliveries, one.taken_ms, one.message, told.source, told.partition, told.offset)

    def _hand_over(self, share: StreamShare, messages: list[Delivered]) -> None:
        receipt = self._commit([share]) if self._terms.auto_ack else None
        self._credit -= len(messages)
        if receipt is None:
            self._deliver(messages)
        else:
            self._durability = True
            self._hub.when_durable(receipt, lambda failure: self._kept(messages, failure))

    def _kept(self, messages: list[Delivered], failure: WaystationError | None) -> None:
        """The offset behind the messages is durable: they are delivered once, or never."""
        self._durability = False
        if self._closed:
            return
        if failure is not None:
            self.failed(failure)
            return
        self._deliver(messages)
        self._soon()
