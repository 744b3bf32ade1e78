"""A cluster of whole brokers under power cuts, cut links and a store that misbehaves: nothing acknowledged is lost.

Each seed is a run of `cluster_machine.py`. To repeat a failure: `ClusterMachine(SEED).run()`. Mistakes that are made on
purpose (`cluster_mistakes.py`) are caught within a few seeds.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.simulation.cluster_machine import ClusterMachine
from tests.simulation.cluster_mistakes import MISTAKES
from tests.simulation.promises import Broken

SEEDS = 4
MOST = {"truncate_to_the_high_watermark": 60}
MOST_OF_OTHERS = 10
"""Seeds within which each mistake is caught. For the first, two leaders have to die within milliseconds; the others
are caught by the first to fourth seed."""


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
    for seed in range(MOST.get(name, MOST_OF_OTHERS)):
        with MISTAKES[name]():
            try:
                ClusterMachine(seed).run()
            except Broken:
                caught = True
                break
    assert caught, f"{name} was not noticed"
