"""The disk, as handed to the core: files by path, positioned reads and writes, and an honest `sync`.

What is promised is exactly what a power cut leaves: bytes are safe after `File.sync()` returned, a name (created,
renamed or removed) after `Disk.sync_folder()` of its parent returned, and nothing else is.

Calls block. The loop may read and write (the page cache answers); syncing belongs on a thread.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Sequence
from typing import Protocol


class File(Protocol):
    """An open file. Positions are explicit: there is no cursor to disagree about."""

    def read(self, size: int, position: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        """Writes all the parts one after another, or raises OSError (then some of it may have been written)."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Makes the file at least `size` bytes long, with room on the disk for all of it, reading as zeros."""

    def sync(self) -> None:
        """Returns when the data (and the size needed to read it back) is on stable storage."""

    def close(self) -> None: ...


class Folder(Protocol):
    """An open folder."""

    def sync(self) -> None:
        """Returns when the names in it are on stable storage."""

    def close(self) -> None: ...


class Disk(Protocol):
    """Paths are plain strings, separated by '/'."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Opens for reading and writing; raises FileNotFoundError unless `create`."""

    def read_file(self, path: str) -> bytes | None:
        """The whole file, or None where there is none."""

    def replace_file(self, path: str, data: bytes) -> None:
        """Durably replaces the whole file: after a power cut it has the old content or the new, never a mixture."""

    def list(self, path: str) -> list[str]:
        """The names in a folder, sorted; empty where there is no such folder."""

    def make_folder(self, path: str) -> None:
        """Creates it and its parents, durably; fine if it is there."""

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Removes a file; fine if it is gone."""

    def remove_tree(self, path: str) -> None:
        """Removes a folder and all in it; fine if it is gone."""

    def open_folder(self, path: str) -> Folder:
        """For those who must tell a folder that cannot be opened now from one that cannot be synced."""

    def sync_folder(self, path: str) -> None: ...

    def size(self, path: str) -> int | None:
        """A file's size, or None where there is none."""

    def free_bytes(self, path: str) -> int:
        """Room left for data on the disk that holds `path`."""

    def total_bytes(self, path: str) -> int:
        """How large the disk is that holds `path`."""

    def boot_id(self) -> str:
        """Names the life of the page cache: while it is the same, nothing that was written has been lost."""

    def volume_id(self, path: str) -> str:
        """Names the folder `path` on its file system: a copy of it elsewhere has another name."""

    def lock(self, path: str, content: bytes) -> bytes | None:
        """Takes an exclusive lock on a file and writes `content` into it; the lock ends with the process.

        Returns None on success, or the content that the present holder wrote.
        """

    def unlock(self, path: str) -> None:
        """Gives a lock back that this process took; fine if it has none."""


class OsFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, size: int, position: int) -> bytes:
        return os.pread(self._fd, size, position)

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        total = sum(len(part) for part in parts)
        written = os.pwritev(self._fd, parts, position)
        if written == total:
            return
        # A short write: the disk filled up in the middle, or the kernel's 2 GiB limit. Go on byte by byte exactly;
        # if it is the disk, the next call raises.
        rest = memoryview(b"".join(parts))[written:]
        position += written
        while rest:
            written = os.pwrite(self._fd, rest, position)
            rest = rest[written:]
            position += written

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        os.posix_fallocate(self._fd, 0, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsFolder:
    """A folder's descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class OsDisk:
    """The real file system."""

    def __init__(self) -> None:
        self._locks: dict[str, int] = {}
        self._durable_folders: set[str] = set()

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(os.open(path, flags, 0o644))

    def read_file(self, path: str) -> bytes | None:
        try:
            with open(path, "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".new"
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fdatasync(file.fileno())
        os.replace(temporary, path)
        self.sync_folder(os.path.dirname(path))

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def make_folder(self, path: str) -> None:
        if path in self._durable_folders:
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.make_folder(parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        # Also when it was there: whoever made it may have died before its name was durable.
        self.sync_folder(parent or ".")
        self._durable_folders.add(path)

    def rename(self, source: str, target: str) -> None:
        if source in self._durable_folders:
            self._forget_folders(source)
        os.replace(source, target)

    def remove(self, path: str) -> None:
        try:
            os.remove(path)
        except FileNotFoundError:
            return

    def remove_tree(self, path: str) -> None:
        import shutil  # it loads all that can compress files: 2.5 ms that a start need not pay

        self._forget_folders(path)
        shutil.rmtree(path, ignore_errors=True)

    def _forget_folders(self, path: str) -> None:
        """A folder that is gone from its place must be made again when it is asked for."""
        if self._durable_folders:
            gone = {folder for folder in self._durable_folders if f"{folder}/".startswith(f"{path}/")}
            self._durable_folders -= gone

    def open_folder(self, path: str) -> OsFolder:
        return OsFolder(os.open(path or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))

    def sync_folder(self, path: str) -> None:
        folder = self.open_folder(path)
        try:
            folder.sync()
        finally:
            folder.close()

    def size(self, path: str) -> int | None:
        try:
            return os.stat(path).st_size
        except FileNotFoundError:
            return None

    def free_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def total_bytes(self, path: str) -> int:
        status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def boot_id(self) -> str:
        return (self.read_file("/proc/sys/kernel/random/boot_id") or b"").decode().strip()

    def volume_id(self, path: str) -> str:
        status = os.stat(path)
        return f"{status.st_dev:x}-{os.statvfs(path).f_fsid:x}-{status.st_ino:x}"

    def lock(self, path: str, content: bytes) -> bytes | None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 4096, 0)
            os.close(fd)
            return holder
        os.ftruncate(fd, 0)
        os.pwrite(fd, content, 0)
        self._locks[path] = fd
        return None

    def unlock(self, path: str) -> None:
        fd = self._locks.pop(path, None)
        if fd is not None:
            # A child that was forked may have the descriptor too: closing ours alone would leave the lock to it.
            fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)
