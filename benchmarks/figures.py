"""What a run has measured: samples, their medians, and the table and JSON made of them.

A figure is named by the part of the run, the work and the unit; a peer's value for it is the median over the rounds.
The table has a section a part, since topics and queues have different peers. Pure data, no I/O.
Called by the scenarios (to add samples) and by `benchmarks.cli` (to print).
"""

import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

OURS = "waystation"
Part = Literal["topics", "queues", "large", "amqp", "hostile", "security", "tenants"]
TOPICS: Part = "topics"
QUEUES: Part = "queues"
LARGE: Part = "large"
AMQP: Part = "amqp"
HOSTILE: Part = "hostile"
SECURITY: Part = "security"
TENANTS: Part = "tenants"
REFERENCE: dict[Part, str] = {
    TOPICS: "kafka",
    QUEUES: "nats",
    LARGE: "nats",
    AMQP: "rabbitmq-quorum",
    HOSTILE: "",
    SECURITY: "kafka",
    TENANTS: "",
}
TITLES: dict[Part, str] = {
    TOPICS: "Topics, by Kafka's protocol",
    QUEUES: "Queues",
    LARGE: "Queues, large",
    AMQP: "AMQP 0-9-1",
    HOSTILE: "One client beside an attacker",
    SECURITY: "What security costs",
    TENANTS: "One tenant beside another that floods the broker",
}


class Figure(NamedTuple):
    work: str
    unit: str
    part: Part = TOPICS


class Aim(NamedTuple):
    """What we want of our own broker; `most` tells an upper bound from a lower one."""

    bound: float
    most: bool = True
    peer: str = OURS
    """Which of our two columns it speaks of."""

    def __str__(self) -> str:
        whose = "" if self.peer == OURS else f"{self.peer} "
        return f"{whose}{'≤' if self.most else '≥'} {shown(self.bound)}"


RATE, VOLUME, CPU, MEMORY, SECONDS, BYTES = "messages/s", "MB/s", "broker CPU s/M", "MiB", "s", "bytes"
CPU_RATIO = "CPU ÷ plain"
"""Of a broker with something turned on, beside the same one without it."""
TIMES_ALONE = "p99 ÷ alone"

OTHER_LOAD = ("other processes meanwhile", "cores")
# A chosen line, not a measured one. At 1.7 of two cores Kafka's start took four times as long and its p99 ninety times.
NOISY_CORES = 0.5

_COSTS = (Aim(1.01, peer="waystation-acls"), Aim(1.30, peer="waystation-encrypted"))
"""Of the CPU on the path of a publish."""
PUBLISHES = ("produce 100 B", "produce 1 KiB", "put 100 B batched", "put 100 B single")
FLOODS = (
    "Kafka produce", "Kafka fetch", "native puts", "native takes", "AMQP publishes", "AMQP consume", "HTTP posts",
)  # fmt: skip

AIMS: dict[Figure, tuple[Aim, ...]] = {
    Figure("produce 100 B", CPU): (Aim(0.6),),
    Figure("produce 100 B", RATE): (Aim(100_000, most=False),),
    Figure("consume 100 B", CPU): (Aim(0.5),),
    Figure("start to first ack", SECONDS): (Aim(0.5),),
    Figure("idle memory", MEMORY): (Aim(60),),
    Figure("restart after stop, first ack", SECONDS): (Aim(2),),
    Figure("restart after stop, first fetch", SECONDS): (Aim(2),),
    Figure("restart after kill -9, first ack", SECONDS): (Aim(10),),
    Figure("restart after kill -9, first fetch", SECONDS): (Aim(10),),
    Figure("put 100 B batched", CPU, QUEUES): (Aim(5.4),),
    Figure("put 100 B batched", RATE, QUEUES): (Aim(100_000, most=False),),
    Figure("take and ack 100 B batched", CPU, QUEUES): (Aim(6.9),),
    Figure("take and ack 100 B batched", RATE, QUEUES): (Aim(100_000, most=False),),
    Figure("put to receipt 100 B", "p99 ms", QUEUES): (Aim(5, peer="waystation-os"),),
    Figure("put to ack 100 B", "p99 ms", QUEUES): (Aim(5, peer="waystation-os"),),
    Figure("memory per ready message", BYTES, LARGE): (Aim(32),),
    Figure("memory per ready message, put singly", BYTES, LARGE): (Aim(32),),
    Figure("memory per idle queue", BYTES, LARGE): (Aim(1024),),
    Figure("memory with 10,000,000 parked messages", MEMORY, LARGE): (Aim(953),),  # 1 GB
    Figure("publish 100 B", CPU, AMQP): (Aim(16),),
    Figure("consume 100 B, acks of 50", CPU, AMQP): (Aim(9),),
    Figure("consume 100 B, single acks", CPU, AMQP): (Aim(9),),
    Figure("memory with 10,000 idle connections", MEMORY, AMQP): (Aim(477),),  # 500 MB
    **{Figure(work, CPU_RATIO, SECURITY): _COSTS for work in PUBLISHES},
    **{Figure(f"{flood}, with quotas: beside", TIMES_ALONE, TENANTS): (Aim(1.5),) for flood in FLOODS},
}


class Sample(msgspec.Struct, frozen=True):
    peer: str
    work: str
    unit: str
    value: float
    part: Part = TOPICS


