"""What Spark says about running queries, made into the state that pipelines publish.

`Progress` listens to Spark and changes a `PipelineState` through the `Reporter`; it never waits for anything, since
Spark's listener bus is one thread. Numbers of rows to do come from offsets: what a source had when the run began, less
what was read. Used by `pipelines/running.py`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery

from waystation.observe.pipeline_state import PipelineState, SinkState, SourceState
from waystation.spark.reading.source_metrics import METRICS, SOURCE

MALFORMED = "waystation.malformed."
"""Metrics of sources begin so."""
ROWS = "rows"
"""Their field with all rows."""
EXPECTED = "waystation.expected."
"""Metrics of tables with expectations begin so."""
COUNT = "count"
"""The field that all our metrics have."""
DEAD_LETTERS = "dead_letters"
"""Of the rows that were written: how many are dead letters."""
LONGEST_NAME = 200

Update = Callable[[Callable[[PipelineState], None]], None]
Offsets = dict[tuple[str, ...], int]


class Progress(StreamingQueryListener):
    """Listens to the queries of one pipeline. `sinks` maps the names of queries to those of their sinks."""

    def __init__(self, update: Update, sinks: Mapping[str, Sequence[str]]) -> None:
        self._update = update
        self._sinks = dict(sinks)
        self._by_id: dict[str, Sequence[str]] = {}
        self._targets: dict[str, Offsets] = {}
        self._counted: dict[str, int] = {}  # by sink: the last batch whose rows were counted
        self._expected: dict[str, tuple[str, int]] = {}  # by table: the query that counts, and its last batch

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        sinks = self._sinks.get(event.name or "")
        if sinks is None:
            return
        self._by_id[str(event.id)] = sinks

        def change(state: SinkState) -> None:
            state.phase, state.query_id = "running", str(event.id)

        self._change(sinks, change)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self._hear(json.loads(event.progress.json))

    def catch_up(self, query: StreamingQuery) -> None:
        """Takes what an ended query still has to say: Spark's bus may not have told it yet, and then never will."""
        for progress in query.recentProgress:
            self._hear(json.loads(progress.json))

    def _hear(self, progress: dict[str, Any]) -> None:
        name = progress.get("name") or ""
        self._change(self._sinks.get(name, ()), lambda state: self._take(state, progress))
        if name in self._sinks:
            self._update(lambda state: self._take_expected(state, name, progress))

    def _take_expected(self, state: PipelineState, query: str, progress: dict[str, Any]) -> None:
        """Each query that reads a table judges all its rows; those of the first one that says so are counted."""
        if "addBatch" not in (progress.get("durationMs") or {}):
            return  # idle: no batch was run
        batch, observed = int(progress.get("batchId", -1)), progress.get("observedMetrics") or {}
        for metric, told in observed.items():
            table = metric.removeprefix(EXPECTED)
            counting, last = self._expected.get(table, (query, -1))
            if metric.startswith(EXPECTED) and counting == query and batch > last:
                self._expected[table] = (query, batch)
                take_counts(state, table, told)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        def change(state: SinkState) -> None:
            state.rows_per_s = state.arriving_per_s = 0.0

        self._change(self._by_id.get(str(event.id), ()), change)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """How it ended is told by who ran it, which knows whether it was asked to."""

    def _change(self, sinks: Sequence[str], change: Callable[[SinkState], None]) -> None:
        def work(state: PipelineState) -> None:
            for known in state.sinks:
                if known.sink in sinks:
                    change(known)

        self._update(work)

    def _take(self, state: SinkState, progress: dict[str, Any]) -> None:
        batch, read = int(progress.get("batchId", -1)), int(progress.get("numInputRows") or 0)
        if batch < state.batch or batch <= self._counted.get(state.sink, -1):
            return  # told before
        if read:
            self._counted[state.sink] = batch
        operators = progress.get("stateOperators") or []
        state.batch = batch
        observed = progress.get("observedMetrics") or {}
        state.rows += _written(progress, state.sink)
        state.dead_letters += _count(observed.get(written_metric(state.sink)), DEAD_LETTERS)
        share = read_once(progress) / read if read else 1.0
        state.rows_read += round(share * read)
        state.malformed += sum(_count(told) for name, told in observed.items() if name.startswith(MALFORMED))
        state.rows_per_s = share * _number(progress.get("processedRowsPerSecond"))
        state.arriving_per_s = share * _number(progress.get("inputRowsPerSecond"))
        state.batch_ms = int((progress.get("durationMs") or {}).get("triggerExecution", 0))
        state.state_rows = sum(int(one.get("numRowsTotal", 0)) for one in operators)
        state.state_bytes = sum(int(one.get("memoryUsedBytes", 0)) for one in operators)
        state.late_rows += sum(int(one.get("numRowsDroppedByWatermark", 0)) for one in operators)
        watermark = (progress.get("eventTime") or {}).get("watermark")
        state.watermark = None if watermark is None or watermark.startswith("1970-01-01") else watermark
        sources = progress.get("sources") or []
        state.lag = lag_of(sources)
        state.sources = sources_of(sources, {known.source: known for known in state.sources}, share)
        left = self._left(state.sink, sources)
        state.rows_to_do = None if left is None else state.rows_read + left

    def _left(self, sink: str, sources: list[dict[str, Any]]) -> int | None:
        """How many rows of those that were there at the first batch are still to come."""
        if sink not in self._targets:
            self._targets[sink] = {}
            for number, source in enumerate(sources):
                for place, offset in offsets_of(source.get("latestOffset")).items():
                    self._targets[sink][(str(number), *place)] = offset
        target = self._targets[sink]
        if not target:
            return None
        reached = {
            (str(number), *place): offset
            for number, source in enumerate(sources)
            for place, offset in offsets_of(source.get("endOffset")).items()
        }
        return sum(max(0, offset - reached.get(place, 0)) for place, offset in target.items())


