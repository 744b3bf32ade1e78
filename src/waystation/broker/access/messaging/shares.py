"""Share groups as their consumers and administrators have them. `Access.shares`.

A consumer opens a group (`open`), has a session in it, and takes and settles records through the group's partitions
(`partition`): it is asked about when it gets those handles, not for each record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from waystation.broker.access.messaging.family import Family, spelled
from waystation.errors import UnknownTopic
from waystation.groups.machines.calls import OffsetResult, TopicPartition
from waystation.security.whereabouts import group_dead_letter_target_of
from waystation.share.checks import check_group_id, check_own
from waystation.share.group import SharedGroup
from waystation.share.machines.calls import ShareBeat, ShareBeatAnswer, ShareGroupView, ShareOffset
from waystation.share.machines.sessions import ShareSession
from waystation.share.machines.settings import DEAD_LETTER, DEAD_LETTER_TOPIC
from waystation.share.other_coordinators import OtherShareGroup
from waystation.share.partition import SharedPartition
from waystation.topics.partitions.partition import Partition
from waystation.topics.topics import SHARE_TOPIC

DEAD_LETTER_SETTINGS = ((DEAD_LETTER, ""), (DEAD_LETTER_TOPIC, "topic:"))
"""With what stands before their values in the name of a target."""


class ShareAccess(Family):
    """Made by `Access`."""

    __slots__ = ()

    def coordinator(self, group_id: str) -> int:
        """The node that has the group's state, whether there is one of this name or not. NOBODY: none has now."""
        self._ask("describe", "group", group_id)
        return self._leader(SHARE_TOPIC, self._broker.shared.journal.index_of(group_id))

    # -- consumers --------------------------------------------------------------------------------------------------

    async def heartbeat(self, beat: ShareBeat) -> ShareBeatAnswer:
        """Joining, staying and leaving are all heartbeats."""
        self._ask("read", "group", beat.group_id)
        other = self._elsewhere(beat.group_id)
        return await (self._broker.shared if other is None else other).heartbeat(beat)

    def open(self, group_id: str) -> SharedGroup | OtherShareGroup:
        """The group, for who consumes in it; raises UnknownGroup if there is none. One that another node coordinates
        has to be asked for each thing."""
        self._ask("read", "group", group_id)
        return self._elsewhere(group_id) or self._broker.shared.get(group_id)

    def _elsewhere(self, group_id: str) -> OtherShareGroup | None:
        return self._broker.share_coordinators.elsewhere(group_id)

    def partition(self, group: SharedGroup, topic_id: UUID, index: int) -> SharedPartition:
        """A partition as the group consumes it: records are taken and settled there."""
        return group.partition(self.led(topic_id, index))

    def led(self, topic_id: UUID, index: int) -> Partition:
        """A partition that this broker leads; NotLeader: another one does, and share consumers are to ask it."""
        partition = self._broker.topics.partition(topic_id, index)
        topic = partition.topic
        self._ask("read", "topic", topic.name)
        if topic.internal:
            raise UnknownTopic(f"topic {topic.name!r} is the broker's own")
        partition.check_leads()
        return partition

    def begin_session(self, group: SharedGroup | OtherShareGroup, member_id: str) -> ShareSession:
        """A session from its first request on; what an earlier one of the member had in flight is requeued. (Of a
        group that another node coordinates, the caller does that.)"""
        self._ask("read", "group", group.id)
        if isinstance(group, SharedGroup):
            return self._broker.shared.begin_session(group.id, member_id, str(self._principal), self._evict)
        return self._broker.shared.begin_other_session(group.id, member_id, str(self._principal), self._evict)

    def enter_session(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session that a request of this epoch continues, or ends."""
        self._ask("read", "group", group_id)
        return self._broker.shared.sessions.enter((group_id, member_id), epoch)

    def change_session(
        self, session: ShareSession, added: Sequence[TopicPartition], removed: Iterable[TopicPartition]
    ) -> None:
        """The partitions that the member fetches from."""
        self._ask("read", "group", session.key[0])
        self._broker.shared.sessions.change(session, added, removed, self._evict)

    def end_session(self, session: ShareSession) -> None:
        """What the member has in flight is delivered to others, at once. Nobody is asked: it may have disconnected."""
        keys = tuple(session.partitions)
        if self._broker.shared.end_session(session) and session.key[0] not in self._broker.shared:
            self._broker.share_coordinators.release_later(*session.key, keys)

    def _evict(self, session: ShareSession) -> None:
        """Of whoever has most of them: its member is told, and begins another one if there is room."""
        self.end_session(session)
        if session.poke is not None:
            session.poke()

    # -- administration ---------------------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> ShareGroupView:
        """A group that does not exist is described as dead, with the error."""
        self._ask("describe", "group", group_id)
        other = self._elsewhere(group_id)
        return self._broker.shared_admin.describe([group_id])[0] if other is None else await other.describe()

    async def offsets(
        self, group_id: str, wanted: Sequence[tuple[str, Sequence[int]]] | None = None
    ) -> list[ShareOffset]:
        """How far the group has come in these partitions; None: in all that it has a position in."""
        self._ask("describe", "group", group_id)
        other = self._elsewhere(group_id)
        return self._broker.shared_admin.offsets(group_id, wanted) if other is None else await other.offsets(wanted)

    async def alter_offsets(self, group_id: str, offsets: Sequence[tuple[str, int, int]]) -> list[OffsetResult]:
        """(topic, partition, offset): where a group without members goes on."""
        self._ask("read", "group", group_id)
        for topic in {topic for topic, _, _ in offsets}:
            self._ask("read", "topic", topic)
        other, admin = self._elsewhere(group_id), self._broker.shared_admin
        work = admin.alter_offsets(group_id, offsets) if other is None else other.alter_offsets(offsets)
        return await self._changing("alter", "group", group_id, work, "offsets")

    async def delete_offsets(self, group_id: str, topics: Sequence[str]) -> list[OffsetResult]:
        """The positions of a group without members in these topics."""
        self._ask("delete", "group", group_id)
        for topic in set(topics):
            self._ask("read", "topic", topic)
        other, admin = self._elsewhere(group_id), self._broker.shared_admin
        work = admin.delete_offsets(group_id, topics) if other is None else other.delete_offsets(topics)
        return await self._changing("delete", "group", group_id, work, "offsets")

    # -- settings ---------------------------------------------------------------------------------------------------

    async def settings(self, group_id: str) -> dict[str, str]:
        """Those that were set on the group itself."""
        self._ask("describe-configs", "group", group_id)
        other = self._elsewhere(group_id)
        return self._broker.shared.own_settings(group_id) if other is None else await other.settings()

    def check_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """Raises what `alter_settings` would raise now."""
        self._ask_to_alter(group_id, own)
        check_group_id(group_id)
        check_own(own)

    async def alter_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """Replaces the group's own settings, durably. The group need not be there."""
        self._ask_to_alter(group_id, own)
        other = self._elsewhere(group_id)
        if other is not None:
            work = other.alter_settings(dict(own))
        else:
            work = self._broker.durable(self._broker.shared.change_settings(group_id, own))
        await self._changing("alter-configs", "group", group_id, work, spelled(own))

    def _ask_to_alter(self, group_id: str, own: Mapping[str, str]) -> None:
        """Who sends the dead letters of a group elsewhere writes there. Where another node knows what the group has
        now, that is asked even of who leaves it as it is."""
        self._ask("alter-configs", "group", group_id)
        targets = {setting: before + own[setting] for setting, before in DEAD_LETTER_SETTINGS if own.get(setting)}
        if targets and self._elsewhere(group_id) is None:
            known = self._broker.shared.own_settings(group_id)
            targets = {setting: target for setting, target in targets.items() if own[setting] != known.get(setting)}
        for target in targets.values():
            self._ask_dead_letters(*group_dead_letter_target_of(target))

    def with_settings(self) -> list[str]:
        """The groups that have settings of their own and that the principal may see."""
        return [name for name in self._broker.shared.groups_with_settings() if self._sees("group", name)]
