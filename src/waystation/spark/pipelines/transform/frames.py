"""The tables of a pipeline as Spark frames: sources opened, steps applied, each known to SQL by its name.

`Frames` is used twice: by `running.py` with the real sources, and by `checking.py` with empty ones of the same columns;
so what is checked is what runs. An error carries the path of the key that caused it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from waystation.spark.pipelines.file.declared import FILES, Pipeline, Source, Step, dead_letters
from waystation.spark.pipelines.file.problems import FileProblem
from waystation.spark.pipelines.file.queries import shared_sources
from waystation.spark.pipelines.output.rejected import malformed_rows
from waystation.spark.pipelines.transform.expectations import check_rule, expect
from waystation.spark.pipelines.transform.explaining import explain, line_in_sql
from waystation.spark.pipelines.transform.functions import load_reference
from waystation.toml_file import Path, TomlFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Part = tuple[str, Callable[["DataFrame"], "DataFrame"]]

TIME_MODES = {"none": "None", "processing": "ProcessingTime", "event": "EventTime"}
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE_PROVIDER = "spark.sql.streaming.stateStore.providerClass"


class PartFailed(Exception):
    """A part of a source, step or sink that Spark, or a function of the user, refused. `cause` says why; `others` are
    more parts of the same table."""

    def __init__(self, path: Path, cause: Exception) -> None:
        super().__init__(str(cause))
        self.path = path
        self.cause = cause
        self.others: list[PartFailed] = []


def problem_of(failed: PartFailed, pipeline: Pipeline, toml: TomlFile) -> FileProblem:
    """What failed as a mistake in the file: the line of the key, or in a query the line of the query."""
    text = explain(failed.cause, (*pipeline.sources, *pipeline.steps))
    if failed.path[-1] == "sql":
        sql = pipeline.steps[str(failed.path[1])].sql or ""
        return FileProblem(toml.line_within(failed.path, line_in_sql(failed.cause, sql)), text)
    return FileProblem(toml.line(failed.path), text)


def needed_settings(pipeline: Pipeline) -> dict[str, str]:
    """Spark settings without which some step cannot run."""
    stateful = any(step.stateful is not None for step in pipeline.steps.values())
    return {STATE_PROVIDER: ROCKSDB} if stateful else {}


def open_source(spark: SparkSession, pipeline: Pipeline, source: Source) -> DataFrame:
    """The rows of a source, without its watermark, filter and columns."""
    reader: Any = spark.read if source.static else spark.readStream
    if source.kind in ("waystation", "queue"):
        reader = reader.format("waystation").options(**pipeline.broker).options(**source.options)
        if source.schema is not None:
            reader = reader.schema(source.schema)
        return reader.load()  # type: ignore[no-any-return]
    if source.kind in FILES:
        reader = reader.format(source.kind).options(**_file_options(source))
        if source.schema is not None:
            reader = reader.schema(source.schema)
        return reader.load(source.place)  # type: ignore[no-any-return]
    if source.static:
        return spark.range(int(source.place)).selectExpr("current_timestamp() AS timestamp", "id AS value")
    reader = reader.format("rate").option("rowsPerSecond", source.place).options(**source.options)
    return reader.load()  # type: ignore[no-any-return]


def _file_options(source: Source) -> dict[str, str]:
    """CSV has no types: without a schema Spark finds them in the values."""
    defaults = {"header": "true", "inferSchema": str(source.schema is None).lower()} if source.kind == "csv" else {}
    return {**defaults, **source.options}


class Frames:
    """Frames by name, built in the order of the file."""

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, opened: Callable[[Source], DataFrame] | None = None
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._open = opened or (lambda source: open_source(spark, pipeline, source))
        self.tables: dict[str, DataFrame] = {}
        self.counts: dict[str, DataFrame] = {}  # of tables that are no streams and have expectations

    def build(self) -> dict[str, DataFrame]:
        """All of them; the first part that fails is raised."""
        for source in self._pipeline.sources.values():
            self.add_source(source)
        for step in self._pipeline.steps.values():
            self.add_step(step)
        return self.tables

    def add_source(self, source: Source) -> None:
        path: Path = ("source", source.name)
        try:
            frame = self._counted(self._open(source), source)
            frame.schema  # noqa: B018  (over Spark Connect a frame is only looked at when it is asked something)
        except Exception as error:
            raise PartFailed(path, error) from error
        if source.dead_letter is not None:
            frame = self._without_malformed(frame, source)
        self._apply(frame, path, self._source_parts(source), source)

    def add_step(self, step: Step) -> None:
        path: Path = ("step", step.name)
        if step.sql is not None:
            frame = self._try((*path, "sql"), lambda: self._spark.sql(step.sql or ""))
        else:
            frame = self.tables[step.inputs[0]]
        self._apply(frame, path, self._step_parts(step), step)

    def _apply(self, frame: DataFrame, path: Path, parts: Iterator[Part], table: Source | Step) -> None:
        for key, part in parts:
            before = frame
            frame = self._try((*path, key), lambda part=part, before=before: part(before))  # type: ignore[misc]
        if table.expect:
            frame = self._expect(frame, path, table)
        self.tables[table.name] = frame
        frame.createOrReplaceTempView(table.name)

    def _expect(self, frame: DataFrame, path: Path, table: Source | Step) -> DataFrame:
        wrong: list[PartFailed] = []
        for one in table.expect:
            try:
                check_rule(frame, one)
            except Exception as error:
                wrong.append(PartFailed((*path, "expect", one.name), error))
        if wrong:
            wrong[0].others = wrong[1:]
            raise wrong[0]
        kept, rejected, counts = expect(frame, self._pipeline.name, table.name, table.expect)
        if rejected is not None:
            self._reject(table.name, rejected)
        if counts is not None:
            self.counts[table.name] = counts
        return kept

    def _without_malformed(self, frame: DataFrame, source: Source) -> DataFrame:
        from waystation.spark.values.json_values import CORRUPT

        if CORRUPT not in frame.columns:
            return frame  # then it is there for the expectations
        self._reject(source.name, malformed_rows(frame, self._pipeline.name, source.name))
        return frame.filter(f"{CORRUPT} IS NULL")

    def _reject(self, table: str, rows: DataFrame) -> None:
        name = dead_letters(table)
        known = self.tables.get(name)
        self.tables[name] = rows if known is None else known.unionByName(rows, allowMissingColumns=True)

    def _try(self, path: Path, work: Callable[[], DataFrame]) -> DataFrame:
        try:
            frame = work()
            frame.schema  # noqa: B018
            return frame
        except Exception as error:
            raise PartFailed(path, error) from error

    def _counted(self, frame: DataFrame, source: Source) -> DataFrame:
        """Values that do not fit their schema are null, and nobody would notice. What a query reads for several sinks,
        Spark counts several times."""
        from pyspark.sql import functions as F

        from waystation.spark.progress import COUNT, MALFORMED, ROWS
        from waystation.spark.values.json_values import CORRUPT

        decoded = CORRUPT in frame.columns
        if source.static or not (decoded or source.name in shared_sources(self._pipeline)):
            return frame
        malformed = F.count(F.col(CORRUPT)) if decoded else F.lit(0)
        return frame.observe(f"{MALFORMED}{source.name}", malformed.alias(COUNT), F.count(F.lit(1)).alias(ROWS))

    # -- parts, in the order in which they are applied -----------------------------------------------------------------

    @staticmethod
    def _source_parts(source: Source) -> Iterator[Part]:
        if (mark := source.watermark) is not None:
            yield "watermark", lambda frame: frame.withWatermark(mark.column, mark.delay)
        if (condition := source.filter) is not None:
            yield "filter", lambda frame: frame.filter(condition)
        if source.select:
            yield "select", lambda frame: frame.selectExpr(*source.select)

    def _step_parts(self, step: Step) -> Iterator[Part]:
        if (mark := step.watermark) is not None:
            yield "watermark", lambda frame: frame.withWatermark(mark.column, mark.delay)
        if (condition := step.filter) is not None:
            yield "filter", lambda frame: frame.filter(condition)
        if step.join is not None:
            yield "join", lambda frame: self._join(step, frame)
        if (dedup := step.dedup) is not None:
            columns = list(dedup.columns)
            yield "dedup", lambda frame: _dedup(frame, columns, within=dedup.within)
        if step.aggregate:
            yield "aggregate", lambda frame: _aggregate(step, frame)
        if step.python is not None:
            yield "python", lambda frame: self._call(step, frame)
        if step.stateful is not None:
            yield "stateful", lambda frame: self._stateful(step, frame)
        if step.select:
            yield "select", lambda frame: frame.selectExpr(*step.select)

    def _join(self, step: Step, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        join = step.join
        if join is None:
            return frame
        other = self.tables[join.table]
        if join.how == "cross":
            return frame.crossJoin(other)
        if isinstance(join.on, tuple):
            return frame.join(other, list(join.on), join.how)
        left = frame.alias(step.inputs[0]) if step.inputs else frame
        return left.join(other.alias(join.table), F.expr(join.on), join.how)

    def _call(self, step: Step, frame: DataFrame) -> DataFrame:
        function = load_reference(self._pipeline.folder, step.python or "")
        made = function(frame, *(self.tables[name] for name in step.inputs[1:]))
        if not hasattr(made, "createOrReplaceTempView"):
            raise TypeError(f"{step.python} has to return a DataFrame, and returned {type(made).__name__}")
        return made  # type: ignore[no-any-return]

    def _stateful(self, step: Step, frame: DataFrame) -> DataFrame:
        wanted = step.stateful
        if wanted is None:
            return frame
        processor = load_reference(self._pipeline.folder, wanted.processor)
        return frame.groupBy(*wanted.group).transformWithState(
            statefulProcessor=processor(),
            outputStructType=wanted.output,
            outputMode=wanted.mode.capitalize(),
            timeMode=TIME_MODES[wanted.time],
        )


def _dedup(frame: DataFrame, columns: list[str], *, within: bool) -> DataFrame:
    """Spark refuses a watermark's bound for a table that is no stream, where there is nothing to forget."""
    bounded = within and frame.isStreaming
    return frame.dropDuplicatesWithinWatermark(columns) if bounded else frame.dropDuplicates(columns)


def _aggregate(step: Step, frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    keys = [F.expr(text) for text in step.group]
    if (window := step.window) is not None:
        column = F.col(window.column)
        if window.gap:
            keys.insert(0, F.session_window(column, window.size).alias("window"))
        else:
            keys.insert(0, F.window(column, window.size, window.slide).alias("window"))
    return frame.groupBy(*keys).agg(*(F.expr(text).alias(name) for name, text in step.aggregate.items()))
