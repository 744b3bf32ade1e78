"""`python -m tests.simulation.operations KIND SEEDS` prints a digest of what each seed asks of its disk.

Two runs print the same, or a seed that has failed cannot be looked into."""

from __future__ import annotations

import hashlib
import importlib
import logging
import sys
from collections.abc import Callable

from tests.simulation.cluster_machine import ClusterMachine
from tests.simulation.disk import SimDisk


def cluster(seed: int) -> None:
    ClusterMachine(seed).run()


def main(kind: str, seeds: int) -> None:
    logging.disable()
    moved = [object() for _ in range(hash("addresses") % 5_000)]  # so that objects lie elsewhere in another process
    if kind == "cluster":
        run_seed: Callable[[int], object] = cluster
    else:
        run_seed = importlib.import_module(f"tests.simulation.test_crash_{kind}").run_seed
    step = SimDisk._step
    asked = hashlib.sha256()

    def noted(self: SimDisk, kind: str, path: str, position: int = 0, length: int = 0) -> bool:
        asked.update(f"{kind} {path} {position} {length}\n".encode())
        return step(self, kind, path, position, length)

    SimDisk._step = noted  # type: ignore[method-assign]
    for seed in range(seeds):
        run_seed(seed)
        print(seed, asked.hexdigest())
    del moved


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
