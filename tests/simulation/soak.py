"""Many seeds of the simulations: `make soak-crash`, `make soak-cluster`, `python -m tests.simulation.soak --kinds log`.

The kinds take turns in short stretches of seeds, so that a run that is ended early has about as many of each. Says how
many seeds a minute of CPU has room for, and of each seed that fails how it fails. To look at one: `run_seed(SEED)` in
`test_crash_KIND.py`, `python -m tests.simulation.cluster_machine SEED`.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from itertools import islice
from typing import NamedTuple
from unittest.mock import patch

from tests.simulation.cluster_machine import ClusterMachine
from waystation.log import log as log_module
from waystation.queues.shard import checkpoint

TELL_S = 60.0
STRETCH = 10
CLUSTER = "cluster"
CRASHES = ("log", "broker", "queues", "queues-faults", "amqp", "follower", "bounded")
KINDS = (*CRASHES, CLUSTER)


class Result(NamedTuple):
    kind: str
    seed: int
    cpu_s: float
    failure: str
    """How it failed; empty: it did not."""
    counted: Mapping[str, Mapping[str, int]]
    """In a cluster: what clients did, and which faults there were."""


def run(kind: str, seed: int) -> Result:
    logging.disable(logging.CRITICAL)
    counted: dict[str, Mapping[str, int]] = {}
    begun = time.process_time()
    failure = ""
    try:
        if kind == CLUSTER:
            machine = ClusterMachine(seed)
            counted = {"work that succeeded": machine.clients.done, "faults": machine.disasters.made}
            machine.run()
        else:
            crash(kind, seed)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return Result(kind, seed, time.process_time() - begun, failure, counted)


def crash(kind: str, seed: int) -> None:
    """With checkpoints as frequent as the tests of that kind make them, so that `run_seed` there repeats it."""
    module, _, faults = kind.partition("-")
    run_seed = importlib.import_module(f"tests.simulation.test_crash_{module}").run_seed
    with ExitStack() as settings:
        if module in ("log", "broker", "queues", "follower"):
            settings.enter_context(patch.object(log_module, "CHECKPOINT_BYTES", 2_000))
        if module == "queues":
            settings.enter_context(patch.multiple(checkpoint, FIRST_BYTES=2_000, SLICE_QUEUES=2))
        run_seed(seed, **({"faults": True} if faults else {}))


def run_stretch(kind: str, seeds: range) -> list[Result]:
    return [run(kind, seed) for seed in seeds]


def stretches(kinds: list[str], seeds: range) -> Iterator[tuple[str, range]]:
    for first in range(seeds.start, seeds.stop, STRETCH):
        for kind in kinds:
            yield kind, range(first, min(first + STRETCH, seeds.stop))


def results(kinds: list[str], seeds: range, jobs: int) -> Iterator[Result]:
    """At most two stretches a job wait, so that ending early ends soon."""
    todo = stretches(kinds, seeds)
    with ProcessPoolExecutor(jobs) as pool:
        running = [pool.submit(run_stretch, *stretch) for stretch in islice(todo, jobs * 2)]
        try:
            while running:
                yield from running.pop(0).result()
                running.extend(pool.submit(run_stretch, *stretch) for stretch in islice(todo, 1))
        finally:
            for future in running:
                future.cancel()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(CRASHES), help=f"comma-separated, of {', '.join(KINDS)}")
    parser.add_argument("--seeds", type=int, default=1_000, help="of each kind")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0.0, help="end after so long; 0: when all seeds are done")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"no such kind: {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    begun = told = time.monotonic()
    count: Counter[str] = Counter()
    cpu_s: defaultdict[str, float] = defaultdict(float)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    failed: list[str] = []
    for result in results(kinds, range(options.first, options.first + options.seeds), options.jobs):
        count[result.kind] += 1
        cpu_s[result.kind] += result.cpu_s
        for what, numbers in result.counted.items():
            counts[what].update(numbers)
        if result.failure:
            failed.append(f"{result.kind} {result.seed}")
            print(f"{failed[-1]} failed: {result.failure[:500]}", flush=True)
        now = time.monotonic()
        if now - told > TELL_S:
            told = now
            print(f"{dict(count)}, {len(failed)} failed", flush=True)
        if options.minutes and now - begun > options.minutes * 60:
            break
    for kind in kinds:
        rate = count[kind] * 60 / max(cpu_s[kind], 1e-9)
        print(f"{kind}: {count[kind]} seeds from {options.first} on, {cpu_s[kind]:.0f} s of CPU, {rate:.0f} a minute")
    for what, numbers in counts.items():
        print(f"{what}: {dict(sorted(numbers.items()))}")
    print(f"failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
