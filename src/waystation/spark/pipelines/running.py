"""Runs a pipeline: a session, a query for each sink, and an eye on all of them until they end or are asked to.

One process runs a pipeline; its folder is locked meanwhile. If one sink fails, all are stopped: a pipeline works as a
whole or says why not. Stopping is safe at any moment: what a batch did is kept whole or done again. Errors come out as
one sentence; Spark's own words are in the folder's log. Used by `waystation pipeline run`.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import traceback
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from waystation.errors import Unavailable, WaystationError
from waystation.observe.pipeline_state import ExpectationState, Phase, PipelineState, SinkState
from waystation.spark.pipelines.checking import prepare_targets
from waystation.spark.pipelines.file.declared import Pipeline, Sink, Trigger
from waystation.spark.pipelines.file.problems import FileProblem, PipelineFailed, PipelineInvalid
from waystation.spark.pipelines.file.queries import Query, queries, tables_read
from waystation.spark.pipelines.file.reading import PipelineFile
from waystation.spark.pipelines.graph import describe_sink, nodes
from waystation.spark.pipelines.output.sinks import NOTHING, WrittenRows, query_name, start_query, write_sink
from waystation.spark.pipelines.output.tables import need_package
from waystation.spark.pipelines.repeating import RunLoop
from waystation.spark.pipelines.status.folder import CheckpointFolder
from waystation.spark.pipelines.status.registry import connect_any
from waystation.spark.pipelines.status.reporter import Reporter
from waystation.spark.pipelines.transform.explaining import explain, is_lasting
from waystation.spark.pipelines.transform.frames import Frames, PartFailed, needed_settings, problem_of
from waystation.toml_file import TomlFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from waystation.spark.progress import Progress

LOOK_S = 0.2
ASK_S = 1.0
BROKER_AGAIN_S = 2.0


@dataclass(slots=True)
class Ears:
    """Whom a run tells, and who may end it."""

    note: Callable[[str], None] = lambda text: None
    should_stop: Callable[[], bool] = lambda: False
    on_session: Callable[[SparkSession], None] = lambda spark: None


@dataclass(slots=True)
class Running:
    """The parts of one run."""

    pipeline: Pipeline
    toml: TomlFile
    folder: CheckpointFolder
    state: PipelineState
    reporter: Reporter | None
    ears: Ears
    queries: list[tuple[Query, StreamingQuery]] = field(default_factory=list)

    def stopping(self) -> bool:
        return self.ears.should_stop() or (self.reporter is not None and self.reporter.stop_wished.is_set())

    def update(self, change: Callable[[PipelineState], None]) -> None:
        if self.reporter is not None:
            self.reporter.update(change)
        else:
            change(self.state)


def run_pipeline(read: PipelineFile, *, once: bool = False, ears: Ears | None = None, wait_s: float = 60.0) -> Phase:
    """Runs until everything is done, somebody wants it to stop, or it fails (PipelineFailed, PipelineInvalid).

    `once`: process what is there and end, whatever the file's trigger and schedule. `wait_s`: how long a broker that is
    away at the start is waited for.
    """
    pipeline = read.pipeline
    if once and not pipeline.trigger.bounded:
        pipeline = replace(pipeline, trigger=Trigger("available-now"))
    ears = ears or Ears()
    for sink in pipeline.sinks.values():
        need_package(sink)
    with CheckpointFolder(pipeline) as folder:
        if not _await_broker(pipeline, ears, wait_s):
            return "stopped"
        state = _first_state(pipeline, folder)
        reporter = Reporter(pipeline.servers, state, ears.note) if pipeline.progress else None
        running = Running(pipeline, read.toml, folder, state, reporter, ears)
        if reporter is not None:
            reporter.start()
        phase: Phase = "failed"
        try:
            phase = _run_again_and_again(running, once=once)
        except WaystationError as error:
            _tell_error(running, str(error))
            raise
        finally:
            ended = phase
            running.update(lambda state: _set_phase(state, ended))
            if reporter is not None:
                reporter.close()
        return phase


def _first_state(pipeline: Pipeline, folder: CheckpointFolder) -> PipelineState:
    return PipelineState(
        pipeline=pipeline.name,
        run=uuid.uuid4().hex,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ms=time.time_ns() // 1_000_000,
        file=str(pipeline.file.absolute()),
        checkpoint=str(folder),
        log=str(folder.log),
        master=pipeline.master,
        trigger=str(pipeline.trigger),
        bounded=pipeline.trigger.bounded,
        sinks=_first_sinks(pipeline),
        graph=nodes(pipeline),
        expectations=_first_expectations(pipeline),
    )


def _first_sinks(pipeline: Pipeline) -> list[SinkState]:
    return [SinkState(sink.name, sink.kind, place=describe_sink(sink)) for sink in pipeline.sinks.values()]


def _first_expectations(pipeline: Pipeline) -> list[ExpectationState]:
    return [
        ExpectationState(table, one.name, one.rule, one.on_fail)
        for table, found in pipeline.expectations.items()
        for one in found
    ]


def _set_phase(state: PipelineState, phase: Phase) -> None:
    state.phase = phase
    for sink in state.sinks:
        if phase not in ("starting", "running", "stopping") and sink.phase in ("starting", "running", "stopping"):
            sink.phase = "stopped" if phase == "failed" else phase


def _await_broker(pipeline: Pipeline, ears: Ears, wait_s: float) -> bool:
    """Waits for a broker that is needed; Unavailable when it took too long, False when we are to stop."""
    if not pipeline.uses_broker and not pipeline.progress:
        return True
    deadline = time.monotonic() + wait_s
    told = False
    while True:
        try:
            connect_any(pipeline.servers).close()
            return True
        except Unavailable as error:
            if not pipeline.uses_broker:
                return True
            if time.monotonic() >= deadline:
                raise
            if not told:
                ears.note(f"{str(error).partition(';')[0]}; trying again for {wait_s:g} s")
                told = True
        if ears.should_stop():
            return False
        time.sleep(min(BROKER_AGAIN_S, max(0.05, deadline - time.monotonic())))


def _run_again_and_again(running: Running, *, once: bool) -> Phase:
    pipeline = running.pipeline
    repeating = RunLoop(lambda: _run(running), running.update, running.ears.note, running.stopping, pipeline.restart)
    if pipeline.schedule is None or once:
        return repeating.run()

    def fresh(state: PipelineState) -> None:
        state.sinks, state.expectations = _first_sinks(pipeline), _first_expectations(pipeline)

    return repeating.run_at(pipeline.schedule, running.folder, catch_up=pipeline.catch_up, fresh=fresh)


# -- one run -----------------------------------------------------------------------------------------------------------


def _run(running: Running) -> Phase:
    from waystation.spark.sessions import SessionSettings, is_remote, session

    pipeline = running.pipeline
    running.queries.clear()
    settings = {**pipeline.settings, **needed_settings(pipeline)}
    log = "its log is where it runs" if is_remote(pipeline.master) else f"its log is {running.folder.log}"
    running.ears.note(f"starting Spark on {pipeline.master}; {log}")
    wanted = SessionSettings(pipeline.master, f"waystation {pipeline.name}", settings, running.folder.log)
    with session(wanted) as spark:
        url = "" if is_remote(pipeline.master) else str(spark.sparkContext.uiWebUrl or "")
        running.update(lambda state: _set_url(state, url))
        try:
            return _work(running, spark)
        finally:
            running.update(lambda state: _set_url(state, ""))


def _set_url(state: PipelineState, url: str) -> None:
    state.ui_url = url


def _work(running: Running, spark: SparkSession) -> Phase:
    from waystation.spark.progress import Progress
    from waystation.spark.sessions import is_remote

    pipeline = running.pipeline
    if missing := prepare_targets(pipeline, running.toml):
        raise PipelineInvalid(pipeline.file, missing)
    built = _build(running, spark)
    frames = built.tables
    planned = _streams(queries(pipeline), frames)
    names = {query_name(pipeline, query): [sink.name for sink in query.sinks] for query in planned}
    listener = Progress(running.update, names)
    # Over Connect, PySpark 4.3 ends the stream of events when a Python data source is used (SPARK-59135): there the
    # queries are asked instead.
    listens = not is_remote(pipeline.master)
    if listens:
        spark.streams.addListener(listener)
    try:
        running.update(lambda state: _set_phase(state, "running"))
        static = [sink for sink in pipeline.sinks.values() if not frames[sink.table].isStreaming]
        for sink in static:
            if not _write_static(running, spark, sink, built):
                return "stopped"
        for query in planned:
            _start(running, query, frames)
        running.ears.note(f"pipeline {pipeline.name} is running; Ctrl-C stops it")
        phase = _watch(running, None if listens else listener)
        running.ears.on_session(spark)
        return phase
    finally:
        _stop_all(running, listener)
        if listens:
            spark.streams.removeListener(listener)


def _streams(planned: list[Query], frames: dict[str, DataFrame]) -> list[Query]:
    """Without the sinks whose tables are no streams: those are written once."""
    found = [tuple(sink for sink in query.sinks if frames[sink.table].isStreaming) for query in planned]
    return [Query(sinks) for sinks in found if sinks]


def _build(running: Running, spark: SparkSession) -> Frames:
    frames = Frames(spark, running.pipeline)
    try:
        frames.build()
        return frames
    except PartFailed as failed:
        _log_trace(running, failed.cause)
        raise PipelineInvalid(running.pipeline.file, [problem_of(failed, running.pipeline, running.toml)]) from None


def _start(running: Running, query: Query, frames: dict[str, DataFrame]) -> None:
    pipeline, folder = running.pipeline, running.folder
    try:
        started = start_query(pipeline, query, frames, folder.sink(query.name), folder.identity)
    except Exception as error:
        _log_trace(running, error)
        line = running.toml.line(query.sinks[0].path)
        raise PipelineInvalid(pipeline.file, [FileProblem(line, explain(error))]) from None
    running.queries.append((query, started))


def _write_static(running: Running, spark: SparkSession, sink: Sink, frames: Frames) -> bool:
    """Writes a table that is no stream, on a thread, so that it can be stopped; False if it was."""
    from waystation.spark.progress import take_counts
    from waystation.spark.sessions import activate

    failed: list[BaseException] = []
    written: list[WrittenRows] = []
    counted: dict[str, dict[str, int]] = {}

    def work() -> None:
        try:
            activate(spark)
            written.append(write_sink(running.pipeline, sink, frames.tables[sink.table]))
            for table in tables_read(running.pipeline)[sink.name] & frames.counts.keys():
                counted[table] = frames.counts.pop(table).collect()[0].asDict()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=work, name=f"pipeline-{sink.name}", daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(LOOK_S)
        if running.stopping():
            spark.interruptAll()
            thread.join()
            return False
    if failed:
        raise _failure(running, sink.name, failed[0])

    def change(state: PipelineState) -> None:
        _end_sink(state, sink.name, "finished", written[0])
        for table, counts in counted.items():
            take_counts(state, table, counts)

    running.update(change)
    return True


def _watch(running: Running, asking: Progress | None) -> Phase:
    """Looks at the queries until all have ended, one has failed, or somebody wants them to stop.

    `asking` wants to be told how they are doing, every second.
    """
    asked_at = 0.0
    while True:
        if asking is not None and time.monotonic() - asked_at >= ASK_S:
            asked_at = time.monotonic()
            for _, query in running.queries:
                asking.catch_up(query)
        for planned, query in running.queries:
            if not query.isActive:
                error = query.exception()
                if error is not None:
                    raise _failure(running, planned.name, error)
                for sink in planned.sinks:
                    running.update(lambda state, sink=sink: _end_sink(state, sink.name, "finished"))  # type: ignore[misc]
        if not any(query.isActive for _, query in running.queries):
            return "finished" if running.pipeline.trigger.bounded or not running.queries else "stopped"
        if running.stopping():
            running.ears.note("stopping: batches that are under way are done again at the next start")
            running.update(lambda state: _set_phase(state, "stopping"))
            return "stopped"
        time.sleep(LOOK_S)


def _end_sink(state: PipelineState, name: str, phase: Phase, written: WrittenRows = NOTHING) -> None:
    for sink in state.sinks:
        if sink.sink == name:
            sink.phase = phase
            sink.rows += written.rows
            sink.dead_letters += written.dead_letters
            sink.rows_per_s = sink.arriving_per_s = 0.0


def _stop_all(running: Running, listener: Progress) -> None:
    for _, query in running.queries:
        try:
            query.stop()
            listener.catch_up(query)
        except Exception as error:
            _log_trace(running, error)


# -- failures ----------------------------------------------------------------------------------------------------------


def _failure(running: Running, sink: str, error: BaseException) -> PipelineFailed:
    _log_trace(running, error)
    sentence = explain(error)

    def change(state: PipelineState) -> None:
        for known in state.sinks:
            if known.sink == sink:
                known.phase, known.error = "failed", sentence

    running.update(change)
    where = f"pipeline {running.pipeline.name!r}, sink {sink!r}"
    text = f"{where}: {sentence.rstrip('.')}; the trace is in {running.folder.log}"
    return PipelineFailed(text, lasting=is_lasting(error))


def _tell_error(running: Running, sentence: str) -> None:
    def change(state: PipelineState) -> None:
        state.error = sentence

    running.update(change)


def _log_trace(running: Running, error: BaseException) -> None:
    """Everything that Spark said, for who wants it."""
    try:
        with running.folder.log.open("a") as log:
            log.write("".join(traceback.format_exception(error)))
    except OSError:
        pass
