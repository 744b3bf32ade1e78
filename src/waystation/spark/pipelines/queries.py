"""Which Spark queries a pipeline runs: one for each sink, but one for all sinks that read the same queue.

A topic can be read by many queries, each with its own position. A message of a queue goes to one reader: if two queries
read a queue, each gets some of the messages, and what it filters out is lost. So sinks with a queue in common are one
query that writes all their rows in one commit, which only topics and queues as sinks can do; anything else is a mistake
in the file. Pure; imports no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from waystation.spark.pipelines.declared import Pipeline, Sink, Step
from waystation.spark.pipelines.problems import Problem
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
    return sorted(found, key=lambda query: places[query.name])


def queues_read(pipeline: Pipeline) -> dict[str, frozenset[str]]:
    """Sink → the queues whose messages it gets."""
    of_table = {
        source.name: frozenset((source.options["queue"],) if source.kind == "queue" and not source.static else ())
        for source in pipeline.sources.values()
    }
    for step in pipeline.steps.values():
        of_table[step.name] = frozenset().union(*(of_table[name] for name in _used(step, of_table)))
    return {sink.name: of_table.get(sink.table, frozenset()) for sink in pipeline.sinks.values()}


def _used(step: Step, known: Mapping[str, object]) -> list[str]:
    """The tables of a step. Of a query, all whose names are in it: one too many does less harm than one too few."""
    used = {*step.inputs, *((step.join.table,) if step.join is not None else ())}
    words = {word.lower() for word in re.findall(r"\w+", step.sql or "")}
    return [name for name in known if name in used or name.lower() in words]


def shared_queue_problems(pipeline: Pipeline, toml: TomlFile) -> Iterator[Problem]:
    """What cannot be one query and has to be."""
    reading: dict[str, str] = {}
    for source in pipeline.sources.values():
        queue = source.options.get("queue")
        if queue is None or source.static:
            continue
        if queue in reading:
            yield Problem(
                toml.line(("source", source.name, "queue")),
                f"queue {queue!r} is read by [source.{reading[queue]}] already, and a message goes to one reader only:"
                " use that table for both",
            )
        reading.setdefault(queue, source.name)
    for query in queries(pipeline):
        first = query.sinks[0]
        for sink in query.sinks[1:]:
            yield from _problem(toml, first, sink)


def _problem(toml: TomlFile, first: Sink, sink: Sink) -> Iterator[Problem]:
    both = (
        f"[sink.{first.name}] and [sink.{sink.name}] get messages of the same queue, so they are written in one commit"
    )
    odd = next((one for one in (first, sink) if one.kind not in ("topic", "queue")), None)
    if odd is not None:
        yield Problem(
            toml.line(("sink", sink.name)),
            f"{both}, and a {odd.kind} sink cannot be part of it: write to a topic first, and read that topic twice",
        )
    for one in (first, sink):
        if odd is None and one.mode != "append":
            yield Problem(toml.line(("sink", one.name, "mode")), f"{both}, which has to be of mode append")
    if odd is None and dict(first.options) != dict(sink.options):
        yield Problem(toml.line(("sink", sink.name)), f"{both}: give both the same guarantee and options")
