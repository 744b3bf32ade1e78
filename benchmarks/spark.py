"""`python -m benchmarks.spark`: topics through Spark, beside a consume loop and beside Parquet; prints one table.

One broker, one Spark session on two threads, one topic; the steps take turns within every round, after a round that is
not counted. `benchmarks.spark_work` has what is timed; here is what is made of it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks import figures, procfs
from benchmarks.cli import CACHE, machine, say, stop_on_sigterm
from benchmarks.peers import Waystation, free_port
from benchmarks.spark_work import COLUMNS, SparkWork, consume_into_arrow, fill
from waystation.errors import WaystationError

MASTER = "local[2]"
FULL_ROWS, FULL_ROUNDS = 10_000_000, 3
RATE, MS = "rows/s", "ms"
READ, SINK, STREAM_SINK = (
    "batch read, all columns",
    "batch write, Parquet to topic",
    "stream, topic to topic exactly once",
)
BATCH_TIME = "micro-batch of one row, exactly once"
AIMS = {
    (READ, RATE): figures.Aim(1_000_000, most=False),
    (SINK, RATE): figures.Aim(300_000, most=False),
    (STREAM_SINK, RATE): figures.Aim(300_000, most=False),
    (BATCH_TIME, f"p50 {MS}"): figures.Aim(400),
}
SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}


class Sample(msgspec.Struct, frozen=True):
    """One value, and how many cores other processes used while it was measured."""

    work: str
    unit: str
    value: float
    other_cores: float


class Report(msgspec.Struct):
    """Everything a run knows; `--out` is this, as JSON."""

    machine: figures.Machine
    spark: str
    rows: int
    rounds: int
    rows_per_trigger: int
    samples: list[Sample] = msgspec.field(default_factory=list)

    @property
    def full(self) -> bool:
        return self.rows >= FULL_ROWS and self.rounds >= FULL_ROUNDS

    def medians(self) -> dict[tuple[str, str], float]:
        """By work and unit, in the order in which they were first measured."""
        values: dict[tuple[str, str], list[float]] = {}
        for sample in self.samples:
            values.setdefault((sample.work, sample.unit), []).append(sample.value)
        return {figure: statistics.median(found) for figure, found in values.items()}

    def other_cores(self) -> float:
        """What the noisiest sample suffered."""
        return max((sample.other_cores for sample in self.samples), default=0.0)


class Bench:
    """Times the steps, and watches what else the machine does."""

    def __init__(self, work: SparkWork, address: str, report: Report, delays: int) -> None:
        self._work, self._address, self._report, self._delays = work, address, report, delays
        self._counts = False

    def warm(self) -> None:
        """Java compiles what runs often, and the first of everything is slow."""
        if (seen := self._work.count()) != self._report.rows:
            raise SystemExit(f"Spark read {seen} of {self._report.rows} rows")
        self._work.write_parquet()
        self._round()
        self._counts = True

    def rounds(self) -> None:
        for number in range(self._report.rounds):
            say(f"round {number + 1} of {self._report.rounds}")
            self._round()
        say("micro-batches")
        with self._watch() as note:
            seen = self._work.delays(self._delays)
            for work, values in ((BATCH_TIME, seen.batches), ("one row, sent to read committed", seen.end_to_end)):
                note(work, f"p50 {MS}", statistics.median(values))
                note(work, f"p90 {MS}", sorted(values)[int(0.9 * (len(values) - 1))])

    def _round(self) -> None:
        rates: dict[str, Callable[[], float]] = {
            READ: self._work.read,
            "batch read, the loop's columns": lambda: self._work.read(COLUMNS),
            "confluent-kafka's consume into Arrow": lambda: consume_into_arrow(self._address, self._report.rows),
            "the same rows as Parquet": self._work.read_parquet,
            SINK: self._work.write_topic,
        }
        for work, measure in rates.items():
            with self._watch() as note:
                note(work, RATE, measure())
        for work, stream in (
            ("stream, topic to nowhere", self._work.stream),
            (STREAM_SINK, self._work.stream_to_topic),
        ):
            with self._watch() as note:
                done = stream()
                note(f"{work}, with its start", RATE, done.whole)
                if done.later is not None:
                    note(work, RATE, done.later)

    @contextmanager
    def _watch(self) -> Iterator[Callable[[str, str, float], None]]:
        found: list[tuple[str, str, float]] = []
        own, busy, began = procfs.cpu_seconds(os.getpid()), procfs.machine_busy_seconds(), time.monotonic()
        yield lambda work, unit, value: found.append((work, unit, value))
        own = procfs.cpu_seconds(os.getpid()) - own
        others = max(0.0, (procfs.machine_busy_seconds() - busy - own) / (time.monotonic() - began))
        if self._counts:
            self._report.samples += [Sample(work, unit, value, others) for work, unit, value in found]


def table(report: Report) -> str:
    """A row a figure, its aim last, and under it what one has to know to read it."""
    quiet = report.other_cores() <= figures.NOISY_CORES
    rows = [("work", "unit", "median", "aim"), ("---", "---", "---:", "---")]
    for (work, unit), value in report.medians().items():
        aim = AIMS.get((work, unit))
        verdict = ""
        if aim is not None and report.full and quiet:
            met = value <= aim.bound if aim.most else value >= aim.bound
            verdict = " met" if met else " MISSED"
        rows.append((work, unit, figures.shown(value), f"{aim or ''}{verdict}"))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    at = report.machine
    lines.append(
        f"\n{report.rows:,} rows of 100 bytes, {report.rows_per_trigger:,} a trigger, medians of {report.rounds}"
        f" round(s); {report.spark} on {MASTER}; {at.at}, {at.cores} × {at.cpu}, Python {at.python}, {at.client};"
        f" fsync p50 {at.fsync_p50_ms:.2f} ms."
    )
    if not report.full:
        lines.append("SMALL: fewer rows or rounds than the aims speak of, so none is judged.")
    if not quiet:
        lines.append(f"NOISY: other processes used up to {report.other_cores():.1f} cores; nothing is to be quoted.")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description="Topics through Spark, one table.")
    parser.add_argument("--rows", type=int, default=FULL_ROWS, help="how many the topic has (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=FULL_ROUNDS, help="to take medians of (default: %(default)s)")
    parser.add_argument("--trigger", type=int, default=1_000_000, help="rows of a micro-batch (default: %(default)s)")
    parser.add_argument("--delays", type=int, default=100, help="single rows to time (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write everything measured to this file, as JSON")
    parser.add_argument("--work", type=Path, help="where everything is kept meanwhile (default: the cache folder)")
    return parser.parse_args(arguments)


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Our broker as it comes: every commit is fsynced."""
    folder.mkdir()
    running = Waystation().spawn(folder, free_port())
    try:
        yield running.bootstrap
    finally:
        running.stop()


def run(options: argparse.Namespace, folder: Path) -> Report:
    import pyspark

    from waystation.spark.sessions import SessionSettings, session

    wanted = SessionSettings(MASTER, "benchmarks", SETTINGS, folder / "spark.log")
    with broker(folder / "broker") as address:
        say(f"{options.rows:,} rows into a topic")
        rows = fill(address, options.rows)
        report = Report(machine(folder), f"Spark {pyspark.__version__}", rows, options.rounds, options.trigger)
        with session(wanted) as spark:
            bench = Bench(SparkWork(spark, address, rows, folder, options.trigger), address, report, options.delays)
            say("a round to warm up")
            bench.warm()
            bench.rounds()
    return report


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    stop_on_sigterm()
    parent = options.work or CACHE
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="spark-", dir=parent))
    try:
        report = run(options, folder)
    except WaystationError as problem:
        print(problem, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(table(report))
    if options.out:
        medians = [{"work": work, "unit": unit, "median": value} for (work, unit), value in report.medians().items()]
        whole = {"report": report, "medians": medians}
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
