"""Queries that somebody started by hand, on the broker's list of pipelines beside the pipeline files.

`register(spark)` adds this listener to a session. Each query that reads from Waystation or writes to it is reported to
the broker that it uses, under its name or else its id, so that a query which is started again keeps its row. What a
listener does happens on threads of Spark that queries wait for: here it only notes, and a `Reporter` for each query
sends. It drops what a broker that is away does not take. Whatever goes wrong here is one line in the log.
"""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from waystation.observe.events import event_logger
from waystation.observe.pipeline_state import GraphNode, Phase, PipelineState, SinkState, SourceState
from waystation.spark.pipelines.status.reporter import Reporter
from waystation.spark.pipelines.transform.explaining import explain
from waystation.spark.progress import Progress
from waystation.spark.query_plans import QueryParts, parts_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = event_logger("waystation.spark")

MOST_QUERIES = 50
"""Of one session that are reported at the same time: each has a thread and a connection."""
EXIT_S = 2.0
"""How long the end of the program waits for the last reports."""


class _Reported:
    """One query, from its start to its end."""

    def __init__(self, spark: SparkSession, query: Any, parts: QueryParts, state: PipelineState) -> None:
        self._spark = spark
        self._query = query
        self._bounded = parts.bounded
        self._asked = False
        self.reporter = Reporter(parts.servers, state, _note, self._look)
        self.progress = Progress(self.reporter.update, {query.name() or "": [parts.destination.name]})
        self.reporter.start()

    def end(self, error: str | None) -> None:
        phase: Phase = "failed" if error else ("finished" if self._bounded and not self._asked else "stopped")

        def change(state: PipelineState) -> None:
            state.phase = phase
            state.error = explain(RuntimeError(error)) if error else None
            for sink in state.sinks:
                sink.phase, sink.error = phase, state.error
                sink.rows_per_s = sink.arriving_per_s = 0.0

        self.reporter.update(change)
        self.reporter.close(0)

    def _look(self) -> None:
        """Every second, on the reporter's thread: whether it is to stop, and whether its session still is."""
        if getattr(self._spark.sparkContext, "_jsc", None) is None:
            self.end(None)
        elif self.reporter.stop_wished.is_set() and not self._asked:
            self._asked = True
            try:
                self._query.stop()
            except Exception as error:  # py4j's, where the JVM does not answer
                log.warning(
                    "query.not_stopped",
                    "a query was asked to stop and cannot be stopped: {error}",
                    error=str(error).partition("\n")[0],
                )


class QueryReports(StreamingQueryListener):
    """Listens to one session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._lock = threading.Lock()
        self._reported: dict[str, _Reported] = {}  # by the id of the run
        atexit.register(self.close)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        try:
            self._begin(event)
        except Exception as error:
            log.warning(
                "query.not_reported",
                "the query {query} is not on the broker's list of pipelines: {error}",
                query=event.name or event.id,
                error=str(error).partition("\n")[0],
            )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        reported = self._reported.get(str(event.progress.runId))
        if reported is not None:
            reported.progress.onQueryProgress(event)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        reported = self._reported.get(str(event.runId))
        if reported is not None:
            reported.progress.onQueryIdle(event)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            reported = self._reported.pop(str(event.runId), None)
        if reported is not None:
            reported.end(event.exception)

    def close(self) -> None:
        """Ends all reports; what runs on is not told any more."""
        with self._lock:
            left = list(self._reported.values())
            self._reported.clear()
        for reported in left:
            reported.end(None)
        until = time.monotonic() + EXIT_S
        for reported in left:
            reported.reporter.close(max(0.0, until - time.monotonic()))
        atexit.unregister(self.close)

    def _begin(self, event: QueryStartedEvent) -> None:
        query_id, run = str(event.id), str(event.runId)
        java: Any = self._spark._jsparkSession  # type: ignore[attr-defined]
        query = java.streams().get(query_id)
        parts = None if query is None else parts_of(query)
        if parts is None:
            return
        context = self._spark.sparkContext
        state = _state(event.name or query_id, run, parts)
        state.master, state.ui_url = str(context.master), str(context.uiWebUrl or "")
        with self._lock:
            if len(self._reported) >= MOST_QUERIES:
                raise RuntimeError(f"{MOST_QUERIES} queries of this session are there already")
            reported = self._reported[run] = _Reported(self._spark, query, parts, state)
        reported.progress.onQueryStarted(event)


def _state(name: str, run: str, parts: QueryParts) -> PipelineState:
    to = parts.destination
    now_ms = time.time_ns() // 1_000_000
    sink = SinkState(to.name, to.kind, "running", place=to.place)
    sink.sources = [SourceState(source) for source in parts.sources]
    nodes = [GraphNode(source, "source", source) for source in parts.sources]
    return PipelineState(
        name,
        run,
        phase="running",
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ms=now_ms,
        updated_ms=now_ms,
        file=_program(),
        checkpoint=parts.checkpoint,
        trigger=parts.trigger,
        bounded=parts.bounded,
        sinks=[sink],
        by_hand=True,
        graph=[*nodes, GraphNode(f"sink:{to.name}", "sink", to.place, parts.sources)],
    )


def _program() -> str:
    """The script that started it, if it is one."""
    script = sys.argv[0] if sys.argv else ""
    return os.path.abspath(script) if script and os.path.isfile(script) else ""


def _note(text: str) -> None:
    log.info("queries.broker", "reports of queries: {note}", note=text)


# -- sessions ----------------------------------------------------------------------------------------------------------

_listening: dict[str, QueryReports] = {}
"""By the JVM's id of the session: PySpark makes a new object for the same session whenever it is asked for it."""


def report_queries(spark: SparkSession, report: bool) -> None:
    """Starts to report the queries of a session, or ends that; again does no harm. It never fails: who registers wants
    the data source, and may have a Spark that keeps its sessions differently."""
    try:
        _listen(spark, report)
    except Exception as error:
        log.warning(
            "queries.not_reported",
            "queries of this session are not on the broker's list of pipelines: {error}",
            error=str(error).partition("\n")[0],
        )


def _listen(spark: SparkSession, report: bool) -> None:
    java: Any = getattr(spark, "_jsparkSession", None)
    if java is None:
        return  # over Connect, Spark 4.3 ends the stream of events when a Python data source is used (SPARK-59135)
    session = str(java.sessionUUID())
    known = _listening.get(session)
    if report and known is None:
        _listening[session] = QueryReports(spark)
        spark.streams.addListener(_listening[session])
    elif not report and known is not None:
        spark.streams.removeListener(_listening.pop(session))
        known.close()
