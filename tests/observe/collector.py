"""An OTLP/HTTP collector for tests: a real HTTP server that reads what the exporter sends. Used by test_tracing."""

from __future__ import annotations

import gzip
import secrets
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue

from tests.support.waiting import wait_for

Attribute = str | int | bool | float
ERROR = 2


@dataclass(frozen=True)
class Seen:
    """A span that has come."""

    trace: str
    id: str
    parent: str
    name: str
    began_ns: int
    ended_ns: int
    attributes: dict[str, Attribute]
    failed: bool
    state: str
    service: str


class Trace:
    """What a sender begins: its ids, and the header that carries them."""

    def __init__(self, *, sampled: bool = True) -> None:
        self.id = secrets.token_hex(16)
        self.span = secrets.token_hex(8)
        self.header = f"00-{self.id}-{self.span}-0{int(sampled)}"


class Collector:
    """Listens on a free port of its own until it is closed."""

    def __init__(self) -> None:
        self._spans: list[Seen] = []
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, trace: str) -> list[Seen]:
        with self._lock:
            return [span for span in self._spans if span.trace == trace]

    def wait(self, trace: Trace, *names: str) -> dict[str, Seen]:
        """The spans of the trace by name, when those are there; no two have the same."""

        def there() -> dict[str, Seen] | None:
            found = self.of(trace.id)
            by_name = {span.name: span for span in found}
            return by_name if set(names) <= by_name.keys() and len(by_name) == len(found) else None

        return wait_for(there, f"spans {names} of trace {trace.id}; there: {[one.name for one in self.of(trace.id)]}")

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                assert self.path == "/v1/traces"
                collector._take(ExportTraceServiceRequest.FromString(body))
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Says nothing."""

        return Handler

    def _take(self, request: ExportTraceServiceRequest) -> None:
        with self._lock:
            for resource in request.resource_spans:
                about = {pair.key: _value(pair.value) for pair in resource.resource.attributes}
                self._spans += [
                    Seen(
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        span.name,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                        {pair.key: _value(pair.value) for pair in span.attributes},
                        span.status.code == ERROR,
                        span.trace_state,
                        str(about["service.name"]),
                    )
                    for scope in resource.scope_spans
                    for span in scope.spans
                ]


def _value(value: AnyValue) -> Attribute:
    found: Attribute = getattr(value, value.WhichOneof("value") or "string_value")
    return found
