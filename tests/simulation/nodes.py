"""What a simulated disk is made of: files and folders that each exist twice, in the cache and on the platter.

A file's `data` is what the running system sees; its `stable` bytes are what the platter has. A write touches `data` and
marks pages dirty; a sync copies the dirty pages over; a power cut makes, sector by sector, a mixture of the two. A
folder's `entries` and `stable` names are the same idea, with the changes between them in an ordered `Journal`.

The invariant: bytes leave `stable` and names leave a folder's `stable` only by a sync, by background write-back or by
surviving a power cut; nothing that a sync returned for is ever taken back. Only `disk.py` uses this module.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

PAGE = 4096
"""The unit in which the page cache is written back."""

SECTOR = 512
"""The unit that a drive writes whole or not at all."""


class FileNode:
    """A file's two contents. Bytes past a bytearray's end but below the size are zeros: allocating costs nothing."""

    __slots__ = ("data", "dirty", "high", "linked", "low", "size", "stable", "stable_size")

    def __init__(self, content: bytearray | None = None, size: int = 0) -> None:
        self.data = bytearray() if content is None else content
        self.size = size
        self.stable = bytearray(self.data)
        self.stable_size = size
        self.dirty: dict[int, None] = {}  # pages, in the order they were first touched: a set that replays
        self.low = self.high = size  # between which sizes the file was since the last sync
        self.linked = True

    def read(self, size: int, position: int) -> bytes:
        end = min(position + size, self.size)
        if end <= position:
            return b""
        with memoryview(self.data) as view:
            found = bytes(view[position:end])
        return found if len(found) == end - position else found.ljust(end - position, b"\0")

    def write(self, content: bytes | bytearray | memoryview, position: int) -> None:
        end = position + len(content)
        if end == position:
            return
        if len(self.data) < position:
            self.data.extend(bytes(position - len(self.data)))
        self.data[position:end] = content
        for page in range(position // PAGE, (end - 1) // PAGE + 1):
            self.dirty[page] = None
        if end > self.size:
            self.resize(end)

    def resize(self, size: int) -> None:
        if size < self.size:
            for page in range(size // PAGE, -(-max(len(self.data), len(self.stable)) // PAGE)):
                self.dirty[page] = None
            del self.data[size:]
        self.size = size
        self.low = min(self.low, size)
        self.high = max(self.high, size)

    def write_back(self, page: int) -> None:
        """One page reaches the platter, as the kernel does it whenever it likes."""
        self.dirty.pop(page, None)
        start = page * PAGE
        _place(self.stable, start, self.data[start : start + PAGE].ljust(PAGE, b"\0"))

    def sync(self) -> None:
        for page in list(self.dirty):
            self.write_back(page)
        self.stable_size = self.low = self.high = self.size
        del self.stable[self.size :]

    def fail_to_sync(self, rng: random.Random) -> None:
        """What Linux leaves after an fsync that said EIO: the pages count as clean, but may never have been written.

        Reads still see the new bytes, and the next sync says that all is well.
        """
        for page in list(self.dirty):
            if rng.random() < 0.3:
                self.write_back(page)
        self.dirty.clear()

    def after_power_cut(self, rng: random.Random | None) -> FileNode:
        """The file as the next start finds it: synced bytes, and any torn part of what came after; none of that without
        `rng`."""
        content = bytearray(self.stable)
        size = self.stable_size
        for start, end in self._surviving(rng) if rng is not None else ():
            _place(content, start, self.data[start:end].ljust(end - start, b"\0"))
        if rng is not None and self.low != self.high:
            size = rng.choice((self.stable_size, self.size, rng.randint(self.low, self.high)))
        del content[size:]  # write-back leaves whole pages, past the size too: those bytes are not in the file
        return FileNode(content, size)

    def _surviving(self, rng: random.Random) -> list[tuple[int, int]]:
        """The ranges of the dirty pages that made it: none, all, the first few, or any; some pages in part."""
        pages = list(self.dirty)
        how = rng.randrange(4)
        if how == 0 or not pages:
            return []
        if how == 1:
            return [(page * PAGE, page * PAGE + PAGE) for page in pages]
        if how == 2:
            pages = pages[: rng.randint(0, len(pages))]
            whole = [(page * PAGE, page * PAGE + PAGE) for page in pages[:-1]]
            return whole + [piece for page in pages[-1:] for piece in _torn(page, rng)]
        share = rng.random()
        kept: list[tuple[int, int]] = []
        for page in pages:
            if rng.random() < 0.25:
                kept += _torn(page, rng)
            elif rng.random() < share:
                kept.append((page * PAGE, page * PAGE + PAGE))
        return kept


def _place(content: bytearray, start: int, piece: bytes | bytearray) -> None:
    if len(content) < start:
        content.extend(bytes(start - len(content)))
    content[start : start + len(piece)] = piece


def _torn(page: int, rng: random.Random) -> list[tuple[int, int]]:
    """Some of a page's sectors: mostly its beginning, sometimes any of them."""
    sectors = list(range(PAGE // SECTOR))
    chosen = (
        sectors[: rng.randrange(PAGE // SECTOR)] if rng.random() < 0.5 else [s for s in sectors if rng.random() < 0.5]
    )
    return [(page * PAGE + sector * SECTOR, page * PAGE + (sector + 1) * SECTOR) for sector in chosen]


class FolderNode:
    """A folder's names, as seen now and as they are on the platter."""

    __slots__ = ("entries", "stable")

    def __init__(self) -> None:
        self.entries: dict[str, Node] = {}
        self.stable: dict[str, Node] = {}


Node = FileNode | FolderNode


@dataclass(frozen=True, slots=True)
class NameChange:
    """One atomic step of the file system: names that appear (with a node) or go (None), in one folder or two."""

    edits: tuple[tuple[FolderNode, str, Node | None], ...]

    def apply_now(self) -> None:
        for folder, name, node in self.edits:
            _edit(folder.entries, name, node)

    def apply_for_good(self) -> None:
        for folder, name, node in self.edits:
            _edit(folder.stable, name, node)


def _edit(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


class Journal:
    """Name changes that are not durable yet. In a folder they survive in order; between folders nothing is promised."""

    def __init__(self, pending: list[NameChange] | None = None) -> None:
        self._pending = [] if pending is None else pending

    def add(self, change: NameChange) -> None:
        change.apply_now()
        self._pending.append(change)

    def sync(self, folder: FolderNode) -> None:
        """Makes durable what happened in this folder, and whatever a rename between folders ties to it."""
        tied = {id(folder)}
        durable: list[NameChange] = []
        waiting: list[NameChange] = []
        for change in reversed(self._pending):
            folders = {id(edit[0]) for edit in change.edits}
            if tied.isdisjoint(folders):
                waiting.append(change)
            else:
                tied |= folders
                durable.append(change)
        for change in reversed(durable):
            change.apply_for_good()
        self._pending = waiting[::-1]

    def after_power_cut(self, rng: random.Random) -> None:
        """Each folder keeps a random first part of its pending changes."""
        give_up = rng.choice((0.0, 1.0, 0.3, 0.05))
        stopped: set[int] = set()
        for change in self._pending:
            folders = {id(edit[0]) for edit in change.edits}
            if not stopped.isdisjoint(folders) or rng.random() < give_up:
                stopped |= folders
            else:
                change.apply_for_good()
        self._pending = []


def tree_after_power_cut(folder: FolderNode, rng: random.Random | None) -> FolderNode:
    """A copy of what the platter holds under `folder`, files torn as the power cut left them."""
    copy = FolderNode()
    for name in sorted(folder.stable):
        node = folder.stable[name]
        survivor = tree_after_power_cut(node, rng) if isinstance(node, FolderNode) else node.after_power_cut(rng)
        copy.entries[name] = copy.stable[name] = survivor
    return copy
