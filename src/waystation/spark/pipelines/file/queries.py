"""Which Spark queries a pipeline runs: one for each sink, but one for all sinks that read the same queue, and none of
their own for dead letters where they can be written with the other rows.

A topic can be read by many queries, each with its own position. A message of a queue goes to one reader: if two queries
read a queue, each gets some of the messages, and what it filters out is lost. So sinks with a queue in common are one
query that writes all their rows in one commit, which only topics and queues as sinks can do; anything else is a mistake
in the file.

The dead letters of a table are a sink, too. They join the first query that reads the table and writes messages, so that
a batch and its dead letters are one commit. Pure; imports no Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from waystation.spark.options import pattern_of
from waystation.spark.pipelines.file.declared import Pipeline, Sink, Source, Step
from waystation.spark.pipelines.file.problems import FileProblem
from waystation.toml_file import TomlFile


@dataclass(frozen=True, slots=True)
class Query:
    """Sinks that are written together. It has the name, and the checkpoint, of the first of them: another sink can be
    added below without losing the position."""

    sinks: tuple[Sink, ...]

    @property
    def name(self) -> str:
        return self.sinks[0].name


def queries(pipeline: Pipeline) -> list[Query]:
    """In the order of the file."""
    read = queues_read(pipeline)
    groups: list[tuple[set[str], list[Sink]]] = []
    for sink in pipeline.sinks.values():
        queues, sinks = set(read[sink.name]), [sink]
        for group in [group for group in groups if group[0] & queues]:
            groups.remove(group)
            queues |= group[0]
            sinks = [*group[1], *sinks]
        groups.append((queues, sinks))
    places = {name: place for place, name in enumerate(pipeline.sinks)}
    found = [Query(tuple(sorted(sinks, key=lambda sink: places[sink.name]))) for _, sinks in groups]
    return _with_dead_letters(sorted(found, key=lambda query: places[query.name]), tables_read(pipeline))


def _with_dead_letters(found: list[Query], read: Mapping[str, frozenset[str]]) -> list[Query]:
    """Dead letters that no queue has put into a query join one, if there is one that can take them."""
    made: list[Query] = []
    for query in found:  # dead letters come last
        place = _place_for(query.sinks[0], made, read)
        if place is None:
            made.append(query)
        else:
            made[place] = Query((*made[place].sinks, *query.sinks))
    return made


def _place_for(sink: Sink, made: list[Query], read: Mapping[str, frozenset[str]]) -> int | None:
    for place, query in enumerate(made) if sink.dead_letters_of else ():
        messages = all(one.messages and one.mode == "append" for one in query.sinks)
        if messages and any(sink.origin in read[one.name] for one in query.sinks):
            return place
    return None


def shared_sources(pipeline: Pipeline) -> frozenset[str]:
    """Those that one query reads for several sinks, and so several times."""
    read = tables_read(pipeline)
    tables = (read[sink.name] for query in queries(pipeline) if len(query.sinks) > 1 for sink in query.sinks)
    return frozenset().union(*tables) & pipeline.sources.keys()


def queues_read(pipeline: Pipeline) -> dict[str, frozenset[str]]:
    """Sink → the queues whose messages it gets."""
    queues = {
        source.name: source.options["queue"]
        for source in pipeline.sources.values()
        if source.kind == "queue" and not source.static
    }
    return {
        sink: frozenset(queues[name] for name in tables if name in queues)
        for sink, tables in tables_read(pipeline).items()
    }


def tables_read(pipeline: Pipeline) -> dict[str, frozenset[str]]:
    """Sink → the sources and steps that its rows come through."""
    through = {name: frozenset((name,)) for name in pipeline.sources}
    for step in pipeline.steps.values():
        through[step.name] = frozenset((step.name,)).union(*(through[name] for name in _used(step, through)))
    return {sink.name: through.get(sink.origin, frozenset()) for sink in pipeline.sinks.values()}


def _used(step: Step, known: Mapping[str, object]) -> list[str]:
    """The tables of a step. Of a query, all whose names are in it: one too many does less harm than one too few."""
    used = {*step.inputs, *((step.join.table,) if step.join is not None else ())}
    words = {word.lower() for word in re.findall(r"\w+", step.sql or "")}
    return [name for name in known if name in used or name.lower() in words]


def shared_queue_problems(pipeline: Pipeline, toml: TomlFile) -> Iterator[FileProblem]:
    """What cannot be one query and has to be."""
    reading: dict[str, str] = {}
    for source in pipeline.sources.values():
        queue = source.options.get("queue")
        if queue is None or source.static:
            continue
        if queue in reading:
            yield FileProblem(
                toml.line(("source", source.name, "queue")),
                f"queue {queue!r} is read by [source.{reading[queue]}] already, and a message goes to one reader only:"
                " use that table for both",
            )
        reading.setdefault(queue, source.name)
    for query in queries(pipeline):
        first = query.sinks[0]
        for sink in query.sinks[1:]:
            yield from _problem(toml, first, sink)


def _problem(toml: TomlFile, first: Sink, sink: Sink) -> Iterator[FileProblem]:
    both = f"{first} and {sink} get messages of the same queue, so they are written in one commit"
    odd = next((one for one in (first, sink) if not one.messages), None)
    if odd is not None:
        yield FileProblem(
            toml.line(sink.path),
            f"{both}, and a {odd.kind} sink cannot be part of it: write to a topic first, and read that topic twice",
        )
    for one in (first, sink):
        if odd is None and one.mode != "append":
            yield FileProblem(toml.line((*one.path, "mode")), f"{both}, which has to be of mode append")
    if odd is None and not sink.dead_letters_of and dict(first.options) != dict(sink.options):
        yield FileProblem(toml.line(sink.path), f"{both}: give both the same guarantee and options")


def dead_letter_problems(pipeline: Pipeline, toml: TomlFile) -> Iterator[FileProblem]:
    """Dead letters that the pipeline would read again, and again."""
    read = tables_read(pipeline)
    for sink in pipeline.sinks.values():
        for name in sorted(read[sink.name] & pipeline.sources.keys()) if sink.dead_letters_of else ():
            if _reads(pipeline.sources[name], sink):
                text = f"[source.{name}] reads the {sink.kind} {sink.place!r}: its dead letters would be read again"
                yield FileProblem(toml.line(sink.path), f"{text}; name another one")


def _reads(source: Source, sink: Sink) -> bool:
    if sink.kind == "queue":
        return source.options.get("queue") == sink.place
    pattern = source.options.get("pattern")
    assigned = json.loads(source.options.get("assign") or "{}")
    return sink.place in (*source.topics, *assigned) or (
        pattern is not None and pattern_of(pattern).matches(sink.place)
    )
