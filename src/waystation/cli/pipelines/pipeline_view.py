"""How the state of a pipeline looks to a person: a headline, and a line or a bar for each sink."""

from __future__ import annotations

import time

import msgspec

from waystation.cli.terminal.output import bold, spell_bytes
from waystation.observe.pipeline_state import ENDED, PipelineState, SinkState, SourceState

BAR = 30


def as_json(state: PipelineState) -> dict[str, object]:
    """All of it, with what can be concluded (`state`) beside what it last said (`phase`)."""
    fields: dict[str, object] = msgspec.to_builtins(state)
    return {**fields, "state": state.seen()}


def kind_of(state: PipelineState) -> str:
    """Whether it is a pipeline file, or a query that somebody started by hand."""
    return "query" if state.by_hand else "file"


def show(state: PipelineState) -> str:
    """Several lines."""
    seen = state.seen()
    where = f"process {state.pid} on {state.host}" if seen not in ENDED else f"on {state.host}"
    lines = [bold(f"{state.pipeline}: {seen}"), f"  {where}, Spark {state.master}, trigger {state.trigger}"]
    if state.by_hand:
        lines.append(f"  a query started by hand{f', by {state.file}' if state.file else ''}")
    lines += _times(state, seen)
    if state.ui_url and seen not in ENDED:
        lines.append(f"  Spark's own pages: {state.ui_url}")
    if seen == "died":
        lines.append("  its process ended without a report; run it again, it continues where it was")
    if seen == "lost":
        lines.append(f"  no word from it for {spell_age(state)}; look on {state.host}")
    lines += [line for sink in state.sinks for line in _sink(state, sink)]
    for one in state.expectations:
        counts = f"{spell_number(one.passed)} passed, {spell_number(one.failed)} failed"
        lines.append(f"  expectation {one.table}.{one.expectation} ({one.on_fail}): {counts}")
    if state.error is not None:
        lines.append(f"  error: {state.error}")
    return "\n".join(lines)


def _times(state: PipelineState, seen: str) -> list[str]:
    """When it starts again, and what was before."""
    facts = []
    if state.schedule:
        facts.append(f"schedule {state.schedule}, {state.runs} runs")
    if state.skipped_runs:
        facts.append(f"{state.skipped_runs} skipped, since a run took longer")
    if state.restarts:
        facts.append(f"{state.restarts} restarts after failures")
    if state.next_start_ms is not None and seen in ("restarting", "waiting"):
        facts.append(f"next start {time.strftime('%Y-%m-%d %H:%M:%S %Z', time.localtime(state.next_start_ms / 1000))}")
    lines = [f"  {', '.join(facts)}"] if facts else []
    if state.last_error is not None and state.error is None:
        lines.append(f"  last error: {state.last_error}")
    return lines


def _sink(state: PipelineState, sink: SinkState) -> list[str]:
    facts = [f"{spell_number(sink.rows)} rows written"]
    if sink.rows_read:
        facts.append(f"{spell_number(sink.rows_read)} read")
    if sink.phase not in ENDED:
        facts.append(f"{spell_rate(sink.rows_per_s)} rows/s")
    if sink.malformed:
        facts.append(f"{sink.malformed} values malformed")
    if sink.dead_letters:
        facts.append(f"{sink.dead_letters} dead letters")
    if sink.lag is not None:
        facts.append(f"{sink.lag} behind{_age(sink.lag_ms)}")
    if sink.batch >= 0:
        facts.append(f"batch {sink.batch} took {sink.batch_ms} ms")
    if sink.state_rows:
        facts.append(f"state {sink.state_rows} rows, {spell_bytes(sink.state_bytes)}")
    if sink.late_rows:
        facts.append(f"at least {sink.late_rows} rows came too late")
    if sink.watermark is not None:
        facts.append(f"watermark {sink.watermark}")
    lines = [f"  {sink.sink} ({sink.place or sink.kind}, {sink.phase}): {', '.join(facts)}"]
    lines += [f"    {line}" for source in sink.sources if (line := _source(source))]
    if state.bounded and sink.rows_to_do is not None:
        lines.append(f"    {bar(sink.rows_read, sink.rows_to_do)}")
    if sink.error is not None:
        lines.append(f"    error: {sink.error}")
    return lines


def _source(source: SourceState) -> str:
    """What a source says of itself; nothing where it has said nothing yet."""
    facts = []
    if source.rows:
        size = "" if source.bytes is None else f", about {spell_bytes(source.bytes)}"
        facts.append(f"{spell_number(source.rows)} rows read{size}")
    if source.lag is not None:
        facts.append(f"{source.lag} behind{_age(source.lag_ms)}")
    if source.lost:
        facts.append(f"{source.lost} rows lost to retention")
    if source.retries:
        facts.append(f"{source.retries} requests retried")
    return f"from {source.source}: {', '.join(facts)}" if facts else ""


def _age(lag_ms: int | None) -> str:
    return f" (the oldest {lag_ms / 1000:.1f} s old)" if lag_ms else ""


def bar(done: int, of: int) -> str:
    """`[██████░░░░]  60 %  600 of 1000 rows`."""
    share = 1.0 if of <= 0 else min(1.0, done / of)
    full = int(share * BAR)
    return f"[{'█' * full}{'░' * (BAR - full)}] {int(share * 100):3d} %  {done} of {of} rows"


def spell_number(count: int) -> str:
    return f"{count:,}".replace(",", " ")


def spell_rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 or rate == 0 else f"{rate:.1f}"


def spell_age(state: PipelineState) -> str:
    """How long ago it said something."""
    age_s = max(0.0, time.time() - state.updated_ms / 1000)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if age_s >= size:
            return f"{age_s / size:.0f} {unit}"
    return f"{age_s:.0f} s"
