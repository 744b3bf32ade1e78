"""Everything that can be known to be wrong with a pipeline before it runs: each mistake with its line.

First what the file itself tells (`file/`), then the broker is asked for the topics and queues, then Spark analyses
every step over empty tables that have the columns of the real ones, and every sink with its mode. No row is read or
written, no checkpoint is touched. Used by `waystation pipeline check`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

from waystation.errors import (
    Invalid,
    NotAllowed,
    NotAuthenticated,
    NotFound,
    Unavailable,
    WaystationError,
    near_matches,
)
from waystation.spark.links.retrying import advised
from waystation.spark.pipelines.file.declared import FILES, Pipeline, Sink, Source, Step
from waystation.spark.pipelines.file.problems import FileProblem
from waystation.spark.pipelines.file.reading import PipelineFile, read_with_problems
from waystation.spark.pipelines.output.compacted import (
    COMPACTED,
    broker_settings,
    compaction_problems,
    creates_topics,
    prepare_compacted,
)
from waystation.spark.pipelines.output.sinks import as_messages, check_key
from waystation.spark.pipelines.output.tables import need_package
from waystation.spark.pipelines.status.folder import CheckpointFolder
from waystation.spark.pipelines.status.registry import connect_any
from waystation.spark.pipelines.transform.frames import Frames, PartFailed, needed_settings, open_source, problem_of
from waystation.spark.pipelines.transform.stream_joins import check_stream_joins
from waystation.spark.sessions import need_pyspark
from waystation.spark.writing.rights import check_writes
from waystation.spark.writing.sink_options import read_sink_options
from waystation.toml_file import TomlFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECK_MASTER = "local[1]"


def check_pipeline(
    file: FilePath,
    *,
    servers: str | None = None,
    otherwise: str | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> list[FileProblem]:
    """All mistakes of a file, by line; none: it can run. PipelineInvalid if it is no TOML."""
    read = read_with_problems(file, servers=servers, otherwise=otherwise)
    problems = list(read.problems)
    problems += check_outside(read)
    if not read.problems:
        try:
            need_pyspark()
        except Unavailable as error:
            problems.append(FileProblem(1, f"{error}; --no-spark checks what can be checked without it"))
        else:
            note("analysing with Spark")
            problems += check_plans(read)
    return sorted(set(problems))


# -- outside -----------------------------------------------------------------------------------------------------------


def check_outside(read: PipelineFile) -> list[FileProblem]:
    """Topics and queues that are not there, packages that are not installed, a checkpoint of somebody else."""
    pipeline, toml = read.pipeline, read.toml
    problems = []
    try:
        CheckpointFolder(pipeline).check_owner()
    except WaystationError as error:
        problems.append(FileProblem(toml.line(("checkpoint",)), str(error)))
    for sink in pipeline.sinks.values():
        try:
            need_package(sink)
        except Unavailable as error:
            problems.append(FileProblem(toml.line(("sink", sink.name, sink.kind)), str(error)))
    if pipeline.uses_broker:
        problems += _check_broker(pipeline, toml)
    return problems


def _check_broker(pipeline: Pipeline, toml: TomlFile) -> list[FileProblem]:
    try:
        pipeline.servers.check()
        with connect_any(pipeline.servers) as mq:
            described = {topic.topic: topic for topic in mq.topics()}
            queues = [queue.queue for queue in mq.queues()]
            settings = broker_settings(mq)
    except WaystationError as error:
        about = "login" if isinstance(error, NotAllowed | Invalid) and "login" in toml.content else "servers"
        return [FileProblem(toml.line((about,)), f"topics and queues could not be looked up: {error}")]
    problems = []
    topics = list(described)
    for source in pipeline.sources.values():
        path = ("source", source.name)
        for topic in source.topics:
            if topic not in topics:
                problems.append(FileProblem(toml.line((*path, "topics")), _missing("topic", topic, topics)))
        queue = source.options.get("queue")
        if queue is not None and queue not in queues:
            problems.append(FileProblem(toml.line((*path, "queue")), _missing("queue", queue, queues)))
    for target in pipeline.targets:
        there = topics if target.kind == "topic" else queues
        if target.compacted and target.place in described:
            line = toml.line((*target.path[:-1], "mode"))
            problems += [FileProblem(line, text) for text in compaction_problems(described[target.place], settings)]
        if target.kind == "topic" and creates_topics(settings):
            continue  # as for every publisher
        if target.place not in there:
            text = _missing(target.kind, target.place, there, compacted=target.compacted)
            problems.append(FileProblem(toml.line(target.path), text))
    return problems


def prepare_targets(pipeline: Pipeline, toml: TomlFile) -> list[FileProblem]:
    """Before a run: topics that sinks write to are created where the broker does that for every publisher. Returns what
    is missing: Spark would say so with the first row, perhaps much later."""
    problems = []
    if not pipeline.targets:
        return []
    with connect_any(pipeline.servers) as mq:
        for target in pipeline.targets:
            try:
                if target.compacted:
                    line = toml.line((*target.path[:-1], "mode"))
                    problems += [FileProblem(line, text) for text in prepare_compacted(mq, target.place)]
                elif target.kind == "topic":
                    mq.describe_topic(target.place, create=True)
                else:
                    mq.queue(target.place, passive=True)
                check_writes(pipeline.servers, mq, target.kind, target.place, exactly_once=target.exactly_once)
            except NotAllowed as error:
                if isinstance(error, NotAuthenticated):
                    raise
                problems.append(FileProblem(toml.line(target.path), str(advised(error))))
            except (NotFound, Invalid) as error:
                text = f"{error}{_how_to_create(target.kind, target.place, compacted=target.compacted)}"
                problems.append(FileProblem(toml.line(target.path), text))
    return problems


def _missing(kind: str, name: str, there: list[str], *, compacted: bool = False) -> str:
    near = near_matches(name, there)
    return f"there is no {kind} {name!r}{near or _how_to_create(kind, name, compacted=compacted)}"


def _how_to_create(kind: str, name: str, *, compacted: bool) -> str:
    return f"; create it with `waystation {kind}s create {name}{f' --set {COMPACTED}' if compacted else ''}`"


# -- plans -------------------------------------------------------------------------------------------------------------


def check_plans(read: PipelineFile) -> list[FileProblem]:
    """What Spark says of every source, step and sink. Unavailable if Spark cannot run here."""
    from waystation.spark.sessions import SessionSettings, session

    pipeline = replace(read.pipeline, master=CHECK_MASTER)
    with tempfile.TemporaryDirectory(prefix="waystation-check-") as folder:
        settings = {**pipeline.settings, **needed_settings(pipeline)}
        wanted = SessionSettings(CHECK_MASTER, f"check {pipeline.name}", settings, FilePath(folder) / "log")
        with session(wanted) as spark:
            return analyse(spark, PipelineFile(pipeline, read.toml, []), FilePath(folder))


def analyse(spark: SparkSession, read: PipelineFile, folder: FilePath) -> list[FileProblem]:
    """The same, with a session that is there. `folder` is empty and ours."""
    pipeline, toml = read.pipeline, read.toml
    problems: list[FileProblem] = []
    broken: set[str] = set()
    frames = Frames(spark, pipeline, lambda source: _empty(spark, pipeline, source, folder))

    def attempt(name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except PartFailed as failed:
            problems.extend(problem_of(one, pipeline, toml) for one in (failed, *failed.others))
            broken.add(name)

    for source in pipeline.sources.values():
        attempt(source.name, lambda source=source: frames.add_source(source))  # type: ignore[misc]
    for step in pipeline.steps.values():
        used = {*step.inputs, *((step.join.table,) if step.join else ())}
        if used & broken or (step.sql is not None and _mentions(step.sql, broken)):
            broken.add(step.name)  # it would only repeat what is wrong with the other
            continue
        attempt(step.name, lambda step=step: _try_step(step, frames))  # type: ignore[misc]
    for sink in pipeline.sinks.values():
        if sink.origin not in broken:
            attempt(sink.name, lambda sink=sink: _try_sink(sink, frames.tables[sink.table], folder))  # type: ignore[misc]
    return problems


def _try_step(step: Step, frames: Frames) -> None:
    frames.add_step(step)
    try:
        check_stream_joins(frames.tables[step.name], step)
    except Invalid as error:
        key = next(key for key in ("join", "sql", "python") if getattr(step, key) is not None)
        raise PartFailed(("step", step.name, key), error) from None


def _mentions(sql: str, names: set[str]) -> bool:
    return any(name in sql for name in names)


def _empty(spark: SparkSession, pipeline: Pipeline, source: Source, folder: FilePath) -> DataFrame:
    """No rows, but the columns of the source: a stream if it is one."""
    if source.kind == "rate" and not source.static:
        return open_source(spark, pipeline, source)
    if source.kind in FILES and source.static and "://" not in source.place and not FilePath(source.place).exists():
        raise NotFound(f"there is no file or folder {source.place}")
    if source.kind in FILES and source.schema is not None:
        schema = spark.createDataFrame([], source.schema).schema
    else:
        schema = open_source(spark, pipeline, source).schema
    if source.static:
        return spark.createDataFrame([], schema)
    nothing = folder / "sources" / source.name
    nothing.mkdir(parents=True)
    return spark.readStream.schema(schema).parquet(str(nothing))


def _try_sink(sink: Sink, frame: DataFrame, folder: FilePath) -> None:
    """Starts it over empty sources into nothing: Spark says then whether a stream can be written in this mode."""
    from waystation.spark.writing.sink_columns import check_columns  # it needs pyarrow, and this file is read without

    path = sink.path
    unknown = [column for column in sink.destinations if column not in frame.columns]
    if unknown:
        how = f"name each row's {unknown[0]} in the step, like select = [\"'orders' AS {unknown[0]}\", …]"
        raise PartFailed((*path, "destinations"), NotFound(f"there is no column {unknown[0]!r}; {how}"))
    if sink.messages:
        key = next((key for key in ("key", "value") if getattr(sink, key) is not None), "from")
        _check_upsert(sink, frame)
        given = {"servers": "127.0.0.1", **sink.options}
        if not sink.destinations:
            given[sink.kind] = sink.place
        try:
            options = read_sink_options(given, streaming=frame.isStreaming)
            frame = as_messages(frame, sink)
            check_columns(frame.schema, options)
        except Exception as error:
            raise PartFailed((*path, key), error) from error
    unknown = [column for column in sink.partition_by if column not in frame.columns]
    if unknown:
        near = near_matches(unknown[0], frame.columns) or f"; there are {', '.join(frame.columns)}"
        raise PartFailed((*path, "partition_by"), NotFound(f"there is no column {unknown[0]!r}{near}"))
    if not frame.isStreaming:
        return
    try:
        writer = frame.writeStream.format("noop").outputMode(sink.output_mode)
        writer = writer.option("checkpointLocation", str(folder / "sinks" / sink.name))
        query = writer.trigger(availableNow=True).start()
        query.stop()
    except Exception as error:
        raise PartFailed((*path, "mode"), error) from error


def _check_upsert(sink: Sink, frame: DataFrame) -> None:
    try:
        check_key(frame, sink)
    except Invalid as error:
        raise PartFailed(("sink", sink.name, "mode"), error) from error
    if sink.delete_when is not None:
        try:
            frame.filter(sink.delete_when).schema  # noqa: B018  (which also refuses what is no condition)
        except Exception as error:
            raise PartFailed(("sink", sink.name, "delete_when"), error) from error
