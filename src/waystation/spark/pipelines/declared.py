"""What a pipeline file declares, as plain values. Made by `reading.py`, read by everything else; imports no Spark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from waystation.spark.value_formats import ValueFormat

SourceKind = Literal["waystation", "queue", "parquet", "csv", "json", "rate"]
SinkKind = Literal["topic", "queue", "parquet", "console", "memory", "delta", "iceberg"]
FILES = ("parquet", "csv", "json")
"""Kinds of sources that are folders of files."""
TriggerKind = Literal["once", "available-now", "interval"]


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
class Watermark:
    """How late rows may come, by which column."""

    column: str
    delay: str


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

    @property
    def upserts(self) -> bool:
        """Whether a row replaces the one that has its key."""
        return self.mode == "upsert"

    @property
    def output_mode(self) -> str:
        """What Spark calls its mode."""
        return "update" if self.upserts else self.mode


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A whole file."""

    name: str
    file: Path
    servers: str
    checkpoint: str
    trigger: Trigger
    master: str
    progress: bool
    settings: Mapping[str, str]
    sources: Mapping[str, Source]
    steps: Mapping[str, Step]
    sinks: Mapping[str, Sink]

    @property
    def folder(self) -> Path:
        """Where the file is; paths in it begin here."""
        return self.file.parent

    @property
    def uses_broker(self) -> bool:
        kinds = {source.kind for source in self.sources.values()} | {sink.kind for sink in self.sinks.values()}
        return not kinds.isdisjoint({"waystation", "queue", "topic"})
