"""What the broker asks of a catalog.

Every change is durable when its call returns. Calls may block, so the broker makes them away from the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

FORMAT_VERSION = 4
"""Of the whole data folder. A broker refuses a newer one and upgrades an older one."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic as it is remembered."""

    name: str
    id: UUID
    partitions: int
    internal: bool = False
    overrides: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """A topic that was deleted and whose files may still be there."""

    name: str
    id: UUID


@dataclass(frozen=True, slots=True)
class ExchangeRow:
    """An exchange that survives a restart."""

    name: str
    kind: str
    alternate: str | None = None
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = b"\x80"
    """A msgpack map."""


@dataclass(frozen=True, slots=True)
class BindingRow:
    """A binding that survives a restart. All four fields together tell it from others."""

    exchange: str
    target: str
    key: str = ""
    arguments: bytes = b"\x80"
    """A msgpack map with its names in order."""


class Catalog(Protocol):
    """Thread-safe."""

    def cluster_id(self) -> str: ...

    def topics(self) -> list[TopicRow]: ...

    def save_topic(self, row: TopicRow) -> None:
        """Adds the topic or replaces what was known of it, its deletion too."""

    def delete_topic(self, topic_id: UUID) -> None:
        """Deletes it and, in the same step, remembers that it was deleted. Fine if there is none."""

    def deleted_topics(self) -> list[DeletedTopic]:
        """Those whose files are not known to be gone."""

    def forget_deleted_topic(self, topic_id: UUID) -> None:
        """Its files are gone, durably."""

    def exchanges(self) -> list[ExchangeRow]: ...

    def save_exchange(self, row: ExchangeRow) -> None:
        """Adds the exchange or replaces what was known of it."""

    def bindings(self) -> list[BindingRow]: ...

    def save_binding(self, row: BindingRow) -> None: ...

    def delete_routes(self, exchanges: Iterable[str], bindings: Iterable[BindingRow]) -> None:
        """Deletes exchanges (by name) and bindings, all of them at once."""

    def settings(self) -> dict[str, str]:
        """Broker settings that were changed at run time."""

    def save_settings(self, settings: dict[str, str]) -> None:
        """Replaces them all."""

    def definitions(self, kind: str) -> dict[str, bytes]:
        """Everything of one kind (`namespace`, `policy`, …) by name. What the bytes say is the owner's affair."""

    def save_definition(self, kind: str, name: str, value: bytes) -> None:
        """Adds it or replaces what was known of it."""

    def delete_definition(self, kind: str, name: str) -> None:
        """Fine if there is none."""

    def close(self) -> None: ...
