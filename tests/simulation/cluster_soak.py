"""Many seeds of the cluster's simulation: `make soak-cluster`, `python -m tests.simulation.cluster_soak --seeds 500`.

Says how many seeds a minute of CPU has room for, and of each seed that fails how it fails. To look at one:
`python -m tests.simulation.cluster_machine SEED`.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.simulation.cluster_machine import ClusterMachine

TELL_S = 60.0


class Result(tuple[int, float, str, dict[str, int], dict[str, int]]):
    """Seed, CPU seconds, how it failed (empty: not), what clients did, which faults there were."""


def run(seed: int) -> Result:
    logging.disable(logging.CRITICAL)
    begun = time.process_time()
    machine = ClusterMachine(seed)
    failure = ""
    try:
        machine.run()
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    return Result((seed, time.process_time() - begun, failure, machine.clients.done, machine.disasters.made))


def results(seeds: range, jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(run, seeds)
        return
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(run, seeds, chunksize=10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=0.0, help="end after so long; 0: when all seeds are done")
    options = parser.parse_args()
    begun = told = time.monotonic()
    count, cpu_s = 0, 0.0
    failed: list[int] = []
    done: Counter[str] = Counter()
    made: Counter[str] = Counter()
    for seed, seconds, failure, work, faults in results(
        range(options.first, options.first + options.seeds), options.jobs
    ):
        count, cpu_s = count + 1, cpu_s + seconds
        done.update(work)
        made.update(faults)
        if failure:
            failed.append(seed)
            print(f"seed {seed} failed: {failure[:500]}", flush=True)
        now = time.monotonic()
        if now - told > TELL_S:
            told = now
            print(f"{count} seeds, {len(failed)} failed, {count * 60 / cpu_s:.0f} a CPU minute", flush=True)
        if options.minutes and now - begun > options.minutes * 60:
            break
    print(
        f"{count} seeds from {options.first} on, {cpu_s:.0f} s of CPU, {count * 60 / max(cpu_s, 1e-9):.0f} a CPU minute"
    )
    print(f"work that succeeded: {dict(sorted(done.items()))}")
    print(f"faults: {dict(sorted(made.items()))}")
    print(f"failed: {failed or 'none'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
