"""latest: the last value of every key, as a compacted topic that follows, or as a Parquet table of this moment."""

from __future__ import annotations

from datetime import UTC, datetime

from waystation.errors import Invalid
from waystation.spark.ready.parts import TOPICS, Argument, Ready, Values, block, place, source, text

LAST = """
SELECT topic, key, max_by(struct(value, headers, timestamp, partition, offset), offset) AS last
FROM changes
WHERE key IS NOT NULL
GROUP BY topic, key
"""


def _make(values: Values) -> str:
    if bool(values["to"]) == bool(values["table"]):
        raise Invalid("say where to by one of --to (a topic that follows) and --table (a folder, of this moment)")
    return _table(values) if values["table"] else _topic(values)


def _topic(values: Values) -> str:
    return f"""{source("changes", values)}
[step.grouped]
sql = {block(LAST)}

[step.latest]
from = "grouped"
select = ["key", "last.value AS value", "last.headers AS headers", "last.timestamp AS timestamp"]

[sink.latest]
from = "latest"
topic = {text(values["to"])}
mode = "update"
"""


def _table(values: Values) -> str:
    """A key whose last value is none (a tombstone) is deleted: it is not in the table."""
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    return f"""trigger = "once"

{source("changes", values, "static = true")}
[step.grouped]
sql = {block(LAST)}

[step.latest]
from = "grouped"
filter = "last.value IS NOT NULL"
select = ["topic", "key", "last.*"]

[sink.latest]
from = "latest"
parquet = {text(f"{place(values['table'])}/snapshot={now}")}
"""


def _topics(values: Values) -> dict[str, dict[str, str]]:
    return {values["to"]: {"cleanup.policy": "compact"}} if values["to"] else {}


LATEST = Ready(
    "latest",
    "Keep the latest value of every key.",
    (
        TOPICS,
        Argument("to", "a topic, compacted, that has every key's last value soon after it comes", metavar="TOPIC"),
        Argument("table", "or a folder: a Parquet table of this moment, in a folder snapshot=TIME", metavar="FOLDER"),
    ),
    _make,
    _topics,
)
