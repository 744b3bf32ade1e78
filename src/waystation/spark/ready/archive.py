"""archive: topics into a folder of Parquet files, on and on. See docs/guide/ready-made-pipelines.md."""

from __future__ import annotations

from waystation.spark.ready.parts import PATTERN, STARTING, TOPICS, Argument, Ready, Values, place, source, text

COLUMNS = (
    "key BINARY, value BINARY, partition INT, offset BIGINT, timestamp TIMESTAMP, timestampType INT,"
    " headers ARRAY<STRUCT<key: STRING, value: BINARY>>, id STRING, priority INT, contentType STRING,"
    " date STRING, hour STRING, topic STRING"
)
"""What is in an archive; the last three are its folders. `replay` reads it."""


def _make(values: Values) -> str:
    return f"""trigger = {text(values["every"])}

{source("messages", values)}
[step.dated]
from = "messages"
select = [
    "*",
    "date_format(timestamp, 'yyyy-MM-dd') AS date",
    "date_format(timestamp, 'HH') AS hour",
]

[sink.archive]
from = "dated"
parquet = {text(place(values["to"]))}
partition_by = ["date", "hour", "topic"]
"""


ARCHIVE = Ready(
    "archive",
    "Keep topics as Parquet files: folders by date, hour and topic, all columns.",
    (
        TOPICS,
        PATTERN,
        Argument("to", "the folder, or an address such as s3a://bucket/archive", needed=True, metavar="FOLDER"),
        Argument("every", "how often files are written: fewer are larger", default="1m", metavar="TIME"),
        STARTING,
    ),
    _make,
)
