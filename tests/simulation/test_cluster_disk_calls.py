"""What only a node of a cluster does with its disk fails once, in every place and with every error: nothing is lost.

As `test_every_fault.py`, for the uses of the disk that are listed there as a cluster's (`IN_A_CLUSTER`): the node's own
file, high watermarks that are written down, replicas that come and go, shards that followed and lead. Some seeds are
run once to see which calls are made; each of them is then failed in a run of its own, which has to heal and to keep
every promise.
"""

from __future__ import annotations

import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.simulation.cluster_machine import ClusterMachine
from tests.simulation.cluster_world import Node
from tests.simulation.disk_calls import ERRORS, DiskCall, Site, callers, sites_in_source
from tests.simulation.offload import SimOffload
from tests.simulation.test_every_fault import IN_A_CLUSTER, is_one_of

SEEDS = 4
SECONDS = 12.0
FAULTS = ["crash", "crash", "move_replicas", "replace_disk"]
WORK = ["publish_idempotent", "queues"]


class Watched(ClusterMachine):
    """Sees every disk operation of all nodes that only a cluster makes, and fails one of them."""

    def __init__(self, seed: int, call: DiskCall | None = None, nth: int = 1, error: int = 0) -> None:
        super().__init__(seed, faults=FAULTS, work=WORK, nodes=4)
        self._call, self._nth, self._error = call, nth, error
        self.seen: Counter[DiskCall] = Counter()
        self.struck = False

    def switch_on(self, node: Node) -> None:
        node.disk.on_operation = lambda kind: self._operation(kind, node)
        super().switch_on(node)

    def _operation(self, kind: str, node: Node) -> int:
        ways = callers(sys._getframe(2))
        if isinstance(node.offload, SimOffload):
            ways += node.offload.origin
        if not any(_is_a_clusters(caller) for caller in ways):
            return 0
        call = DiskCall(kind, ways[:5])
        self.seen[call] += 1
        if self.struck or call != self._call or self.seen[call] != self._nth:
            return 0
        self.struck = True
        return self._error


SITES = [site for site in sites_in_source() if is_one_of(site, IN_A_CLUSTER)]


def _is_a_clusters(caller: str) -> bool:
    file, _, rest = caller.partition(":")
    line = int(rest.split()[0])
    return any(site.file == file and site.first_line <= line <= site.last_line for site in SITES)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def find_calls() -> dict[DiskCall, list[tuple[int, int]]]:
    """Each call with the seeds in which it is made, and how often."""
    where: dict[DiskCall, list[tuple[int, int]]] = {}
    for seed in range(SEEDS):
        machine = Watched(seed)
        machine.run(SECONDS)
        for call, count in sorted(machine.seen.items()):
            where.setdefault(call, []).append((seed, count))
    return where


def test_each_disk_call_of_a_cluster_fails_and_nothing_is_lost() -> None:
    _fail_each(find_calls(), thorough=False)


@pytest.mark.soak
def test_each_disk_call_of_a_cluster_fails_with_each_error_and_nothing_is_lost() -> None:
    _fail_each(find_calls(), thorough=True)


def _fail_each(where: dict[DiskCall, list[tuple[int, int]]], *, thorough: bool) -> None:
    """Each line and kind of operation with one of the errors that it may answer; `thorough`: each way to it, and each
    error."""
    missed = [str(site) for site in SITES if not _reached(site, where)]
    assert not missed, "no run comes by here: let the machine do what leads to it, or say why not"
    rng = random.Random(1)
    told: set[tuple[object, ...]] = set()
    for call, places in where.items():
        errors = ERRORS[call.kind]
        for error in errors if thorough else [rng.choice(errors)]:
            which = (call, error) if thorough else (call.kind, call.site)
            if which in told:
                continue
            told.add(which)
            seed, count = rng.choice(places)
            machine = Watched(seed, call, rng.choice((1, count)), error)
            try:
                machine.run(SECONDS)
            except BaseException as failure:
                failure.add_note(f"seed {seed}, {call}, error {error}")
                raise
            assert machine.struck
    assert len(told) > len(SITES)


def _reached(site: Site, where: dict[DiskCall, list[tuple[int, int]]]) -> bool:
    lines = range(site.first_line, site.last_line + 1)
    return any(
        caller.startswith(tuple(f"{site.file}:{line} " for line in lines)) for call in where for caller in call.callers
    )
