"""`topic.json` in a topic's folder: what the catalog says of the topic, so that its files can be understood without it.

The catalog decides; this is its copy, written after it and before the change is answered. It is read where the catalog
may be behind: a folder that it does not know is restored from it exactly.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from waystation.catalog import TopicRow
from waystation.world.disk import Disk

FILE = "topic.json"


class _Content(msgspec.Struct):
    name: str
    id: UUID
    partitions: int
    internal: bool
    overrides: dict[str, str]
    created_ms: int = 0


def save(disk: Disk, folder: str, row: TopicRow) -> None:
    """Durable when it returns; blocks."""
    content = _Content(row.name, row.id, row.partitions, row.internal, row.overrides, row.created_ms)
    disk.replace_file(f"{folder}/{FILE}", msgspec.json.encode(content) + b"\n")


def load(disk: Disk, folder: str) -> TopicRow | None:
    """None where there is none (an older version made the folder) or it is damaged."""
    data = disk.read_file(f"{folder}/{FILE}")
    if data is None:
        return None
    try:
        found = msgspec.json.decode(data, type=_Content)
    except msgspec.DecodeError:
        return None
    return TopicRow(found.name, found.id, found.partitions, found.internal, found.overrides, found.created_ms)
