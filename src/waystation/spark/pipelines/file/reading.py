"""A pipeline file, read: TOML in, a `Pipeline` out, or all mistakes with their lines.

Whatever can be known without Spark and without a broker is found here: syntax, unknown keys (with the nearest right
one), wrong types, tables that are not there. Used by everything that takes a pipeline file; imports no Spark.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from waystation.errors import Invalid, NotFound, near_matches
from waystation.spark.options import read_options
from waystation.spark.pipelines.file import keys
from waystation.spark.pipelines.file.declared import FILES, Expectation, Pipeline, Sink, SinkKind, Source, SourceKind
from waystation.spark.pipelines.file.format_reading import format_options, read_format
from waystation.spark.pipelines.file.login_reading import checked_servers, choose_broker, read_login, without_secrets
from waystation.spark.pipelines.file.problems import FileProblem, PipelineInvalid
from waystation.spark.pipelines.file.queries import dead_letter_problems, shared_queue_problems
from waystation.spark.pipelines.file.rule_reading import (
    dead_letter_sinks,
    expectation_problems,
    read_dead_letter,
    read_expectations,
)
from waystation.spark.pipelines.file.step_reading import read_step, read_watermark
from waystation.spark.pipelines.file.table_reading import TableReader
from waystation.spark.pipelines.file.times import read_restart, read_schedule, read_trigger
from waystation.toml_file import TomlFile, TomlInvalid, read_toml

DEFAULT_SERVERS = "127.0.0.1:9092"
SERVER_VARIABLE = "WAYSTATION_SERVER"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SINK_MODES = ("append", "update", "complete", "upsert")


class PipelineFile(NamedTuple):
    """A file that was read: what it declares, where it says so, and what is wrong."""

    pipeline: Pipeline
    toml: TomlFile
    problems: list[FileProblem]


def read_pipeline(
    file: Path, *, servers: str | None = None, otherwise: str | None = None, master: str | None = None
) -> PipelineFile:
    """Reads a file; PipelineInvalid with everything that is wrong. `servers` and `master` win over what it says;
    `otherwise` are the servers of a file that names none."""
    found = read_with_problems(file, servers=servers, otherwise=otherwise, master=master)
    if found.problems:
        raise PipelineInvalid(file, found.problems)
    return found


def read_with_problems(
    file: Path, *, servers: str | None = None, otherwise: str | None = None, master: str | None = None
) -> PipelineFile:
    """The same, for `check`, which has more to say. Only a file that is no TOML raises."""
    toml = _read(file)
    problems: list[FileProblem] = []
    top = TableReader(toml.content, (), "a pipeline", toml, problems)
    pipeline = _pipeline(file, top, servers, otherwise, master)
    top.refuse_others(keys.TOP)
    declared = {kind: [name for name, _ in top.tables(kind)] for kind in ("source", "step", "sink")}
    _check_tables(pipeline, declared, toml, problems)
    if not problems:
        problems += shared_queue_problems(pipeline, toml)
        problems += dead_letter_problems(pipeline, toml)
        problems += expectation_problems(pipeline, toml)
    return PipelineFile(pipeline, toml, problems)


def _read(file: Path) -> TomlFile:
    try:
        return read_toml(file)
    except TomlInvalid as error:
        raise PipelineInvalid(file, [FileProblem(error.place.line, str(error))]) from None
    except FileNotFoundError:
        near = near_matches(file.name, (other.name for other in file.parent.glob("*.toml")))
        raise NotFound(f"there is no pipeline file {file}{near}") from None
    except IsADirectoryError:
        raise Invalid(f"{file} is a folder; name the pipeline file in it") from None


def _pipeline(file: Path, top: TableReader, servers: str | None, otherwise: str | None, master: str | None) -> Pipeline:
    name = top.text("name") or file.stem
    if not NAME.fullmatch(name):
        top.problem("name", f"{name!r} cannot be a pipeline's name: use letters, digits, dots, dashes and underscores")
    said = top.text("servers")
    login = read_login(top, lambda path: _place(file, path))
    elsewhere = otherwise or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVERS
    broker = choose_broker(top, said, login, servers, elsewhere)
    progress = top.flag("progress")
    sources = [_source(file, *named) for named in _tables(top, "source")]
    steps = [read_step(*named) for named in _tables(top, "step")]
    sinks = [_sink(file, *named) for named in _tables(top, "sink")]
    trigger = read_trigger(top)
    return Pipeline(
        name=name,
        file=file,
        servers=checked_servers(top, broker),
        checkpoint=_place(file, top.text("checkpoint") or f".waystation/{name}"),
        trigger=trigger,
        master=master or _master(top) or "local[*]",
        progress=True if progress is None else progress,
        settings=top.options("spark"),
        sources={source.name: source for source in sources if source is not None},
        steps={step.name: step for step in steps if step is not None},
        sinks={
            **{sink.name: sink for sink in sinks if sink is not None},
            **{sink.name: sink for sink in dead_letter_sinks("source", sources)},
            **{sink.name: sink for sink in dead_letter_sinks("step", steps)},
        },
        restart=read_restart(top),
        schedule=read_schedule(top, trigger),
        catch_up=bool(top.flag("catch_up")),
        broker=broker,
    )


def _master(top: TableReader) -> str | None:
    from waystation.spark.sessions import check_master

    master = top.text("master")
    if master is not None:
        try:
            check_master(master)
        except Invalid as error:
            top.problem("master", str(error))
    return master


def _place(file: Path, place: str) -> str:
    """A path as the file means it: from its own folder, unless it is absolute or an address."""
    return place if re.match(r"[a-z0-9+.-]+:/", place) else str((file.parent / place).absolute())


def _tables(top: TableReader, kind: str) -> list[tuple[str, TableReader]]:
    """The tables `[kind.NAME]`, in the order of the file."""
    tables = top.tables(kind)
    for name, table in tables:
        if not TABLE_NAME.fullmatch(name):
            table.problem((), f"{name!r} cannot be the name of a {kind}: use letters, digits and underscores")
    return tables


# -- sources -----------------------------------------------------------------------------------------------------------

SOURCE_KIND: dict[str, SourceKind] = {
    "topics": "waystation",
    "pattern": "waystation",
    "assign": "waystation",
    "queue": "queue",
    "parquet": "parquet",
    "csv": "csv",
    "json": "json",
    "rate": "rate",
}


def _source(file: Path, name: str, table: TableReader) -> Source | None:
    chosen = table.one_of(keys.SOURCE_KINDS)
    table.refuse_others(keys.SOURCE)
    if chosen is None:
        return None
    kind = SOURCE_KIND[chosen]
    options, place = _source_options(file, table, chosen, kind)
    schema = table.text("schema")
    if kind == "waystation":
        _check_options(table, options)
    expect, dead_letter = read_expectations(table), read_dead_letter(table)
    if dead_letter is not None:
        _check_dead_letter(table, options, expect)
    return Source(
        name=name,
        kind=kind,
        options=options,
        place=place,
        schema=schema if kind in FILES else None,
        static=bool(table.flag("static")),
        watermark=read_watermark(table),
        filter=table.text("filter"),
        select=table.texts("select"),
        expect=expect,
        dead_letter=dead_letter,
    )


def _check_dead_letter(table: TableReader, options: Mapping[str, str], expect: Sequence[Expectation]) -> None:
    mode = options.get("mode", "permissive").lower()
    if table.flag("static"):
        table.problem("dead_letter", "a static source is read again at every start: it has no dead_letter")
    if any(one.on_fail == "dead_letter" for one in expect):
        return
    if options.get("valueFormat") != "json":
        text = 'add `schema`, for values that do not fit it, or an expectation with on_fail = "dead_letter"'
        table.problem("dead_letter", f"no row gets to this dead_letter: {text}")
    elif mode != "permissive":
        table.problem("mode", f"with mode {mode} no value gets to the dead_letter: leave one of them out")


def _source_options(file: Path, table: TableReader, chosen: str, kind: SourceKind) -> tuple[dict[str, str], str]:
    given = table.given(keys.SOURCE_OPTIONS)
    options = {key: _option(value) for key, value in given.items()}
    place = ""
    if kind in ("waystation", "queue"):
        options[chosen] = ",".join(table.texts(chosen)) if chosen == "topics" else _option(table.value(chosen))
        if chosen == "topics" and not options[chosen]:
            table.problem("topics", "names no topic")
        if kind == "waystation" and not {"startingOffsets", "startingTimestamp"} & given.keys():
            options["startingOffsets"] = "earliest"
        if (typed := read_format(file, table)) is not None:
            options |= format_options(typed)
        elif table.value("format") == "json":
            options["valueFormat"] = "json"
        if table.text("schema") is not None:
            options["valueSchema"] = table.text("schema") or ""
            options.setdefault("valueFormat", "json")
    else:
        for key in (*given, *table.given(keys.FORMAT)):
            table.problem(key, f"{key} is for topics and queues, and this source is {kind}")
        place = _place(file, table.text(chosen) or "") if kind in FILES else str(table.number("rate") or 1)
        if kind in FILES and table.text("schema") is None and not table.flag("static"):
            table.problem((), f'a stream of {kind} files needs `schema = "…"`, since more files may come')
    further = without_secrets(table, table.options("options"))
    return {**options, **further}, place


def _check_options(table: TableReader, options: Mapping[str, str]) -> None:
    """What the Spark source itself would say of its options."""
    try:
        read_options({"servers": DEFAULT_SERVERS, **options}, streaming=not table.flag("static"))
    except Invalid as error:
        named = next((name for name in options if str(error).startswith(name)), None)
        table.problem(named or (), str(error))


def _option(value: Any) -> str:
    """A value as Spark's options have it: text. Tables and lists become JSON."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


