"""A disk in this process's memory: for a broker that is to leave nothing behind. Nothing of it is ever in a file.

Files are bytes in folders that are dicts. What they have together is bounded: beyond `limit` a write is refused as a
full disk refuses it, so everything that is there for full disks (alarms, waiting logs, health) holds here, too. Room
that is only reserved (`allocate`) costs nothing. Syncs do nothing, since there is nothing that could survive.

Called on the loop's thread and on those that blocking calls run on; a lock keeps the sum right.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence

MEMORY = ":memory:"
"""The data folder of a broker that has none."""


class _Content:
    """What a file is; open files of it go on having it when its name is removed."""

    __slots__ = ("data", "linked", "size")

    def __init__(self) -> None:
        self.data = bytearray()
        self.size = 0  # what is behind the data reads as zeros
        self.linked = True


_Tree = dict[str, "_Content | _Tree"]  # a folder has files and folders


class MemoryFile:
    """An open file."""

    __slots__ = ("_content", "_disk")

    def __init__(self, disk: MemoryDisk, content: _Content) -> None:
        self._disk = disk
        self._content = content

    def read(self, size: int, position: int) -> bytes:
        content = self._content
        size = max(0, min(size, content.size - position))
        return bytes(content.data[position : position + size]).ljust(size, b"\0")

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        content = self._content
        end = position + sum(len(part) for part in parts)
        self._disk.reserve(content, end - len(content.data))
        if position > len(content.data):
            content.data += bytes(position - len(content.data))
        for part in parts:
            content.data[position : position + len(part)] = part
            position += len(part)
        content.size = max(content.size, end)

    def size(self) -> int:
        return self._content.size

    def truncate(self, size: int) -> None:
        content = self._content
        kept = min(size, len(content.data))
        self._disk.release(content, len(content.data) - kept)
        del content.data[kept:]
        content.size = size

    def allocate(self, size: int) -> None:
        self._content.size = max(self._content.size, size)

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryFolder:
    """An open folder."""

    __slots__ = ()

    def sync(self) -> None:
        pass

    def close(self) -> None:
        pass


class MemoryDisk:
    """See the module. `limit`: bytes that all files together may have."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._lock = threading.Lock()
        self._root: _Tree = {}

    # -- room -------------------------------------------------------------------------------------------------------

    def reserve(self, content: _Content, count: int) -> None:
        """A file grows by so many bytes; OSError if there is no room for them."""
        if count <= 0 or not content.linked:
            return
        with self._lock:
            if self._used + count > self._limit:
                raise OSError(errno.ENOSPC, "the memory for data is full (waystation.memory.data.max.bytes)")
            self._used += count

    def release(self, content: _Content, count: int) -> None:
        if count > 0 and content.linked:
            with self._lock:
                self._used -= count

    def free_bytes(self, path: str) -> int:
        return max(0, self._limit - self._used)

    def total_bytes(self, path: str) -> int:
        return self._limit

    # -- files ------------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> MemoryFile:
        folder, name = self._place(path)
        content = folder.get(name)
        if content is None and create:
            content = folder[name] = _Content()
        if not isinstance(content, _Content):
            raise _missing(path)
        return MemoryFile(self, content)

    def read_file(self, path: str) -> bytes | None:
        content = self._find(path)
        return bytes(content.data).ljust(content.size, b"\0") if isinstance(content, _Content) else None

    def replace_file(self, path: str, data: bytes) -> None:
        folder, name = self._place(path)
        made = _Content()
        self.reserve(made, len(data))
        made.data, made.size = bytearray(data), len(data)
        self._unlink(folder.get(name))
        folder[name] = made

    def size(self, path: str) -> int | None:
        content = self._find(path)
        return content.size if isinstance(content, _Content) else None

    def remove(self, path: str) -> None:
        self._take_out(path)

    # -- folders ----------------------------------------------------------------------------------------------------

    def list(self, path: str) -> list[str]:
        found = self._find(path)
        return sorted(found) if isinstance(found, dict) else []

    def make_folder(self, path: str) -> None:
        folder = self._root
        for name in _names(path):
            below = folder.setdefault(name, {})
            if not isinstance(below, dict):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            folder = below

    def rename(self, source: str, target: str) -> None:
        before, name = self._place(source)
        behind, new_name = self._place(target)
        moved = before.pop(name, None)
        if moved is None:
            raise _missing(source)
        self._unlink(behind.get(new_name))
        behind[new_name] = moved

    def remove_tree(self, path: str) -> None:
        self._take_out(path)

    def open_folder(self, path: str) -> MemoryFolder:
        if not isinstance(self._find(path), dict):
            raise _missing(path)
        return MemoryFolder()

    def sync_folder(self, path: str) -> None:
        self.open_folder(path)

    # -- the rest ---------------------------------------------------------------------------------------------------

    def boot_id(self) -> str:
        return "this process"

    def volume_id(self, path: str) -> str:
        return "memory"

    def lock(self, path: str, content: bytes) -> bytes | None:
        return None  # nobody else can have it

    def unlock(self, path: str) -> None:
        pass

    def _find(self, path: str) -> _Content | _Tree | None:
        found: _Content | _Tree | None = self._root
        for name in _names(path):
            if not isinstance(found, dict):
                return None
            found = found.get(name)
        return found

    def _place(self, path: str) -> tuple[_Tree, str]:
        """The folder of a path, which has to be there, and the last name."""
        parent, _, name = path.rpartition("/")
        folder = self._find(parent)
        if not isinstance(folder, dict):
            raise _missing(path)
        return folder, name

    def _take_out(self, path: str) -> None:
        try:
            folder, name = self._place(path)
        except FileNotFoundError:
            return
        self._unlink(folder.pop(name, None))

    def _unlink(self, removed: _Content | _Tree | None) -> None:
        """What has no name any more does not count."""
        if isinstance(removed, _Content):
            self.release(removed, len(removed.data))
            removed.linked = False
        elif removed is not None:
            for each in removed.values():
                self._unlink(each)


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name]


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
