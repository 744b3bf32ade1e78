"""The members of a share group, as a pure state machine: who is in, what they subscribe to, which epoch they are at.

The partitions are dealt among the members by heartbeat (`assignor.py`) for each epoch. Nothing has to be given up
before another may have it: two members may fetch from one partition, and do while one does not know yet. The *group
epoch* rises when members or topics change; a *member's epoch* is the group epoch that it was last told of, and a
heartbeat that brings it up to date carries the assignment. Members by connection have every partition of their topics:
the group itself divides what there is among them.

Members by heartbeat (Kafka's share consumers) have a session that ends when they are silent for too long; others (feeds
of our own protocols) are there as long as their connection. Membership is not kept over a restart: then nothing is in
flight, and members join again.

No I/O, no clock: calls are told the (monotonic) time, `next_deadline_ms` says when `tick` wants to be called.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from waystation.groups.machines.calls import TopicPartition, TopicView
from waystation.groups.machines.errors import FencedMemberEpoch, GroupFull, InvalidGroupRequest, UnknownMember
from waystation.routing.matching.patterns import NamePattern, Pattern
from waystation.share.machines.assignor import assign
from waystation.share.machines.calls import ShareBeat, ShareBeatAnswer, ShareGroupView, ShareMemberView
from waystation.share.machines.settings import ShareSettings
from waystation.world.deadlines import Deadlines

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
ASSIGNOR = "simple"
SETTLING_INTERVAL_MS = 500
"""While a group changes, its members are told to ask this often: a new topic is picked up in half a second."""
_QUIET_SHARE = 4

NOTHING: frozenset[str] = frozenset()


class Subscription(msgspec.Struct, frozen=True):
    """Topics by name and by pattern. `besides`: topics of the broker's own that it means too, and does not show."""

    names: frozenset[str] = NOTHING
    patterns: tuple[Pattern, ...] = ()
    besides: frozenset[str] = NOTHING

    @classmethod
    def of(cls, patterns: Iterable[Pattern], besides: frozenset[str] = NOTHING) -> Subscription:
        every = list(patterns)
        return cls(
            frozenset(pattern.text for pattern in every if isinstance(pattern, NamePattern)),
            tuple(pattern for pattern in every if not isinstance(pattern, NamePattern)),
            besides,
        )

    def matching(self, topics: TopicView) -> frozenset[str]:
        """The existing topics that it means; the broker's own are never meant by a pattern."""
        names = frozenset(name for name in self.names | self.besides if topics.partitions_of(name) is not None)
        if self.patterns:
            names |= {name for name in topics.names() if any(one.matches(name) for one in self.patterns)}
        return names

    @property
    def texts(self) -> tuple[str, ...]:
        return (*sorted(self.names), *(pattern.text for pattern in self.patterns))


class ShareMember(msgspec.Struct):
    """Mutable; owned by its group alone."""

    member_id: str
    subscription: Subscription = msgspec.field(default_factory=Subscription)
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    epoch: int = 0
    beats: bool = False
    """It is here by heartbeat."""
    assigned: frozenset[TopicPartition] = frozenset()
    """As of the group epoch that partitions were last dealt for; of members by heartbeat alone."""
    previous_epoch: int = 0
    """A heartbeat that still carries it did not get our last answer."""