# -- sinks -------------------------------------------------------------------------------------------------------------


def _sink(file: Path, name: str, table: TableReader) -> Sink | None:
    kind = table.one_of(keys.SINK_KINDS)
    table.refuse_others(keys.SINK)
    source = table.text("from", needed=True)
    mode = table.word("mode", SINK_MODES) or "append"
    if kind is None or source is None:
        return None
    place = "" if kind in ("console", "destinations") else table.text(kind) or ""
    if kind in ("parquet", "delta"):
        place = _place(file, place)
        if mode != "append":
            table.problem("mode", f"a {kind} sink can only append; write to a topic, or aggregate with a watermark")
    if kind == "console" and table.flag("console") is False:
        table.problem("console", "write `console = true`, or leave the sink out")
    if kind not in ("parquet", "delta") and table.value("partition_by") is not None:
        table.problem("partition_by", f"partition_by is for folders of files, and this sink is {kind}")
    destinations = _destinations(table)
    dead_letter = read_dead_letter(table)
    if dead_letter is not None and not destinations:
        table.problem("dead_letter", f"{_NO_DEAD_LETTER}, and the rows of this sink all go to one place")
    message = kind in ("topic", "queue", "destinations")
    for key in ("key", "value", "guarantee", "txnId", *keys.FORMAT):
        if not message and table.value(key) is not None:
            table.problem(key, f"{key} is for topics and queues, and this sink is {kind}")
    if mode == "upsert" and kind != "topic":
        table.problem("mode", f"upsert is for compacted topics, and this sink is {kind}")
    if mode != "upsert" and table.value("delete_when") is not None:
        table.problem("delete_when", 'delete_when needs mode = "upsert": only a compacted topic deletes a key')
    if table.value("registry") is not None:
        table.problem("registry", "a sink writes values without the number of a schema, so leave registry out")
    guarantee = table.word("guarantee", ("exactly-once", "at-least-once"))
    further = without_secrets(table, table.options("options"))
    own = {"guarantee": guarantee, "txnId": table.text("txnId")} if message else {}
    return Sink(
        name=name,
        kind=_sink_kind(kind),
        table=source,
        place=place,
        mode=mode,
        key=table.text("key"),
        value=table.text("value"),
        delete_when=table.text("delete_when"),
        format=read_format(file, table) if message else None,
        partition_by=table.texts("partition_by"),
        destinations=destinations,
        dead_letter=dead_letter,
        options={**{k: v for k, v in own.items() if v is not None}, **further},
    )


