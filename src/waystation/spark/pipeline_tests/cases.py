"""The tests of a pipeline, read: `[test.NAME]` in its own file, and in the file `NAME.test.toml` beside it.

What can be known without Spark is found here, each mistake with its line. Imports no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Literal

import msgspec

from waystation.errors import NotFound, near_matches
from waystation.spark.pipelines.file import keys
from waystation.spark.pipelines.file.declared import Pipeline
from waystation.spark.pipelines.file.problems import FileProblem, PipelineInvalid
from waystation.spark.pipelines.file.reading import PipelineFile
from waystation.spark.pipelines.file.table_reading import TableReader
from waystation.toml_file import Path, TomlFile, TomlInvalid, read_toml

ENDING = ".test.toml"
TargetKind = Literal["step", "sink"]


@dataclass(frozen=True, slots=True)
class CaseRow:
    """A row as it is written, and where."""

    values: Mapping[str, Any]
    file: FilePath
    line: int


@dataclass(frozen=True, slots=True)
class ExpectedRows:
    """The rows that a step (or source) or a sink should have."""

    kind: TargetKind
    name: str
    rows: tuple[CaseRow, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Case:
    """One test."""

    name: str
    file: FilePath
    line: int
    given: Mapping[str, tuple[CaseRow, ...]]
    expected: tuple[ExpectedRows, ...]
    ordered: bool


def tests_beside(file: FilePath) -> FilePath:
    """`orders.toml` → `orders.test.toml`."""
    return file.with_name(f"{file.stem}{ENDING}")


def tested_by(file: FilePath) -> FilePath:
    """The pipeline's file, for either of the two."""
    return file.with_name(f"{file.name.removesuffix(ENDING)}.toml") if file.name.endswith(ENDING) else file


def read_cases(read: PipelineFile) -> list[Case]:
    """All tests of a pipeline. PipelineInvalid with the mistakes of the first file that has some; NotFound if there is
    no test at all."""
    pipeline = read.pipeline
    cases = _cases_of(read.toml, pipeline.file, pipeline)
    beside = tests_beside(pipeline.file)
    if beside.exists():
        try:
            toml = read_toml(beside)
        except TomlInvalid as error:
            raise PipelineInvalid(beside, [FileProblem(error.place.line, str(error))]) from None
        cases += _cases_of(toml, beside, pipeline, alone=True)
    if not cases:
        raise NotFound(f"{pipeline.file} has no tests: add a table [test.NAME] to it, or to {beside.name} beside it")
    return cases


def _cases_of(toml: TomlFile, file: FilePath, pipeline: Pipeline, *, alone: bool = False) -> list[Case]:
    problems: list[FileProblem] = []
    top = TableReader(toml.content, (), "a file of tests", toml, problems)
    if alone:
        top.refuse_others({"test": keys.TOP["test"]})
    reader = _Reader(toml, file, pipeline, problems)
    cases = [reader.case(name, table) for name, table in top.tables("test")]
    if problems:
        raise PipelineInvalid(file, problems)
    return cases


class _Reader:
    """Reads the tests of one file; what is wrong goes to `problems`."""

    def __init__(self, toml: TomlFile, file: FilePath, pipeline: Pipeline, problems: list[FileProblem]) -> None:
        self._toml = toml
        self._file = file
        self._pipeline = pipeline
        self._problems = problems

    def case(self, name: str, table: TableReader) -> Case:
        path: Path = ("test", name)
        table.refuse_others(keys.TEST)
        given = dict(self._given(path, table))
        expected = tuple(self._expected(path, table))
        if not expected and table.value("expect") is None and table.knows_all(keys.TEST):
            table.problem((), f"[test.{name}] expects nothing: add expect.NAME = [ROWS], by the name of a step or sink")
        line = self._toml.line(path)
        return Case(name, self._file, line, given, expected, bool(table.flag("ordered")))

    def _given(self, path: Path, table: TableReader) -> Iterator[tuple[str, tuple[CaseRow, ...]]]:
        values = table.value("given")
        if values is None:
            return
        if not isinstance(values, dict):
            table.problem("given", "write given.SOURCE = [ROWS]")
            return
        for name, rows in values.items():
            at = (*path, "given", name)
            if name not in self._pipeline.sources:
                self._problem(at, _no_such("source", name, tuple(self._pipeline.sources)))
            else:
                yield name, self._rows(at, rows)

    def _expected(self, path: Path, table: TableReader) -> Iterator[ExpectedRows]:
        values = table.value("expect")
        if values is None:
            return
        if not isinstance(values, dict):
            table.problem("expect", "write expect.NAME = [ROWS], by the name of a step or sink")
            return
        for name, rows in values.items():
            at = (*path, "expect", name)
            if name in ("step", "sink") and isinstance(rows, dict):
                for inner, inner_rows in rows.items():
                    if (kind := self._kind((*at, inner), inner, name)) is not None:
                        yield self._expectation(kind, inner, (*at, inner), inner_rows)
            elif (kind := self._kind(at, name)) is not None:
                yield self._expectation(kind, name, at, rows)

    def _kind(self, at: Path, name: str, said: str | None = None) -> TargetKind | None:
        tables, sinks = (*self._pipeline.sources, *self._pipeline.steps), tuple(self._pipeline.sinks)
        if said != "step" and name in sinks and (said == "sink" or name not in tables):
            return "sink"
        if said != "sink" and name in tables and (said == "step" or name not in sinks):
            return "step"
        if said is None and name in tables and name in sinks:
            self._problem(at, f"a step and a sink are called {name!r}: write expect.step.{name} or expect.sink.{name}")
        else:
            there = {"step": tables, "sink": sinks, None: (*tables, *sinks)}[said]
            self._problem(at, _no_such(said or "step or sink", name, there))
        return None

    def _expectation(self, kind: TargetKind, name: str, at: Path, rows: object) -> ExpectedRows:
        return ExpectedRows(kind, name, self._rows(at, rows), self._toml.line(at))

    def _rows(self, at: Path, rows: object) -> tuple[CaseRow, ...]:
        if isinstance(rows, str):
            return self._rows_of_file(at, rows)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            self._problem(at, "write a list of tables, [{ column = value }, …], or the name of a file of JSON lines")
            return ()
        return tuple(CaseRow(row, self._file, self._toml.line((*at, number))) for number, row in enumerate(rows))

    def _rows_of_file(self, at: Path, name: str) -> tuple[CaseRow, ...]:
        """One JSON object on each line."""
        file = self._file.parent / name
        try:
            lines = file.read_bytes().splitlines()
        except OSError as error:
            self._problem(at, f"{file} cannot be read: {error.strerror}")
            return ()
        found = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                found.append(CaseRow(msgspec.json.decode(line, type=dict[str, Any]), file, number))
            except msgspec.MsgspecError as error:
                self._problem(at, f"{file}:{number} is not a JSON object ({error})")
                break
        return tuple(found)

    def _problem(self, at: Path, text: str) -> None:
        self._problems.append(FileProblem(self._toml.line(at), text))


def _no_such(what: str, name: str, there: Sequence[str]) -> str:
    return f"there is no {what} called {name!r}{near_matches(name, there) or '; there are: ' + ', '.join(there)}"