def read_once(progress: dict[str, Any]) -> int:
    """The rows of a batch. Spark counts those that it reads for several sinks once for each, so where every source has
    a metric of its own, that is right."""
    observed = progress.get("observedMetrics") or {}
    told = [one[ROWS] for name, one in observed.items() if name.startswith(MALFORMED) and one.get(ROWS) is not None]
    whole = told and len(told) == len(progress.get("sources") or [])
    return sum(map(int, told)) if whole else int(progress.get("numInputRows") or 0)


def expected_metric(table: str) -> str:
    """What the rows of a table that has expectations are counted under."""
    return f"{EXPECTED}{table}"


def failed_field(expectation: str) -> str:
    """The field of that metric with the rows that fail one of them."""
    return f"failed_{expectation}"


def take_counts(state: PipelineState, table: str, told: Mapping[str, Any]) -> None:
    """Adds what was observed of a table to its expectations."""
    for one in state.expectations:
        if one.table == table:
            failed = _count(told, failed_field(one.expectation))
            one.failed += failed
            one.passed += _count(told) - failed


def written_metric(sink: str) -> str:
    """What the rows that a sink gets are counted under, by Spark's `observe`."""
    return f"waystation.written.{sink}"


def _written(progress: dict[str, Any], sink: str) -> int:
    """What a pipeline observes; of a query that somebody started by hand, what Spark counts, where its sink lets it."""
    told = (progress.get("observedMetrics") or {}).get(written_metric(sink))
    return _count(told) if told is not None else max(0, int((progress.get("sink") or {}).get("numOutputRows") or 0))


def _count(told: Any, field: str = COUNT) -> int:
    return int((told or {}).get(field) or 0)


def lag_of(sources: list[dict[str, Any]]) -> int | None:
    """How many messages are there and not yet read; None where no source knows."""
    lag = None
    for source in sources:
        latest, reached = offsets_of(source.get("latestOffset")), offsets_of(source.get("endOffset"))
        if (told := _told(source).get(METRICS, {}).get("lagRows")) is not None:
            lag = (lag or 0) + int(told)
        elif latest:
            lag = (lag or 0) + sum(max(0, offset - reached.get(place, 0)) for place, offset in latest.items())
    return lag


def sources_of(
    sources: list[dict[str, Any]], before: Mapping[str, SourceState], share: float = 1.0
) -> list[SourceState]:
    """What the sources of a query say of themselves, with what they had counted before. `share`: how many of the rows
    that Spark counts are there; the others are the same ones, read for another sink."""
    found: dict[str, SourceState] = {}
    for source in sources:
        told = _told(source)
        metrics = told.get(METRICS) or {}
        name = str(told.get(SOURCE) or _plain_name(source.get("description") or "?"))
        known = found.get(name) or before.get(name) or SourceState(name)
        read = metrics.get("bytes")
        found[name] = SourceState(
            name,
            rows=known.rows + round(share * int(source.get("numInputRows") or 0)),
            rows_per_s=share * _number(source.get("processedRowsPerSecond")),
            bytes=known.bytes if read is None else (known.bytes or 0) + int(read),
            lag=metrics.get("lagRows"),
            lag_ms=metrics.get("lagMs"),
            lost=int(metrics.get("lost") or 0),
            retries=int(metrics.get("retries") or 0),
        )
    return list(found.values())


def _told(source: dict[str, Any]) -> dict[str, Any]:
    """What our own source says in `latestOffset`; nothing of others."""
    told = _as_json(source.get("latestOffset"))
    return told if isinstance(told, dict) and SOURCE in told else {}


def _plain_name(description: str) -> str:
    """Spark's name for a source, without its package and its number in memory."""
    return re.sub(r"@[0-9a-f]+$", "", re.sub(r"^(?:[a-z]\w*\.)+(?=[A-Z])", "", description))[:LONGEST_NAME]


def _as_json(told: Any) -> Any:
    if not isinstance(told, str):
        return told
    try:
        return json.loads(told)
    except ValueError:
        return None


def offsets_of(told: Any) -> Offsets:
    """Offsets by topic and partition, from what our source tells: `{"offsets": {"orders": {"0": 17}}, …}`.

    Spark's own sources tell other things (a file's number, seconds), which are no rows: nothing is known then.
    """
    told = _as_json(told)
    if not isinstance(told, dict) or not isinstance(told.get("offsets"), dict):
        return {}
    return dict(_leaves(told["offsets"], ()))


def _leaves(tree: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, name))
        elif isinstance(value, int):
            yield (*above, name), value


def _number(value: Any) -> float:
    """A rate; Spark says NaN and Infinity of batches that took no time."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return 0.0
    return number if number == number and abs(number) != float("inf") else 0.0
