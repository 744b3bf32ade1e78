"""Tracing without a broker: which headers count, what is bounded, when spans end."""

from __future__ import annotations

import logging
import subprocess
import sys

import pytest

from waystation.broker.open import open_tracing
from waystation.config import BrokerSettings
from waystation.errors import InvalidSetting
from waystation.log.batches import batch as batches
from waystation.log.batches.compression import CODEC_NAMES
from waystation.message import Delivered, Message
from waystation.observe.spans import Attributes, Span, TracedPlace
from waystation.observe.traceparent import Parent, read_parent
from waystation.observe.tracing import MOST_AT_ONCE, MOST_PER_S, Tracing
from waystation.topics.records.record_tracing import traced_from, traced_in
from waystation.world import real_world

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = f"00-{TRACE}-{SPAN}-01"
QUEUE = TracedPlace("queue", "jobs", "native", "worker")


class Recorded:
    """A span that remembers."""

    def __init__(self, name: str, parent: Parent | Span, at_ns: int, attributes: Attributes) -> None:
        self.name, self.parent, self.began, self.attributes = name, parent, at_ns, dict(attributes)
        self.ended = -1
        self.failure = ""

    def add(self, attributes: Attributes) -> None:
        self.attributes |= attributes

    def end(self, at_ns: int, failure: str = "") -> None:
        assert self.ended < 0, f"{self.name} ends twice"
        self.ended, self.failure = at_ns, failure


class Recorder:
    """Where spans go in these tests."""

    def __init__(self) -> None:
        self.spans: list[Recorded] = []
        self.closed = False

    def begin(self, name: str, parent: Parent | Span, at_ns: int, attributes: Attributes, *, serves: bool) -> Recorded:
        self.spans.append(Recorded(name, parent, at_ns, attributes))
        return self.spans[-1]

    def close(self) -> None:
        self.closed = True

    def names(self) -> list[str]:
        return [span.name for span in self.spans]


class HandClock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.wall_ms = 1_000_000
        self.mono_s = 50.0

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic(self) -> float:
        return self.mono_s

    def pass_ms(self, passed: int) -> None:
        self.wall_ms += passed
        self.mono_s += passed / 1000


class HandLog:
    """A log that is durable when the test says so."""

    def __init__(self) -> None:
        self.durable_offset = 0
        self.failure: Exception | None = None


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def tracing(clock: HandClock, recorder: Recorder) -> Tracing:
    return Tracing(clock, recorder)


def traced(count: int = 1) -> list[Message]:
    return [Message(b"x", headers={"traceparent": SAMPLED}) for _ in range(count)]


def given(count: int = 1) -> list[Delivered]:
    return [Delivered(tag, 1, 0, message) for tag, message in enumerate(traced(count))]


@pytest.mark.parametrize("flags", ["01", "03", "ff"])
def test_a_sampled_header_names_its_span(flags: str) -> None:
    for value in (f"00-{TRACE}-{SPAN}-{flags}", f"00-{TRACE}-{SPAN}-{flags}".encode()):
        assert read_parent(value, "a=b") == Parent(int(TRACE, 16), int(SPAN, 16), int(flags, 16), "a=b")


def test_a_later_version_may_have_more(clock: HandClock) -> None:
    assert read_parent(f"01-{TRACE}-{SPAN}-01-what-comes") is not None
    assert read_parent(f"01-{TRACE}-{SPAN}-01what") is None


@pytest.mark.parametrize(
    "value",
    [
        None,
        7,
        "",
        b"\xff",
        f"00-{TRACE}-{SPAN}-00",
        f"00-{TRACE}-{SPAN}-02",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f" {SAMPLED}",
        f"{SAMPLED}\n",
    ],
)
def test_what_is_not_sampled_or_not_well_formed_is_no_trace(value: object) -> None:
    assert read_parent(value) is None


def test_a_publish_ends_when_its_log_is_durable(tracing: Tracing, recorder: Recorder, clock: HandClock) -> None:
    log = HandLog()
    tracing.arrived("amqp")
    clock.pass_ms(3)
    tracing.put("jobs", traced(), 0, log, 5, own=False)
    clock.pass_ms(4)
    tracing.synced()
    publish, fsync = recorder.spans
    assert (publish.ended, fsync.ended) == (-1, -1)
    log.durable_offset = 5
    tracing.synced()
    assert fsync.parent is publish
    assert fsync.began - publish.began == 3_000_000
    assert fsync.ended - fsync.began == 4_000_000
    assert publish.ended == fsync.ended
    assert publish.attributes["waystation.door"] == "amqp"


def test_a_publish_that_waits_for_nothing_ends_before_its_fsync(tracing: Tracing, recorder: Recorder) -> None:
    log = HandLog()
    tracing.arrived("kafka", waits=False)
    tracing.put("jobs", traced(), 0, log, 5, own=False)
    publish, fsync = recorder.spans
    assert publish.ended >= 0
    assert fsync.ended < 0
    log.failure = OSError("gone")
    tracing.synced()
    assert fsync.failure == "the log has failed"


