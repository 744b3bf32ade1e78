"""Runs the tests of a pipeline: its own steps on the rows of each test, with Spark in this process and no broker.

A stream is run as a batch: all rows of a test are there at once, so nothing comes too late and each window is complete.
A source that a test gives no rows is empty. What a test needs is read from the tables alone: no checkpoint, no topic
and no folder of a sink is touched.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from waystation.errors import Invalid
from waystation.spark.pipeline_tests.cases import Case, CaseRow, ExpectedRows
from waystation.spark.pipeline_tests.comparing import Differences, compare
from waystation.spark.pipeline_tests.values import as_struct, from_arrow, sent
from waystation.spark.pipelines.file.declared import Pipeline, Source
from waystation.spark.pipelines.file.problems import PipelineInvalid
from waystation.spark.pipelines.file.reading import PipelineFile
from waystation.spark.pipelines.output.sinks import as_messages
from waystation.spark.pipelines.transform.explaining import explain
from waystation.spark.pipelines.transform.frames import Frames, PartFailed, needed_settings, open_source, problem_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

MASTER = "local[1]"


class RowInvalid(Exception):
    """A row of a test that does not fit its table."""

    def __init__(self, row: CaseRow, text: str) -> None:
        super().__init__(f"{row.file}:{row.line}: {text}")


@dataclass(slots=True)
class Comparison:
    """What a step or sink was expected to have, and what it had besides or instead. `rows` are the expected ones."""

    expectation: ExpectedRows
    rows: list[dict[str, Any]]
    differences: Differences


@dataclass(slots=True)
class Result:
    """How a test ended: `error` is why it could not be run to its end."""

    case: Case
    comparisons: list[Comparison] = field(default_factory=list)
    error: str | None = None

    @property
    def passed(self) -> bool:
        return self.error is None and not any(one.differences for one in self.comparisons)


def run_cases(read: PipelineFile, cases: Sequence[Case], done: Callable[[Result], None]) -> None:
    """Runs them one after the other. PipelineInvalid if the pipeline itself has a mistake."""
    from waystation.spark.sessions import SessionSettings, session

    pipeline = replace(read.pipeline, master=MASTER)
    with tempfile.TemporaryDirectory(prefix="waystation-test-") as folder:
        settings = {**pipeline.settings, **needed_settings(pipeline)}
        wanted = SessionSettings(MASTER, f"test {pipeline.name}", settings, FilePath(folder) / "log")
        with session(wanted) as spark:
            bench = _Bench(spark, read)
            for case in cases:
                done(bench.run(case))


class _Bench:
    """A session, and the columns of the sources, which are the same for all tests."""

    def __init__(self, spark: SparkSession, read: PipelineFile) -> None:
        self._spark = spark
        self._read = read
        self._schemas: dict[str, StructType] = {}

    def run(self, case: Case) -> Result:
        pipeline = self._read.pipeline
        result = Result(case)
        try:
            tables = Frames(self._spark, pipeline, lambda source: self._given(source, case)).build()
            for expectation in case.expected:
                result.comparisons.append(self._compare(expectation, tables, ordered=case.ordered))
        except PartFailed as failed:
            if not isinstance(failed.cause, RowInvalid):
                raise PipelineInvalid(pipeline.file, [problem_of(failed, pipeline, self._read.toml)]) from None
            result.error = str(failed.cause)
        except RowInvalid as error:
            result.error = str(error)
        except Exception as error:  # of Spark, or of a function of the user
            result.error = explain(error)
        return result

    def _given(self, source: Source, case: Case) -> DataFrame:
        from waystation.spark.pipeline_tests.given import given_rows

        if source.name not in self._schemas:
            self._schemas[source.name] = columns_of(self._spark, self._read.pipeline, source)
        schema = self._schemas[source.name]
        rows = [fitted for row in case.given.get(source.name, ()) for fitted in _fit(row, given_rows, schema, source)]
        return self._spark.createDataFrame([sent(row, schema) for row in rows], schema)

    def _compare(self, expectation: ExpectedRows, tables: Mapping[str, DataFrame], *, ordered: bool) -> Comparison:
        from pyspark.sql.types import StructType

        frame = self._frame(expectation, tables)
        named = {name for row in expectation.rows for name in row.values}
        for row in expectation.rows:
            _fit(row, as_struct, frame.schema)  # so that a column that is not there is told with its line
        chosen = [column for column in frame.columns if column in named] or frame.columns
        kind = StructType([frame.schema[name] for name in chosen])
        expected = [_fit(row, as_struct, kind) for row in expectation.rows]
        found = [
            {name: from_arrow(value, kind[name].dataType) for name, value in row.items()}
            for row in frame.select(*(f"`{name}`" for name in chosen)).toArrow().to_pylist()
        ]
        return Comparison(expectation, expected, compare(expected, found, ordered=ordered))

    def _frame(self, expectation: ExpectedRows, tables: Mapping[str, DataFrame]) -> DataFrame:
        if expectation.kind == "step":
            return tables[expectation.name]
        sink = self._read.pipeline.sinks[expectation.name]
        frame = tables[sink.table]
        # Bytes in Avro or Protobuf say nothing to people: such a value is compared as the row that is encoded.
        return as_messages(frame, replace(sink, format=None)) if sink.kind in ("topic", "queue") else frame


def columns_of(spark: SparkSession, pipeline: Pipeline, source: Source) -> StructType:
    """The columns of a source, without asking a broker; Invalid, with what to add, if only that would tell."""
    options = source.options
    if options.get("valueFormat") == "json" and "valueSchema" not in options:
        raise Invalid(f'[source.{source.name}] has no schema, so a test cannot know its columns: add schema = "…"')
    if source.schema is not None:
        return spark.createDataFrame([], source.schema).schema
    return open_source(spark, pipeline, source).schema


def _fit(row: CaseRow, make: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return make(row.values, *arguments)
    except Invalid as error:
        raise RowInvalid(row, str(error)) from None
