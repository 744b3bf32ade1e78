"""A cluster of whole brokers under every fault there is: nothing acknowledged is lost, and it heals.

Each seed is a run of `cluster_machine.py`. To repeat a failure: `ClusterMachine(SEED).run()`. Mistakes that are made on
purpose (`cluster_mistakes.py`) are caught within a few seeds. `make soak-cluster` runs as many seeds as one likes.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest

from tests.simulation.cluster_machine import ClusterMachine
from tests.simulation.cluster_mistakes import FEW, MISTAKES, Mistake
from tests.simulation.promises import Broken

SEEDS = 12


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What brokers say of the faults that were made is long."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_nothing_acknowledged_is_lost_and_the_cluster_heals(seed: int) -> None:
    machine = ClusterMachine(seed).run()
    assert machine.clients.done
    assert machine.disasters.made


@pytest.mark.parametrize("seed", [702155, 703467, 704203])
def test_a_seed_that_once_failed_does_not_any_more(seed: int) -> None:
    """702155: an idempotent producer went back to a leader that was deposed, which did not know its last numbers.
    703467: a node did not start, because it missed the files of a replica that it had removed itself.
    704203: what a leader had told a share coordinator arrived late, and was taken for a log that had lost its tail."""
    ClusterMachine(seed, besides=False).run()


def test_a_seed_repeats_itself() -> None:
    first, second = ClusterMachine(1).run(), ClusterMachine(1).run()
    assert first.time.seconds == second.time.seconds
    assert first.clients.done == second.clients.done
    assert first.clients.promises.shown == second.clients.promises.shown


def test_a_new_leader_of_queues_knows_what_the_log_says() -> None:
    machine = ClusterMachine(1, work=["publish", "queues", "move"], faults=["crash_leader", "cut_off"], nodes=3).run()
    assert machine.compared > 3


@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if mistake.seeds <= FEW])
def test_a_mistake_is_caught(name: str) -> None:
    assert caught_by(MISTAKES[name]) is not None, f"{name} was not noticed within {MISTAKES[name].seeds} seeds"


@pytest.mark.soak
@pytest.mark.parametrize("name", [name for name, mistake in MISTAKES.items() if mistake.seeds > FEW])
def test_a_mistake_that_seldom_matters_is_caught(name: str) -> None:
    assert caught_by(MISTAKES[name]) is not None, f"{name} was not noticed within {MISTAKES[name].seeds} seeds"


def caught_by(mistake: Mistake) -> int | None:
    """The first seed that notices, of as many as the mistake is given."""
    for seed in range(mistake.seeds):
        with mistake.made():
            try:
                machine = ClusterMachine(seed, faults=mistake.faults, work=mistake.work, nodes=mistake.nodes)
                machine.run(mistake.seconds)
            except Broken:
                return seed
    return None


def main(names: list[str]) -> int:
    """Which seed catches each mistake."""
    logging.disable(logging.CRITICAL)
    for name in names or MISTAKES:
        print(f"{name}: {caught_by(MISTAKES[name])} of {MISTAKES[name].seeds}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
