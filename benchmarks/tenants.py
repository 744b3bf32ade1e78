"""Two tenants of one broker: one floods it by one protocol at a time, the other asks for little and waits for answers.

Each has a user, and a namespace in which its topics and queues are. The probe is that of the attacks
(`benchmarks.hostile`): right before the flood it is alone, then it is beside it. Once the flooding user has no quotas,
and once it has `QUOTAS`, which is when the other one's p99 shall move by at most half. Each time the broker is a fresh
one. A ratio is that of one round; what is reported is the median of the rounds. Called by `benchmarks.cli`.
"""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import waystation
from benchmarks import figures, jobs, procfs
from benchmarks.addresses import parse_address
from benchmarks.hostile import PROBED, Broker, Probe, Tenant, every_protocol, percentiles, probe_of
from benchmarks.peers import Waystation, run_waystation
from benchmarks.plan import FULL, Plan

ALONE_S, BESIDE_S = 2.0, 3.0
SMALLEST_SCALE = 0.2
"""The flood has a low priority: in a shorter time it gets no turn on a busy machine."""
CONNECTIONS = 4
FLOODED = "flood"
READY_MESSAGES = 1_000_000
"""In the queue that is taken from: more than are taken in the time."""
RECORDS, RECORD_BYTES = 20_000, 1024
BATCH = 500

ADMIN = Tenant("admin", "admin-password")
NOISY = Tenant("noisy", "noisy-password", "noisy")
CALM = Tenant("calm", "calm-password", "calm")
RESOURCES = ("topic", "queue", "exchange", "group")

QUOTAS = {"producer_byte_rate": 1_000_000, "consumer_byte_rate": 1_000_000, "request_percentage": 10}
"""Besides a rate of messages."""


class Known(NamedTuple):
    """A flood: by which protocol, which also is the probe's, and what it needs to be there.

    `rate` is the quota of messages a second: a tenth of a core or less. A post takes 0.4 ms, and no quota counts the
    time that requests take, but for Kafka's.
    """

    protocol: str
    kind: jobs.FloodKind
    reads: str = ""
    rate: int = 1_000


FLOODS = {
    "Kafka produce": Known("kafka", "kafka-produce"),
    "Kafka fetch": Known("kafka", "kafka-fetch", "topic"),
    "native puts": Known("native", "native-put"),
    "native takes": Known("native", "native-take", "queue"),
    "AMQP publishes": Known("amqp", "amqp-publish"),
    "AMQP consume": Known("amqp", "amqp-consume", "queue"),
    "HTTP posts": Known("http", "http-post", rate=200),
}


