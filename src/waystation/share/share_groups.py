"""Shared subscriptions: many consumers take single records of topics, acknowledge each, and get what failed again.

A Kafka share group and a shared subscription of our own protocols are the same thing under the same name. The group's
position in every partition, and what is done above it, is kept in `__share_group_state` (`journal.py`); what is
in flight to whom is in memory, so a crash requeues records and takes no acknowledgement back.

Protocols call `open` (a feed), or `heartbeat` and the sessions (Kafka). Administration is in `admin.py`. Made by the
broker: construct, `recover`, `start` inside the event loop, `close` when done.

A group is here only while this broker leads the partition that its state is in: `lead` begins with what the log says,
`drop` forgets it all. Whoever asks for a group of another partition is told NotCoordinator, never that there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from waystation.config import BrokerSettings
from waystation.errors import Corrupt, StorageFailed
from waystation.groups.history import GroupHistory
from waystation.groups.machines.errors import (
    InconsistentProtocol,
    NotCoordinator,
    TooManyGroups,
    UnknownGroup,
    UnknownMember,
)
from waystation.log.commit import GroupCommit
from waystation.observe.events import event_logger
from waystation.observe.tracing import Tracing
from waystation.queues.feed import Deliver
from waystation.queues.redriven import redrive_topic
from waystation.routing.filtering.filters import Filter, compile_filter
from waystation.routing.matching.patterns import Syntax, compile_pattern
from waystation.share.checks import (
    check_beat,
    check_filters,
    check_group_id,
    check_member_id,
    check_open,
    check_own,
    wanted_settings,
)
from waystation.share.dead_letters import Exchanges, QueueTargets, ShareGroupDeadLetters
from waystation.share.feed import OnEnd, SharedFeed
from waystation.share.group import PartitionKey, SharedGroup, Start, at_time, earliest, latest_committed
from waystation.share.journal import SharedJournal
from waystation.share.machines.calls import ShareBeat, ShareBeatAnswer
from waystation.share.machines.delivery import Saved
from waystation.share.machines.members import JOIN_EPOCH, LEAVE_EPOCH, Subscription
from waystation.share.machines.records import (
    GROUP,
    PARTITION,
    SETTINGS,
    GroupBody,
    SettingsBody,
    ShareKey,
    read_key,
    read_value,
    write_value,
)
from waystation.share.machines.sessions import Evict, ShareSession, ShareSessions
from waystation.share.machines.settings import ShareSettings
from waystation.share.machines.window import OpenedBatches
from waystation.share.partition import SharedPartition
from waystation.topics.partitions.durability import Durability
from waystation.topics.partitions.partition import Partition, Receipt
from waystation.topics.publishing import Publishing
from waystation.world import World
from waystation.world.alarm import Alarm, CalendarAlarm
from waystation.world.clock import monotonic_ms

if TYPE_CHECKING:
    from waystation.topics.topics import Topic, Topics

logger = event_logger("waystation.shared")

MAX_GROUPS = 200_000
OPENED_BYTES = 16 * 1024 * 1024
"""Memory for batches that were opened for members of shared subscriptions, of all groups together."""


class SharedGroups:
    """All share groups of a broker."""

    def __init__(
        self,
        world: World,
        settings: BrokerSettings,
        topics: Topics,
        publishing: Publishing,
        commit: GroupCommit,
        partition_count: int,
        *,
        ensure_topic: Callable[[str], Awaitable[Topic]],
        queues: Callable[[], QueueTargets],
        exchanges: Callable[[], Exchanges],
        taken: Callable[[str], bool],
        history: GroupHistory | None = None,
    ) -> None:
        self.topics = topics
        self.history = history or GroupHistory(world.clock)
        self.sessions = ShareSessions()
        self.journal = SharedJournal(partition_count, commit, world.clock)
        self.durability = Durability(commit)
        self._clock = world.clock
        self._settings = settings
        self._groups: dict[str, SharedGroup] = {}
        self._own: dict[str, dict[str, str]] = {}
        """Settings of groups, whether they are there or not."""
        self.dead_letters = ShareGroupDeadLetters(world.clock, publishing, ensure_topic, queues, exchanges)
        self.tracing: Tracing | None = None
        self.opened = OpenedBatches(OPENED_BYTES)
        self._alarm = Alarm(world.clock, self._ring)
        self._calendar = CalendarAlarm(world.clock, self._ring_calendar)
        self._taken = taken
        self._counted: dict[str, int] | None = None
        self._look: asyncio.Handle | None = None
        self._closed = False

    # -- life --------------------------------------------------------------------------------------------------------

    def recover(self, partitions: Iterable[Partition]) -> None:
        """A broker alone leads all of them. Before `start`."""
        for partition in partitions:
            self.lead(partition)

    def lead(self, partition: Partition) -> None:
        """This broker coordinates the groups of a partition from now on: they are what its log says. Nothing is
        in flight, and members join again. Blocks."""
        if self.journal.leads(partition.index):
            return
        named: set[str] = set()
        for key, value in self.journal.lead(partition):
            try:
                found = read_key(key)
                if found is not None:
                    named.add(found.group_id)
                    self._apply(found, value)
            except Corrupt as error:
                logger.error(
                    "shared.unreadable_record", "a record of the share groups' log cannot be read: {error}", error=error
                )
        for group in [self._groups[group_id] for group_id in named if group_id in self._groups]:
            group.own = self._own.get(group.id, {})
            group.use(ShareSettings.of(group.own, self._settings))
            for key_ in [key for key in group.remembered if self.topics.name_of(key[0]) is None]:
                del group.remembered[key_]  # deleted while nobody led the partition here

    def drop(self, index: int) -> None:
        """Another broker coordinates the groups of the partition: members, and whoever waits, are told, and all is
        forgotten. Called before the partition follows, so that what is only noted so far can still be written."""
        if not self.journal.leads(index):
            return
        going = [group for group in self._groups.values() if group.index == index]
        for group in going:
            del self._groups[group.id]  # before they are told: who comes again at once is refused
        self._own = {group_id: own for group_id, own in self._own.items() if self.journal.index_of(group_id) != index}
        self._counted = None
        self.journal.drop(index)
        for group in going:
            self._drop_group(group)

    def _drop_group(self, group: SharedGroup) -> None:
        self.sessions.end_all_of(group.id)
        self._alarm.set(f"group\0{group.id}", None)
        self.dead_letters.drop(group)
        group.drop(NotCoordinator(f"this broker is no longer the coordinator of {group.id!r}; ask which one is"))
        self.history.forget(group.id)

    def start(self) -> None:
        self.topics.subscribe_changes(self._topics_changed)
        self.topics.subscribe_deletions(self._topics_deleted)

    async def close(self) -> None:
        """Groups stay as they are, in the log."""
        self._closed = True
        self._alarm.close()
        self._calendar.close()
        for group in self._groups.values():
            group.close()
        if self._look is not None:
            self._look.cancel()
        await self.dead_letters.close()
        self.journal.close()

    def settings_changed(self) -> None:
        """The broker's settings have."""
        for group in self._groups.values():
            group.use(ShareSettings.of(group.own, self._settings))

    def now_ms(self) -> int:
        return monotonic_ms(self._clock)

    # -- finding -----------------------------------------------------------------------------------------------------

    def __contains__(self, group_id: object) -> bool:
        """Whether it is known here: of groups that another broker coordinates this one cannot say."""
        return group_id in self._groups

    def names(self) -> list[str]:
        return list(self._groups)

    def __iter__(self) -> Iterator[SharedGroup]:
        return iter(list(self._groups.values()))

    def get(self, group_id: str) -> SharedGroup:
        group = self._groups.get(group_id)
        if group is None:
            self.journal.check_led(group_id)
            raise UnknownGroup(f"there is no share group {group_id!r}")
        return group

    def make(self, group_id: str) -> SharedGroup:
        """The group, a new one if there is none. A name is of one kind of group, as far as this broker can tell: a
        consumer group that another one coordinates is not known here."""
        group = self._groups.get(group_id)
        if group is not None:
            return group
        check_group_id(group_id)
        self.journal.check_led(group_id)
        if self._taken(group_id):
            raise InconsistentProtocol(
                f"group {group_id!r} is a consumer group; delete it first, or give the share group another name"
            )
        if len(self._groups) >= MAX_GROUPS:
            raise TooManyGroups(f"this broker keeps at most {MAX_GROUPS} share groups; delete unused ones")
        group = self._add(group_id)
        self.journal.note(group.key, group.encode)
        return group

    def remove(self, group: SharedGroup) -> Receipt:
        """Forgets a group and its positions. Its settings stay."""
        group.close()
        del self._groups[group.id]
        self.history.forget(group.id)
        self._counted = None
        self.sessions.end_all_of(group.id)
        for key in group.places():
            group.forget(key)
            self.journal.note(ShareKey(PARTITION, group.id, *key), _deleted)
        return self.journal.note(group.key, _deleted)

    # -- Kafka's members ---------------------------------------------------------------------------------------------

    async def heartbeat(self, beat: ShareBeat) -> ShareBeatAnswer:
        check_beat(beat)
        self._look_now()
        if beat.member_epoch == JOIN_EPOCH:
            group = self.make(beat.group_id)
        elif beat.group_id in self._groups:
            group = self._groups[beat.group_id]
        else:
            self.journal.check_led(beat.group_id)
            raise UnknownMember(f"there is no share group {beat.group_id!r}; join with epoch 0")
        before = group.machine.epoch
        answer = group.machine.heartbeat(beat, self.topics, self.now_ms())
        if group.machine.epoch != before:
            left = beat.member_epoch == LEAVE_EPOCH
            self._note(group, f"{beat.client_id or beat.member_id} {'left' if left else 'joined'}")
        self._rearm(group)
        if beat.member_epoch == LEAVE_EPOCH:
            self._counted = None  # its session ends by itself: it may have something to acknowledge still
        elif group.machine.epoch != before:
            self._counted = None
            group.machine.topics_changed(self.topics, self.now_ms())
            group.subscribe(group.machine.members[beat.member_id].subscription.matching(self.topics))
            await self._kept_if_it_can_be(self.journal.note(group.key, group.encode))
        return answer

    async def _kept_if_it_can_be(self, receipt: Receipt) -> None:
        """A full disk keeps nobody from joining and reading."""
        try:
            await self.durability.wait(receipt)
        except StorageFailed as error:
            logger.warning("shared.not_saved", "a share group could not be saved: {error}", error=error)

    def begin_session(self, group_id: str, member_id: str, owner: str, evict: Evict) -> ShareSession:
        """A share session from its first request on; what was in flight to an earlier one of the member is requeued:
        here, or on the node that led these partitions before. `owner`: the principal."""
        group = self.get(group_id)
        group.release(member_id, _led(group))
        return self.begin_other_session(group_id, member_id, owner, evict)

    def begin_other_session(self, group_id: str, member_id: str, owner: str, evict: Evict) -> ShareSession:
        """Of a group that another node coordinates."""
        check_member_id(member_id)
        limit = self._settings.integer("group.share.max.share.sessions")
        return self.sessions.begin((group_id, member_id), owner, limit, evict)

    def end_session(self, session: ShareSession) -> bool:
        """The member is through, or its connection is closed: what is in flight to it of partitions that are led here
        goes to others, at once. False: it had ended before."""
        ended = self.sessions.end(session.key, session)
        group = self._groups.get(session.key[0])
        if ended and group is not None:
            group.release(session.key[1], _led(group))
        return ended

    def _lose(self, group: SharedGroup, member_id: str) -> None:
        """A member was silent for too long."""
        self._counted = None
        self._note(group, f"{member_id} was silent for too long")
        self.sessions.end((group.id, member_id))
        group.release(member_id)

    # -- our own members ---------------------------------------------------------------------------------------------

    async def open(
        self,
        group: str,
        patterns: Sequence[str],
        syntax: Syntax,
        consumer_name: str,
        deliver: Deliver,
        on_end: OnEnd,
        *,
        filter: str | Filter | None = None,
        start: str = "latest",
        start_ms: int | None = None,
        prefetch: int = 0,
        visibility_timeout_ms: int | None = None,
        max_deliveries: int | None = None,
        dead_letter: str | None = None,
        auto_ack: bool = False,
        client_host: str = "",
    ) -> SharedFeed:
        """A member of the group, made if it is not there; its position is durable when this returns. It reads what is
        committed, and so does the whole group meanwhile.

        `start`, `start_ms`: where the group begins in partitions that are new to it. `max_deliveries` (0: no limit) and
        `dead_letter` (empty: the dead are dropped), if given, become the group's settings. What does not pass `filter`
        is done for the group.
        """
        check_open(patterns, start, prefetch, visibility_timeout_ms, max_deliveries)
        besides = frozenset((redrive_topic(group),))
        subscription = Subscription.of([compile_pattern(text, syntax) for text in patterns], besides)
        accepts = compile_filter(filter) if isinstance(filter, str) else filter
        wanted = wanted_settings(max_deliveries, dead_letter)
        self._look_now()
        shared = self.make(group)
        check_filters(shared, accepts)
        if wanted.items() - shared.own.items():
            self.change_settings(group, {**shared.own, **wanted})
        name = _unique(consumer_name or "consumer", shared)
        feed = SharedFeed(
            shared,
            name,
            subscription,
            deliver,
            on_end,
            accepts=accepts,
            prefetch=prefetch,
            visibility_timeout_ms=visibility_timeout_ms,
            auto_ack=auto_ack,
        )
        feed.on_closed = self._feed_closed
        if self.tracing is not None:
            feed.trace(self.tracing)
        shared.machine.enter(name, subscription, client_host, self.now_ms())
        shared.machine.topics_changed(self.topics, self.now_ms())
        self._counted = None
        self._note(shared, f"{name} joined")
        shared.enter(feed)
        shared.subscribe(sorted(subscription.matching(self.topics)), _start(start, start_ms))
        feed.look(self.topics)
        try:
            await self.durability.wait(self.journal.note(shared.key, shared.encode))
        except BaseException:
            feed.close()
            raise
        feed.check_led()
        feed.opening = False
        return feed

    def count(self, topic: str) -> int:
        """How many groups with members read the topic. Asked at every publish, so it is counted once per change."""
        if self._counted is None:
            self._counted = {}
            for group in self._groups.values():
                for name in group.machine.subscribed(self.topics) if not group.machine.is_empty else ():
                    self._counted[name] = self._counted.get(name, 0) + 1
        return self._counted.get(topic, 0)

    @property
    def open_feeds(self) -> int:
        """Members that are subscriptions of this broker; Kafka's share consumers are not."""
        return sum(len(group.feeds) for group in self._groups.values())

    # -- settings ----------------------------------------------------------------------------------------------------

    def own_settings(self, group_id: str) -> dict[str, str]:
        self.journal.check_led(group_id)
        return dict(self._own.get(group_id, {}))

    def groups_with_settings(self) -> list[str]:
        return sorted(group_id for group_id, own in self._own.items() if own)

    def change_settings(self, group_id: str, own: Mapping[str, str]) -> Receipt:
        """Replaces the group's own settings; they hold at once. The group need not be there."""
        check_group_id(group_id)
        check_own(own)
        self.journal.check_led(group_id)
        self._own[group_id] = dict(own)
        group = self._groups.get(group_id)
        if group is not None:
            group.own = dict(own)
            group.use(ShareSettings.of(own, self._settings))
        body = SettingsBody(dict(own))
        return self.journal.note(ShareKey(SETTINGS, group_id), (lambda: write_value(body)) if own else _deleted)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _add(self, group_id: str, epoch: int = 0) -> SharedGroup:
        own = self._own.get(group_id, {})
        group = self._groups[group_id] = SharedGroup(
            group_id,
            ShareSettings.of(own, self._settings),
            own,
            clock=self._clock,
            topics=self.topics,
            journal=self.journal,
            alarm=self._alarm,
            calendar=self._calendar,
            opened=self.opened,
            dead_letters=self.dead_letters.bury,
            index=self.journal.index_of(group_id),
            epoch=epoch,
        )
        return group

    def _apply(self, key: ShareKey, value: bytes | None) -> None:
        if key.kind == SETTINGS:
            self._own[key.group_id] = read_value(value, SettingsBody).own if value is not None else {}
        elif key.kind == GROUP:
            if value is None:
                self._groups.pop(key.group_id, None)
            else:
                group, body = self._remembered(key.group_id), read_value(value, GroupBody)
                group.machine.epoch, group.ours = body.epoch, body.ours
        elif key.topic_id is not None:
            place = (key.topic_id, key.index)
            if value is not None:
                self._remembered(key.group_id).remembered[place] = read_value(value, Saved)
            elif key.group_id in self._groups:
                self._groups[key.group_id].remembered.pop(place, None)

    def _remembered(self, group_id: str) -> SharedGroup:
        return self._groups.get(group_id) or self._add(group_id)

    def _feed_closed(self, feed: SharedFeed) -> None:
        group = feed.group
        if group.feeds.pop(feed.name, None) is not None:
            self._counted = None
            group.machine.leave(feed.name, self.now_ms())
            self._note(group, f"{feed.name} left")
            group.release(feed.name)

    def _note(self, group: SharedGroup, why: str) -> None:
        self.history.note(group.id, group.machine.state, len(group.machine.members), why)

    def _rearm(self, group: SharedGroup) -> None:
        self._alarm.set(f"group\0{group.id}", group.machine.next_deadline_ms())

    def _ring(self, name: str) -> None:
        kind, _, group_id = name.partition("\0")
        group = self._groups.get(group_id)
        if group is None:
            return
        if kind == "group":
            for member_id in group.machine.tick(self.now_ms()):
                self._lose(group, member_id)
            self._rearm(group)
            return
        one = _partition_of(group, kind)
        if one is not None:
            one.end_locks()

    def _ring_calendar(self, name: str) -> None:
        place, _, group_id = name.partition("\0")
        group = self._groups.get(group_id)
        one = None if group is None else _partition_of(group, place)
        if one is not None:
            one.ring()

    def _topics_changed(self) -> None:
        """Many topics may change at once; the groups look when that is over."""
        self._counted = None
        if self._look is None and not self._closed:
            self._look = asyncio.get_running_loop().call_soon(self._tell_groups)

    def _look_now(self) -> None:
        """Who joins now finds topics that were made before as old ones, and those who were here as new ones."""
        if self._look is not None:
            self._look.cancel()
            self._tell_groups()

    def _tell_groups(self) -> None:
        self._look = None
        for group in self._groups.values():
            if not group.machine.is_empty:
                group.topics_changed()

    def _topics_deleted(self, _: list[str]) -> None:
        for group in self._groups.values():
            for key in group.places():
                if self.topics.name_of(key[0]) is None:
                    group.forget(key)
                    self.journal.note(ShareKey(PARTITION, group.id, *key), _deleted)


def _led(group: SharedGroup) -> list[PartitionKey]:
    """A member has a session with the leader of each partition: one of them ends what it had there."""
    return [key for key, one in group.partitions.items() if one.partition.leads]


def _partition_of(group: SharedGroup, place: str) -> SharedPartition | None:
    """By the first part of its name."""
    topic_id, _, index = place.partition("/")
    return group.partitions.get((UUID(topic_id), int(index)))


def _deleted() -> None:
    return None


def _unique(name: str, group: SharedGroup) -> str:
    number, wanted = 1, name
    while name in group.machine.members:
        number += 1
        name = f"{wanted}#{number}"
    return name


def _start(start: str, start_ms: int | None) -> Start:
    if start_ms is not None:
        when_ms = start_ms
        return lambda partition: at_time(partition, when_ms, latest_committed)
    return earliest if start == "earliest" else latest_committed
