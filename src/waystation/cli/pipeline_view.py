"""How the state of a pipeline looks to a person: a headline, and a line or a bar for each sink."""

from __future__ import annotations

import time

import msgspec

from waystation.cli.output import bold, spell_bytes
from waystation.observe.pipeline_state import ENDED, PipelineState, SinkState

BAR = 30


def as_json(state: PipelineState) -> dict[str, object]:
    """All of it, with what can be concluded (`state`) beside what it last said (`phase`)."""
    fields: dict[str, object] = msgspec.to_builtins(state)
    return {**fields, "state": state.seen()}


def show(state: PipelineState) -> str:
    """Several lines."""
    seen = state.seen()
    where = f"process {state.pid} on {state.host}" if seen not in ENDED else f"on {state.host}"
    lines = [bold(f"{state.pipeline}: {seen}"), f"  {where}, Spark {state.master}, trigger {state.trigger}"]
    if seen == "died":
        lines.append("  its process ended without a report; run it again, it continues where it was")
    if seen == "lost":
        lines.append(f"  no word from it for {spell_age(state)}; look on {state.host}")
    lines += [line for sink in state.sinks for line in _sink(state, sink)]
    for one in state.expectations:
        counts = f"{spell_count(one.passed)} passed, {spell_count(one.failed)} failed"
        lines.append(f"  expectation {one.table}.{one.expectation} ({one.on_fail}): {counts}")
    if state.error is not None:
        lines.append(f"  error: {state.error}")
    return "\n".join(lines)


def _sink(state: PipelineState, sink: SinkState) -> list[str]:
    facts = [f"{spell_count(sink.rows)} rows written"]
    if sink.rows_read:
        facts.append(f"{spell_count(sink.rows_read)} read")
    if sink.phase not in ENDED:
        facts.append(f"{spell_rate(sink.rows_per_s)} rows/s")
    if sink.malformed:
        facts.append(f"{sink.malformed} values malformed")
    if sink.dead_letters:
        facts.append(f"{sink.dead_letters} dead letters")
    if sink.lag is not None:
        facts.append(f"{sink.lag} behind")
    if sink.batch >= 0:
        facts.append(f"batch {sink.batch} took {sink.batch_ms} ms")
    if sink.state_rows:
        facts.append(f"state {sink.state_rows} rows, {spell_bytes(sink.state_bytes)}")
    if sink.late_rows:
        facts.append(f"at least {sink.late_rows} rows came too late")
    if sink.watermark is not None:
        facts.append(f"watermark {sink.watermark}")
    lines = [f"  {sink.sink} ({sink.kind}, {sink.phase}): {', '.join(facts)}"]
    if state.bounded and sink.rows_to_do is not None:
        lines.append(f"    {bar(sink.rows_read, sink.rows_to_do)}")
    if sink.error is not None:
        lines.append(f"    error: {sink.error}")
    return lines


def bar(done: int, of: int) -> str:
    """`[██████░░░░]  60 %  600 of 1000 rows`."""
    share = 1.0 if of <= 0 else min(1.0, done / of)
    full = int(share * BAR)
    return f"[{'█' * full}{'░' * (BAR - full)}] {int(share * 100):3d} %  {done} of {of} rows"


def spell_count(count: int) -> str:
    """`4 060`."""
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
