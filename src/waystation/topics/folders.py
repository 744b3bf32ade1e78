"""The folders under `topics/`, and that they and the catalog agree. The catalog decides what exists; no folder is
deleted because it is not in there.

What each crash leaves, and what the next start does with it:

- in the catalog, no folder: a creation was not finished; it is made. If its records are known to have been on the disk,
  they have been taken away, and the broker does not start.
- deleted in the catalog, which remembers the deletion: the folder is removed, wholly, then the deletion is forgotten
  (in a cluster, when all nodes have removed theirs: `cluster/deletions.py`).
- a folder and neither of both: no crash leaves that. The catalog is behind, so the folder is set aside whole
  (`lost_topics.py`). If a later catalog knows it again, it is brought back.

All of it blocks: before the listeners open, or on a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from waystation.catalog import Catalog, DeletedTopic, TopicRow
from waystation.errors import Corrupt, StorageFailed
from waystation.log.points import RecoveryPoints
from waystation.observe.events import event_logger
from waystation.topics import lost as lost_topics
from waystation.topics import topic_file
from waystation.world.disk import Disk

if TYPE_CHECKING:
    from waystation.topics.topics import Replicas

logger = event_logger("waystation.topics")


FOLDER_NAME_LENGTH = 200
"""Characters of a topic's name that its folder has: with id and digits it stays below a file system's 255."""


def folder_name(topic: TopicRow | DeletedTopic) -> str:
    return f"{topic.name[:FOLDER_NAME_LENGTH]}.{topic.id.hex[:8]}"


class TopicFolders:
    """One per broker."""

    def __init__(
        self, disk: Disk, root: str, catalog: Catalog, points: RecoveryPoints, replicas: Replicas | None = None
    ) -> None:
        self._replicas = replicas
        self._disk = disk
        self._root = root
        self._catalog = catalog
        self._points = points
        self._left: list[str] = []

    def path(self, topic: TopicRow | DeletedTopic) -> str:
        return f"{self._root}/topics/{folder_name(topic)}"

    def lost(self) -> list[str]:
        """Folders that the catalog does not know, by their paths."""
        aside = lost_topics.lost_folders(self._disk, self._root)
        return [f"{self._root}/{lost_topics.FOLDER}/{name}" for name in aside] + self._left

    # -- start ------------------------------------------------------------------------------------------------------

    def reconcile(self) -> list[TopicRow]:
        """Brings back, removes and sets aside; returns the topics that there are, to be opened."""
        self._disk.make_folder(f"{self._root}/topics")
        rows = self._catalog.topics()
        self._bring_back(rows)
        for row in rows:
            self._refuse_lost_records(row)
        known = {folder_name(row) for row in rows}
        for deleted in self._catalog.deleted_topics():
            if folder_name(deleted) not in known:
                self.remove(deleted)
        self._set_aside(name for name in self._disk.list(f"{self._root}/topics") if name not in known)
        return [self._compare(row) for row in rows]

    def _bring_back(self, rows: list[TopicRow]) -> None:
        aside = lost_topics.lost_folders(self._disk, self._root)
        if not aside:
            return
        there = self._disk.list(f"{self._root}/topics")
        for name in map(folder_name, rows):
            if name in aside and name not in there:
                logger.warning(
                    "topic.found_again",
                    "the catalog knows this folder again, taken back from lost+found: {folder}",
                    folder=name,
                )
                lost_topics.bring_back(self._disk, self._root, name)

    def _set_aside(self, names: Iterable[str]) -> None:
        self._left = []
        for name in names:
            where, how = f"{self._root}/{lost_topics.FOLDER}", "moved there"
            try:
                name = lost_topics.set_aside(self._disk, self._root, name)
            except OSError as error:  # it is in nobody's way where it is
                where, how = f"{self._root}/topics", f"left there, since it cannot be moved to lost+found: {error}"
                self._left.append(f"{where}/{name}")
            logger.warning(
                "topic.unknown",
                "the catalog does not know the topic folder {folder}/{name} ({how}). To re-create the topic, stop the"
                " broker and run `waystation lost restore {data} {name}`",
                folder=where,
                name=name,
                how=how,
                data=self._root,
            )

    def _refuse_lost_records(self, row: TopicRow) -> None:
        """A log that is not there begins at 0: harmless where nothing was ever in it, and only there."""
        folder = self.path(row)
        names = self._disk.list(folder)
        for index in range(row.partitions):
            if self._replicas is not None and not self._replicas.here(row.id, index):
                continue  # it has moved to other brokers
            point = self._points.of(f"{row.id}/{index}")
            if str(index) not in names and point is not None and point.offset > 0:
                missing = (
                    f"topic {row.name!r} had records up to offset {point.offset} in {folder}/{index}, and that folder"
                    " is missing."
                )
                if self._replicas is not None:  # others count on what this node has promised to have
                    raise Corrupt(
                        f"{missing} Create it (mkdir -p '{folder}/{index}'), and start this node once with"
                        " `serve --restored`: it then copies from the others"
                    )
                raise Corrupt(
                    f"{missing} Put it back from a backup; or, to continue without those records, create it:"
                    f" mkdir -p '{folder}/{index}'"
                )

    def _compare(self, row: TopicRow) -> TopicRow:
        """The row, with the partitions that a catalog that is behind does not know."""
        folder = self.path(row)
        names = self._disk.list(folder)
        if not names and self._replicas is None:
            logger.warning(
                "topic.no_files", "topic {topic!r} is in the catalog and has no files: it starts empty", topic=row.name
            )
        if f"{topic_file.FILE}.new" in names:
            self._disk.remove(f"{folder}/{topic_file.FILE}.new")
        described = topic_file.load(self._disk, folder)
        if described is None or described.id != row.id or self._replicas is not None:
            return row  # what a cluster agrees on is not corrected by one of its brokers
        if described.partitions > row.partitions:
            logger.warning(
                "topic.catalog_behind",
                "the catalog is behind: topic {topic!r} has {partitions} partitions, not {known}",
                topic=row.name,
                partitions=described.partitions,
                known=row.partitions,
            )
            row = replace(row, partitions=described.partitions)
            try:
                self._catalog.save_topic(row)
            except StorageFailed as error:  # a full disk: the next start finds the same
                logger.warning(
                    "topic.not_saved",
                    "topic {topic!r} cannot be saved in the catalog: {error}",
                    topic=row.name,
                    error=error,
                )
        if described.overrides != row.overrides:
            logger.warning(
                "topic.other_settings",
                "topic {topic!r} had the settings {had}; those of the catalog are in force: {settings}",
                topic=row.name,
                had=described.overrides,
                settings=row.overrides,
            )
        return row

    # -- files of a topic -------------------------------------------------------------------------------------------

    def describe(self, row: TopicRow) -> None:
        """Writes `topic.json`; OSError if that fails."""
        if self._replicas is not None:
            self._disk.make_folder(self.path(row))  # it may have no partition here
        topic_file.save(self._disk, self.path(row), row)

    def describe_again(self, row: TopicRow) -> None:
        """The same if it says something else. The topic is fine without: a failure is only logged."""
        try:
            if topic_file.load(self._disk, self.path(row)) != row:
                self.describe(row)
        except OSError as error:
            logger.warning(
                "topic.file_unwritable",
                "{file} of topic {topic!r} cannot be written: {error}",
                file=topic_file.FILE,
                topic=row.name,
                error=error,
            )

    def clear(self, topic: DeletedTopic) -> bool:
        """Whether nothing is left of a deleted topic, durably. What is left is removed, if it can be."""
        names = self._disk.list(f"{self._root}/topics")
        if folder_name(topic) in names:
            self.remove(topic)
            return folder_name(topic) not in self._disk.list(f"{self._root}/topics")
        return True

    def remove(self, topic: TopicRow | DeletedTopic) -> None:
        """Removes what a deleted topic left. What cannot be removed stays deleted, and the next start tries again."""
        root = f"{self._root}/topics"
        try:
            self._disk.remove_tree(self.path(topic))
            if folder_name(topic) in self._disk.list(root):
                raise OSError(f"{self.path(topic)} is still there")
            self._disk.sync_folder(root)  # or a power cut would bring it back when nobody knows what it was
            if self._replicas is None:  # else other brokers may not have removed theirs yet
                self._catalog.forget_deleted_topic(topic.id)
        except (OSError, StorageFailed) as error:
            logger.warning(
                "topic.files_left",
                "files of the deleted topic {topic!r} are left, until the next start: {error}",
                topic=topic.name,
                error=error,
            )
