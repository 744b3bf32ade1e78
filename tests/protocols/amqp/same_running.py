"""Runs a sequence on some sides, step by step, each until nothing comes any more, and finds where they differ."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tests.protocols.amqp.same_side import Counts, Side, Step
from tests.protocols.amqp.same_steps import SOON_MS
from tests.support.waiting import DEADLINE_S

SLEEP_S = 0.45
QUIET_S = 0.025
ANSWER_S = 5.0
AGAIN = 6
"""So many times longer is waited where something differs: one may only have been slow."""


class Difference(NamedTuple):
    """The first one of a sequence."""

    at: int
    step: Step
    seen: list[Any]


def play(sides: Sequence[Side], step: Step, quiet_s: float = QUIET_S) -> list[Any]:
    """What each side's clients saw of the step, and the counts of its queues afterwards."""
    for side in sides:
        side.begin(step)
    sleeps = step.op == "sleep" or (step.arguments.get("properties") or {}).get("expiration") == SOON_MS
    until = time.monotonic() + (SLEEP_S if sleeps else 0.0)
    while time.monotonic() < until:
        _pull(sides)
    late = time.monotonic() + ANSWER_S
    while not all(side.answered(step) for side in sides) and time.monotonic() < late:
        _pull(sides)
    _settle(sides, quiet_s)
    counts = [side.counts() for side in sides]
    _settle(sides, 0.002)
    seen = [[side.seen(), _listed(found)] for side, found in zip(sides, counts, strict=True)]
    for side in sides:
        side.forget()
    return seen


def play_as_recorded(side: Side, step: Step, recorded: Any, *, quorum: bool) -> Any:
    """As `play` on one side, but no longer than until it has seen what another one saw."""
    side.begin(step)
    wanted = comparable(recorded, quorum=quorum)
    deadline = time.monotonic() + DEADLINE_S
    while True:
        _pull([side])
        seen = [side.seen(), recorded[1]]
        there = side.answered(step) and comparable(seen, quorum=quorum) == wanted
        if there or time.monotonic() > deadline:
            seen[1] = _listed(side.counts())
            if comparable(seen, quorum=quorum) == wanted or time.monotonic() > deadline:
                side.forget()
                return seen


def _listed(counts: Mapping[str, Counts | None]) -> dict[str, list[int] | None]:
    return {queue: None if one is None else list(one) for queue, one in counts.items()}


def _pull(sides: Sequence[Side]) -> bool:
    got = [side.pull() for side in sides].count(True) > 0  # all of them, not until one says yes
    if not got:
        time.sleep(0.001)
    return got


def _settle(sides: Sequence[Side], quiet_s: float) -> None:
    """Until nothing has come for a while."""
    last = time.monotonic()
    while time.monotonic() - last < quiet_s:
        if _pull(sides):
            last = time.monotonic()


def run(addresses: Sequence[str], steps: Sequence[Step], prefix: str, quiet_s: float = QUIET_S) -> Difference | None:
    """The first difference between brokers; None if they agree."""
    sides = [Side(address, f"{prefix}-") for address in addresses]
    quorum, bounded = has(steps, "x-queue-type"), has(steps, "x-max-length")
    try:
        for at, step in enumerate(steps):
            seen = play(sides, step, quiet_s)
            if step.op == "unbind" and "RESOURCE_LOCKED" in str(seen):
                return None
            ended = bounded and ".close'" in str(seen)  # what is given back is not dropped here
            compared = [[one[0], {}] for one in seen] if ended else seen
            if len({comparable(one, quorum=quorum) for one in compared}) > 1:
                return Difference(at, step, seen)
            if ended:
                return None
    finally:
        for side in sides:
            side.close()
    return None


def find_difference(addresses: Sequence[str], steps: Sequence[Step], prefix: str) -> Difference | None:
    """As `run`, but a difference that is not there with more patience is none."""
    if run(addresses, steps, prefix) is None:
        return None
    return run(addresses, steps, f"{prefix}b", QUIET_S * AGAIN)


def shrunk(addresses: Sequence[str], steps: list[Step], prefix: str) -> tuple[list[Step], Difference]:
    """Fewer steps that still differ: first without many of them at once, then without each."""
    found = run(addresses, steps, f"{prefix}s", QUIET_S * AGAIN)
    if found is None:
        raise AssertionError("the difference has gone; it is one of time")
    steps = steps[: found.at + 1]
    size, tries = len(steps) // 2, 0
    while size:
        at = 0
        while at < len(steps) - 1:
            fewer = steps[:at] + steps[min(at + size, len(steps) - 1) :]
            tries += 1
            again = run(addresses, fewer, f"{prefix}s{tries}", QUIET_S * 3)
            if again is None:
                at += size
            else:
                steps, found = fewer[: again.at + 1], again
        size //= 2
    return steps, found


def has(steps: Sequence[Step], argument: str) -> bool:
    return any(argument in (step.arguments.get("arguments") or {}) for step in steps)


def comparable(seen: Any, *, quorum: bool = False) -> str:
    """As text, without what is known to differ: see `docs/reference/amqp.md`."""
    events, counts = seen
    text = re.sub(r"inequivalent arg '[^']*' for (queue|exchange) '[^']*'.*?\"", 'inequivalent"', str(events))
    if quorum:
        text = re.sub(r"\['consumer_count', \d+\]", "", text)
        counts = {queue: one and one[0] for queue, one in counts.items()}
    return f"{text} {sorted(counts.items())}"
