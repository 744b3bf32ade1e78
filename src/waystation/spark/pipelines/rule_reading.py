"""What a pipeline file says about rows that are not fit for a table: where they are written. Used by `reading.py` and
`step_reading.py`; imports no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from waystation.spark.pipelines import keys
from waystation.spark.pipelines.declared import DeadLetter, Sink, Source, dead_letters
from waystation.spark.pipelines.table_reading import TableReader


def read_dead_letter(table: TableReader) -> DeadLetter | None:
    """`dead_letter = "TOPIC"`, `{ topic = "…" }` or `{ queue = "…" }`."""
    if isinstance(table.value("dead_letter"), str):
        topic = table.text("dead_letter")
        return DeadLetter("topic", topic) if topic is not None else None
    inner = table.table("dead_letter", "a dead_letter")
    if inner is None:
        return None
    kind = inner.one_of(keys.DEAD_LETTER)
    inner.refuse_others(keys.DEAD_LETTER)
    place = inner.text(kind) if kind is not None else None
    if place is None:
        return None
    return DeadLetter("queue" if kind == "queue" else "topic", place)


def dead_letter_sinks(kind: str, tables: Iterable[Source | None]) -> Iterator[Sink]:
    """The sinks that get the dead letters of these tables."""
    for table in tables:
        if table is not None and (wanted := table.dead_letter) is not None:
            name = dead_letters(table.name)
            where = (kind, table.name, "dead_letter")
            yield Sink(name, wanted.kind, name, wanted.place, dead_letters_of=where)
