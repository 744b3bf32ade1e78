"""What a pipeline file declares, as plain values. Made by `reading.py`, read by everything else; imports no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from waystation.spark.links.servers import Servers
from waystation.spark.pipelines.file.cron import CronSchedule
from waystation.spark.values.value_formats import ValueFormat
from waystation.toml_file import Path as TomlPath

SourceKind = Literal["waystation", "queue", "parquet", "csv", "json", "rate"]
SinkKind = Literal["topic", "queue", "destinations", "parquet", "console", "memory", "delta", "iceberg"]
FILES = ("parquet", "csv", "json")
"""Kinds of sources that are folders of files."""
TriggerKind = Literal["once", "available-now", "interval"]
TargetKind = Literal["topic", "queue"]
DEAD_LETTER_HEADERS = "x-dead-letter-"
"""Headers that say why a row is a dead letter, and where it was, begin so."""
OnFail = Literal["warn", "drop", "dead_letter", "fail"]


@dataclass(frozen=True, slots=True)
class Trigger:
    """When a batch is made. `interval` is how Spark writes it (`10 seconds`), for that kind alone."""

    kind: TriggerKind = "interval"
    interval: str = "0 seconds"

    @property
    def bounded(self) -> bool:
        """Whether the pipeline ends by itself."""
        return self.kind != "interval"

    def __str__(self) -> str:
        return self.interval if self.kind == "interval" else self.kind


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """What happens after a failure: another attempt, after a pause that doubles from one to the next."""

    max_restarts: int | None = None
    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 300_000
    reset_after_ms: int = 600_000
    """An attempt that ran so long counts as a success: the next failure is the first again."""

    def backoff_ms(self, failures: int) -> int:
        """The pause after so many failures in a row."""
        return min(self.max_backoff_ms, self.initial_backoff_ms * 2 ** min(failures - 1, 40))


@dataclass(frozen=True, slots=True)
class Watermark:
    """How late rows may come, by which column."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The topic or queue that gets the rows of a table that are not fit for it."""

    kind: TargetKind
    place: str


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition that rows should meet, and what happens to one that does not: it is counted and kept (`warn`),
    left out (`drop`), written to the table's dead letter instead, or it ends the pipeline (`fail`)."""

    name: str
    rule: str
    on_fail: OnFail = "warn"


