"""dead_letters: what died, why, where, of which error, and when.

A dead-letter queue is looked at once and nothing is taken from it; dead-letter topics are followed.
"""

from __future__ import annotations

from waystation.errors import Invalid
from waystation.spark.ready.parts import PATTERN, STARTING, TOPICS, Argument, Ready, Values, block, source, text

HISTORY = (
    "ARRAY<STRUCT<queue: STRING, reason: STRING, time: BIGINT, `count`: INT, deliveries: INT, error: STRING,"
    " `group`: STRING>>"
)
EXCEPTION = r"^([A-Za-z_][A-Za-z0-9_.]*(?:Error|Exception|Warning|Interrupt|Exit|Timeout)?)(?:[:(]|$)"
"""`ValueError: could not convert` and `requests.exceptions.Timeout` begin with what they are."""


def _deaths(of: str) -> str:
    return f"""
SELECT {of} AS letters_in, id, from_json(CAST(
         element_at(filter(headers, header -> header.key = 'x-death'), -1).value AS STRING), '{HISTORY}')[0] AS death
FROM letters
WHERE exists(headers, header -> header.key = 'x-death')
"""


def _told() -> str:
    return f"""
SELECT letters_in, id, death.reason AS reason, death.queue AS source, death.deliveries AS deliveries,
       coalesce(nullif(regexp_extract(death.error, r'{EXCEPTION}', 1), ''), left(death.error, 60), '') AS exception,
       timestamp_millis(death.time) AS died
FROM deaths
"""


GROUPED = """
SELECT letters_in, reason, source, exception, date_trunc('HOUR', died) AS hour,
       count(*) AS letters, round(avg(deliveries), 1) AS deliveries, min(died) AS first, max(died) AS last,
       max_by(id, died) AS example
FROM told
GROUP BY letters_in, reason, source, exception, date_trunc('HOUR', died)
"""


def _make(values: Values) -> str:
    queue = values["queue"]
    if queue and (values["topics"] or values["pattern"]):
        raise Invalid("say what to look at by one of --queue, --topics and --pattern")
    if queue:
        letters = f"[source.letters]\nqueue = {text(queue)}\nstatic = true\n"
        head, ordered = 'trigger = "once"\n\n', "ORDER BY letters DESC, last DESC\n"
    else:
        letters, head, ordered = source("letters", values), "", ""
    return f"""{head}{letters}
[step.deaths]
sql = {block(_deaths("queue" if queue else "topic"))}

[step.told]
sql = {block(_told())}

[step.report]
sql = {block(GROUPED + ordered)}

{_sink(values)}"""


def _sink(values: Values) -> str:
    """Where the report goes; what is followed has another row whenever it changes."""
    mode = "" if values["queue"] else 'mode = "update"\n'
    if values["to"] is None:
        shown = "" if values["queue"] else mode
        return f'[sink.report]\nfrom = "report"\nconsole = true\n{shown}options = {{ numRows = 1000 }}\n'
    key = "concat_ws(' ', letters_in, reason, source, exception, date_format(hour, \"yyyy-MM-dd'T'HH'Z'\"))"
    return (
        f'[sink.report]\nfrom = "report"\ntopic = {text(values["to"])}\n{mode}'
        f'key = {text(key)}\nvalue = "to_json(struct(*))"\n'
    )


def _topics(values: Values) -> dict[str, dict[str, str]]:
    return {values["to"]: {"cleanup.policy": "compact"}} if values["to"] else {}


DEAD_LETTERS = Ready(
    "dead-letters",
    "Count dead letters by reason, source, exception and hour.",
    (
        Argument("queue", "a dead-letter queue: it is looked at once, and nothing is taken", metavar="QUEUE"),
        TOPICS,
        PATTERN,
        Argument("to", "the topic for the report. Default: it is printed", metavar="TOPIC"),
        STARTING,
    ),
    _make,
    _topics,
)
