"""Log events: every log call of the tree has a name and fields, and every reader of the log gets them."""

from __future__ import annotations

import ast
import json
import logging
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.observe.log_calls import SOURCES, log_calls
from tests.support.server import ROOT
from waystation.cli.server.logs import EventFormatter, HumanFormatter
from waystation.observe.events import RESERVED, LogEvent, event_logger

CONFIGURE = {
    "src/waystation/observe/events.py": "makes our loggers",
    "src/waystation/observe/otel.py": "silences a library's loggers",
    "src/waystation/broker/access/administration/cluster.py": "shows and changes levels for Kafka's tools",
    "src/waystation/cli/server/logs.py": "sends the root logger to standard error",
    "src/waystation/spark/sessions.py": "silences Spark's loggers",
    "src/waystation/protocols/http/transport/websocket.py": "gives a library a logger",
}
"""Who uses Python's loggers directly, and what for."""


def test_every_log_call_is_an_event_with_a_name_and_fields() -> None:
    calls = list(log_calls())
    wrong = []
    for call in calls:
        if call.place.startswith("src/waystation/observe/events.py"):
            continue  # where the others end
        if not call.ours:
            wrong.append(f"{call.place}: not a call of an event_logger of this module")
        elif call.event is None or not re.fullmatch(r"[a-z][a-z_]*\.[a-z][a-z_]*", call.event):
            wrong.append(f"{call.place}: the event is not a constant like 'queue.deleted': {call.event}")
        elif call.text is None or "%" in call.text:
            wrong.append(f"{call.place}: the text is not a constant, or is %-formatted: {call.text}")
        elif call.others or not call.fields:
            wrong.append(f"{call.place}: an event has named fields, at least one, and nothing else")
        elif set(call.fields) & RESERVED:
            wrong.append(f"{call.place}: {set(call.fields) & RESERVED} are in every line")
        elif call.named_in_text - set(call.fields):
            wrong.append(f"{call.place}: the text names {call.named_in_text - set(call.fields)}, which is no field")
    assert wrong == []
    assert len(calls) > 150, "the walk finds them"


def test_nobody_logs_past_it() -> None:
    found = {
        str(path.relative_to(ROOT))
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute | ast.Name)
        and (node.attr if isinstance(node, ast.Attribute) else node.id) in ("getLogger", "getChild", "LoggerAdapter")
    }
    assert found == CONFIGURE.keys()


# -- what a record says ------------------------------------------------------------------------------------------------


def line(style: str, event: object, **more: object) -> str:
    made = logging.makeLogRecord(
        {
            "name": "waystation.queues",
            "levelno": logging.INFO,
            "levelname": "INFO",
            "msg": event,
            "created": 1.5,
            **more,
        }
    )
    return EventFormatter(style).format(made)


DELETED = LogEvent(
    "queue.deleted", "queue {queue} is deleted", {"queue": "a b", "count": 3, "kept": None, "last": True}
)


def test_fields_are_keys_in_json_and_name_value_in_text() -> None:
    assert json.loads(line("json", DELETED)) == {
        "time": "1970-01-01T00:00:01.500Z",
        "level": "info",
        "logger": "waystation.queues",
        "event": "queue.deleted",
        "text": "queue a b is deleted",
        "queue": "a b",
        "count": 3,
        "kept": None,
        "last": True,
    }
    assert line("text", DELETED) == (
        "time=1970-01-01T00:00:01.500Z level=info logger=waystation.queues event=queue.deleted"
        ' text="queue a b is deleted" queue="a b" count=3 kept=null last=true'
    )


def test_whoever_handles_records_themselves_reads_the_sentence_and_the_other_fields() -> None:
    assert str(DELETED) == "queue a b is deleted (count=3 kept=null last=true)"
    assert (
        str(LogEvent("a.b", "all of it: {error}", {"error": OSError(28, "No space left")}))
        == "all of it: No space left"
    )
    assert str(LogEvent("a.b", "{error}", {"error": OSError(2, "Not there", "/x")})) == "Not there: /x"
    assert str(LogEvent("a.b", "{error}", {"error": ValueError()})) == "ValueError"


def test_a_library_s_line_has_the_same_keys() -> None:
    told = json.loads(line("json", "%s is slow", args=("it",)))
    assert (told["event"], told["text"]) == ("library.message", "it is slow")


def test_an_exception_brings_its_error_and_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        event_logger("waystation.test").exception("test.failed", "it failed", job="x")
    (record,) = caplog.records
    told = json.loads(EventFormatter("json").format(record))
    assert (told["event"], told["job"], told["error"]) == ("test.failed", "x", "why")
    assert "ValueError: why" in told["traceback"]
    assert record.funcName == "test_an_exception_brings_its_error_and_traceback"
    shown = HumanFormatter(colour=False).format(record).splitlines()
    assert shown[0].endswith("ERROR   it failed (job=x error=why)")
    assert shown[-1] == "ValueError: why"


def test_a_level_that_is_off_costs_no_formatting(caplog: pytest.LogCaptureFixture) -> None:
    class Loud:
        def __str__(self) -> str:
            raise AssertionError

    with caplog.at_level(logging.WARNING, "waystation.test"):
        event_logger("waystation.test").info("test.done", "{value}", value=Loud())
    assert caplog.records == []


@given(st.text(), st.text())
def test_no_value_breaks_a_line_or_commands_a_terminal(name: str, reason: str) -> None:
    event = LogEvent("queue.deleted", "queue {queue} is deleted", {"queue": name, "reason": reason})
    for style in ("text", "json"):
        assert len(line(style, event).splitlines()) == 1
    told = json.loads(line("json", event))
    assert (told["queue"], told["reason"]) == (name, reason)
    made = logging.makeLogRecord({"msg": event, "levelname": "INFO"})
    assert HumanFormatter(colour=False).format(made).isprintable()