@dataclass(frozen=True, slots=True)
class Source:
    """Where rows come from. `options` are those of the Spark source; `place` is the path or the rate of other kinds."""

    name: str
    kind: SourceKind
    options: Mapping[str, str] = field(default_factory=dict)
    place: str = ""
    schema: str | None = None
    static: bool = False
    watermark: Watermark | None = None
    filter: str | None = None
    select: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    dead_letter: DeadLetter | None = None

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics it names."""
        return tuple(name for name in self.options.get("topics", "").split(",") if name)


@dataclass(frozen=True, slots=True)
class Join:
    """With which table, on which columns or condition, and how."""

    table: str
    on: tuple[str, ...] | str
    how: str = "inner"


@dataclass(frozen=True, slots=True)
class Window:
    """A time window over a column: tumbling, sliding (`slide`) or a session (`gap`)."""

    column: str
    size: str
    slide: str | None = None
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Dedup:
    """One row for each combination of these columns; `within` the watermark, or for ever."""

    columns: tuple[str, ...]
    within: bool = False


@dataclass(frozen=True, slots=True)
class Stateful:
    """A StatefulProcessor for each group: `processor` is `FILE:CLASS`."""

    processor: str
    group: tuple[str, ...]
    output: str
    mode: str = "append"
    time: str = "none"


@dataclass(frozen=True, slots=True)
class Step:
    """What makes a table of others. The parts are applied in the order in which they stand here."""

    name: str
    inputs: tuple[str, ...] = ()
    sql: str | None = None
    watermark: Watermark | None = None
    filter: str | None = None
    join: Join | None = None
    dedup: Dedup | None = None
    window: Window | None = None
    group: tuple[str, ...] = ()
    aggregate: Mapping[str, str] = field(default_factory=dict)
    python: str | None = None
    stateful: Stateful | None = None
    select: tuple[str, ...] = ()
    expect: tuple[Expectation, ...] = ()
    dead_letter: DeadLetter | None = None


@dataclass(frozen=True, slots=True)
class Sink:
    """Where a table goes. `place` is the topic, queue, path or table."""

    name: str
    kind: SinkKind
    table: str
    place: str = ""
    mode: str = "append"
    key: str | None = None
    value: str | None = None
    delete_when: str | None = None
    format: ValueFormat | None = None
    partition_by: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    destinations: tuple[str, ...] = ()
    """Columns, `topic` and `queue`, that say where each row goes."""
    dead_letter: DeadLetter | None = None
    """For rows whose destination does not exist."""
    dead_letters_of: TomlPath = ()
    """Of the dead letters of a table: where that says so, `("source", NAME, "dead_letter")`."""

    @property
    def upserts(self) -> bool:
        """Whether a row replaces the one that has its key."""
        return self.mode == "upsert"

    @property
    def output_mode(self) -> str:
        """What Spark calls its mode."""
        return "update" if self.upserts else self.mode

    @property
    def messages(self) -> bool:
        """Whether its rows are messages of topics and queues."""
        return self.kind in ("topic", "queue", "destinations")

    @property
    def path(self) -> TomlPath:
        """Where the file declares it."""
        return self.dead_letters_of or ("sink", self.name)

    @property
    def origin(self) -> str:
        """The source or step that its rows come from."""
        return str(self.dead_letters_of[1]) if self.dead_letters_of else self.table

    def __str__(self) -> str:
        return f"the dead letters of {self.origin}" if self.dead_letters_of else f"[sink.{self.name}]"


def dead_letters(table: str) -> str:
    """What the table of the dead letters of a source or step, and its sink, are called: no name in a file has a dot."""
    return f"{table}.dead_letter"


@dataclass(frozen=True, slots=True)
class Target:
    """A topic or queue that has to exist, and where the file names it."""

    kind: TargetKind
    place: str
    path: TomlPath
    compacted: bool = False
    """Whether rows are upserted there."""
    exactly_once: bool = True


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole file."""

    name: str
    file: Path
    servers: Servers
    checkpoint: str
    trigger: Trigger
    master: str
    progress: bool
    settings: Mapping[str, str]
    sources: Mapping[str, Source]
    steps: Mapping[str, Step]
    sinks: Mapping[str, Sink]
    restart: RestartPolicy | None = None
    schedule: CronSchedule | None = None
    catch_up: bool = False
    broker: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The options that tell Spark's sources and sinks where the broker is and who logs in there. It may have a secret:
    one that came by the command line or the environment."""

    @property
    def folder(self) -> Path:
        """Where the file is; paths in it begin here."""
        return self.file.parent

    @property
    def targets(self) -> list[Target]:
        """The topics and queues that it writes to by name."""
        found = []
        for sink in self.sinks.values():
            once = sink.options.get("guarantee") != "at-least-once"
            if sink.kind == "topic" or sink.kind == "queue":
                found.append(Target(sink.kind, sink.place, (*sink.path, sink.kind), sink.upserts, once))
            if (dead := sink.dead_letter) is not None:
                path = (*sink.path, "dead_letter", dead.kind)
                found.append(Target(dead.kind, dead.place, path, exactly_once=once))
        return found

    @property
    def expectations(self) -> dict[str, tuple[Expectation, ...]]:
        """Of every source and step that has any."""
        tables: list[Source | Step] = [*self.sources.values(), *self.steps.values()]
        return {table.name: table.expect for table in tables if table.expect}

    @property
    def uses_broker(self) -> bool:
        kinds = {source.kind for source in self.sources.values()} | {sink.kind for sink in self.sinks.values()}
        return not kinds.isdisjoint({"waystation", "queue", "topic", "destinations"})
