"""Share groups as their consumers and administrators have them. `Access.shares`.

A consumer opens a group (`open`), has a session in it, and takes and settles records through the group's partitions
(`partition`): it is asked about when it gets those handles, not for each record.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from waystation.broker.access.family import Family
from waystation.errors import UnknownTopic
from waystation.groups.calls import OffsetResult, TopicPartition
from waystation.share.calls import ShareBeat, ShareBeatAnswer, ShareGroupView, ShareOffset
from waystation.share.checks import check_group_id, check_own
from waystation.share.group import SharedGroup
from waystation.share.partition import SharedPartition
from waystation.share.sessions import ShareSession
from waystation.topics.topics import SHARE_TOPIC


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
        return await self._broker.shared.heartbeat(beat)

    def open(self, group_id: str) -> SharedGroup:
        """The group, for who consumes in it; raises UnknownGroup if there is none."""
        self._ask("read", "group", group_id)
        return self._broker.shared.get(group_id)

    def partition(self, group: SharedGroup, topic_id: UUID, index: int) -> SharedPartition:
        """A partition as the group consumes it: records are taken and settled there."""
        partition = self._broker.topics.partition(topic_id, index)
        topic = partition.topic
        self._ask("read", "topic", topic.name)
        if topic.internal:
            raise UnknownTopic(f"topic {topic.name!r} is the broker's own")
        return group.partition(partition)

    def begin_session(self, group_id: str, member_id: str) -> ShareSession:
        """A session from its first request on; what an earlier one of the member had in flight is given back."""
        self._ask("read", "group", group_id)
        return self._broker.shared.begin_session(group_id, member_id)

    def enter_session(self, group_id: str, member_id: str, epoch: int) -> ShareSession:
        """The session that a request of this epoch continues, or ends."""
        self._ask("read", "group", group_id)
        return self._broker.shared.sessions.enter((group_id, member_id), epoch)

    def change_session(
        self, session: ShareSession, added: Sequence[TopicPartition], removed: Iterable[TopicPartition]
    ) -> None:
        """The partitions that the member fetches from."""
        self._ask("read", "group", session.key[0])
        self._broker.shared.sessions.change(session, added, removed)

    def end_session(self, session: ShareSession) -> None:
        """What the member has in flight is delivered to others, at once. Nobody is asked: it may be gone."""
        self._broker.shared.end_session(session)

    # -- administration ---------------------------------------------------------------------------------------------

    def describe(self, group_id: str) -> ShareGroupView:
        """A group that does not exist is described as dead, with the error."""
        self._ask("describe", "group", group_id)
        return self._broker.shared_admin.describe([group_id])[0]

    def offsets(self, group_id: str, wanted: Sequence[tuple[str, Sequence[int]]] | None = None) -> list[ShareOffset]:
        """How far the group has come in these partitions; None: in all that it has a position in."""
        self._ask("describe", "group", group_id)
        return self._broker.shared_admin.offsets(group_id, wanted)

    async def alter_offsets(self, group_id: str, offsets: Sequence[tuple[str, int, int]]) -> list[OffsetResult]:
        """(topic, partition, offset): where a group without members goes on."""
        self._ask("read", "group", group_id)
        for topic in {topic for topic, _, _ in offsets}:
            self._ask("read", "topic", topic)
        return await self._broker.shared_admin.alter_offsets(group_id, offsets)

    async def delete_offsets(self, group_id: str, topics: Sequence[str]) -> list[OffsetResult]:
        """The positions of a group without members in these topics."""
        self._ask("delete", "group", group_id)
        for topic in set(topics):
            self._ask("read", "topic", topic)
        return await self._broker.shared_admin.delete_offsets(group_id, topics)

    # -- settings ---------------------------------------------------------------------------------------------------

    def settings(self, group_id: str) -> dict[str, str]:
        """Those that were set on the group itself."""
        self._ask("describe-configs", "group", group_id)
        return self._broker.shared.own_settings(group_id)

    def check_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """Raises what `alter_settings` would raise now."""
        self._ask("alter-configs", "group", group_id)
        check_group_id(group_id)
        check_own(own)

    async def alter_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """Replaces the group's own settings, durably. The group need not be there."""
        self._ask("alter-configs", "group", group_id)
        await self._broker.durable(self._broker.shared.change_settings(group_id, own))

    def with_settings(self) -> list[str]:
        """The groups that have settings of their own and that the principal may see."""
        return [name for name in self._broker.shared.groups_with_settings() if self._sees("group", name)]
