"""All the shards of a coordinator, and how a group is found in them, made, or changed from one protocol to the other.

The services share one of these. It also knows the time: the monotonic clock for sessions (wall time may jump), the wall
clock for what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from waystation.groups.history import GroupHistory
from waystation.groups.machines.calls import TopicView
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.conversion import to_consumer
from waystation.groups.machines.errors import (
    InconsistentProtocol,
    InvalidGroupId,
    InvalidGroupRequest,
    NotCoordinator,
    TooManyGroups,
)
from waystation.groups.machines.settings import GroupSettings
from waystation.groups.records import partition_for
from waystation.groups.shard import Group, GroupShard
from waystation.log.state import StateLog
from waystation.world import Clock
from waystation.world.clock import monotonic_ms


class GroupShards:
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        settings: GroupSettings,
        topics: TopicView,
        log_for: Callable[[int], StateLog],
        partition_count: int,
        history: GroupHistory | None = None,
    ) -> None:
        self.clock = clock
        self.history = history or GroupHistory(clock)
        self.topics = topics
        self.taken: Callable[[object], bool] = lambda _: False  # names of groups of another kind
        self.whereabouts: Callable[[int], str] = lambda _: "on another node"  # of a partition that is not led here
        self.converted: Callable[[str], None] = lambda _: None  # told of classic groups that are of the other protocol
        self._settings = settings
        self._shards = [GroupShard(partition, settings, log_for) for partition in range(partition_count)]

    @property
    def settings(self) -> GroupSettings:
        return self._settings

    @settings.setter
    def settings(self, settings: GroupSettings) -> None:
        self._settings = settings
        for shard in self._shards:
            shard.settings = settings
            for group in shard.groups.values():
                group.settings = shard.settings_of(group.group_id)

    def __iter__(self) -> Iterator[GroupShard]:
        return iter(self._shards)

    def __getitem__(self, partition: int) -> GroupShard:
        return self._shards[partition]

    def now_ms(self) -> int:
        """For durations."""
        return monotonic_ms(self.clock)

    def wall_ms(self) -> int:
        """For what is stored."""
        return self.clock.now_ms()

    # -- finding groups --------------------------------------------------------------------------------------

    def shard_of(self, group_id: str) -> GroupShard:
        partition = partition_for(group_id, len(self._shards))
        shard = self._shards[partition]
        if not shard.led:
            raise NotCoordinator(f"the coordinator of group {group_id!r} is {self.whereabouts(partition)}")
        return shard

    def find(self, group_id: str) -> Group | None:
        return self.shard_of(group_id).groups.get(group_id)

    def knows(self, group_id: str) -> bool:
        """Whether there is such a group in a partition that this broker leads."""
        return group_id in self._shards[partition_for(group_id, len(self._shards))].groups

    def classic(self, group_id: str) -> ClassicGroup:
        """The classic group, or a new one if there is none, or only an empty KIP-848 group. `adopt` keeps it."""
        group = self.find(group_id)
        if isinstance(group, ClassicGroup):
            return group
        if group is not None and not group.is_empty:
            raise InconsistentProtocol(f"group {group_id!r} has members that use the consumer protocol (KIP-848)")
        self._check_free(group_id)
        return ClassicGroup(group_id, self._settings)

    def consumer(self, group_id: str) -> ConsumerGroup:
        """The KIP-848 group, or a new one if there is none, or only an empty classic group, or a classic group of
        consumers, whose members are in it then. `adopt` keeps it."""
        group = self.find(group_id)
        if isinstance(group, ConsumerGroup):
            return group
        if group is not None and not group.is_empty:
            settings = self.shard_of(group_id).settings_of(group_id)
            converted = to_consumer(group, self.topics, settings, self.now_ms())
            if converted is None:
                raise InconsistentProtocol(
                    f"group {group_id!r} has members of the classic protocol that cannot be taken over"
                )
            return converted
        self._check_free(group_id)
        return ConsumerGroup(group_id, self.shard_of(group_id).settings_of(group_id))

    def adopt(self, group: Group) -> None:
        """Keeps a group that was just made, in the place of an empty one of the other protocol if there is one."""
        shard = self.shard_of(group.group_id)
        present = shard.groups.get(group.group_id)
        if present is group:
            return
        if present is None:
            self._check_room()
        elif not present.is_empty:
            shard.convert(present, group, self.wall_ms())
            self.converted(group.group_id)
        else:
            shard.remove(present)
        shard.groups[group.group_id] = group

    def _check_free(self, group_id: str) -> None:
        if self.taken(group_id):
            raise InconsistentProtocol(
                f"group {group_id!r} is a share group; delete it first, or give this group another name"
            )

    def _check_room(self) -> None:
        if sum(len(shard.groups) for shard in self._shards) >= self._settings.max_groups:
            raise TooManyGroups(f"this broker keeps at most {self._settings.max_groups} groups; delete unused ones")

    def check_own(self, group_id: str, own: Mapping[str, str]) -> None:
        """Raises unless these can be a group's own settings."""
        self.check_group_id(group_id)
        self._settings.check_own(own)
        most = self._settings.max_groups
        if group_id not in self.shard_of(group_id).own and sum(len(shard.own) for shard in self._shards) >= most:
            raise TooManyGroups(f"at most {most} groups have settings of their own")

    # -- limits ----------------------------------------------------------------------------------------------

    def check_group_id(self, group_id: str, *, may_be_empty: bool = False) -> None:
        if not group_id and not may_be_empty:
            raise InvalidGroupId("the group id is empty")
        if len(group_id.encode()) > self._settings.max_name_bytes:
            raise InvalidGroupId(f"the group id is longer than {self._settings.max_name_bytes} bytes")

    def check_names(self, **names: str | None) -> None:
        for what, name in names.items():
            if name is not None and len(name.encode()) > self._settings.max_name_bytes:
                raise InvalidGroupRequest(f"{what} is longer than {self._settings.max_name_bytes} bytes")