class Tenants:
    """The part of a run: each flood beside the other tenant's probe, without quotas and with them."""

    def __init__(self, plan: Plan, work: Path, report: figures.Report, only: str = "") -> None:
        """`only`: part of the names of the floods that are wanted; all of them without it."""
        self._work, self._report = work, report
        self._scale = min(1.0, max(SMALLEST_SCALE, plan.measure_s / FULL.measure_s))
        self._floods = {name: known for name, known in FLOODS.items() if only.lower() in name.lower()}

    def run(self, peer: Waystation) -> None:
        with tempfile.TemporaryDirectory(prefix="tenants-", dir=self._work) as folder:
            users = Path(folder) / "users"
            add_users(users)
            for number in range(self._report.rounds):
                for name, known in self._floods.items():
                    for limited in (False, True):
                        each = Path(folder) / f"{number}-{known.kind}-{limited}"
                        shutil.copytree(users, each / "data")
                        self._beside(peer, name, known, each, limited=limited)
                        shutil.rmtree(each)

    def _beside(self, peer: Waystation, name: str, known: Known, folder: Path, *, limited: bool) -> None:
        with every_protocol(folder, lambda addresses: fill(addresses, known, self._scale, limited=limited)) as broker:
            address = broker.addresses["kafka" if known.protocol == "native" else known.protocol]
            job = jobs.Flood(known.kind, address, *NOISY, FLOODED, CONNECTIONS)
            with jobs.started(job) as flood, _probe(known, broker) as probe:
                flood.wait_ready()
                probe.once()
                alone = self._alone(peer, probe, broker)
                flood.tell("begin")
                beside = percentiles(probe.run(BESIDE_S * self._scale))
                flood.tell("end")
                done = flood.result(jobs.Transfer)
        work = f"{name}, {'with' if limited else 'without'} quotas"
        for when, taken in (("alone", alone), ("beside", beside)):
            for unit, value in taken.items():
                self._add(peer, f"{work}: {when}", unit, value)
        self._add(peer, f"{work}: beside", figures.TIMES_ALONE, beside["p99 ms"] / alone["p99 ms"])
        self._add(peer, f"{work}: the flood", figures.VOLUME, done.count / done.seconds / 1e6)

    def _alone(self, peer: Waystation, probe: Probe, broker: Broker) -> dict[str, float]:
        """Also how busy the machine is with anything but the broker and this process: the noise."""
        began, busy = time.monotonic(), procfs.machine_busy_seconds()
        used = procfs.cpu_seconds(broker.pid) + time.process_time()
        found = percentiles(probe.run(ALONE_S * self._scale))
        others = procfs.machine_busy_seconds() - busy - procfs.cpu_seconds(broker.pid) - time.process_time() + used
        work, unit = figures.OTHER_LOAD
        self._add(peer, work, unit, max(0.0, others / (time.monotonic() - began)))
        return found

    def _add(self, peer: Waystation, work: str, unit: str, value: float) -> None:
        self._report.add(peer.name, work, unit, value, figures.TENANTS)


@contextmanager
def _probe(known: Known, broker: Broker) -> Iterator[Probe]:
    probe = probe_of(known.protocol, broker.addresses, CALM)
    try:
        yield probe
    finally:
        probe.close()


def add_users(data: Path) -> None:
    """To a folder that no broker uses yet: an administrator, and the two tenants, who may do everything in theirs."""
    where = ["--data", str(data)]
    for tenant, more in ((ADMIN, ["--superuser"]), (NOISY, []), (CALM, [])):
        home = ["--namespace", tenant.namespace] if tenant.namespace else []
        password = f"{tenant.password}\n"
        run_waystation("users", "add", tenant.user, "--password-stdin", *home, *more, *where, stdin=password)
    for tenant in (NOISY, CALM):
        inside = [part for resource in RESOURCES for part in (f"--{resource}", "*")]
        for what in (["--allow", "all", *inside], ["--allow", "read"]):
            run_waystation("acls", "add", "--user", tenant.user, *what, "--namespace", tenant.namespace, *where)


def fill(addresses: Mapping[str, str], known: Known, scale: float, *, limited: bool) -> None:
    """The namespaces, what is in them, and the quotas."""
    address = addresses["kafka"]
    with waystation.connect(f"waystation://{ADMIN.user}:{ADMIN.password}@{address}") as client:
        for tenant, name in ((NOISY, FLOODED), (CALM, PROBED)):
            client.act("set-namespace", namespace=tenant.namespace)
            client.create_topic(f"{tenant.namespace}.{name}")
            client.queue(tenant.queue(name))
        client.publish(f"{CALM.namespace}.{PROBED}", b"x" * 100)
        _store(address, known, scale)
        if limited:
            messages = {f"{side}_message_rate": known.rate for side in ("producer", "consumer")}
            client.act("set-quotas", user=NOISY.user, quotas={**QUOTAS, **messages})


def _store(address: str, known: Known, scale: float) -> None:
    """What a flood of reads needs."""
    where = str(parse_address(address)._replace(user=ADMIN.user, password=ADMIN.password))
    if known.reads == "topic":
        produce = jobs.Produce(where, f"{NOISY.namespace}.{FLOODED}", int(RECORDS * scale), RECORD_BYTES)
        jobs.run(produce, jobs.Transfer)
    elif known.reads == "queue":
        count = max(1, int(READY_MESSAGES * scale) // BATCH) * BATCH
        jobs.run(jobs.Put("native", where, NOISY.queue(FLOODED), count, 100, BATCH, 4 * BATCH), jobs.Transfer)
