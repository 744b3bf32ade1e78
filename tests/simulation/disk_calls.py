"""Where the broker calls its disk: named by the operation and the functions that led to it.

A `DiskCall` is one way to one operation: `write` from `Segment.append` from `Log._write` from `Log.append`. Two ways to
the same line are two calls, because what a failure leaves behind depends on who was in the middle of what.

`sites_in_source` reads the source for every line of the core that touches the disk, so that a test can say which of
them no run has reached. Only tests use this module.
"""

from __future__ import annotations

import ast
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import waystation

SOURCE = Path(waystation.__file__).parent
OUTER = ("cli", "client", "protocols", "spark", "toml_file.py", "world")
"""What is not the core. Everything else works on the disk that it is handed; only SQLite has its own way to it: see the
catalog's tests."""

DEPTH = 5
"""Callers that tell two ways apart. With more, the same story is told again for every kind of client."""

ERRORS: dict[str, tuple[int, ...]] = {
    "open": (errno.EMFILE, errno.EIO),
    "create": (errno.ENOSPC, errno.EIO),
    "list": (errno.EMFILE, errno.EIO),
    "stat": (errno.EIO,),
    "read": (errno.EIO,),
    "write": (errno.ENOSPC, errno.EIO),
    "truncate": (errno.EIO,),
    "allocate": (errno.ENOSPC, errno.EIO),
    "mkdir": (errno.ENOSPC, errno.EIO),
    "rename": (errno.ENOSPC, errno.EIO),
    "remove": (errno.EIO,),
    "rmdir": (errno.EIO,),
    "sync": (errno.EIO, errno.ENOSPC),
    "sync_folder": (errno.EIO,),
}
"""What each operation may answer."""

_DISK_VERBS = {
    "open", "read_file", "replace_file", "list", "make_folder", "rename", "remove", "remove_tree", "sync_folder",
    "size", "lock", "free_bytes", "total_bytes",
}  # fmt: skip
_FILE_VERBS = {"read", "write", "truncate", "allocate", "sync"}


@dataclass(frozen=True, slots=True, order=True)
class DiskCall:
    """`callers`: function and line, innermost first."""

    kind: str
    callers: tuple[str, ...]

    @property
    def site(self) -> str:
        return self.callers[0]

    def __str__(self) -> str:
        return f"{self.kind} by {' from '.join(self.callers)}"


def lasting(call: DiskCall) -> bool:
    """Whether the log is right to take no more: what a failed sync leaves on the disk, only a restart can tell. A start
    that cannot write again what it does not trust serves readers alone."""
    return call.kind in ("sync", "sync_folder") or call.site.endswith(" _write_again")


def callers(frame: FrameType | None, depth: int = DEPTH) -> tuple[str, ...]:
    """The product's functions that are running, innermost first."""
    found: list[str] = []
    while frame is not None and len(found) < depth:
        code = frame.f_code
        if code.co_filename.startswith(_PREFIX) and "/world/" not in code.co_filename:
            found.append(f"{code.co_filename[len(_PREFIX) :]}:{frame.f_lineno} {code.co_qualname}")
        frame = frame.f_back
    return tuple(found)


_PREFIX = f"{SOURCE}/"


@dataclass(frozen=True, slots=True, order=True)
class Site:
    """A use of the disk, or of an open file, in the source."""

    file: str
    function: str
    first_line: int
    last_line: int
    verb: str

    def __str__(self) -> str:
        return f"{self.file}:{self.first_line} {self.function} {self.verb}"


def sites_in_source() -> Iterator[Site]:
    """Every one of the core."""
    for path in sorted(SOURCE.glob("**/*.py")):
        file = path.relative_to(SOURCE)
        if file.parts[0] not in OUTER:
            yield from _sites_in(ast.parse(path.read_text()), str(file), "")


def _sites_in(node: ast.AST, file: str, function: str) -> Iterator[Site]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Attribute) and _is_verb(child):
            yield Site(file, function, child.lineno, child.end_lineno or child.lineno, child.attr)
        inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from _sites_in(child, file, inside)


def _is_verb(node: ast.Attribute) -> bool:
    of = node.value
    name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
    return (name.strip("_") == "disk" and node.attr in _DISK_VERBS) or (
        name.strip("_") == "file" and node.attr in _FILE_VERBS
    )
