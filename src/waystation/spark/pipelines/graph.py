"""A picture of a pipeline: text for a terminal, or dot for Graphviz. Pure; imports no Spark."""

from __future__ import annotations

import re
from dataclasses import dataclass

from waystation.observe.pipeline_state import GraphNode
from waystation.spark.pipelines.file.declared import Pipeline, Sink, Source, Step

_USED = re.compile(r"\b(?:from|join)\s+((?:`?\w+`?(?:\s+(?:as\s+)?\w+)?\s*,\s*)*`?\w+`?)", re.IGNORECASE)
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Edge:
    """From one node to another, by their names; sinks have `sink:` before theirs."""

    start: str
    end: str


def edges(pipeline: Pipeline) -> list[Edge]:
    """Who uses whom, in the order of the file."""
    found = []
    names = [*pipeline.sources]
    for step in pipeline.steps.values():
        used = tables_of(step, names)
        found += [Edge(name, step.name) for name in used]
        names.append(step.name)
    return found + [Edge(sink.origin, f"sink:{sink.name}") for sink in pipeline.sinks.values()]


def tables_of(step: Step, known: list[str]) -> list[str]:
    """The tables that a step is made of; those of a query are found by the words behind FROM and JOIN."""
    used = list(step.inputs)
    if step.join is not None:
        used.append(step.join.table)
    if step.sql is not None:
        for found in _USED.finditer(_COMMENT.sub(" ", step.sql)):
            used += [part.strip().split()[0].strip("`") for part in found[1].split(",") if part.strip()]
    lower = {name.lower(): name for name in known}
    return list(dict.fromkeys(lower[name.lower()] for name in used if name.lower() in lower))


def describe_source(source: Source) -> str:
    if source.kind == "waystation":
        what = next(key for key in ("topics", "pattern", "assign") if key in source.options)
        text = f"{'topic' if what == 'topics' else what} {source.options[what]}"
    else:
        text = f"{source.kind} {source.options.get('queue', source.place)}"
    return f"{text} (static)" if source.static else text


def describe_step(step: Step) -> str:
    parts = {
        "sql": step.sql,
        "watermark": step.watermark,
        "filter": step.filter,
        "join": step.join,
        "dedup": step.dedup,
        "window": step.window,
        "aggregate": step.aggregate,
        "python": step.python,
        "stateful": step.stateful,
        "select": step.select,
        "expect": step.expect,
    }
    return ", ".join(f"python {value}" if key == "python" else key for key, value in parts.items() if value)


def describe_sink(sink: Sink) -> str:
    mode = "" if sink.mode == "append" else f", {sink.mode}"
    if sink.destinations:
        return f"{' or '.join(sink.destinations)} of each row{mode}"
    return f"{sink.kind} {sink.place}".strip() + mode


def nodes(pipeline: Pipeline) -> list[GraphNode]:
    """The picture as plain data, for who shows how a pipeline is doing."""
    before: dict[str, list[str]] = {}
    for edge in edges(pipeline):
        before.setdefault(edge.end, []).append(edge.start)
    found = [GraphNode(name, "source", describe_source(source)) for name, source in pipeline.sources.items()]
    for name, step in pipeline.steps.items():
        found.append(GraphNode(name, "step", describe_step(step), tuple(before.get(name, ()))))
    for name, sink in pipeline.sinks.items():
        found.append(GraphNode(f"sink:{name}", "sink", describe_sink(sink), (sink.table,)))
    return found


def as_dot(pipeline: Pipeline) -> str:
    """For `dot -Tsvg`."""
    lines = [f"digraph {_quote(pipeline.name)} {{", "  rankdir=LR;", '  node [shape=box, fontname="sans-serif"];']
    for source in pipeline.sources.values():
        lines.append(_node(source.name, source.name, describe_source(source), "ellipse"))
    for step in pipeline.steps.values():
        lines.append(_node(step.name, step.name, describe_step(step), "box"))
    for sink in pipeline.sinks.values():
        lines.append(_node(f"sink:{sink.name}", sink.name, describe_sink(sink), "cds"))
    lines += [f"  {_quote(edge.start)} -> {_quote(edge.end)};" for edge in edges(pipeline)]
    return "\n".join([*lines, "}"])


def _node(name: str, title: str, text: str, shape: str) -> str:
    return f"  {_quote(name)} [label={_quote(title + chr(10) + text)}, shape={shape}];"


def _quote(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def as_text(pipeline: Pipeline) -> str:
    """A tree from each source to where its rows go; what was shown already is only named again."""
    after: dict[str, list[str]] = {}
    for edge in edges(pipeline):
        after.setdefault(edge.start, []).append(edge.end)
    labels = {name: f"{name}: {describe_source(source)}" for name, source in pipeline.sources.items()}
    labels |= {name: f"{name}: {describe_step(step)}" for name, step in pipeline.steps.items()}
    labels |= {f"sink:{name}": f"{name} ▶ {describe_sink(sink)}" for name, sink in pipeline.sinks.items()}
    shown: set[str] = set()
    lines = [f"{pipeline.name}  (trigger {pipeline.trigger}, on {pipeline.master})"]

    def draw(name: str, indent: str, last: bool) -> None:
        again = name in shown and name in after
        lines.append(f"{indent}{'└─ ' if last else '├─ '}{labels[name]}{' …' if again else ''}")
        shown.add(name)
        children = [] if again else after.get(name, [])
        for number, child in enumerate(children, 1):
            draw(child, indent + ("   " if last else "│  "), number == len(children))

    roots = list(pipeline.sources)
    roots += [
        step.name for step in pipeline.steps.values() if not tables_of(step, [*pipeline.sources, *pipeline.steps])
    ]
    for number, root in enumerate(roots, 1):
        draw(root, "", number == len(roots))
    return "\n".join(lines)
