"""`lost+found/` of a data folder: folders of topics that the catalog does not know.

They are there when the catalog is behind, for example after an older copy of it was put back. Nothing in here is ever
deleted but by a person. A folder keeps its name; if that is taken, `~2`, `~3`… is added to it.

A data folder may be the root of an ext4 file system, which has a `lost+found` of its own, for root only and with other
things in it. Then nothing can be moved there, and only what looks like a topic's folder counts.
"""

from __future__ import annotations

import re

from waystation.world.disk import Disk

FOLDER = "lost+found"
_NAME = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)\.(?P<digits>[0-9a-f]{8})(~[0-9]+)?")


def parts_of(name: str) -> tuple[str, str] | None:
    """The topic's name (its first 200 characters) and eight digits of its id; None if it is no topic's folder."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found["topic"], found["digits"])


def lost_folders(disk: Disk, root: str) -> list[str]:
    """Their names, sorted; none where `lost+found` is not ours to look into."""
    try:
        return [name for name in disk.list(f"{root}/{FOLDER}") if parts_of(name) is not None]
    except (PermissionError, NotADirectoryError):
        return []


def set_aside(disk: Disk, root: str, name: str) -> str:
    """Moves a folder from `topics/`, durably, and returns its name in `lost+found/`."""
    disk.make_folder(f"{root}/{FOLDER}")
    taken = set(disk.list(f"{root}/{FOLDER}"))
    target, number = name, 1
    while target in taken:
        number += 1
        target = f"{name}~{number}"
    move(disk, f"{root}/topics/{name}", f"{root}/{FOLDER}/{target}")
    return target


def bring_back(disk: Disk, root: str, name: str) -> None:
    """Moves a folder from `lost+found/` to its place in `topics/`, where it is not, durably."""
    move(disk, f"{root}/{FOLDER}/{name}", f"{root}/topics/{name}")


def move(disk: Disk, source: str, target: str) -> None:
    """Durable when it returns."""
    disk.rename(source, target)
    disk.sync_folder(target.rpartition("/")[0])  # first where it shall be: a cut leaves two names rather than none
    disk.sync_folder(source.rpartition("/")[0])