class PeerInfo(msgspec.Struct, frozen=True):
    version: str
    acknowledged_means: str


class Machine(msgspec.Struct, frozen=True):
    """Where and when this was measured, so that two reports are not compared by mistake."""

    at: str
    cpu: str
    cores: int
    python: str
    client: str
    fsync_p50_ms: float


class Report(msgspec.Struct):
    """Everything a run knows; `--out` is this, as JSON."""

    machine: Machine
    rounds: int
    full: bool
    """Whether counts and rounds are those that the aims speak of; a smaller run proves nothing about them."""
    peers: dict[str, PeerInfo] = msgspec.field(default_factory=dict)
    skipped: dict[str, str] = msgspec.field(default_factory=dict)
    samples: list[Sample] = msgspec.field(default_factory=list)

    def add(self, peer: str, work: str, unit: str, value: float, part: Part = TOPICS) -> None:
        self.samples.append(Sample(peer, work, unit, value, part))

    def figures(self, part: Part) -> Sequence[Figure]:
        """In the order in which they were first measured."""
        return list(dict.fromkeys(Figure(s.work, s.unit, part) for s in self.samples if s.part == part))

    def peers_of(self, part: Part) -> Sequence[str]:
        measured = {sample.peer for sample in self.samples if sample.part == part}
        return [peer for peer in self.peers if peer in measured]

    def values(self, peer: str, figure: Figure) -> Sequence[float]:
        """One a round, in their order."""
        return [s.value for s in self.samples if s.peer == peer and (s.work, s.unit, s.part) == figure]

    def median(self, peer: str, figure: Figure) -> float | None:
        values = self.values(peer, figure)
        return statistics.median(values) if values else None

    def other_load(self, part: Part) -> float:
        """The peer that suffered most from other processes: how many cores those used."""
        return max((self.median(peer, Figure(*OTHER_LOAD, part)) or 0.0 for peer in self.peers), default=0.0)

    def can_judge(self, figure: Figure) -> bool:
        """Whether an aim can be called met or missed: never by a small run; all but memory needs a quiet machine."""
        return self.full and (self.other_load(figure.part) <= NOISY_CORES or figure.unit in (MEMORY, BYTES))

    def medians(self) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
        """part → peer → work → unit → median."""
        result: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
        for part in TITLES:
            for peer in self.peers_of(part):
                works = result.setdefault(part, {}).setdefault(peer, {})
                for figure in self.figures(part):
                    if (value := self.median(peer, figure)) is not None:
                        works.setdefault(figure.work, {})[figure.unit] = value
        return result


def shown(value: float) -> str:
    """Three figures are all that a shared machine can promise."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def table(report: Report) -> str:
    """The one table, a section a part, and under it what one has to know to read it."""
    return "\n".join([*(_section(report, part) for part in TITLES if report.figures(part)), *_foot(report)])


def _section(report: Report, part: Part) -> str:
    """A row a figure, a column a peer, our ratio to the part's reference and our aim last."""
    peers, reference = report.peers_of(part), REFERENCE[part]
    compare = OURS in peers and reference in peers
    head = ["work", "unit", *peers, *([f"{OURS} ÷ {reference}"] if compare else []), "aim"]
    rows = [_row(report, figure, compare) for figure in report.figures(part)]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [f"## {TITLES[part]}", "", _line(head, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    return "\n".join([*lines, *(_line(row, widths) for row in rows), ""])


def _row(report: Report, figure: Figure, compare: bool) -> list[str]:
    values = {peer: report.median(peer, figure) for peer in report.peers_of(figure.part)}
    cells = [figure.work, figure.unit, *("–" if value is None else shown(value) for value in values.values())]
    ours, reference = values.get(OURS), values.get(REFERENCE[figure.part])
    if compare:
        cells.append(f"{ours / reference:.2f}" if ours is not None and reference else "–")
    aims = (_judged(report, figure, aim, values.get(aim.peer)) for aim in AIMS.get(figure, ()))
    return [*cells, ", ".join(aims)]


def _judged(report: Report, figure: Figure, aim: Aim, value: float | None) -> str:
    if value is None or not report.can_judge(figure):
        return str(aim)
    met = value <= aim.bound if aim.most else value >= aim.bound
    return f"{aim} {'met' if met else 'MISSED'}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [c.ljust(w) if i < 2 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=True))]
    return "| " + " | ".join(padded) + " |"


def _foot(report: Report) -> list[str]:
    machine = report.machine
    lines = [
        f"{name}: {info.version}; acknowledged means {info.acknowledged_means}." for name, info in report.peers.items()
    ]
    lines += [f"{name}: left out, {reason}." for name, reason in report.skipped.items()]
    lines.append(
        f"Medians of {report.rounds} round(s), restarts and large queues once; {machine.at}, {machine.cores} × "
        f"{machine.cpu}, Python {machine.python}, {machine.client}; fsync p50 {machine.fsync_p50_ms:.2f} ms."
    )
    if not report.full:
        lines.append(
            "SMALL: fewer messages or rounds than the aims speak of, so none is judged; small CPU figures are rounding."
        )
    for part in TITLES:
        if (load := report.other_load(part)) > NOISY_CORES:
            lines.append(
                f"NOISY ({part}): other processes used up to {load:.1f} cores. Nothing but memory is to be quoted, no "
                "ratio either: CPU per message of one and the same broker has differed fourfold between such runs."
            )
    return lines
