"""One share group at work: its members, its partitions, the feeds that it pushes to.

Kafka's share consumers fetch from the group's partitions (`protocols/kafka/share/share_fetch.py`); members of our own
protocols are feeds, and the group sends them records as their credit allows: whoever waits longest first, and what
there is divided among those who wait. Nobody polls: appends, acknowledgements, credit and time wake the group.

Made and found by `SharedGroups`. On the loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from waystation.errors import WaystationError
from waystation.queues.dead_letter_names import default_dead_letter
from waystation.queues.redriven import is_redrive_topic
from waystation.share.machines.delivery import Death, Saved, SharePartition, fitted, saved_at
from waystation.share.machines.members import ShareGroup
from waystation.share.machines.records import GROUP, SETTINGS, GroupBody, SettingsBody, ShareKey, write_value
from waystation.share.machines.settings import ShareSettings, reset_of
from waystation.share.machines.window import OpenedBatches
from waystation.share.partition import SharedPartition
from waystation.topics.partitions.partition import Partition
from waystation.world.alarm import Alarm, CalendarAlarm
from waystation.world.clock import Clock, monotonic_ms

if TYPE_CHECKING:
    from waystation.share.feed import SharedFeed
    from waystation.share.journal import SharedJournal
    from waystation.topics.topics import Topics


TURN_MESSAGES = 1_000
"""A group hands out at most so many messages in one turn of the loop; then others have theirs."""
TURN_BYTES = 1024 * 1024

PartitionKey = tuple[UUID, int]
Start = Callable[[Partition], int]
"""Where a group begins in a partition that is new to it."""


class SharedGroup:
    """See the module."""

    def __init__(
        self,
        group_id: str,
        settings: ShareSettings,
        own: Mapping[str, str],
        *,
        clock: Clock,
        topics: Topics,
        journal: SharedJournal,
        alarm: Alarm[str],
        calendar: CalendarAlarm[str],
        opened: OpenedBatches,
        dead_letters: Callable[[SharedPartition, list[Death], str | None], None],
        index: int = 0,
        epoch: int = 0,
    ) -> None:
        self.id = group_id
        self.index = index  # of the partition that its state is in
        self.own = dict(own)
        self.journal = journal
        self.alarm = alarm
        self.calendar = calendar
        self.opened = opened
        self.machine = ShareGroup(group_id, settings, epoch)
        self.partitions: dict[PartitionKey, SharedPartition] = {}
        self.feeds: dict[str, SharedFeed] = {}
        self.bury = dead_letters
        self.remembered: dict[PartitionKey, Saved] = {}
        """Partitions as the log has them, until they are used."""
        self._clock = clock
        self._topics = topics
        self._to_wake: dict[SharedPartition, None] = {}
        self._waking: asyncio.Handle | None = None
        self._pumping: asyncio.Handle | None = None
        self._turn = 0
        self.closed = False
        self.ours = False  # our own protocols have had members in it

    @property
    def settings(self) -> ShareSettings:
        return self.machine.settings

    @property
    def committed_only(self) -> bool:
        """Records of open transactions wait, those of aborted ones are left out. Always so while our own protocols have
        members in the group; without any, the group's isolation level says it, as Kafka has it."""
        return bool(self.feeds) or self.machine.settings.isolation == "read_committed"

    def now_ms(self) -> int:
        """For durations."""
        return monotonic_ms(self._clock)

    def wall_ms(self) -> int:
        """For what messages say of times."""
        return self._clock.now_ms()

    # -- what is written ---------------------------------------------------------------------------------------------

    @property
    def key(self) -> ShareKey:
        return ShareKey(GROUP, self.id)

    def encode(self) -> bytes:
        return write_value(GroupBody(self.machine.epoch, self.ours))

    def encode_settings(self) -> bytes | None:
        return write_value(SettingsBody(self.own)) if self.own else None

    @property
    def settings_key(self) -> ShareKey:
        return ShareKey(SETTINGS, self.id)

    def use(self, settings: ShareSettings) -> None:
        """The group's or the broker's settings have changed."""
        committed_only = self.committed_only
        self.machine.settings = settings
        self._hide_uncommitted(committed_only)
        for one in self.partitions.values():
            one.core.ledger.max_deliveries = settings.max_deliveries
            self.wake_soon(one)
        self._use_dead_letters()

    # -- dead letters ------------------------------------------------------------------------------------------------

    @property
    def keeps_dead(self) -> bool:
        """Dead records become dead letters. Without a target that somebody chose, those of Kafka's share groups are
        archived, as in Kafka; what our own members give up is never dropped unless somebody says so."""
        return self.settings.dead_letter is not None or (self.ours and not self.settings.dead_letter_said)

    @property
    def keeps_expired(self) -> bool:
        """So have those whose time to live was over: to where somebody chose, but not to the default queue, which is
        for what failed."""
        return self.settings.dead_letter is not None

    def dead_letter_of(self, topic: str) -> str | None:
        """Where the dead of a topic go: a queue's name, `topic:NAME`, or `exchange:NAME`."""
        if self.settings.dead_letter is not None or not self.keeps_dead:
            return self.settings.dead_letter
        return default_dead_letter(topic, self.id)

    def _use_dead_letters(self) -> None:
        for one in self.partitions.values():
            one.core.keeps_dead, one.core.keeps_expired = self.keeps_dead, self.keeps_expired

    # -- partitions --------------------------------------------------------------------------------------------------

    def partition(self, partition: Partition, start: Start | None = None) -> SharedPartition:
        """The group's view of a partition; where it is new, it begins where `start` (or the group's setting) says."""
        key = (partition.topic.id, partition.index)
        found = self.partitions.get(key)
        if found is None:
            saved = self.remembered.pop(key, None)
            new = saved is None
            if saved is None:
                saved = saved_at((start or self.reset)(partition))
            leads = partition.leads and partition.epoch >= saved.log_epoch  # it may be deposed, and not know it
            core = SharePartition(
                fitted(saved, partition.end_offset) if leads else saved,
                max_deliveries=self.settings.max_deliveries,
                keeps_dead=self.keeps_dead,
                keeps_expired=self.keeps_expired,
            )
            found = self.partitions[key] = SharedPartition(self, partition, core)
            if new:
                self.journal.note(found.key, found.encode)
        return found

    def has(self, key: PartitionKey) -> bool:
        return key in self.partitions or key in self.remembered

    def places(self) -> list[PartitionKey]:
        return sorted({*self.partitions, *self.remembered})

    def reset(self, partition: Partition) -> int:
        """What `share.auto.offset.reset` means for a partition now."""
        return start_by(self.settings.reset, partition, self._clock.now_ms())

    def subscribe(self, names: Iterable[str], start: Start | None = None) -> None:
        """Makes sure of the group's position in all partitions of these topics. All that was redriven to it is new.
        Where only the leader knows the position, and this broker is not the one, it is asked when it first fetches."""
        for name in names:
            topic = self._topics.find(name)
            first = earliest if is_redrive_topic(name) else start
            for partition in topic.partitions if topic is not None else ():
                if partition.leads or first is earliest or (partition.here and first is not None):
                    self.partition(partition, first)

    def topics_changed(self) -> None:
        """Topics that came after their subscribers are read from their beginning: nothing in them is old."""
        if self.machine.topics_changed(self._topics, self.now_ms()):
            self.subscribe(self.machine.subscribed(self._topics), earliest)
        for feed in tuple(self.feeds.values()):
            feed.look(self._topics)

    def forget(self, key: PartitionKey) -> None:
        """A topic was deleted."""
        deleted = self.partitions.pop(key, None)
        self.remembered.pop(key, None)
        if deleted is not None:
            deleted.closed = True
            deleted.wake()
            for waiter in tuple(deleted.waiters):
                deleted.unwait(waiter)
            self.alarm.set(deleted.name, None)
            self.calendar.set(deleted.name, None)
            self._to_wake.pop(deleted, None)

    # -- members -----------------------------------------------------------------------------------------------------

    def enter(self, feed: SharedFeed) -> None:
        """A member of our own protocols."""
        committed_only = self.committed_only
        self.feeds[feed.name] = feed
        if not self.ours:
            self.ours = True
            self._use_dead_letters()
        self._hide_uncommitted(committed_only)

    def _hide_uncommitted(self, were_hidden: bool) -> None:
        """The group may read what is committed alone from now on: its windows have no more than that."""
        if self.committed_only and not were_hidden:
            for one in self.partitions.values():
                one.hide_uncommitted()

    def release(self, member: str, keys: Iterable[PartitionKey] | None = None) -> None:
        """What is in flight to the member, in these partitions or anywhere, goes to others."""
        found = self.partitions.values() if keys is None else [self.partitions.get(key) for key in keys]
        for one in list(found):
            if one is not None:
                one.release_all(member)

    # -- waking ------------------------------------------------------------------------------------------------------

    def wake_soon(self, one: SharedPartition) -> None:
        """Those who wait for the partition are asked when this turn of the loop is over."""
        if one.waiters:
            self._to_wake[one] = None
            if self._waking is None and not self.closed:
                self._waking = asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        self._waking = None
        waiting, self._to_wake = self._to_wake, {}
        for one in waiting:
            one.wake()

    def pump_soon(self) -> None:
        """A feed can take something, or there may be something to take."""
        if self._pumping is None and not self.closed and self.feeds:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        """Gives each feed its share. The feeds that were served go to the back of the line."""
        self._pumping = None
        left = TURN_MESSAGES
        order = list(self.partitions.values())
        self._turn = (self._turn + 1) % max(1, len(order))  # so that none is always the last to be asked
        for one in order[self._turn :] + order[: self._turn]:
            hungry = [feed for feed in self.feeds.values() if feed.room > 0 and one in feed.partitions]
            while hungry and left > 0:
                given = self._share_out(one, hungry, left)
                left -= given
                if not given:
                    break
                hungry = [feed for feed in hungry if feed.room > 0 and not feed.closed]
        if left <= 0:
            self.pump_soon()

    def _share_out(self, one: SharedPartition, hungry: list[SharedFeed], most: int) -> int:
        """One round over the feeds; returns how many records were handed out."""
        try:
            one.fill(min(most, sum(feed.room for feed in hungry)), TURN_BYTES)
        except WaystationError as error:
            one.tell(error)
            return 0
        share = -(-one.core.ready // len(hungry))
        given = 0
        for feed in hungry:
            taken = feed.feed(one, min(share, most)) if share else 0
            if taken:
                given += taken
                self.feeds[feed.name] = self.feeds.pop(feed.name, feed)  # to the back
        return given

    def drop(self, error: WaystationError) -> None:
        """Another broker coordinates the group: its members are told, and nothing of it is kept or written."""
        self.close()
        feeds = tuple(self.feeds.values())
        for key in self.places():
            self.forget(key)
        for feed in feeds:
            feed.drop(error)

    def close(self) -> None:
        self.closed = True
        for handle in (self._waking, self._pumping):
            if handle is not None:
                handle.cancel()


# -- where to begin ----------------------------------------------------------------------------------------------------


def earliest(partition: Partition) -> int:
    return partition.start_offset


def latest(partition: Partition) -> int:
    return partition.end_offset


def latest_committed(partition: Partition) -> int:
    """What a transaction holds back that is open now can be seen later, so it is not old."""
    return partition.stable_offset


def start_by(reset: str, partition: Partition, now_ms: int) -> int:
    """What `share.auto.offset.reset` means for a partition now, where it is led."""
    kind, ago_ms = reset_of(reset)
    if kind == "ago":
        return at_time(partition, now_ms - ago_ms)
    return earliest(partition) if kind == "earliest" else latest(partition)


def at_time(partition: Partition, when_ms: int, otherwise: Start = latest) -> int:
    found = partition.find_time(max(0, when_ms))
    return otherwise(partition) if found is None else found[0]
