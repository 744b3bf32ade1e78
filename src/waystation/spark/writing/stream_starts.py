"""A stream to `format("waystation")` is checked when it is started, and may be in update mode.

Spark first calls the sink of a Python data source when a micro-batch has rows: until then a query to a topic that does
not exist is active, as if all were well. And it lets such a sink append or write everything again, but not update. So
`register` puts this around `start` of its stream writers: options, columns and the target are checked first, a missing
topic is created where the broker does that for every publisher, and a query in update mode is written batch by batch
(`foreach`). Over Spark Connect only options are checked: the broker is where the server is. Writers to other formats
are untouched.

What a writer was told is not in Spark's public API: where it cannot be found, the query starts unchecked, as it did
before. A broker that is away is no mistake; the query waits for it. For `register`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from typing import Any

from waystation.errors import Invalid, NotAllowed, NotFound, RequestTimeout, Unavailable
from waystation.observe.events import event_logger
from waystation.spark.kafka_options import in_our_words
from waystation.spark.links.broker_link import connect_once
from waystation.spark.links.retrying import advised
from waystation.spark.tables import check_named
from waystation.spark.writing.foreach import each_batch
from waystation.spark.writing.rights import check_writes
from waystation.spark.writing.sink_columns import check_columns
from waystation.spark.writing.sink_options import SINK_OPTIONS, SinkOptions, read_sink_options

log = event_logger("waystation.spark")

_DONE = "_waystation_checks"


@dataclass(frozen=True, slots=True)
class _Target:
    """What a stream writer was told. `remote`: its driver is a Spark Connect server, with a network of its own."""

    format: str
    mode: str
    options: Mapping[str, str]
    remote: bool


def check_starts(writers: Any, source: str) -> None:
    """Changes `start` of a class of stream writers, classic or Connect; again does no harm."""
    if not hasattr(writers.start, _DONE):
        writers.start = _checking(writers.start, source)


def _checking(start: Callable[..., Any], source: str) -> Callable[..., Any]:
    signature = inspect.signature(start)

    @wraps(start)
    def checked(writer: Any, *args: Any, **kwargs: Any) -> Any:
        call = signature.bind(writer, *args, **kwargs)
        target = _target(writer, call.arguments)
        if target is None or target.format.lower() != source:
            return start(writer, *args, **kwargs)
        options = _check(target, writer)
        if target.mode.lower() != "update":
            return start(writer, *args, **kwargs)
        writer.foreachBatch(each_batch(**options))
        call.arguments.pop("format", None)  # it would take the place of the function
        return start(*call.args, **call.kwargs)

    setattr(checked, _DONE, True)
    return checked


def _check(target: _Target, writer: Any) -> dict[str, str]:
    """The options of the sink, in our words; raises Invalid or NotFound."""
    updates = target.mode.lower() == "update"
    check_named(target.options)
    given = in_our_words(target.options)
    options = read_sink_options(given, streaming=not updates)
    if target.remote:
        if updates and options.exactly_once and options.txn_id is None:
            raise Invalid(
                "outputMode('update') over Spark Connect: give the option txnId, another one for each checkpoint, since"
                " the query's own id is not known there"
            )
    else:
        check_columns(writer._df.schema, options)
        _check_place(options)
    known = {name.lower() for name in SINK_OPTIONS}
    return {name: value for name, value in given.items() if name.lower() in known}


def _check_place(options: SinkOptions) -> None:
    kind, name = ("topic", options.topic) if options.topic is not None else ("queue", options.queue)
    if name is None:  # each row names its own
        with suppress(Unavailable, RequestTimeout):
            connect_once(options.servers).close()
        return
    try:
        with connect_once(options.servers) as client:
            if kind == "topic":
                client.describe_topic(name, create=True)
            else:
                client.queue(name, passive=True)
            check_writes(options.servers, client, kind, name, exactly_once=options.exactly_once)
    except NotAllowed as error:
        raise advised(error) from None
    except NotFound as error:
        raise NotFound(f"{error}; create it first, for instance: waystation {kind}s create {name}") from None
    except (Unavailable, RequestTimeout) as error:
        log.warning(
            "stream.not_checked",
            "whether the {kind} {name} exists is not known, since the broker at {server} is away: {error}; the query"
            " starts, and waits for the broker when it has rows",
            kind=kind,
            name=name,
            server=str(options.servers),
            error=error,
        )


# -- what a writer was told --------------------------------------------------------------------------------------------


def _target(writer: Any, call: Mapping[str, Any]) -> _Target | None:
    """With what `start` itself is told besides; None where Spark keeps it differently."""
    try:
        found = _remote(writer) if hasattr(writer, "_write_proto") else _classic(writer)
    except Exception as error:  # py4j's, or an attribute that is not there
        log.warning(
            "stream.not_checked",
            "the target of a stream is not checked at its start: {error}",
            error=str(error).partition("\n")[0],
        )
        return None
    if found is None:
        return None
    options = {**found.options, **_texts(call.get("options", {}))}
    return _Target(call.get("format") or found.format, call.get("outputMode") or found.mode, options, found.remote)


def _texts(options: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def _classic(writer: Any) -> _Target:
    java = writer._jwrite

    def field(name: str) -> Any:
        found = java.getClass().getDeclaredField(name)
        found.setAccessible(True)
        return found.get(java)

    options = {}
    entries = field("extraOptions").originalMap().iterator()
    while entries.hasNext():
        entry = entries.next()
        options[str(entry._1())] = str(entry._2())
    return _Target(str(field("source")), str(field("outputMode").toString()), options, remote=False)


def _remote(writer: Any) -> _Target | None:
    told = writer._write_proto
    if told.HasField("foreach_batch") or told.HasField("foreach_writer"):
        return None
    return _Target(told.format, told.output_mode, dict(told.options), remote=True)
