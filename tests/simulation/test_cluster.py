"""A cluster of whole brokers under power cuts, cut links and a store that misbehaves: nothing acknowledged is lost.

Each seed is a run of `cluster_machine.py`. To repeat a failure: `ClusterMachine(SEED).run()`. Mistakes that are made on
purpose (`cluster_mistakes.py`) are caught within a few seeds; which one is written beside each.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.cluster_machine import ClusterMachine
from tests.simulation.cluster_mistakes import MISTAKES
from tests.simulation.promises import Broken

SEEDS = 4
CAUGHT_BY = {
    "acknowledge_from_the_leader_alone": (1, 2, 3),
    "fetch_before_fsync": (1, 2, 3),
    "truncate_to_the_high_watermark": (4, 5, 6, 7),
    "a_restarted_leader_goes_on_in_its_epoch": (1, 2, 3),
    "take_over_from_outside_the_in_sync_set": (1, 2, 3),
    "show_what_is_above_the_high_watermark": (1, 2, 3),
}
"""Seeds of which one at least catches each."""


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What brokers say of the faults that were made is long."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_and_the_cluster_heals(seed: int) -> None:
    machine = ClusterMachine(seed).run()
    assert all(machine.checker.acked)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_caught(name: str) -> None:
    caught = False
    for seed in CAUGHT_BY[name]:
        with MISTAKES[name]():
            try:
                ClusterMachine(seed).run()
            except Broken:
                caught = True
                break
    assert caught, f"{name} was not noticed"
