"""traffic: how much goes through topics, and how: rates, sizes, the skew of keys, the way from producer to here."""

from __future__ import annotations

from waystation.spark.ready.parts import PATTERN, STARTING, TOPICS, Argument, Ready, Values, source, sql_text, text

TOPIC = "waystation.traffic"


def _make(values: Values) -> str:
    # What this writes must not be what it reads, or it would never be quiet.
    own = f"topic NOT LIKE '\\\\_\\\\_%' AND topic NOT LIKE 'waystation.%' AND topic <> {sql_text(values['to'])}"
    window = text(values["window"])
    return f"""{source("messages", values, f"filter = {text(own)}")}
[step.measured]
from = "messages"
watermark = {{ column = "timestamp", delay = {text(values["late"])} }}
select = [
    "timestamp",
    "topic",
    "make_valid_utf8(CAST(key AS STRING)) AS key",
    "octet_length(coalesce(key, X'')) + octet_length(coalesce(value, X'')) AS bytes",
    "greatest(0L, unix_millis(current_timestamp()) - unix_millis(timestamp)) AS latency",
]

[step.counted]
from = "measured"
window = {{ column = "timestamp", size = {window} }}
group = ["topic"]

[step.counted.aggregate]
messages = "count(*)"
bytes = "sum(bytes)"
mean_bytes = "avg(bytes)"
largest_bytes = "max(bytes)"
keyed = "count(key)"
keys = "approx_count_distinct(key)"
top = "approx_top_k(key, 1)"
latency_ms = "percentile_approx(latency, array(0.5, 0.99, 1.0))"

[step.traffic]
from = "counted"
select = [
    "topic",
    "window.start AS start",
    "window.end AS end",
    "messages",
    "bytes",
    "messages / (unix_seconds(window.end) - unix_seconds(window.start)) AS messages_per_s",
    "bytes / (unix_seconds(window.end) - unix_seconds(window.start)) AS bytes_per_s",
    "mean_bytes",
    "largest_bytes",
    "keys",
    "get(top, 0).item AS top_key",
    "coalesce(try_divide(get(top, 0).count, keyed), 0D) AS top_key_share",
    "latency_ms[0] AS latency_p50_ms",
    "latency_ms[1] AS latency_p99_ms",
    "latency_ms[2] AS latency_max_ms",
]

[sink.traffic]
from = "traffic"
topic = {text(values["to"])}
mode = "update"
key = "concat(topic, ' ', date_format(start, \\"yyyy-MM-dd'T'HH:mm:ss'Z'\\"))"
value = "to_json(struct(*))"
"""


def _topics(values: Values) -> dict[str, dict[str, str]]:
    return {values["to"]: {"cleanup.policy": "compact,delete"}}


TRAFFIC = Ready(
    "traffic",
    "Measure topics minute by minute: rates, sizes, key skew, latency from produce to consume.",
    (
        TOPICS,
        PATTERN,
        Argument("to", "the topic for what was measured", default=TOPIC, metavar="TOPIC"),
        Argument("window", "how long a measure is", default="1m", metavar="TIME"),
        Argument("late", "how late messages may come and still be counted", default="1m", metavar="TIME"),
        STARTING,
    ),
    _make,
    _topics,
)
