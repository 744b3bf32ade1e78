"""No order of events breaks a promise of the cluster's decisions; and each rule is needed: without it, one does.

The decisions are the product's (`waystation.cluster`). Searches are complete within their bounds; walks are random,
with larger bounds. To repeat one that failed: `python -m tests.simulation.cluster_checker --walks 1 --seed SEED`, with
the bounds. What a failed search prints is the shortest run that shows it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.simulation.checker_mistakes import MISTAKES, WALKS, IgnoreKey
from tests.simulation.checker_rules import Bounds, Rules
from tests.simulation.checker_world import World
from tests.simulation.cluster_checker import Found, play, search, walk
from tests.support.server import ROOT

LENGTH = 300
"""Steps of a walk."""

SMALL = {
    "three nodes, one fault": Bounds(faults=1),
    "two nodes with a slow network": Bounds(nodes=2, faults=2, split=True, late=True),
    "elections at any time, and a replica that joins": Bounds(epochs=2, faults=0, outside=1, keys=False),
}
LARGE = {
    "three nodes, two faults": Bounds(faults=2),
    "three nodes, two records": Bounds(values=2, faults=1),
    "two nodes, three faults": Bounds(nodes=2, epochs=2, faults=3, changes=2, transfers=1),
    "two nodes, one is enough": Bounds(nodes=2, min_in_sync=1, epochs=2, faults=3, changes=2),
    "elections at any time": Bounds(epochs=3, faults=0, changes=1, keys=False),
    "a copy that moves away and back": Bounds(
        nodes=2, min_in_sync=1, epochs=3, faults=0, moves=2, keys=False, split=True
    ),
    "a third node gets a copy": Bounds(epochs=2, faults=0, moves=1, strangers=1, keys=False),
}
MOVING = replace(WALKS, epochs=12, moves=4)
"""Replicas move between nodes in the middle of everything else."""


@pytest.mark.parametrize("bounds", SMALL.values(), ids=SMALL)
def test_no_order_of_events_breaks_a_promise(bounds: Bounds) -> None:
    _nothing(search(World(Rules(bounds))))


@pytest.mark.soak
@pytest.mark.parametrize("bounds", LARGE.values(), ids=LARGE)
def test_no_order_of_more_events_breaks_a_promise(bounds: Bounds) -> None:
    _nothing(search(World(Rules(bounds))))


@pytest.mark.parametrize("bounds", [WALKS, MOVING], ids=["failing", "moving"])
def test_random_runs_keep_every_promise(bounds: Bounds) -> None:
    _walk(bounds, range(150))


@pytest.mark.soak
@pytest.mark.parametrize("group", range(4))
@pytest.mark.parametrize("bounds", [WALKS, MOVING], ids=["failing", "moving"])
def test_many_random_runs_keep_every_promise(bounds: Bounds, group: int) -> None:
    _walk(replace(bounds, min_in_sync=1 + group % 2, outside=group // 2), range(1_000 + group, 20_000, 4))


def test_runs_meet_what_they_are_for() -> None:
    """Or the tests above would show little: records are acknowledged, leaders change, disks are lost, nodes join."""
    kinds = {label.split(" ")[0] for seed in range(40) for label in _labels(World(Rules(MOVING)), seed)}
    assert kinds >= {
        "append", "takeover", "hand-over", "resign", "grow", "shrink", "made:", "restart-empty", "restart-old",
        "settle", "join", "serve-late", "move", "cancel", "advance", "lease", "expire",
    }  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_a_deliberate_mistake_breaks_a_promise(name: str) -> None:
    mistake = MISTAKES[name]
    world = World(mistake.rules(mistake.bounds))
    if not mistake.script:
        assert search(world, most=60_000).violation
        return
    labels = tuple(mistake.script.split(", "))
    violation, _ = play(world, labels)
    assert violation
    violation, _ = play(World(Rules(mistake.bounds)), labels, strict=False)
    assert not violation  # it is the mistake that breaks it


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if mistake.script])
def test_a_deliberate_mistake_is_found_without_a_script(name: str) -> None:
    mistake = MISTAKES[name]
    if mistake.walks is None:
        assert search(World(mistake.rules(mistake.bounds))).violation
    else:
        world = World(mistake.rules(mistake.walks))
        assert any(walk(world, seed, 80).violation for seed in range(10_000))


def test_a_takeover_from_a_living_leader_would_be_rash_but_lose_nothing() -> None:
    """Safety does not hang on leases: what (h) forbids breaks no other promise."""

    class Rash(IgnoreKey):
        judged = "abcdefg"

    _nothing(search(World(Rash(Bounds(nodes=2, values=1, epochs=2, faults=1, changes=1)))))


def test_a_run_can_be_repeated() -> None:
    """Also in another process, where strings have other hashes: the same seeds give the same runs."""
    program = (
        "from tests.simulation.cluster_checker import *; from tests.simulation.checker_mistakes import *\n"
        "mistake = MISTAKES['leave-by-old-view']\n"
        "print(search(World(mistake.rules(mistake.bounds))))\n"
        "print([walk(World(Rules(WALKS)), seed, 200) for seed in range(5)])"
    )
    answers = set()
    for seed in ("1", "2"):
        answers.add(
            subprocess.run(
                [sys.executable, "-c", program],
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
                text=True,
            ).stdout
        )
    assert len(answers) == 1


def _nothing(found: Found) -> None:
    assert not found.violation, f"{found.violation}\n{', '.join(found.trace)}"
    assert found.complete


def _walk(bounds: Bounds, seeds: range) -> None:
    world = World(Rules(bounds))
    for seed in seeds:
        found = walk(world, seed, LENGTH)
        assert not found.violation, f"seed {seed}, {bounds}: {found.violation}\n{', '.join(found.trace)}"


def _labels(world: World, seed: int) -> tuple[str, ...]:
    return walk(world, seed, LENGTH).trace
