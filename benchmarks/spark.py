"""`python -m benchmarks.spark`: topics through Spark, by our data source and by Spark's own Kafka connector; one table.

One broker, one Spark session on two threads, one topic; the steps take turns within every round, after a round that is
not counted. Both connectors get the same options, in the same session, against the same broker. `benchmarks.spark_work`
has what is timed; here is what is made of it. `--load` keeps one core busy meanwhile: a machine that has other work.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from benchmarks import figures, procfs
from benchmarks.cli import CACHE, machine, say, stop_on_sigterm
from benchmarks.peers import Running, Unavailable, Waystation, free_port
from benchmarks.spark_jars import kafka_connector
from benchmarks.spark_work import KAFKA, OURS, SparkWork, Streamed, consume_into_arrow, fill
from waystation.errors import WaystationError

MASTER = "local[2]"
FULL_ROWS, FULL_ROUNDS = 10_000_000, 3
RATE, CPU, BROKER_CPU, MS = "rows/s", "Spark CPU s/M rows", "broker CPU s/M rows", "ms"
READ, WRITE = "batch read, all columns", "batch write, Parquet to topic"
STREAM, STREAM_SINK = "stream, topic to nowhere", "stream, topic to topic"
BATCH_TIME, ONE_ROW = "micro-batch of one row", "one row, sent to read committed"
OTHERS = ""
"""The connector of what is read without one."""
AIMS = {
    (READ, RATE): figures.Aim(1_000_000, most=False),
    (WRITE, RATE): figures.Aim(1_500_000, most=False),
    (STREAM_SINK, RATE): figures.Aim(300_000, most=False),
    (BATCH_TIME, f"p50 {MS}"): figures.Aim(120),
}
SETTINGS = {
    "spark.driver.memory": "2g",
    "spark.sql.streaming.numRecentProgressUpdates": "10000",
}


class Sample(msgspec.Struct, frozen=True):
    """One value, and how many cores other processes used while it was measured."""

    connector: str
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
    connector: str
    """Of Kafka: its version, or why there is none."""
    loaded: bool
    samples: list[Sample] = msgspec.field(default_factory=list)

    @property
    def full(self) -> bool:
        return self.rows >= FULL_ROWS and self.rounds >= FULL_ROUNDS

    def medians(self) -> dict[tuple[str, str], dict[str, float]]:
        """By work and unit, in the order in which they were first measured, and by connector."""
        values: dict[tuple[str, str], dict[str, list[float]]] = {}
        for one in self.samples:
            values.setdefault((one.work, one.unit), {}).setdefault(one.connector, []).append(one.value)
        return {
            figure: {connector: statistics.median(some) for connector, some in found.items()}
            for figure, found in values.items()
        }

    def other_cores(self) -> float:
        """What the noisiest sample suffered, of what nobody asked for."""
        return max((sample.other_cores for sample in self.samples), default=0.0)


Note = Callable[[str, str, float], None]


class Bench:
    """Times the steps, and watches what else the machine does."""

    def __init__(
        self,
        work: SparkWork,
        broker: Running,
        load: int | None,
        report: Report,
        connectors: Sequence[str],
        delays: int,
    ) -> None:
        self._work, self._broker, self._load, self._report = work, broker, load, report
        self._connectors, self._delays = connectors, delays
        self._counts = False

    def warm(self) -> None:
        """Java compiles what runs often, and the first of everything is slow."""
        for connector in self._connectors:
            if (seen := self._work.count(connector)) != self._report.rows:
                raise SystemExit(f"Spark read {seen} of {self._report.rows} rows by {connector}")
        self._work.write_parquet()
        self._round()
        self._counts = True

    def rounds(self) -> None:
        for number in range(self._report.rounds):
            say(f"round {number + 1} of {self._report.rounds}")
            self._round()
        say("micro-batches")
        for connector in self._connectors:
            with self._watch(connector) as note:
                seen = self._work.delays(connector, self._delays)
                for work, values in ((BATCH_TIME, seen.batches), (ONE_ROW, seen.end_to_end)):
                    note(work, f"p50 {MS}", statistics.median(values))
                    note(work, f"p90 {MS}", sorted(values)[int(0.9 * (len(values) - 1))])

    def _round(self) -> None:
        for work, measure in ((READ, self._work.read), (WRITE, self._work.write_topic)):
            for connector in self._connectors:
                with self._watch(connector, work) as note:
                    note(work, RATE, measure(connector))
        streams: tuple[tuple[str, Callable[[str], Streamed]], ...] = (
            (STREAM, self._work.stream),
            (STREAM_SINK, self._work.stream_to_topic),
        )
        for work, stream in streams:
            for connector in self._connectors:
                with self._watch(connector, work) as note:
                    done = stream(connector)
                    note(f"{work}, with its start", RATE, done.whole)
                    if done.later is not None:
                        note(work, RATE, done.later)
        others: dict[str, Callable[[], float]] = {
            "batch read by ours, the loop's columns": self._work.read_columns,
            "confluent-kafka's consume into Arrow": lambda: consume_into_arrow(
                self._broker.bootstrap, self._report.rows
            ),
            "the same rows as Parquet": self._work.read_parquet,
        }
        for work, measure_other in others.items():
            with self._watch(OTHERS) as note:
                note(work, RATE, measure_other())

    @contextmanager
    def _watch(self, connector: str, work: str = "") -> Iterator[Note]:
        """`work`: what Spark's and the broker's CPU is noted of."""
        found: list[tuple[str, str, float]] = []
        brokers, own, loads = (
            procfs.cpu_seconds(self._broker.pid),
            procfs.cpu_seconds(os.getpid()),
            self._load_seconds(),
        )
        busy, began = procfs.machine_busy_seconds(), time.monotonic()
        yield lambda work, unit, value: found.append((work, unit, value))
        seconds, own = time.monotonic() - began, procfs.cpu_seconds(os.getpid()) - own
        brokers, loads = procfs.cpu_seconds(self._broker.pid) - brokers, self._load_seconds() - loads
        others = max(0.0, (procfs.machine_busy_seconds() - busy - own) / seconds)
        if work:
            millions = self._report.rows / 1e6
            found += [(work, CPU, (own - brokers - loads) / millions), (work, BROKER_CPU, brokers / millions)]
        if self._counts:
            self._report.samples += [Sample(connector, *one, others) for one in found]

    def _load_seconds(self) -> float:
        return 0.0 if self._load is None else procfs.cpu_seconds(self._load)


def table(report: Report) -> str:
    """A row a figure, its aim last, and under it what one has to know to read it."""
    quiet = report.other_cores() <= figures.NOISY_CORES and not report.loaded
    rows = [
        ("work", "unit", "Waystation", "Spark's Kafka connector", "ratio", "aim"),
        ("---", "---", "---:", "---:", "---:", "---"),
    ]
    for (work, unit), by in report.medians().items():
        aim = AIMS.get((work, unit))
        verdict = ""
        if OTHERS in by:
            rows.append((work, unit, f"({figures.shown(by[OTHERS])})", "", "", ""))
            continue
        if aim is not None and report.full and quiet:
            met = by[OURS] <= aim.bound if aim.most else by[OURS] >= aim.bound
            verdict = " met" if met else " MISSED"
        theirs = by.get(KAFKA)
        ratio = f"{by[OURS] / theirs:.2f}" if theirs else ""
        told = "" if theirs is None else figures.shown(theirs)
        rows.append((work, unit, figures.shown(by[OURS]), told, ratio, f"{aim or ''}{verdict}"))
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    at = report.machine
    lines.append(
        f"\n{report.rows:,} rows of 100 bytes, {report.rows_per_trigger:,} a trigger, medians of {report.rounds}"
        f" round(s); {report.spark} on {MASTER}, its Kafka connector: {report.connector}; {at.at},"
        f" {at.cores} × {at.cpu}, Python {at.python}, {at.client}; fsync p50 {at.fsync_p50_ms:.2f} ms. In parentheses:"
        " by neither. Ours writes exactly once, the connector at least once."
    )
    if not report.full:
        lines.append("SMALL: fewer rows or rounds than the aims speak of, so none is judged.")
    if report.loaded:
        lines.append("LOADED: one core was kept busy all the time, so no aim is judged.")
    elif not quiet:
        lines.append(f"NOISY: other processes used up to {report.other_cores():.1f} cores; nothing is to be quoted.")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description="Topics through Spark, one table.")
    parser.add_argument("--rows", type=int, default=FULL_ROWS, help="how many the topic has (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=FULL_ROUNDS, help="to take medians of (default: %(default)s)")
    parser.add_argument("--trigger", type=int, default=1_000_000, help="rows of a micro-batch (default: %(default)s)")
    parser.add_argument("--delays", type=int, default=100, help="single rows to time (default: %(default)s)")
    parser.add_argument("--load", action="store_true", help="keep one core busy meanwhile")
    parser.add_argument("--out", type=Path, help="write everything measured to this file, as JSON")
    parser.add_argument("--work", type=Path, help="where everything is kept meanwhile (default: the cache folder)")
    return parser.parse_args(arguments)


@contextmanager
def busy(wanted: bool) -> Iterator[int | None]:
    """One core that has other work; the process that does it."""
    if not wanted:
        yield None
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@contextmanager
def broker(folder: Path) -> Iterator[Running]:
    """Our broker as it comes: every commit is fsynced."""
    folder.mkdir()
    running = Waystation().spawn(folder, free_port())
    try:
        yield running
    finally:
        running.stop()


def run(options: argparse.Namespace, folder: Path) -> Report:
    import pyspark

    from waystation.spark.sessions import SessionSettings, session

    connectors, version, settings = [OURS], "", dict(SETTINGS)
    try:
        connector = kafka_connector(CACHE)
        connectors.append(KAFKA)
        version, settings = connector.version, settings | connector.settings
    except Unavailable as problem:
        version = f"none, {problem}"
        say(f"without Spark's Kafka connector: {problem}")
    wanted = SessionSettings(MASTER, "benchmarks", settings, folder / "spark.log")
    with broker(folder / "broker") as running, busy(options.load) as load:
        say(f"{options.rows:,} rows into a topic")
        rows = fill(running.bootstrap, options.rows)
        spark_version = f"Spark {pyspark.__version__}"
        report = Report(machine(folder), spark_version, rows, options.rounds, options.trigger, version, options.load)
        with session(wanted) as spark:
            work = SparkWork(spark, running.bootstrap, rows, folder, options.trigger)
            bench = Bench(work, running, load, report, connectors, options.delays)
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
        medians = [{"work": work, "unit": unit, "medians": by} for (work, unit), by in report.medians().items()]
        whole = {"report": report, "medians": medians}
        options.out.write_bytes(msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
