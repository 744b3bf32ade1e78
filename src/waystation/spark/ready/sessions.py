"""sessions: events of one key that follow one another closely are one session. An example to change."""

from __future__ import annotations

from waystation.spark.ready.parts import PATTERN, STARTING, TOPICS, Argument, Ready, Values, source, text


def _make(values: Values) -> str:
    schema = [f"schema = {text(values['schema'])}"] if values["schema"] else []
    return f"""{source("events", values, *schema)}
[step.sessions]
from = "events"
watermark = {{ column = "timestamp", delay = {text(values["late"])} }}
window = {{ column = "timestamp", gap = {text(values["gap"])} }}
group = [{text(f"{values['by']} AS who")}]

[step.sessions.aggregate]
events = "count(*)"
start = "min(timestamp)"
end = "max(timestamp)"

[step.measured]
from = "sessions"
select = ["who", "start", "end", "events", "unix_seconds(end) - unix_seconds(start) AS seconds"]

[sink.sessions]
from = "measured"
topic = {text(values["to"])}
key = "who"
value = "to_json(struct(*))"
"""


SESSIONS = Ready(
    "sessions",
    "Gather events into sessions: one ends when nothing came for a while.",
    (
        TOPICS,
        PATTERN,
        Argument("to", "the topic for sessions that have ended", needed=True, metavar="TOPIC"),
        Argument("by", "whose session it is, as SQL", default="CAST(key AS STRING)", metavar="SQL"),
        Argument("gap", "a session ends when nothing arrived for this time", default="30m", metavar="TIME"),
        Argument("late", "how late events may come", default="1m", metavar="TIME"),
        Argument("schema", "the columns of JSON values, for --by: 'user STRING, page STRING'", metavar="COLUMNS"),
        STARTING,
    ),
    _make,
    lambda values: {values["to"]: {}},
)
