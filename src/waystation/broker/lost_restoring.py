"""Making topics of what is in `lost+found/`, while no broker runs on the folder: what `waystation lost` does.

A folder gets its `topic.json` first, then its place, then its row in the catalog: a crash in between leaves a folder
that the catalog does not know, and the next start sets it aside again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec.structs import replace

from waystation.broker.open import opened_folder
from waystation.catalog import Catalog, TopicRow
from waystation.catalog.sqlite import FILE as CATALOG_FILE
from waystation.catalog.sqlite import SqliteCatalog
from waystation.errors import AlreadyExists, Invalid, NotFound
from waystation.topics import lost as lost_topics
from waystation.topics import topic_file
from waystation.topics.folders import FOLDER_NAME_LENGTH, folder_name
from waystation.topics.topics import COMPACTED, MAX_PARTITIONS, QUEUES_TOPIC, TIERS, check_like, check_name
from waystation.world import World, real_world
from waystation.world.disk import Disk

KEEP_ALL = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Settings of a topic whose own are not known: the broker's defaults might delete what was just restored."""


class LostTopic(msgspec.Struct, frozen=True):
    """A folder in `lost+found/`. `exact`: it has a `topic.json`, so the name is whole and the settings are known."""

    folder: str
    topic: str
    partitions: int
    size: int
    exact: bool


def find_lost(path: str) -> list[LostTopic]:
    """What is in `lost+found/`; a broker may run meanwhile."""
    world = real_world()
    root = _data_folder(path)
    found = []
    for name in lost_topics.lost_folders(world.disk, root):
        folder = f"{root}/{lost_topics.FOLDER}/{name}"
        row = _row_of(world, folder, name)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        exact = topic_file.load(world.disk, folder) is not None
        found.append(LostTopic(name, row.name, row.partitions, size, exact))
    return found


@contextmanager
def lost_and_found(path: str) -> Iterator[LostAndFound]:
    """The lost folders of a data folder, which nobody else has meanwhile. DataInUse while a broker runs on it."""
    world = real_world()
    with opened_folder(world, _data_folder(path)) as (world, root):
        catalog = SqliteCatalog(root, world.random, world.keys)
        try:
            yield LostAndFound(world, root, catalog)
        finally:
            catalog.close()
            world.offload.close()


class LostAndFound:
    """See `lost_and_found`. Folders are named as in `lost+found/`, or as in `topics/` if they could not be moved."""

    def __init__(self, world: World, root: str, catalog: Catalog) -> None:
        self._world = world
        self._root = root
        self._catalog = catalog

    def names(self) -> list[str]:
        known = {folder_name(row) for row in self._catalog.topics()}
        left = [name for name in self._disk.list(f"{self._root}/topics") if name not in known]
        aside = lost_topics.lost_folders(self._disk, self._root)
        return [*aside, *(name for name in left if name not in aside and lost_topics.parts_of(name) is not None)]

    def restore(self, name: str, new_name: str | None = None) -> TopicRow:
        """Makes a topic of a folder, under its own name or another; durable when it returns."""
        source = self.find(name)
        row = _row_of(self._world, source, name)
        if new_name is None and topic_file.load(self._disk, source) is None and len(row.name) >= FOLDER_NAME_LENGTH:
            raise Invalid(f"{name}: the topic's name may be longer than the folder's; say it with --as")
        row = self._free(replace(row, name=new_name or row.name), name)
        topic_file.save(self._disk, source, row)
        target = f"{self._root}/topics/{folder_name(row)}"
        if source != target:
            lost_topics.move(self._disk, source, target)
        self._catalog.save_topic(row)
        return row

    def delete(self, name: str) -> None:
        source = self.find(name)
        self._disk.remove_tree(source)
        self._disk.sync_folder(source.rpartition("/")[0])

    def find(self, name: str) -> str:
        """Its path."""
        if name not in self.names():
            raise NotFound(f"there is no lost folder {name!r}; `waystation lost list {self._root}` shows them")
        aside = name in lost_topics.lost_folders(self._disk, self._root)
        return f"{self._root}/{lost_topics.FOLDER if aside else 'topics'}/{name}"

    def _free(self, row: TopicRow, folder: str) -> TopicRow:
        """The row, if its name is free; with another id if that is taken (the folder is a copy)."""
        check_name(row.name)
        rows = self._catalog.topics()
        names = [other.name for other in rows]
        if row.name in names:
            raise AlreadyExists(f"{folder}: there is a topic {row.name!r}; restore it under another name with --as")
        check_like(row.name, names)
        if any(other.id == row.id for other in rows):
            row = replace(row, id=self._world.random.uuid())
        while folder_name(row) != folder and folder_name(row) in self._disk.list(f"{self._root}/topics"):
            row = replace(row, id=self._world.random.uuid())
        return row

    @property
    def _disk(self) -> Disk:
        return self._world.disk


def _data_folder(path: str) -> str:
    folder = Path(path).absolute()
    if not (folder / CATALOG_FILE).exists() and not (folder / lost_topics.FOLDER).is_dir():
        raise NotFound(f"{folder} is not the data folder of a broker")
    return str(folder)


def _row_of(world: World, folder: str, name: str) -> TopicRow:
    """What its `topic.json` says, or what can be seen of it."""
    described = topic_file.load(world.disk, folder)
    if described is not None:
        return described
    parts = lost_topics.parts_of(name)
    if parts is None:
        raise Invalid(f"{name!r} is not the folder of a topic")
    topic, digits = parts
    numbers = [int(entry) for entry in world.disk.list(folder) if entry.isdecimal() and int(entry) < MAX_PARTITIONS]
    internal = topic in TIERS or topic == QUEUES_TOPIC
    overrides = dict(COMPACTED if topic in TIERS else KEEP_ALL)
    topic_id = UUID(hex=digits + world.random.token(12).hex())
    return TopicRow(topic, topic_id, max(numbers, default=0) + 1, internal, overrides)
