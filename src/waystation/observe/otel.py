"""Spans by OpenTelemetry's SDK, sent by its OTLP/HTTP exporter, as the standard OTEL_* environment variables say.

Loaded only where `waystation.tracing` asks for it. The SDK's own thread sends, from a queue with an end: a collector
that is away costs dropped spans, and one warning a minute. The SDK's own warnings of that are left out meanwhile, since
it says the same with every attempt.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace import Span as OtelSpan
from opentelemetry.trace.span import TraceFlags, TraceState

from waystation.observe.events import event_logger
from waystation.observe.spans import Attributes, Span
from waystation.observe.traceparent import Parent
from waystation.version import __version__
from waystation.world.clock import Clock

logger = event_logger("waystation.tracing")

WARN_EVERY_S = 60.0
CLOSE_WITHIN_S = 3.0
"""A collector that does not answer does not keep the broker from ending."""
TALKATIVE = ("opentelemetry.exporter.otlp.proto.http.trace_exporter", "opentelemetry.sdk._shared_internal")


class OtelSpans:
    """`observe.tracing.Spans`. `begin` and the spans' own methods are for the loop's thread, and never block."""

    def __init__(self, clock: Clock) -> None:
        exporter = _WarningExporter(OTLPSpanExporter(), clock)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("waystation", __version__)
        self._quiet = _Quiet()
        for name in TALKATIVE:
            logging.getLogger(name).addFilter(self._quiet)

    def begin(self, name: str, parent: Parent | Span, at_ns: int, attributes: Attributes, *, serves: bool) -> _Span:
        kind = SpanKind.SERVER if serves else SpanKind.INTERNAL
        above = NonRecordingSpan(_context(parent)) if isinstance(parent, Parent) else _otel(parent)
        made = self._tracer.start_span(
            name, context=set_span_in_context(above), kind=kind, attributes=attributes, start_time=at_ns
        )
        return _Span(made)

    def close(self) -> None:
        """Sends what is left, if the collector takes it in time."""
        # A thread of its own, since the SDK waits as long as the exporter tries; it is a daemon and may be left behind.
        closing = threading.Thread(target=self._provider.shutdown, name="tracing-close", daemon=True)
        closing.start()
        closing.join(CLOSE_WITHIN_S)
        for name in TALKATIVE:
            logging.getLogger(name).removeFilter(self._quiet)


class _Span:
    __slots__ = ("span",)

    def __init__(self, span: OtelSpan) -> None:
        self.span = span

    def add(self, attributes: Attributes) -> None:
        self.span.set_attributes(attributes)

    def end(self, at_ns: int, failure: str = "") -> None:
        if failure:
            self.span.set_status(Status(StatusCode.ERROR, failure))
        self.span.end(at_ns)


def _otel(span: Span) -> OtelSpan:
    if not isinstance(span, _Span):
        raise TypeError(f"not one of these spans: {span!r}")
    return span.span


class _WarningExporter(SpanExporter):
    """Sends by another exporter, and tells of failures once a minute. On the SDK's thread."""

    def __init__(self, inner: SpanExporter, clock: Clock) -> None:
        self._inner = inner
        self._now_s = clock.monotonic
        self._lost = 0
        self._warned = -WARN_EVERY_S

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        try:
            result = self._inner.export(spans)
        except Exception:
            self._failed(len(spans))
            raise
        if result is not SpanExportResult.SUCCESS:
            self._failed(len(spans))
        return result

    def _failed(self, count: int) -> None:
        self._lost += count
        now_s = self._now_s()
        if now_s - self._warned >= WARN_EVERY_S:
            self._warned = now_s
            logger.warning(
                "tracing.spans_lost",
                "the collector does not take spans, {lost} are lost so far; see to it that it runs, and that"
                " OTEL_EXPORTER_OTLP_ENDPOINT is where it listens",
                lost=self._lost,
            )

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)


class _Quiet(logging.Filter):
    """Lets through what is no complaint about an export."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno < logging.WARNING


def _context(parent: Parent) -> SpanContext:
    state = TraceState.from_header([parent.state]) if parent.state else TraceState()
    return SpanContext(
        parent.trace_id, parent.span_id, is_remote=True, trace_flags=TraceFlags(parent.flags), trace_state=state
    )


def _resource() -> Resource:
    """What the environment says; where it says no name, ours."""
    found = Resource.create({SERVICE_VERSION: __version__})
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        found = found.merge(Resource({SERVICE_NAME: "waystation"}))
    return found
