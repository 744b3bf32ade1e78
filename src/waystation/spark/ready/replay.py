"""replay: an archive back into a topic, with the keys, headers and times that the messages had.

All of it is visible at once, or nothing. Rows of one partition of the archived topic are written in their order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.errors import Invalid
from waystation.spark.options import read_time
from waystation.spark.ready.archive import COLUMNS
from waystation.spark.ready.parts import Argument, Ready, Values, place, sql_text, text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def in_order(frame: DataFrame) -> DataFrame:
    """Each archived partition in one task, by offset: so each key's messages stay in their order."""
    return frame.repartition("topic", "partition").sortWithinPartitions("topic", "partition", "offset")


def _conditions(values: Values) -> list[str]:
    """What is replayed. Conditions on the folders spare the reading of others."""
    found = [f"topic = {sql_text(values['topic'])}"] if values["topic"] else []
    for name, sign in (("since", ">="), ("until", "<")):
        if values[name]:
            moment = f"timestamp_millis({read_time(values[name], f'--{name}')})"
            found += [f"timestamp {sign} {moment}", f"date {sign[0]}= date_format({moment}, 'yyyy-MM-dd')"]
    return found


def _make(values: Values) -> str:
    if values["topic"] is None and values["to"] is None:
        raise Invalid("say with --to into which topic")
    conditions = _conditions(values)
    lines = [f"filter = {text(' AND '.join(conditions))}"] if conditions else []
    txn_id = [f"txnId = {text(values['txn_id'])}"] if values["txn_id"] else []
    more, once = "".join(f"{line}\n" for line in lines), "".join(f"{line}\n" for line in txn_id)
    return f"""trigger = "once"

[source.archive]
parquet = {text(place(values["archive"]))}
schema = {text(COLUMNS)}
static = true
{more}
[step.in_order]
from = "archive"
python = "waystation.spark.ready.replay:in_order"
select = ["key", "value", "headers", "timestamp"]

[sink.topic]
from = "in_order"
topic = {text(values["to"])}
{once}"""


REPLAY = Ready(
    "replay",
    "Write an archive into a topic again, with the original keys, headers and timestamps.",
    (
        Argument("archive", "the folder that `archive` wrote", needed=True, metavar="FOLDER"),
        Argument("to", "the topic to write to", needed=True, metavar="TOPIC"),
        Argument("topic", "only what was archived of this topic. Default: everything", metavar="TOPIC"),
        Argument("since", "only messages from this time on: 2026-03-01T00:00:00Z, or ms since 1970", metavar="TIME"),
        Argument("until", "only messages before this time", metavar="TIME"),
        Argument("txn_id", "a name under which this is written once, however often it is run", metavar="NAME"),
    ),
    _make,
    lambda values: {values["to"]: {}},
)