def test_without_syncs_there_is_no_fsync(tracing: Tracing, recorder: Recorder) -> None:
    tracing.syncs = lambda: False
    tracing.put("jobs", traced(), 0, HandLog(), 5, own=True)
    assert recorder.names() == ["publish jobs"]
    assert recorder.spans[0].ended >= 0
    assert recorder.spans[0].attributes["waystation.door"] == "broker"


def test_a_log_that_never_becomes_durable_is_given_up(tracing: Tracing, recorder: Recorder, clock: HandClock) -> None:
    tracing.put("jobs", traced(), 0, HandLog(), 5, own=False)
    clock.pass_ms(61_000)
    tracing.synced()
    assert all(span.failure for span in recorder.spans)


def test_a_verdict_counts_for_what_its_consumer_holds(tracing: Tracing, recorder: Recorder) -> None:
    log, owner = HandLog(), object()
    tracing.delivered(QUEUE, given(4), owner)
    tracing.settled(owner, "ack", [(0, 4)], log, 9, consumer="another")
    assert all(span.ended < 0 for span in recorder.spans)
    tracing.settled(owner, "ack", [(0, 2)], log, 9, consumer="worker", unknown=[(1, 1)])
    tracing.lapsed(owner, lambda tag: tag != 1)
    tracing.lost(owner, "expired-hold", [(2, 100)])
    outcomes = [span.attributes.get("waystation.outcome") for span in recorder.spans]
    assert outcomes == ["ack", "expired-hold", "expired-hold", "expired-hold", None]
    ack = recorder.spans[-1]
    assert (ack.name, ack.parent, ack.ended) == ("ack", recorder.spans[0], -1)
    log.durable_offset = 9
    tracing.synced()
    assert ack.ended >= 0
    assert [span.failure for span in recorder.spans] == ["", *["expired-hold"] * 3, ""]


def test_closing_ends_everything(tracing: Tracing, recorder: Recorder) -> None:
    tracing.put("jobs", traced(), 0, HandLog(), 5, own=False)
    tracing.delivered(QUEUE, given(2), object())
    tracing.close()
    assert all(span.ended >= 0 for span in recorder.spans)
    assert recorder.closed


def test_so_many_at_once_and_in_a_second_are_traced(
    tracing: Tracing, recorder: Recorder, clock: HandClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "waystation.tracing"):
        tracing.delivered(QUEUE, given(1000))
        assert len(recorder.spans) == MOST_AT_ONCE
        for _ in range(100):
            tracing.delivered(QUEUE, given(20))
        assert len(recorder.spans) == MOST_PER_S
        clock.pass_ms(1000)
        tracing.delivered(QUEUE, given(1000))
        assert len(recorder.spans) == MOST_PER_S + MOST_AT_ONCE
        assert len(caplog.records) == 1
        clock.pass_ms(60_000)
        tracing.delivered(QUEUE, given(1000))
        assert len(caplog.records) == 2


def test_times_follow_a_clock_that_is_set(tracing: Tracing, clock: HandClock) -> None:
    clock.mono_s += 0.0015
    assert tracing.now_ns() == 1_000_001_500_000
    clock.wall_ms += 3_600_000
    assert tracing.now_ns() == clock.wall_ms * 1_000_000


def test_records_are_found_by_their_header() -> None:
    headers = (("x-message-id", b"m"), ("traceparent", SAMPLED.encode()))
    records = [(None, b"plain", ()), (None, b"traced", headers), (None, b"traceparent", ())]
    batch = batches.build(records, 0)
    header = batches.read_header(batch)
    [found] = traced_in(batch, header)
    assert (found.id, found.size, found.offset) == ("m", 6, 1)
    assert traced_in(memoryview(batch), header) == [found]
    assert traced_from(bytes(batch) * 2, 0) == [found, found]
    assert traced_from(bytes(batch), 2) == []


def test_what_is_compressed_is_not_opened() -> None:
    batch = batches.build([(None, b"", (("traceparent", SAMPLED.encode()),))], 0, codec=CODEC_NAMES["gzip"])
    assert traced_in(batch, batches.read_header(batch)) == []


def test_a_missing_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "waystation.observe.otel", None)
    with pytest.raises(InvalidSetting, match=r"pip install 'waystation\[otel\]'"):
        open_tracing(real_world(), BrokerSettings({"waystation.tracing": "otlp"}))
    assert open_tracing(real_world(), BrokerSettings({})) is None


def test_the_sdk_is_loaded_only_when_asked_for() -> None:
    code = (
        "import sys, waystation, waystation.cli.server.serve, waystation.broker.open, waystation.protocols.front\n"
        "assert not [name for name in sys.modules if name.startswith('opentelemetry')]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
