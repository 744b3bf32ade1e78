"""`python -m benchmarks`: chooses the peers, interleaves the rounds, prints the table.

The peers take turns within every round, and the order is reversed in every other one, so that a noisy spell of the
machine does not fall on one of them. This is the one place where peers are constructed.
"""

import argparse
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from benchmarks import figures, jobs, profiling
from benchmarks.kafka import Kafka
from benchmarks.peers import MockCluster, Peer, Unavailable, Waystation
from benchmarks.scenarios import FULL, QUICK, Bench, Plan

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "waystation-bench"
PEERS: dict[str, Callable[[], Peer]] = {
    "waystation": Waystation,
    "waystation-os": lambda: Waystation("waystation-os", flush="os", keeps="in the page cache, as Kafka's"),
    "kafka": lambda: Kafka(CACHE),
    "mock": MockCluster,
}


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Waystation beside its peers, one table.")
    parser.add_argument("--only", default=",".join(PEERS), help="comma-separated peers (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a smoke run: one round, small counts")
    parser.add_argument("--rounds", type=int, help="rounds to take medians of (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply message counts and durations by this")
    parser.add_argument("--skip-restart", action="store_true", help="leave out the restart of the large log")
    parser.add_argument("--restart-only", action="store_true", help="nothing but the restart of the large log")
    parser.add_argument("--out", type=Path, help="write everything measured to this file, as JSON")
    parser.add_argument("--work", type=Path, help="where brokers keep their data (default: the cache folder)")
    parser.add_argument("--profile", choices=("cprofile", "perf"), nargs="?", const="cprofile",
                        help="where our broker spends its time, instead of the table")  # fmt: skip
    options = parser.parse_args(arguments)
    if unknown := set(options.only.split(",")) - PEERS.keys():
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(PEERS)}")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    plan, scale = (QUICK if options.quick else FULL), options.scale

    def times(count: int) -> int:
        return max(plan.restart_partitions, int(count * scale))

    return msgspec.structs.replace(
        plan,
        rounds=options.rounds or plan.rounds,
        messages=times(plan.messages),
        fill=times(plan.fill),
        warm_s=plan.warm_s * scale,
        measure_s=plan.measure_s * scale,
        restart_messages=times(plan.restart_messages),
    )


def is_full(plan: Plan) -> bool:
    return plan.rounds >= FULL.rounds and plan.messages >= FULL.messages and plan.measure_s >= FULL.measure_s


def machine(work: Path) -> figures.Machine:
    model = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), ":unknown")
    client = subprocess.run(
        [sys.executable, "-c", "import confluent_kafka as c; print(c.version(), '/', c.libversion()[0])"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return figures.Machine(
        at=time.strftime("%Y-%m-%d"),
        cpu=model.partition(":")[2].strip(),
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
        client=f"confluent-kafka {client.stdout.strip()}",
        fsync_p50_ms=fsync_p50_ms(work),
    )


def fsync_p50_ms(work: Path) -> float:
    """What one flush of 4 KiB costs here: the floor under acks=all of a broker that fsyncs."""
    taken = []
    with tempfile.TemporaryFile(dir=work, buffering=0) as file:
        for _ in range(100):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return statistics.median(taken) * 1e3


def choose(names: Sequence[str], report: figures.Report) -> list[Peer]:
    chosen = []
    for name in names:
        peer = PEERS[name]()
        try:
            report.peers[name] = figures.PeerInfo(peer.version(), peer.keeps)
            chosen.append(peer)
        except Unavailable as reason:
            report.skipped[name] = str(reason)
    return chosen


def measure(bench: Bench, peers: list[Peer], options: argparse.Namespace, report: figures.Report) -> None:
    def attempt(what: str, peer: Peer, step: Callable[[Peer], None]) -> None:
        say(f"{what}: {peer.name}")
        try:
            step(peer)
        except (Unavailable, jobs.ClientFailed, TimeoutError, RuntimeError, subprocess.SubprocessError) as problem:
            report.skipped[f"{peer.name}, {what}"] = f"it failed: {problem}"  # the others' samples are still good
            say(report.skipped[f"{peer.name}, {what}"])

    for number in range(0 if options.restart_only else report.rounds):
        for peer in peers if number % 2 == 0 else reversed(peers):
            attempt(f"round {number + 1} of {report.rounds}", peer, bench.round)
    for peer in () if options.skip_restart else peers:
        if peer.durable and peer.name != "waystation-os":
            attempt("restart", peer, bench.restart)


def stop_on_sigterm() -> None:
    """Ended from outside, we still end the brokers we started: as an exception it runs every `finally`."""

    def leave(_number: int, _frame: object) -> NoReturn:
        raise SystemExit(143)

    signal.signal(signal.SIGTERM, leave)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    stop_on_sigterm()
    plan = plan_of(options)
    parent = options.work or CACHE
    parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="run-", dir=parent))
    try:
        if options.profile:
            print(profiling.profile(options.profile, plan, work))
            return 0
        report = figures.Report(machine(work), plan.rounds, full=is_full(plan))
        peers = choose(options.only.split(","), report)
        measure(Bench(plan, work, report), peers, options, report)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(figures.table(report))
    if options.out:
        whole = {"plan": plan, "report": report, "medians": report.medians()}
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    return 0 if peers and not any("failed" in reason for reason in report.skipped.values()) else 1