_NO_DEAD_LETTER = "dead_letter of a sink gets rows whose `destinations` do not exist"


def _destinations(table: TableReader) -> tuple[str, ...]:
    found = table.texts("destinations")
    wrong = next((name for name in found if name not in ("topic", "queue")), None)
    if wrong is not None or (not found and table.value("destinations") == []):
        said = f"destinations cannot be {wrong!r}" if wrong is not None else "destinations is empty"
        table.problem("destinations", f'{said}: name the columns, "topic", "queue" or both')
    return tuple(dict.fromkeys(found))


def _sink_kind(kind: str) -> SinkKind:
    kinds: dict[str, SinkKind] = {
        "topic": "topic",
        "queue": "queue",
        "destinations": "destinations",
        "parquet": "parquet",
        "console": "console",
        "memory": "memory",
        "delta": "delta",
        "iceberg": "iceberg",
    }
    return kinds[kind]


# -- the whole ---------------------------------------------------------------------------------------------------------


def _check_tables(
    pipeline: Pipeline, declared: Mapping[str, list[str]], toml: TomlFile, problems: list[FileProblem]
) -> None:
    """Every table that is named is there, above; and there is something to do.

    `declared` has also those that have mistakes of their own: whoever uses them is not to blame.
    """
    seen = list(declared["source"])
    for name in declared["step"]:
        if name in seen:
            problems.append(
                FileProblem(toml.line(("step", name)), f"there are two tables called {name!r}; rename this one")
            )
        step = pipeline.steps.get(name)
        for used in step.inputs if step is not None else ():
            _check_name(used, seen, declared["step"], toml.line(("step", name, "from")), problems)
        if step is not None and step.join is not None:
            line = toml.line(("step", name, "join", "with"))
            _check_name(step.join.table, seen, declared["step"], line, problems)
        seen.append(name)
    for sink in pipeline.sinks.values():
        if sink.dead_letters_of:
            continue
        _check_name(sink.table, seen, (), toml.line(("sink", sink.name, "from")), problems)
    for kind in ("source", "sink"):
        if not declared[kind]:
            problems.append(FileProblem(1, f"a pipeline needs a {kind}: add a table [{kind}.NAME]"))


def _check_name(name: str, seen: Sequence[str], later: Sequence[str], line: int, problems: list[FileProblem]) -> None:
    if name in seen:
        return
    if name in later:
        text = f"step {name!r} is declared below; a step can only use what stands above it, so move {name!r} up"
    else:
        text = f"there is no source or step called {name!r}{near_matches(name, seen) or _list(seen)}"
    problems.append(FileProblem(line, text))


def _list(names: Sequence[str]) -> str:
    return f"; there are: {', '.join(names)}" if names else "; there is none at all"
