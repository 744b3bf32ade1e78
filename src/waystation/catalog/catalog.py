"""What the broker asks of a catalog.

Every change is durable when its call returns. Calls may block, so the broker makes them away from the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

FORMAT_VERSION = 1
"""Of the whole data folder. A broker refuses a newer one and upgrades an older one."""


@dataclass(frozen=True, slots=True)
class TopicRow:
    """A topic as it is remembered."""

    name: str
    id: UUID
    partitions: int
    internal: bool = False
    overrides: dict[str, str] = field(default_factory=dict)


class Catalog(Protocol):
    """Thread-safe."""

    def cluster_id(self) -> str: ...

    def topics(self) -> list[TopicRow]: ...

    def save_topic(self, row: TopicRow) -> None:
        """Adds the topic or replaces what was known of it."""

    def delete_topic(self, topic_id: UUID) -> None: ...

    def settings(self) -> dict[str, str]:
        """Broker settings that were changed at run time."""

    def save_settings(self, settings: dict[str, str]) -> None:
        """Replaces them all."""

    def close(self) -> None: ...