class ShareGroup:
    """See the module."""

    def __init__(self, group_id: str, settings: ShareSettings, epoch: int = 0) -> None:
        self.group_id = group_id
        self.settings = settings
        self.epoch = epoch
        self.members: dict[str, ShareMember] = {}
        self._timers: Deadlines[str] = Deadlines()
        self._seen: dict[str, int] = {}
        self._dealt_epoch = -1
        self._restless_at_ms = 0

    @property
    def is_empty(self) -> bool:
        return not self.members

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    def next_deadline_ms(self) -> int | None:
        return self._timers.next_ms()

    def subscribed(self, topics: TopicView) -> dict[str, int]:
        """All topics that members read, and how many partitions they have."""
        names = NOTHING.union(*(member.subscription.matching(topics) for member in self.members.values()))
        return {name: count for name in names if (count := topics.partitions_of(name)) is not None}

    # -- members by heartbeat ----------------------------------------------------------------------------------------

    def heartbeat(self, beat: ShareBeat, topics: TopicView, now_ms: int) -> ShareBeatAnswer:
        """The answer; `beat.member_epoch` says whether it joins, stays or leaves."""
        if beat.member_epoch == LEAVE_EPOCH:
            self.leave(self._known_to_beat(beat.member_id).member_id, now_ms)
            return ShareBeatAnswer(beat.member_id, LEAVE_EPOCH, 0, None)
        member = self._join(beat, now_ms) if beat.member_epoch == JOIN_EPOCH else self._known(beat)
        self._update(member, beat, now_ms)
        self._timers.set(member.member_id, now_ms + self.settings.session_timeout_ms)
        assignment = None
        if beat.member_epoch != self.epoch:
            assignment = self._assignment(member, topics)
            if member.epoch != self.epoch:
                member.previous_epoch, member.epoch = member.epoch, self.epoch
        return ShareBeatAnswer(member.member_id, member.epoch, self._interval_ms(now_ms), assignment)

    def _join(self, beat: ShareBeat, now_ms: int) -> ShareMember:
        if beat.topics is None:
            raise InvalidGroupRequest("the first heartbeat has to say which topics the member subscribes to")
        member = self.members.get(beat.member_id)
        if member is None:
            member = self._enter(ShareMember(beat.member_id, beats=True), now_ms)
        elif not member.beats:
            raise InvalidGroupRequest(f"member id {beat.member_id!r} is in use")
        member.epoch = member.previous_epoch = JOIN_EPOCH
        return member

    def _known(self, beat: ShareBeat) -> ShareMember:
        member = self._known_to_beat(beat.member_id)
        if beat.member_epoch not in (member.epoch, member.previous_epoch):
            raise FencedMemberEpoch(
                f"member {beat.member_id!r} of share group {self.group_id!r} is at epoch {member.epoch}, it says"
                f" {beat.member_epoch}; it must join again with epoch 0"
            )
        return member

    def _update(self, member: ShareMember, beat: ShareBeat, now_ms: int) -> None:
        member.rack_id = beat.rack_id if beat.rack_id is not None else member.rack_id
        member.client_id, member.client_host = beat.client_id, beat.client_host
        if beat.topics is not None and frozenset(beat.topics) != member.subscription.names:
            member.subscription = Subscription(frozenset(beat.topics))
            self._bump(now_ms)

    # -- members by connection ---------------------------------------------------------------------------------------

    def enter(self, member_id: str, subscription: Subscription, client_host: str, now_ms: int) -> None:
        """A member that stays until it leaves."""
        member = self._enter(ShareMember(member_id, subscription, client_id=member_id, client_host=client_host), now_ms)
        member.epoch = self.epoch

    def leave(self, member_id: str, now_ms: int) -> None:
        if self.members.pop(member_id, None) is not None:
            self._timers.cancel(member_id)
            self._bump(now_ms)

    # -- what happens ------------------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> list[str]:
        """Removes members that were silent for too long, and says who they were."""
        silent = [member_id for member_id in self._timers.due(now_ms) if member_id in self.members]
        for member_id in silent:
            self.leave(member_id, now_ms)
        return silent

    def topics_changed(self, topics: TopicView, now_ms: int) -> bool:
        """Whether it concerns this group; then the next heartbeats tell the members."""
        sizes = self.subscribed(topics)
        if sizes == self._seen:
            return False
        self._seen = sizes
        self._bump(now_ms)
        return True

    # -- views -------------------------------------------------------------------------------------------------------

    def view(self, topics: TopicView) -> ShareGroupView:
        members = tuple(
            ShareMemberView(
                member_id=member.member_id,
                rack_id=member.rack_id,
                member_epoch=member.epoch,
                client_id=member.client_id,
                client_host=member.client_host,
                topics=member.subscription.texts,
                assignment=self._assignment(member, topics),
            )
            for _, member in sorted(self.members.items())
        )
        return ShareGroupView(
            group_id=self.group_id,
            error=None,
            state=self.state,
            epoch=self.epoch,
            assignment_epoch=self.epoch,
            assignor=ASSIGNOR,
            members=members,
        )

    # -- parts -------------------------------------------------------------------------------------------------------

    def _enter(self, member: ShareMember, now_ms: int) -> ShareMember:
        if len(self.members) >= self.settings.max_members:
            raise GroupFull(
                f"share group {self.group_id!r} has {len(self.members)} members, the most there may be"
                " (group.share.max.size)"
            )
        self.members[member.member_id] = member
        self._bump(now_ms)
        return member

    def _known_to_beat(self, member_id: str) -> ShareMember:
        member = self.members.get(member_id)
        if member is None or not member.beats:
            raise UnknownMember(f"{member_id!r} is not a member of share group {self.group_id!r}; join with epoch 0")
        return member

    def _bump(self, now_ms: int) -> None:
        self.epoch += 1
        self._restless_at_ms = now_ms

    def _assignment(self, member: ShareMember, topics: TopicView) -> frozenset[TopicPartition]:
        if member.beats:
            self._deal(topics)
            return member.assigned
        return frozenset(
            partition for name in member.subscription.matching(topics) for partition in _partitions(name, topics)
        )

    def _deal(self, topics: TopicView) -> None:
        """Once for each epoch, when somebody wants to know."""
        if self._dealt_epoch == self.epoch:
            return
        self._dealt_epoch = self.epoch
        beating = {member.member_id: member for member in self.members.values() if member.beats}
        wanted = {member_id: member.subscription.matching(topics) for member_id, member in beating.items()}
        names = sorted(NOTHING.union(*wanted.values()))
        present = {member_id: member.assigned for member_id, member in beating.items()}
        dealt = assign(wanted, {name: _partitions(name, topics) for name in names}, present)
        for member_id, member in beating.items():
            member.assigned = dealt[member_id]

    def _interval_ms(self, now_ms: int) -> int:
        """Soon after a change, then less and less often: changes seldom come alone."""
        quiet_ms = now_ms - self._restless_at_ms
        return min(self.settings.heartbeat_interval_ms, max(SETTLING_INTERVAL_MS, quiet_ms // _QUIET_SHARE))


def _partitions(name: str, topics: TopicView) -> list[TopicPartition]:
    topic_id = topics.id_of(name)
    return [] if topic_id is None else [(topic_id, index) for index in range(topics.partitions_of(name) or 0)]
