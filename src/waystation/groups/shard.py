"""The groups and offsets of one `__consumer_offsets` partition, and the log they are kept in.

It has groups only while this broker leads the partition: `replay` begins with what the log says, `drop` forgets it all.

A change is made in memory and appended here in one go, without awaiting in between, so memory and log agree on the
order of things; whoever promises a client something then awaits `durable`. Replay goes through `apply`. Offsets are
changed here, after they were written, since they are shown only when that is replicated.

The services of the coordinator are the only callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from waystation.errors import StorageFailed
from waystation.groups import records
from waystation.groups.machines.classic import ClassicGroup
from waystation.groups.machines.classic_states import ClassicState
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.errors import CoordinatorUnavailable, NotCoordinator
from waystation.groups.machines.offsets import Committed, Key, OffsetStore
from waystation.groups.machines.settings import GroupSettings
from waystation.groups.records import Record
from waystation.log.state import StateBatch, StateLog
from waystation.observe.events import event_logger

log = event_logger(__name__)

Group = ClassicGroup | ConsumerGroup


class GroupShard:
    """See the module. `open_log` is called when the first record is written, which may create the topic."""

    def __init__(self, partition: int, settings: GroupSettings, open_log: Callable[[int], StateLog]) -> None:
        self.partition = partition
        self.settings = settings
        self.groups: dict[str, Group] = {}
        self.own: dict[str, dict[str, str]] = {}  # settings that were set for a group, which need not be there
        self.offsets = OffsetStore()
        self._open_log = open_log
        self._log: StateLog | None = None
        self.led = False

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, batch: Sequence[Record], *, producer_id: int = -1, producer_epoch: int = -1) -> None:
        """Appends; with a producer id as part of its transaction. After CoordinatorUnavailable nothing was."""
        try:
            if self._log is None:
                self._log = self._open_log(self.partition)
            self._log.append(
                batch, producer_id=producer_id, producer_epoch=producer_epoch, transactional=producer_id >= 0
            )
        except StorageFailed as error:
            raise self._unavailable(error) from error

    @property
    def _end(self) -> int:
        """Where what was just written ends in the log; what there is already is replicated from then on."""
        if self._log is None:
            return 0
        self.offsets.replicated_to(self._log.replicated_offset)
        return self._log.end_offset

    def commit_offsets(self, group_id: str, entries: Iterable[tuple[Key, Committed]]) -> None:
        """They were written."""
        end = self._end
        for key, entry in entries:
            self.offsets.commit(group_id, *key, entry, end=end)

    def resolve_offsets(self, producer_id: int, *, commit: bool) -> set[str]:
        """The marker that ends a producer's transaction was written. Returns the groups that have offsets in it."""
        return self.offsets.resolve(producer_id, commit=commit, end=self._end)

    def shown_offsets(self) -> OffsetStore:
        """For what clients are shown."""
        if self._log is not None:
            self.offsets.replicated_to(self._log.replicated_offset)
        return self.offsets

    async def durable(self) -> None:
        """Returns when everything written so far is on disk. Raises CoordinatorUnavailable if it will not be."""
        if not self.led:
            raise NotCoordinator("this broker is not the group's coordinator any more; ask which one is")
        if self._log is None:
            return
        try:
            await self._log.committed()
        except StorageFailed as error:
            raise self._unavailable(error) from error

    def _unavailable(self, error: StorageFailed) -> CoordinatorUnavailable:
        log.warning(
            "group.log_failed", "the log of groups takes no writes: {error}", partition=self.partition, error=error
        )
        return CoordinatorUnavailable(f"__consumer_offsets-{self.partition} cannot be written: {error}")

    def save_classic(self, group: ClassicGroup, now_ms: int) -> None:
        group.emptied_at_ms = now_ms if group.is_empty else None
        self.write([records.classic_record(group, now_ms)])

    def save_consumer(self, group: ConsumerGroup, now_ms: int) -> bool:
        """Writes what has changed; says whether anything had."""
        changes = group.take_changes()
        if not changes:
            return False
        emptied = group.emptied_at_ms is not None
        if group.is_empty != emptied:
            group.emptied_at_ms = now_ms if group.is_empty else None
        batch: list[Record] = [records.consumer_record(group)] if changes.group else []
        for member_id in sorted(changes.members):
            member = group.members.get(member_id)
            if member is None:
                batch.append((records.consumer_member_key(group.group_id, member_id), None))
            else:
                batch.append(records.consumer_member_record(group.group_id, member))
        try:
            self.write(batch)
        except CoordinatorUnavailable:
            group.mark_changed()
            raise
        return True

    def settings_of(self, group_id: str) -> GroupSettings:
        """What holds for a group: its own settings over the broker's."""
        return self.settings.with_own(self.own.get(group_id, {}))

    def change_settings(self, group_id: str, own: Mapping[str, str]) -> None:
        """Replaces a group's own settings, in the log and at once in memory."""
        self.write([records.consumer_settings_record(group_id, own)])
        self._use(group_id, dict(own))

    def _use(self, group_id: str, own: dict[str, str]) -> None:
        if own:
            self.own[group_id] = own
        else:
            self.own.pop(group_id, None)
        group = self.groups.get(group_id)
        if group is not None:
            group.settings = self.settings_of(group_id)

    # -- groups that come and go -----------------------------------------------------------------------------

    def remove(self, group: Group) -> None:
        """Takes an empty group away, in memory and in the log. Its offsets are another matter."""
        self.write([self._tombstone(group)])
        if isinstance(group, ClassicGroup):
            group.die()
        del self.groups[group.group_id]

    def convert(self, old: Group, new: Group, now_ms: int) -> None:
        """A group is of the other protocol from now on, with its members: all of it in one batch."""
        tombstones: list[Record] = [self._tombstone(old)]
        if isinstance(new, ClassicGroup):
            tombstones += [(records.consumer_member_key(old.group_id, member_id), None) for member_id in _ids(old)]
            self.write([*tombstones, records.classic_record(new, now_ms)])
        elif isinstance(new, ConsumerGroup):
            made = [records.consumer_member_record(new.group_id, member) for _, member in sorted(new.members.items())]
            self.write([*tombstones, records.consumer_record(new), *made])
        if isinstance(old, ClassicGroup):
            old.die()
        self.groups[new.group_id] = new

    @staticmethod
    def _tombstone(group: Group) -> Record:
        if isinstance(group, ClassicGroup):
            return records.classic_key(group.group_id), None
        return records.consumer_key(group.group_id), None

    def delete_offsets(self, group_id: str, keys: Sequence[tuple[str, int]]) -> None:
        if not keys:
            return
        self.write([(records.offset_key(group_id, topic, partition), None) for topic, partition in keys])
        end = self._end
        for topic, partition in keys:
            self.offsets.delete(group_id, topic, partition, end=end)

    # -- replay ----------------------------------------------------------------------------------------------

    def replay(self, state_log: StateLog) -> None:
        """Rebuilds everything from the log, which is used for writing from then on."""
        self._log = state_log
        self.led = True
        self.offsets.replicated_to(state_log.replicated_offset)
        for batch in state_log.replay():
            self.apply(batch)
        for group_id in self.offsets.groups():
            self.groups.setdefault(group_id, ClassicGroup(group_id, self.settings))

    def drop(self) -> None:
        """Another broker leads the partition: what is here is not true any more."""
        self.led = False
        self._log = None
        self.groups.clear()
        self.own.clear()
        self.offsets = OffsetStore()

    def apply(self, batch: StateBatch) -> None:
        if batch.control is not None:
            self.offsets.resolve(batch.producer_id, commit=batch.control == "commit", end=batch.end_offset)
            return
        for key, value in batch.records:
            match records.read_key(key):
                case records.OffsetKey() as offset_key:
                    self._apply_offset(offset_key, value, batch)
                case records.ClassicKey(group_id):
                    self._apply_classic(group_id, value)
                case records.ConsumerKey(group_id):
                    self._apply_consumer(group_id, value)
                case records.ConsumerMemberKey(group_id, member_id):
                    self._apply_member(group_id, member_id, value)
                case records.ConsumerSettingsKey(group_id):
                    self._use(group_id, {} if value is None else records.read_consumer_settings(value))
                case records.Unknown(version):
                    log.warning(
                        "group.unknown_record",
                        "a record of the groups' log is of an unknown kind",
                        partition=self.partition,
                        key_version=version,
                    )

    def _apply_offset(self, key: records.OffsetKey, value: bytes | None, batch: StateBatch) -> None:
        if value is None:
            self.offsets.delete(key.group_id, key.topic, key.partition, end=batch.end_offset)
        elif batch.transactional:
            entry = records.read_offset(value)
            self.offsets.pend(batch.producer_id, key.group_id, key.topic, key.partition, entry)
        else:
            entry = records.read_offset(value)
            self.offsets.commit(key.group_id, key.topic, key.partition, entry, end=batch.end_offset)

    def _apply_classic(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            if isinstance(self.groups.get(group_id), ClassicGroup):
                del self.groups[group_id]
            return
        group = ClassicGroup(group_id, self.settings)
        records.read_classic(value, group)
        self.groups[group_id] = group

    def _apply_consumer(self, group_id: str, value: bytes | None) -> None:
        if value is None:
            if isinstance(self.groups.get(group_id), ConsumerGroup):
                del self.groups[group_id]
            return
        records.read_consumer(value, self._consumer(group_id))

    def _apply_member(self, group_id: str, member_id: str, value: bytes | None) -> None:
        if value is not None:
            self._consumer(group_id).restore_member(records.read_consumer_member(value, member_id))
            return
        group = self.groups.get(group_id)
        if isinstance(group, ConsumerGroup):
            group.forget_member(member_id)

    def _consumer(self, group_id: str) -> ConsumerGroup:
        group = self.groups.get(group_id)
        if not isinstance(group, ConsumerGroup):
            group = self.groups[group_id] = ConsumerGroup(group_id, self.settings_of(group_id))
        return group

    # -- looking up ------------------------------------------------------------------------------------------

    def is_disposable(self, group: Group) -> bool:
        """Whether nothing would be lost with the group."""
        if not group.is_empty or self.offsets.has_any(group.group_id):
            return False
        return not (isinstance(group, ClassicGroup) and (group.state is not ClassicState.EMPTY or group.roster.pending))


def _ids(group: Group) -> list[str]:
    return sorted(group.members) if isinstance(group, ConsumerGroup) else []
