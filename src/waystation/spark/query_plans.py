"""What a streaming query reads and writes, as its plan in Spark's JVM says: for queries that somebody started by hand.

Spark tells a listener only a query's name and numbers, and its descriptions of Python sources and sinks name nothing.
The plan has their options. It is not part of Spark's public API, so whatever is not as expected raises, and whoever
calls goes without. For sessions of the classic kind; over Connect there is no JVM here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from waystation.spark.kafka_options import in_our_words
from waystation.spark.links.login_options import lowered, read_servers
from waystation.spark.links.servers import Servers

FORMAT = "waystation"
UPDATING = "ForeachBatchSink"
"""The sink of a query in update mode (`stream_starts`), which has the options of ours; other queries with it have none
of them."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A sink: its name in short, its kind, and both in words (`topic totals`)."""

    name: str
    kind: str
    place: str


@dataclass(frozen=True, slots=True)
class QueryParts:
    """`servers`: the broker that it reads from, or else writes to."""

    servers: Servers
    sources: tuple[str, ...]
    destination: Destination
    checkpoint: str
    trigger: str
    bounded: bool


def parts_of(java_query: Any) -> QueryParts | None:
    """None if it has nothing to do with Waystation. `java_query`: as PySpark's `StreamingQuery` holds it."""
    execution = java_query.streamingQuery() if hasattr(java_query, "streamingQuery") else java_query
    servers: list[Servers] = []
    sources = [_source(leaf, servers) for leaf in _leaves(execution.analyzedPlan()) if leaf.isStreaming()]
    destination = _destination(execution, servers)
    if not servers:
        return None
    trigger = str(execution.trigger().toString())
    return QueryParts(
        servers=servers[0],
        sources=tuple(dict.fromkeys(sources)),
        destination=destination,
        checkpoint=str(execution.resolvedCheckpointRoot()),
        trigger=_spell_trigger(trigger),
        bounded=trigger.startswith(("AvailableNow", "OneTime")),
    )


def _leaves(plan: Any) -> list[Any]:
    leaves = plan.collectLeaves()
    return [leaves.apply(number) for number in range(leaves.size())]


def _source(leaf: Any, servers: list[Servers]) -> str:
    name = str(leaf.sourceName())
    if name.lower() != FORMAT:
        return name
    options = _ours(leaf.extraOptions().asCaseSensitiveMap(), servers)
    if "queue" in options:
        return f"queue {options['queue']}"
    if "topics" in options:
        return f"topic {options['topics']}"
    return next((f"{key} {options[key]}" for key in ("pattern", "assign") if key in options), FORMAT)


def _destination(execution: Any, servers: list[Servers]) -> Destination:
    sink = execution.sink()
    kind = str(sink.getClass().getSimpleName())
    ours = kind == "PythonTable" and str(sink.name()).lower() == FORMAT
    options = _ours(_extra_options(execution), servers) if ours or kind == UPDATING else {}
    if not ours and "servers" not in options:
        name = re.sub(r"(Table|Sink|Provider)?\$?$", "", kind).lower() or "sink"
        return Destination(name, name, name)
    for key in ("topic", "queue"):
        if key in options:
            return Destination(options[key], key, f"{key} {options[key]}")
    return Destination("rows", "topic", "topics and queues that each row names")


def _extra_options(execution: Any) -> dict[str, str]:
    field = execution.getClass().getDeclaredField("extraOptions")
    field.setAccessible(True)
    given = {}
    entries = field.get(execution).iterator()
    while entries.hasNext():
        entry = entries.next()
        given[str(entry._1())] = str(entry._2())
    return given


def _ours(given: Any, servers: list[Servers]) -> dict[str, str]:
    options = lowered({name: str(value) for name, value in in_our_words(dict(given)).items()})
    if "servers" in options:
        servers.append(read_servers(options))
    return options


def _spell_trigger(text: str) -> str:
    """`ProcessingTimeTrigger(1000)` as the pipeline file has it."""
    if (interval := re.search(r"ProcessingTimeTrigger\((\d+)", text)) is not None:
        return f"{int(interval[1]) / 1000:g} seconds"
    return {"AvailableNowTrigger": "available-now", "OneTimeTrigger": "once"}.get(text.partition("(")[0], text)
