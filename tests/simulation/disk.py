"""A disk in memory that keeps exactly what the real one promises, and forgets or tears the rest when the power goes.

`SimDisk` is a `waystation.world.Disk`. Everything written is seen at once by every reader, as through a page cache.
Safe from `power_cut()` is only what was synced: a file's bytes and size by `File.sync()`, a name by `sync_folder()` of
its parent. Of the rest a random, torn subset survives: pages, sectors of pages, any size in between, name changes in
order up to some point. `process_crash()` is the kinder end: the process is gone, the cache stays.

Both return the disk for the next start and leave the old one dead: each operation on it, and on files opened through
it, raises `PowerCut`. `fail_at(n)` lets the power go *during* the n-th changing operation, of which then any part was
done.

All of it is repeatable from the seed. One thread at a time may use it.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Iterator, Sequence

from tests.simulation.faults import Fault, PowerCut
from tests.simulation.nodes import FileNode, FolderNode, Journal, NameChange, tree_after_power_cut

__all__ = ["Fault", "PowerCut", "SimDisk", "SimFile"]

_UNLIMITED = 1 << 50
_WRITE_BACK = 0.05
"""How often a write makes the kernel write some dirty page back unasked: so stale middle states reach the platter."""


class SimFile:
    """An open file of a SimDisk."""

    __slots__ = ("_disk", "_node", "_open", "path")

    def __init__(self, disk: SimDisk, node: FileNode, path: str) -> None:
        self._disk = disk
        self._node = node
        self._open = True
        self.path = path
        disk.open_files[id(self)] = path

    def read(self, size: int, position: int) -> bytes:
        self._check()
        self._disk.look("read", self.path)
        return self._node.read(size, position)

    def write(self, parts: Sequence[bytes | bytearray | memoryview], position: int) -> None:
        self._check()
        self._disk.write(self._node, self.path, parts[0] if len(parts) == 1 else b"".join(parts), position)

    def size(self) -> int:
        self._check()
        return self._node.size

    def truncate(self, size: int) -> None:
        self._check()
        self._disk.resize("truncate", self._node, self.path, size)

    def allocate(self, size: int) -> None:
        self._check()
        if size > self._node.size:
            self._disk.resize("allocate", self._node, self.path, size)

    def sync(self) -> None:
        self._check()
        self._disk.sync(self._node, self.path)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._disk.open_files.pop(id(self), None)

    def _check(self) -> None:
        if not self._disk.powered:
            raise PowerCut
        if not self._open:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)


class SimFolder:
    """An open folder of a SimDisk."""

    __slots__ = ("_disk", "_node", "path")

    def __init__(self, disk: SimDisk, node: FolderNode, path: str) -> None:
        self._disk = disk
        self._node = node
        self.path = path
        disk.open_files[id(self)] = path

    def sync(self) -> None:
        self._disk.sync_names(self._node, self.path)

    def close(self) -> None:
        self._disk.open_files.pop(id(self), None)


class SimDisk:
    """See the module's text. `operations` counts what changes the disk; `history` names each, for debugging."""

    def __init__(self, seed: int = 0, *, capacity: int | None = None) -> None:
        self._rng = random.Random(seed)
        self._root = FolderNode()
        self._journal = Journal()
        self._locks: dict[str, bytes] = {}
        self._boot = f"boot-{self._rng.getrandbits(64):016x}"
        self._volume = f"volume-of-{self._boot}"
        self._used = 0
        self._durable_folders: set[str] = set()
        self._cut_at = -1
        self._faults: list[Fault] = []
        self.capacity = capacity
        self.powered = True
        self.operations = 0
        self.open_files: dict[int, str] = {}  # by handle, so that a test can say which one was left open
        self.history: list[tuple[str, str, int, int]] = []  # kind, path, position or size, length
        self.before_operation: Callable[[], None] | None = None  # other threads may run here
        self.on_power_off: Callable[[], None] | None = None
        self.on_operation: Callable[[str], int] | None = None  # told the kind of each; answers with an error, or 0

    # -- what tests do to it -------------------------------------------------------------------------------------

    def fail_at(self, operation: int) -> None:
        """The power goes during the changing operation of this number (the next one is `operations + 1`)."""
        self._cut_at = operation

    def inject(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def power_cut(self, rng: random.Random | None = None, *, only_synced: bool = False) -> SimDisk:
        """The disk after a power cut and a reboot; this one is dead from now on. `only_synced`: of what was not synced,
        nothing survives, but for what the kernel has written back unasked."""
        rng = self._rng if rng is None else rng
        self._die()
        if not only_synced:
            self._journal.after_power_cut(rng)
        after = SimDisk(rng.getrandbits(64), capacity=self.capacity)
        after._root = tree_after_power_cut(self._root, None if only_synced else rng)
        after._volume = self._volume
        after._used = sum(node.size for _, node in _walk(after._root, ""))
        return after

    def process_crash(self) -> SimDisk:
        """The disk as the next process finds it after kill -9: all that was written is there, synced or not."""
        self._die()
        after = SimDisk(self._rng.getrandbits(64), capacity=self.capacity)
        after._root, after._journal, after._used = self._root, self._journal, self._used
        after._boot, after._volume = self._boot, self._volume
        return after

    def moved(self) -> SimDisk:
        """The same files on another volume, without a reboot: a copy that was restored."""
        after = self.process_crash()
        after._volume = f"volume-{self._rng.getrandbits(64):016x}"
        return after

    def leave_room(self, free_bytes: int | None) -> None:
        """From now on so much more fits on the disk; None: anything."""
        self.capacity = None if free_bytes is None else self._used + free_bytes

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Damages one bit where it lies, on the platter and in the cache."""
        node = self._file(path)
        if not position < node.size:
            raise ValueError(f"{path} has {node.size} bytes, no position {position}")
        for content in (node.data, node.stable):
            if position >= len(content):
                content.extend(bytes(position + 1 - len(content)))
            content[position] ^= 1 << bit

    def content(self) -> dict[str, bytes]:
        """Every file's bytes as seen now, by path: what two runs of one seed must agree about."""
        return {path: node.read(node.size, 0) for path, node in _walk(self._root, "")}

    # -- Disk ----------------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> SimFile:
        self.look("open", path)
        folder, name = self._place_of(path)
        node = folder.entries.get(name)
        if isinstance(node, FolderNode):
            raise _error(errno.EISDIR, path)
        if node is None:
            if not create:
                raise _error(errno.ENOENT, path)
            node = FileNode()
            self._change("create", path, (folder, name, node))
        return SimFile(self, node, path)

    def read_file(self, path: str) -> bytes | None:
        self.look("read", path)
        node = self._find(path)
        return node.read(node.size, 0) if isinstance(node, FileNode) else None

    def replace_file(self, path: str, data: bytes) -> None:
        temporary = path + ".new"
        file = self.open(temporary, create=True)
        try:
            if file.size():
                file.truncate(0)
            if data:
                file.write([data], 0)
            file.sync()
        finally:
            file.close()
        self.rename(temporary, path)
        self.sync_folder(os.path.dirname(path))

    def list(self, path: str) -> list[str]:
        self.look("list", path)
        node = self._find(path)
        return sorted(node.entries) if isinstance(node, FolderNode) else []

    def make_folder(self, path: str) -> None:
        self.look("stat", path)
        if path in self._durable_folders or path == "/":
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.make_folder(parent)
        folder, name = self._place_of(path)
        if name not in folder.entries:
            self._change("mkdir", path, (folder, name, FolderNode()))
        self.sync_folder(parent)
        self._durable_folders.add(path)

    def rename(self, source: str, target: str) -> None:
        self.look("stat", source)
        self._forget_folders(source)
        old_folder, old_name = self._place_of(source)
        new_folder, new_name = self._place_of(target)
        node = old_folder.entries.get(old_name)
        if node is None:
            raise _error(errno.ENOENT, source)
        replaced = new_folder.entries.get(new_name)
        if replaced is node:
            return
        if isinstance(replaced, FolderNode) and (isinstance(node, FileNode) or replaced.entries):
            raise _error(errno.EISDIR if isinstance(node, FileNode) else errno.ENOTEMPTY, target)
        if isinstance(replaced, FileNode) and isinstance(node, FolderNode):
            raise _error(errno.ENOTDIR, target)
        self._change("rename", f"{source} -> {target}", (old_folder, old_name, None), (new_folder, new_name, node))
        self._unlinked(replaced)

    def remove(self, path: str) -> None:
        self.look("stat", path)
        try:
            folder, name = self._place_of(path)
        except FileNotFoundError:
            return
        node = folder.entries.get(name)
        if isinstance(node, FolderNode):
            raise _error(errno.EISDIR, path)
        if node is not None:
            self._change("remove", path, (folder, name, None))
            self._unlinked(node)

    def _forget_folders(self, path: str) -> None:
        self._durable_folders = {f for f in self._durable_folders if not f"{f}/".startswith(f"{path}/")}

    def remove_tree(self, path: str) -> None:
        node = self._find(path)
        if not isinstance(node, FolderNode):
            return
        self._forget_folders(path)
        for name in sorted(node.entries):
            child = f"{path}/{name}"
            if isinstance(node.entries[name], FolderNode):
                self.remove_tree(child)
            else:
                self.remove(child)
        folder, name = self._place_of(path)
        self._change("rmdir", path, (folder, name, None))

    def open_folder(self, path: str) -> SimFolder:
        self.look("open", path)
        node = self._find(path)
        if not isinstance(node, FolderNode):
            raise _error(errno.ENOENT, path)
        return SimFolder(self, node, path)

    def sync_folder(self, path: str) -> None:
        folder = self.open_folder(path)
        try:
            folder.sync()
        finally:
            folder.close()

    def size(self, path: str) -> int | None:
        self.look("stat", path)
        node = self._find(path)
        return node.size if isinstance(node, FileNode) else None

    def free_bytes(self, path: str) -> int:
        self.look("stat", path)
        return _UNLIMITED if self.capacity is None else max(self.capacity - self._used, 0)

    def total_bytes(self, path: str) -> int:
        self.look("stat", path)
        return _UNLIMITED if self.capacity is None else self.capacity

    def boot_id(self) -> str:
        return self._boot

    def volume_id(self, path: str) -> str:
        return f"{self._volume}{path}"

    def lock(self, path: str, content: bytes) -> bytes | None:
        if path in self._locks:
            return self._locks[path]
        file = self.open(path, create=True)
        file.truncate(0)
        file.write([content], 0)
        file.close()
        self._locks[path] = content
        return None

    def unlock(self, path: str) -> None:
        self._locks.pop(path, None)

    # -- what open files ask for ---------------------------------------------------------------------------------

    def write(self, node: FileNode, path: str, content: bytes | bytearray | memoryview, position: int) -> None:
        try:
            last = self._step("write", path, position, len(content))
        except OSError:
            self._put(node, content[: self._rng.randint(0, len(content))], position)
            raise
        if last:
            content = content[: self._rng.choice((0, len(content), self._rng.randint(0, len(content))))]
        fitted = self._put(node, content, position)
        self._done(last)
        if not fitted:
            raise _error(errno.ENOSPC, path)
        if self._rng.random() < _WRITE_BACK and node.dirty:
            node.write_back(self._rng.choice([*node.dirty]))

    def resize(self, kind: str, node: FileNode, path: str, size: int) -> None:
        last = self._step(kind, path, size)
        room = self._room(node, size)
        if room is not None:
            raise _error(errno.ENOSPC, path)
        self._used += (size - node.size) * node.linked
        node.resize(size)
        self._done(last)

    def sync(self, node: FileNode, path: str) -> None:
        try:
            last = self._step("sync", path)
        except OSError:
            node.fail_to_sync(self._rng)
            raise
        node.sync()
        self._done(last)

    def sync_names(self, folder: FolderNode, path: str) -> None:
        last = self._step("sync_folder", path)
        self._journal.sync(folder)
        self._done(last)

    def look(self, kind: str, path: str) -> None:
        """Every operation starts here: other threads get their turn, the power may be gone, a fault may strike."""
        if self.before_operation is not None:
            self.before_operation()
        if not self.powered:
            raise PowerCut
        if self.on_operation is not None and (code := self.on_operation(kind)):
            raise _error(code, path)
        for fault in self._faults:
            if fault.strikes(kind, path):
                raise _error(fault.error, path)

    # -- inside --------------------------------------------------------------------------------------------------

    def _step(self, kind: str, path: str, position: int = 0, length: int = 0) -> bool:
        """Counts a changing operation. True: it is the last one, the power goes as it is done."""
        self.look(kind, path)
        self.operations += 1
        self.history.append((kind, path, position, length))
        if self.operations != self._cut_at:
            return False
        if kind != "write" and self._rng.random() < 0.5:
            self._die()
            raise PowerCut
        return True

    def _done(self, last: bool) -> None:
        if last:
            self._die()
            raise PowerCut

    def _die(self) -> None:
        was_powered, self.powered = self.powered, False
        if was_powered and self.on_power_off is not None:
            self.on_power_off()

    def _change(self, kind: str, path: str, *edits: tuple[FolderNode, str, FileNode | FolderNode | None]) -> None:
        last = self._step(kind, path)
        self._journal.add(NameChange(edits))
        self._done(last)

    def _unlinked(self, node: FileNode | FolderNode | None) -> None:
        if isinstance(node, FileNode) and node.linked:
            node.linked = False
            self._used -= node.size

    def _put(self, node: FileNode, content: bytes | bytearray | memoryview, position: int) -> bool:
        """Writes what there is room for; False if that was not all."""
        room = self._room(node, position + len(content))
        before = node.size
        node.write(content if room is None else content[: max(room - position, 0)], position)
        self._used += (node.size - before) * node.linked
        return room is None

    def _room(self, node: FileNode, size: int) -> int | None:
        """None if the file may become so large, or how large it may become."""
        if self.capacity is None or size <= node.size:
            return None
        room = node.size + max(self.capacity - self._used, 0)
        return None if size <= room else room

    def _find(self, path: str) -> FileNode | FolderNode | None:
        node: FileNode | FolderNode | None = self._root
        for name in path.split("/"):
            if name and name != ".":
                node = node.entries.get(name) if isinstance(node, FolderNode) else None
        return node

    def _file(self, path: str) -> FileNode:
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise _error(errno.ENOENT, path)
        return node

    def _place_of(self, path: str) -> tuple[FolderNode, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        folder = self._find(parent)
        if not isinstance(folder, FolderNode):
            raise _error(errno.ENOENT, path)
        return folder, name


def _walk(folder: FolderNode, prefix: str) -> Iterator[tuple[str, FileNode]]:
    for name in sorted(folder.entries):
        node = folder.entries[name]
        if isinstance(node, FolderNode):
            yield from _walk(node, f"{prefix}/{name}")
        else:
            yield f"{prefix}/{name}", node


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
