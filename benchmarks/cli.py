"""`python -m benchmarks`: chooses the parts and the peers, interleaves the rounds, prints the table.

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
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from benchmarks import figures, jobs, profiling
from benchmarks.amqp_peers import AmqpPeer, Rabbit, WaystationAmqp
from benchmarks.amqp_scenarios import Amqp
from benchmarks.hostile import Hostile
from benchmarks.kafka import Kafka, KafkaTls
from benchmarks.large_scenarios import Large
from benchmarks.peers import MockCluster, Peer, QueuePeer, Unavailable, Waystation
from benchmarks.plan import FULL, QUICK, Plan
from benchmarks.queue_peers import Nats, Redis
from benchmarks.queue_scenarios import Queues
from benchmarks.scenarios import Topics
from benchmarks.secured_peers import SecuredWaystation
from benchmarks.security_scenarios import Security
from benchmarks.tenants import Tenants

P = TypeVar("P", bound=Peer)
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "waystation-bench"
OURS: dict[str, Callable[[], Waystation]] = {
    "waystation": Waystation,
    "waystation-os": lambda: Waystation("waystation-os", flush="os", keeps="in the page cache, as the others'"),
}
TOPIC_PEERS: dict[str, Callable[[], Peer]] = {**OURS, "kafka": lambda: Kafka(CACHE), "mock": MockCluster}
QUEUE_PEERS: dict[str, Callable[[], QueuePeer]] = {**OURS, "nats": Nats, "redis": Redis}
AMQP_PEERS: dict[str, Callable[[], AmqpPeer]] = {  # all of them fsync: ours needs no second column
    "waystation": WaystationAmqp,
    "rabbitmq-quorum": lambda: Rabbit("quorum", "amqp-quorum"),
    "rabbitmq-classic": lambda: Rabbit("classic", "amqp-classic"),
}
SECURITY_PEERS: dict[str, Callable[[], Peer]] = {
    "waystation": Waystation,
    "waystation-tls": lambda: SecuredWaystation("waystation-tls", tls=True),
    "waystation-acls": lambda: SecuredWaystation("waystation-acls", login=True),
    "waystation-tls-acls": lambda: SecuredWaystation("waystation-tls-acls", tls=True, login=True),
    "waystation-encrypted": lambda: SecuredWaystation("waystation-encrypted", encrypted=True),
    "kafka": lambda: Kafka(CACHE),
    "kafka-tls": lambda: KafkaTls(CACHE),
}
NAMES = tuple({**TOPIC_PEERS, **QUEUE_PEERS, **AMQP_PEERS, **SECURITY_PEERS})
PARTS = ("topics", "restart", "queues", "large", "amqp", "hostile", "security", "tenants")


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Waystation beside its peers, one table.")
    parser.add_argument("--only", default=",".join(NAMES), help="comma-separated peers (default: %(default)s)")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated: topics, the restart of a large log, "
                        "queues, large queues, AMQP, attacks, security, tenants (default: %(default)s)")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="a smoke run: one round, small counts")
    parser.add_argument("--rounds", type=int, help="rounds to take medians of (default 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply message counts and durations by this")
    parser.add_argument("--queues", type=int, help="how many queues the large part declares (default 1,000,000)")
    parser.add_argument("--large", type=int, help="how many ready, and parked, messages it takes (default 10,000,000)")
    parser.add_argument("--connections", type=int, help="how many idle ones the AMQP part opens (default 10,000)")
    parser.add_argument(
        "--attacks", default="", help="only the attacks and floods whose names contain this (default: all)"
    )
    parser.add_argument("--beside", type=Path, metavar="DIR", action="append", default=[], help="a checkout of another "
                        "version of Waystation, a peer with the name of its folder; may be given again")  # fmt: skip
    parser.add_argument("--out", type=Path, help="write everything measured to this file, as JSON")
    parser.add_argument("--work", type=Path, help="where brokers keep their data (default: the cache folder)")
    parser.add_argument("--profile", choices=("cprofile", "perf"), nargs="?", const="cprofile",
                        help="where our broker spends its time, instead of the table")  # fmt: skip
    options = parser.parse_args(arguments)
    if unknown := set(options.only.split(",")) - set(NAMES):
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    if unknown := set(options.parts.split(",")) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    return options


def plan_of(options: argparse.Namespace) -> Plan:
    plan = (QUICK if options.quick else FULL).scaled(options.scale)
    whole = 10 * plan.batch
    large = None if options.large is None else max(whole, options.large // whole * whole)
    return msgspec.structs.replace(
        plan,
        rounds=options.rounds or plan.rounds,
        queues=options.queues or plan.queues,
        ready=large or plan.ready,
        parked=large or plan.parked,
        connections=options.connections or plan.connections,
    )


def profiled_part(parts: str) -> figures.Part:
    """The one that was asked for; topics where several were."""
    return figures.AMQP if parts == "amqp" else figures.QUEUES if parts == "queues" else figures.TOPICS


def is_full(plan: Plan) -> bool:
    """Nothing may be smaller than what the aims speak of."""
    mine, full = msgspec.structs.astuple(plan), msgspec.structs.astuple(FULL)
    return all(isinstance(least, tuple) or value >= least for value, least in zip(mine, full, strict=True))


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


def choose(names: Sequence[str], makers: Mapping[str, Callable[[], P]], report: figures.Report) -> list[P]:
    chosen = []
    for name, make in makers.items():
        if name not in names:
            continue
        peer = make()
        try:
            report.peers[name] = figures.PeerInfo(peer.version(), peer.keeps)
            chosen.append(peer)
        except Unavailable as reason:
            report.skipped[name] = str(reason)
    return chosen


class Run:
    """One run: the chosen parts, with the chosen peers, into one report."""

    def __init__(
        self,
        plan: Plan,
        work: Path,
        names: Sequence[str],
        report: figures.Report,
        attacks: str = "",
        beside: Sequence[Path] = (),
    ) -> None:
        self._plan, self._work, self._names, self._report = plan, work, names, report
        self._attacks = attacks
        self._beside = beside

    def topics(self) -> None:
        bench, peers = Topics(self._plan, self._work, self._report), self._choose(TOPIC_PEERS, Waystation)
        self._rounds("topics", peers, bench.round)

    def restart(self) -> None:
        bench, peers = Topics(self._plan, self._work, self._report), choose(self._names, TOPIC_PEERS, self._report)
        for peer in peers:
            if peer.durable and peer.name != "waystation-os":
                self._attempt("restart", peer, bench.restart)

    def queues(self) -> None:
        bench, peers = Queues(self._plan, self._work, self._report), self._choose(QUEUE_PEERS, Waystation)
        self._rounds("queues", peers, bench.round)

    def large(self) -> None:
        bench, peers = Large(self._plan, self._work, self._report), choose(self._names, QUEUE_PEERS, self._report)
        for peer in peers:
            if peer.name != "waystation-os":
                self._attempt("many queues", peer, bench.many_queues)
                self._attempt("many ready messages", peer, bench.many_messages)
                self._attempt("ready messages put singly", peer, bench.single_messages)
                self._attempt("many parked messages", peer, bench.many_parked)

    def amqp(self) -> None:
        bench, peers = Amqp(self._plan, self._work, self._report), self._choose(AMQP_PEERS, WaystationAmqp)
        self._rounds("AMQP", peers, bench.round)
        for peer in peers:
            self._attempt("idle connections", peer, bench.connections)

    def hostile(self) -> None:
        bench = Hostile(self._work, self._report, only=self._attacks)
        for peer in choose(self._names, OURS, self._report):
            if peer.name == "waystation":
                self._attempt("attacks", peer, bench.run)

    def security(self) -> None:
        bench = Security(self._plan, self._work, self._report)
        try:
            for peer in choose(self._names, SECURITY_PEERS, self._report):
                self._attempt("security, start", peer, bench.start)
            for what, step in bench.steps():
                self._rounds(f"security, {what}", bench.running, step)
        finally:
            for peer in bench.running:
                self._attempt("security, stop", peer, bench.stop)

    def tenants(self) -> None:
        bench = Tenants(self._plan, self._work, self._report, only=self._attacks)
        for peer in choose(self._names, OURS, self._report):
            if peer.name == "waystation":
                self._attempt("tenants", peer, bench.run)

    def _choose(self, makers: Mapping[str, Callable[[], P]], ours: Callable[..., P]) -> list[P]:
        """The peers of the run, other versions of ours among them."""
        others = {folder.name: partial(ours, folder.name, checkout=folder.resolve()) for folder in self._beside}
        return choose((*self._names, *others), {**makers, **others}, self._report)

    def _rounds(self, part: str, peers: Sequence[P], step: Callable[[P], None]) -> None:
        for number in range(self._report.rounds):
            for peer in peers if number % 2 == 0 else reversed(peers):
                self._attempt(f"{part}, round {number + 1} of {self._report.rounds}", peer, step)

    def _attempt(self, what: str, peer: P, step: Callable[[P], None]) -> None:
        say(f"{what}: {peer.name}")
        try:
            step(peer)
        except (Unavailable, jobs.ClientFailed, TimeoutError, RuntimeError, subprocess.SubprocessError) as problem:
            self._report.skipped[f"{peer.name}, {what}"] = f"it failed: {problem}"  # the others' samples are still good
            say(self._report.skipped[f"{peer.name}, {what}"])


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
            print(profiling.profile(options.profile, plan, work, profiled_part(options.parts)))
            return 0
        report = figures.Report(machine(work), plan.rounds, full=is_full(plan))
        run = Run(plan, work, options.only.split(","), report, options.attacks, options.beside)
        parts = options.parts.split(",")
        for name, part in (
            ("topics", run.topics),
            ("restart", run.restart),
            ("queues", run.queues),
            ("large", run.large),
            ("amqp", run.amqp),
            ("hostile", run.hostile),
            ("security", run.security),
            ("tenants", run.tenants),
        ):
            if name in parts:
                part()
    finally:
        shutil.rmtree(work, ignore_errors=True)
    print(figures.table(report))
    if options.out:
        whole = {"plan": plan, "report": report, "medians": report.medians()}
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    return 0 if report.samples and not any("failed" in reason for reason in report.skipped.values()) else 1
