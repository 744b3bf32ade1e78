"""The files of `export` and `import`: they appear whole or not at all, and are read a piece at a time.

A file that is being written has another name until it is finished and safe on disk; one that is there already is never
written over unless somebody says so. The exception is a file that messages are taken out of a queue into: it has its
name from the start, because it is all that is left of them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol

from waystation.cli.messages.lines import LARGEST_LINE_BYTES
from waystation.cli.transfer.row_lines import from_line, to_line
from waystation.cli.transfer.rows import Row
from waystation.errors import AlreadyExists, Invalid, TooLarge

PARQUET = "parquet"
JSON_LINES = "jsonl"
FORMATS = (JSON_LINES, PARQUET)
STANDARD = "-"
_MAGIC = b"PAR1"


class RowWriter(Protocol):
    """Where rows go. `finish` makes it final and safe; `give_up` leaves nothing that looks whole."""

    def write(self, rows: Sequence[Row]) -> None: ...

    def finish(self) -> None: ...

    def give_up(self) -> None: ...


def format_of(path: str | None, said: str | None) -> str:
    """What was said, else by the name."""
    if said is not None:
        return said
    return PARQUET if path is not None and path.endswith(".parquet") else JSON_LINES


def open_writer(path: str | None, form: str, kind: type[Row], *, overwrite: bool, keep: bool) -> RowWriter:
    """The writer for a new file, or for standard output (None). `keep`: it has its name from the start."""
    if path is None:
        if form == PARQUET:
            raise Invalid("Parquet needs a file: give --out FILE")
        return _Stream(sys.stdout.buffer)
    if os.path.exists(path) and not overwrite:
        raise AlreadyExists(f"{path} exists already: give another name{'' if keep else ', or --overwrite'}")
    if form == PARQUET:
        return _ParquetFile(path, kind)
    return _KeptLines(path) if keep else _Lines(path)


class _Stream:
    """Standard output: what is written cannot be taken back."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, rows: Sequence[Row]) -> None:
        self._file.write(b"".join([to_line(row) for row in rows]))

    def finish(self) -> None:
        self._file.flush()

    def give_up(self) -> None:
        self._file.flush()


class _Lines:
    def __init__(self, path: str) -> None:
        self._path = path
        self._aside = _aside(path)
        self._file = open(self._aside, "xb")  # noqa: SIM115  # it outlives this function

    def write(self, rows: Sequence[Row]) -> None:
        self._file.write(b"".join([to_line(row) for row in rows]))

    def finish(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        _appear(self._aside, self._path)

    def give_up(self) -> None:
        self._file.close()
        os.remove(self._aside)


class _KeptLines:
    """Every `write` is safe on disk when it returns."""

    def __init__(self, path: str) -> None:
        self._file = open(path, "xb")  # noqa: SIM115  # it outlives this function
        _sync_folder(path)

    def write(self, rows: Sequence[Row]) -> None:
        self._file.write(b"".join([to_line(row) for row in rows]))
        self._file.flush()
        os.fsync(self._file.fileno())

    def finish(self) -> None:
        self._file.close()

    def give_up(self) -> None:
        self._file.close()


class _ParquetFile:
    def __init__(self, path: str, kind: type[Row]) -> None:
        from waystation.cli.transfer.row_parquet import ParquetWriter

        self._path = path
        self._aside = _aside(path)
        self._writer = ParquetWriter(self._aside, kind)

    def write(self, rows: Sequence[Row]) -> None:
        self._writer.write(rows)

    def finish(self) -> None:
        self._writer.close()
        with open(self._aside, "rb") as file:
            os.fsync(file.fileno())
        _appear(self._aside, self._path)

    def give_up(self) -> None:
        self._writer.close()
        os.remove(self._aside)


def _aside(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}.part")


def _appear(aside: str, path: str) -> None:
    os.replace(aside, path)
    _sync_folder(path)


def _sync_folder(path: str) -> None:
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# -- reading -----------------------------------------------------------------------------------------------------------


class RowReader:
    """The rows of a file, in order, and how much of it is read."""

    def __init__(self, path: str, form: str | None) -> None:
        self.path = path
        self.total: int | None = None
        self.share: float | None = None
        self._form = form or (PARQUET if _is_parquet(path) else JSON_LINES)

    def rows(self, skip: int) -> Iterator[Row]:
        """All but the first `skip`. Invalid names the line that is wrong."""
        if self._form == PARQUET:
            from waystation.cli.transfer.row_parquet import read_parquet

            if self.path == STANDARD:
                raise Invalid("Parquet cannot be read from standard input: give the file")
            self.total, found = read_parquet(self.path)
            for number, row in enumerate(found):
                if number >= skip:
                    self.share = (number + 1) / self.total
                    yield row
            return
        if self.path == STANDARD:
            yield from self._lines(sys.stdin.buffer, None, skip)
            return
        with open(self.path, "rb") as file:
            yield from self._lines(file, os.fstat(file.fileno()).st_size, skip)

    def _lines(self, file: BinaryIO, size: int | None, skip: int) -> Iterator[Row]:
        read = 0
        for number, line in enumerate(iter(lambda: file.readline(LARGEST_LINE_BYTES + 1), b""), 1):
            read += len(line)
            if len(line) > LARGEST_LINE_BYTES:
                raise TooLarge(f"{self.path}, line {number}: it is longer than {LARGEST_LINE_BYTES} bytes")
            if not line.strip():
                continue
            if skip:
                skip -= 1
                continue
            try:
                row = from_line(line)
            except Invalid as error:
                raise Invalid(f"{self.path}, line {number}: {error}") from None
            self.share = read / size if size else None
            yield row


def _is_parquet(path: str) -> bool:
    if path == STANDARD:
        return False
    with open(path, "rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC
