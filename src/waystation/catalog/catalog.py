"""What the broker asks of a catalog: entries with revisions, written by comparing, and told to whoever watches.

The catalog has one revision, a number that every write raises by one; an entry has the revision of the write that it
comes from. A write names the revisions that its author knows: if one of them is another by now, nothing is written, and
the author is told (RevisionConflict). So of two who change the same thing at once, one wins and the other knows it. A
watch gives the writes in their order, each whole. That is also what etcd offers (a revision of the store, a key's
`mod_revision`, transactions that compare, watches from a revision, compaction), so that a catalog there needs no other
interface.

Every change is durable when its call returns. Calls may block, so the broker makes them away from the loop. The methods
that name topics, exchanges and the like are written in terms of the others; they do not compare, so they are for a
broker that starts or stands still, and for tools.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple
from uuid import UUID

import msgspec

from waystation.catalog import rows
from waystation.catalog.rows import BindingRow, DeletedTopic, ExchangeRow, TopicRow
from waystation.errors import RevisionConflict

FORMAT_VERSION = 5
"""Of the whole data folder. A broker refuses a newer one and upgrades an older one."""

ABSENT = 0
"""The revision of a key that is not there."""


class CatalogEntry(NamedTuple):
    value: bytes
    revision: int


class CatalogChange(NamedTuple):
    """Of one key. No value: it was deleted."""

    key: str
    value: bytes | None


class Update(msgspec.Struct, frozen=True):
    """One write, as it is told to those who watch."""

    revision: int
    changes: tuple[CatalogChange, ...]


class Snapshot(msgspec.Struct, frozen=True):
    """Everything (under a prefix) as it is at a revision, in the order of the keys."""

    revision: int
    entries: dict[str, CatalogEntry]


class Compacted(Exception):
    """A watch is further behind than the catalog remembers: read everything, and watch from there."""


class Watch(ABC):
    """Of one who follows the catalog. Any thread."""

    @abstractmethod
    def take(self) -> list[Update]:
        """What there is since the last call, in order, perhaps nothing. Does not block. Raises Compacted."""

    @abstractmethod
    def close(self) -> None: ...


class Catalog(ABC):
    """Thread-safe."""

    @abstractmethod
    def cluster_id(self) -> str: ...

    @abstractmethod
    def revision(self) -> int:
        """Of the last write."""

    @abstractmethod
    def get(self, key: str) -> CatalogEntry | None: ...

    @abstractmethod
    def read(self, prefix: str = "") -> Snapshot:
        """All entries whose keys begin like this."""

    @abstractmethod
    def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, int] | None = None) -> int:
        """Puts and deletes (None) entries, all of them or none, and returns the revision that this is in force with.

        `expected` has the revision that each of these keys must have, ABSENT where it must not be there; otherwise
        RevisionConflict. Deleting what is not there is no change, and a write without a change is none. StorageFailed:
        it did not happen. WriteInDoubt: it is not in force, but may be after a restart.
        """

    @abstractmethod
    def watch(self, after: int, wake: Callable[[], None]) -> Watch:
        """The writes after a revision. `wake` is called on any thread when there may be more to take."""

    @abstractmethod
    def close(self) -> None: ...

    # -- topics -----------------------------------------------------------------------------------------------------

    def topics(self) -> list[TopicRow]:
        found = [rows.read_topic(entry.value) for entry in self.read(rows.TOPICS).entries.values()]
        return sorted(found, key=lambda row: row.name)

    def save_topic(self, row: TopicRow) -> int:
        """Adds the topic or replaces what was known of it, its deletion too. RevisionConflict if its name is taken."""
        key = rows.topic_name_key(row.name)
        holder = self.get(key)
        if holder is not None and holder.value != str(row.id).encode():
            raise RevisionConflict(f"there is another topic {row.name!r}")
        return self.write(rows.topic_saved(row), {key: ABSENT if holder is None else holder.revision})

    def delete_topic(self, topic_id: UUID) -> None:
        """Deletes it and, in the same step, remembers that it was deleted. Fine if there is none."""
        entry = self.get(rows.topic_key(topic_id))
        if entry is not None:
            self.write(rows.topic_deleted(rows.read_topic(entry.value)))

    def deleted_topics(self) -> list[DeletedTopic]:
        """Those whose files are not known to be deleted."""
        found = [rows.read_deleted_topic(entry.value) for entry in self.read(rows.DELETED_TOPICS).entries.values()]
        return sorted(found, key=lambda row: row.name)

    def forget_deleted_topic(self, topic_id: UUID) -> None:
        """Its files are deleted, durably."""
        self.write({rows.deleted_topic_key(topic_id): None})

    # -- exchanges and bindings -------------------------------------------------------------------------------------

    def exchanges(self) -> list[ExchangeRow]:
        return [rows.read_exchange(entry.value) for entry in self.read(rows.EXCHANGES).entries.values()]

    def save_exchange(self, row: ExchangeRow) -> None:
        """Adds the exchange or replaces what was known of it."""
        self.write({rows.exchange_key(row.name): rows.encode(row)})

    def bindings(self) -> list[BindingRow]:
        return [rows.read_binding(entry.value) for entry in self.read(rows.BINDINGS).entries.values()]

    def save_binding(self, row: BindingRow) -> None:
        self.write({rows.binding_key(row): rows.encode(row)})

    def delete_routes(self, exchanges: Iterable[str], bindings: Iterable[BindingRow]) -> None:
        """Deletes exchanges (by name) and bindings, all of them at once."""
        self.write(rows.routes_deleted(exchanges, bindings))

    # -- settings and the rest --------------------------------------------------------------------------------------

    def settings(self) -> dict[str, str]:
        """Broker settings that were changed at run time."""
        found = self.read(rows.SETTINGS).entries
        return {rows.setting_name(key): entry.value.decode() for key, entry in found.items()}

    def save_settings(self, settings: Mapping[str, str]) -> None:
        """Replaces them all."""
        changes: dict[str, bytes | None] = dict.fromkeys(self.read(rows.SETTINGS).entries)
        self.write(changes | {rows.setting_key(name): text.encode() for name, text in settings.items()})

    def definitions(self, kind: str) -> dict[str, bytes]:
        """Everything of one kind (`namespace`, `policy`, …) by name. What the bytes say is the owner's affair."""
        prefix = rows.definitions_of(kind)
        return {key.removeprefix(prefix): entry.value for key, entry in self.read(prefix).entries.items()}

    def save_definition(self, kind: str, name: str, value: bytes) -> None:
        """Adds it or replaces what was known of it."""
        self.write({rows.definition_key(kind, name): value})

    def delete_definition(self, kind: str, name: str) -> None:
        """Fine if there is none."""
        self.write({rows.definition_key(kind, name): None})


def check_expected(expected: Mapping[str, int], there: Mapping[str, CatalogEntry]) -> None:
    """Raises RevisionConflict unless each key has the revision that it is expected to have."""
    for key, revision in expected.items():
        entry = there.get(key)
        found = ABSENT if entry is None else entry.revision
        if found != revision:
            raise RevisionConflict(
                f"{key[:100]!r} was changed by somebody else (revision {found}, not {revision}); look again, then"
                " repeat the change"
            )


def real_changes(changes: Mapping[str, bytes | None], there: Mapping[str, CatalogEntry]) -> tuple[CatalogChange, ...]:
    """Without deletions of what is not there."""
    return tuple(CatalogChange(key, value) for key, value in changes.items() if value is not None or key in there)
