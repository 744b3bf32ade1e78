"""What a run has measured: samples, their medians, and the table and JSON made of them.

A figure is named by the work and the unit; a peer's value for it is the median over the rounds. Pure data, no I/O.
Called by the scenarios (to add samples) and by `benchmarks.cli` (to print).
"""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

OURS, REFERENCE = "waystation", "kafka"


class Figure(NamedTuple):
    work: str
    unit: str


class Aim(NamedTuple):
    """What we want of our own broker; `most` tells an upper bound from a lower one."""

    bound: float
    most: bool = True

    def __str__(self) -> str:
        return f"{'≤' if self.most else '≥'} {shown(self.bound)}"


RATE, VOLUME, CPU, MEMORY, SECONDS = "messages/s", "MB/s", "broker CPU s/M", "MiB", "s"

OTHER_LOAD = Figure("other processes meanwhile", "cores")
# A chosen line, not a measured one. At 1.7 of two cores Kafka's start took four times as long and its p99 ninety times.
NOISY_CORES = 0.5

AIMS = {
    Figure("produce 100 B", CPU): Aim(0.6),
    Figure("produce 100 B", RATE): Aim(100_000, most=False),
    Figure("consume 100 B", CPU): Aim(0.5),
    Figure("start to first ack", SECONDS): Aim(0.5),
    Figure("idle memory", MEMORY): Aim(60),
    Figure("restart after stop, first ack", SECONDS): Aim(2),
    Figure("restart after stop, first fetch", SECONDS): Aim(2),
    Figure("restart after kill -9, first ack", SECONDS): Aim(10),
    Figure("restart after kill -9, first fetch", SECONDS): Aim(10),
}


class Sample(msgspec.Struct, frozen=True):
    peer: str
    work: str
    unit: str
    value: float


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

    def add(self, peer: str, work: str, unit: str, value: float) -> None:
        self.samples.append(Sample(peer, work, unit, value))

    def figures(self) -> Sequence[Figure]:
        """In the order in which they were first measured."""
        return list(dict.fromkeys(Figure(sample.work, sample.unit) for sample in self.samples))

    def median(self, peer: str, figure: Figure) -> float | None:
        values = [s.value for s in self.samples if s.peer == peer and (s.work, s.unit) == figure]
        return statistics.median(values) if values else None

    def other_load(self) -> float:
        """The peer that suffered most from other processes: how many cores those used."""
        return max((self.median(peer, OTHER_LOAD) or 0.0 for peer in self.peers), default=0.0)

    def can_judge(self, figure: Figure) -> bool:
        """Whether an aim can be called met or missed: never by a small run; all but memory needs a quiet machine."""
        return self.full and (self.other_load() <= NOISY_CORES or figure.unit == MEMORY)

    def medians(self) -> dict[str, dict[str, dict[str, float]]]:
        """peer → work → unit → median."""
        result: dict[str, dict[str, dict[str, float]]] = {}
        for peer in self.peers:
            for figure in self.figures():
                if (value := self.median(peer, figure)) is not None:
                    result.setdefault(peer, {}).setdefault(figure.work, {})[figure.unit] = value
        return result


def shown(value: float) -> str:
    """Three figures are all that a shared machine can promise."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def table(report: Report) -> str:
    """The one table: a row a figure, a column a peer, our ratio to Kafka and our aim last."""
    compare = OURS in report.peers and REFERENCE in report.peers
    head = ["work", "unit", *report.peers, *([f"{OURS} ÷ {REFERENCE}"] if compare else []), "aim"]
    rows = [_row(report, figure, compare) for figure in report.figures()]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [_line(head, widths), "|" + "|".join("-" * (width + 2) for width in widths) + "|"]
    lines += [_line(row, widths) for row in rows]
    return "\n".join([*lines, "", *_foot(report)])


def _row(report: Report, figure: Figure, compare: bool) -> list[str]:
    values = {peer: report.median(peer, figure) for peer in report.peers}
    cells = [figure.work, figure.unit, *("–" if value is None else shown(value) for value in values.values())]
    ours, reference = values.get(OURS), values.get(REFERENCE)
    if compare:
        cells.append(f"{ours / reference:.2f}" if ours is not None and reference else "–")
    aim = AIMS.get(figure)
    if aim is None or ours is None or not report.can_judge(figure):
        return [*cells, str(aim or "")]
    met = ours <= aim.bound if aim.most else ours >= aim.bound
    return [*cells, f"{aim} {'met' if met else 'MISSED'}"]


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
        f"Medians of {report.rounds} round(s), restarts once; {machine.at}, {machine.cores} × {machine.cpu}, "
        f"Python {machine.python}, {machine.client}; fsync p50 {machine.fsync_p50_ms:.2f} ms."
    )
    if not report.full:
        lines.append(
            "SMALL: fewer messages or rounds than the aims speak of, so none is judged; small CPU figures are rounding."
        )
    if (load := report.other_load()) > NOISY_CORES:
        lines.append(
            f"NOISY: other processes used up to {load:.1f} cores. Nothing but memory is to be quoted, no ratio "
            "either: CPU per message of one and the same broker has differed fourfold between such runs."
        )
    return lines
