"""The options of the source: their names, how they are read, and what is said of a wrong one.

Spark hands options over as text, with names in lower case. Here they become one checked `SourceOptions`; nothing behind
it looks at text again. A wrong name or value raises Invalid with one sentence that says what would be right.

Pure; for this package. Knows nothing of pyspark, so that a pipeline file can be checked without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from waystation.durations import parse_ms
from waystation.errors import Invalid, near_matches
from waystation.routing.matching.patterns import Pattern, compile_pattern
from waystation.spark.kafka_options import SAME, SPELLED
from waystation.spark.links.login_options import LOGIN_OPTIONS, lowered, read_servers
from waystation.spark.links.servers import Servers
from waystation.spark.values.value_formats import FORMATS, VALUE_OPTIONS, ValueFormat, read_value_format

EARLIEST = -2
LATEST = -1

DEFAULT_RETRY_S = 300.0
DEFAULT_TRIGGER_DELAY_S = 900.0
"""As with Spark's Kafka connector."""

Partition = tuple[str, int]
"""A topic's name and the number of one of its partitions."""

SOURCE_OPTIONS = (
    "servers",
    "topics",
    "pattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "maxRowsPerTrigger",
    "maxBytesPerTrigger",
    "minRowsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "group",
    "failOnDataLoss",
    "isolation",
    "valueFormat",
    "valueSchema",
    *VALUE_OPTIONS,
    "mode",
    "retryTimeout",
    "queue",
    *LOGIN_OPTIONS,
)

_OF_SOURCE = frozenset(name.lower() for name in SOURCE_OPTIONS if name != "topics")

_SPARKS_OWN = ("checkpointlocation", "path", "queryname")
"""What Spark adds itself."""

_ELSEWHERE = {
    **SAME,
    "topic": "topics",
    "bootstrap.servers": "servers",
    "kafka.group.id": "group",
    "groupidprefix": "group",
    "multiline": "valueFormat",
    "schema": "valueSchema",
}
"""What users of other sources write, and what it is called here."""

Mode = Literal["permissive", "failfast", "dropmalformed"]


@dataclass(frozen=True, slots=True)
class Where:
    """A place in every partition: the earliest, the latest, a time, or an offset for each."""

    default: int = LATEST
    each: Mapping[Partition, int] = field(default_factory=dict)
    """Offsets, EARLIEST or LATEST; partitions that are not in it are at the default."""
    timestamp_ms: int | None = None
    each_ms: Mapping[Partition, int] = field(default_factory=dict)
    """A time for each; partitions that are not in it are at the default."""
    only_found: bool = False
    """Whether it is an error if no record of a partition is as young as the time; else it is the partition's end."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader of topics is told."""

    servers: Servers
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    starting: Where = field(default_factory=Where)
    ending: Where = field(default_factory=Where)
    max_rows: int | None = None
    max_bytes: int | None = None
    min_rows: int | None = None
    trigger_delay_s: float = DEFAULT_TRIGGER_DELAY_S
    min_partitions: int | None = None
    max_records: int | None = None
    """In one task."""
    group: str | None = None
    fail_on_data_loss: bool = True
    committed: bool = True
    value_format: Literal["binary", "json", "avro", "protobuf"] = "binary"
    value_schema: str | None = None
    typed: ValueFormat | None = None
    """Of values that are Avro or Protobuf."""
    mode: Mode = "permissive"
    retry_s: float = DEFAULT_RETRY_S

    @property
    def matcher(self) -> Pattern | None:
        return None if self.pattern is None else pattern_of(self.pattern)


def check_names(options: Mapping[str, str], known: Iterable[str], what: str = "source") -> None:
    """Raises Invalid for an option that there is not, with the nearest one that there is."""
    known = list(known)
    right = {name.lower() for name in known}
    for name in options:
        lower = name.lower()
        if lower in right or lower in _SPARKS_OWN:
            continue
        elsewhere = _ELSEWHERE.get(lower)
        if elsewhere is not None and elsewhere in known:
            raise Invalid(f"the waystation {what} has no option {name!r}; what it says is called {elsewhere!r} here")
        if what == "sink" and lower in _OF_SOURCE:
            raise Invalid(
                f"the waystation sink has no option {name!r}, which is one of the source: leave it out; a view that is"
                " inserted into has servers and topic or queue"
            )
        theirs = (theirs for theirs, ours in SPELLED.items() if ours in known)
        near = near_matches(name, [*known, *theirs]) or f"; the options are {', '.join(known)}"
        raise Invalid(f"the waystation {what} has no option {name!r}{near}")


def read_options(given: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """Checked options of a source that reads topics; raises Invalid."""
    check_names(given, SOURCE_OPTIONS)
    options = lowered(given)
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name.lower() in options:
                raise Invalid(f"{name} is for batch reads (spark.read); a stream has no end, so leave it out")
    return SourceOptions(
        servers=read_servers(options),
        **_read_what(options),
        starting=_read_where(options, "starting", LATEST if streaming else EARLIEST),
        ending=_read_where(options, "ending", LATEST),
        max_rows=read_positive(options, "maxRowsPerTrigger"),
        max_bytes=read_positive(options, "maxBytesPerTrigger"),
        **_read_minimum(options),
        min_partitions=read_positive(options, "minPartitions"),
        max_records=read_positive(options, "maxRecordsPerPartition"),
        group=options.get("group") or None,
        fail_on_data_loss=read_flag(options, "failOnDataLoss", True),
        committed=read_choice(options, "isolation", ("read_committed", "read_uncommitted")) == "read_committed",
        **read_values(options),
        retry_s=read_seconds(options, "retryTimeout", DEFAULT_RETRY_S),
    )


def read_values(options: Mapping[str, str]) -> dict[str, Any]:
    """What the options say of values, for topics and queues alike."""
    kind = read_choice(options, "valueFormat", ("binary", "json", *FORMATS))
    typed = read_value_format(options, kind)
    schema = options.get("valueschema") or None
    if typed is not None and schema is not None:
        raise Invalid(f"valueSchema is for JSON: the columns of values in {kind} are those of their own schema")
    mode = read_choice(options, "mode", ("permissive", "failfast", "dropmalformed"))
    return {"value_format": kind, "value_schema": schema, "typed": typed, "mode": mode}


def _read_what(options: Mapping[str, str]) -> dict[str, Any]:
    given = [name for name in ("topics", "pattern", "assign") if options.get(name)]
    if len(given) != 1:
        said = f"{' and '.join(given)} were given" if given else "none was given"
        raise Invalid(
            f"say what to read by exactly one of the options topics, pattern and assign (or queue, in a stream): {said}"
        )
    if "topics" in given:
        names = tuple(dict.fromkeys(name.strip() for name in options["topics"].split(",") if name.strip()))
        if not names:
            raise Invalid("topics: no name is in it; write for instance 'orders,payments'")
        return {"topics": names}
    if "pattern" in given:
        pattern_of(options["pattern"])
        return {"pattern": options["pattern"]}
    return {"assign": _read_assign(options["assign"])}


def _read_minimum(options: Mapping[str, str]) -> dict[str, Any]:
    least, most = read_positive(options, "minRowsPerTrigger"), read_positive(options, "maxRowsPerTrigger")
    delay = options.get("maxtriggerdelay")
    if least is None:
        if delay:
            raise Invalid("maxTriggerDelay says how long to wait for minRowsPerTrigger: give that too, or leave it out")
        return {}
    if most is not None and least > most:
        raise Invalid(f"minRowsPerTrigger: {least} is more than maxRowsPerTrigger, {most}, lets into one micro-batch")
    if not delay:
        return {"min_rows": least}
    try:
        return {"min_rows": least, "trigger_delay_s": parse_ms(delay, bare_seconds=True) / 1000}
    except Invalid as error:
        raise Invalid(f"maxTriggerDelay: {error}") from None


def pattern_of(text: str) -> Pattern:
    """`orders.*` and `orders.#` are wildcards over words; what begins with ^ is a regular expression."""
    return compile_pattern(text.removeprefix("^"), "regex" if text.startswith("^") else "wildcard")


def _read_assign(text: str) -> dict[str, tuple[int, ...]]:
    wanted = 'assign: write partitions by topic, for instance {"orders": [0, 1]}'
    found = _read_json(text, wanted)
    assigned = {}
    for topic, partitions in found.items():
        if not isinstance(partitions, list) or not all(type(one) is int and one >= 0 for one in partitions):
            raise Invalid(f"{wanted}; topic {topic!r} has {partitions!r}")
        assigned[topic] = tuple(sorted(set(partitions)))
    return assigned


def _read_where(options: Mapping[str, str], which: str, default: int) -> Where:
    offsets, timestamp = options.get(f"{which}offsets"), options.get(f"{which}timestamp")
    times = options.get(f"{which}offsetsbytimestamp")
    if sum(bool(given) for given in (offsets, timestamp, times)) > 1:
        raise Invalid(f"give one of {which}Offsets, {which}Timestamp and {which}OffsetsByTimestamp")
    only_found = (
        which == "starting"
        and read_choice(options, "startingOffsetsByTimestampStrategy", ("latest", "error")) == "error"
    )
    if times:
        return Where(default, each_ms=_read_times(times, f"{which}OffsetsByTimestamp"), only_found=only_found)
    if timestamp:
        return Where(timestamp_ms=read_time(timestamp, f"{which}Timestamp"), only_found=only_found)
    if not offsets:
        return Where(default)
    if offsets.lower() in ("earliest", "latest"):
        where = Where(EARLIEST if offsets.lower() == "earliest" else LATEST)
    else:
        where = Where(default, _read_offsets(offsets, f"{which}Offsets"))
    if which == "ending" and (where.default == EARLIEST or EARLIEST in where.each.values()):
        raise Invalid("endingOffsets cannot be the earliest: nothing would be read; use latest or a number")
    return where


def _read_offsets(text: str, name: str) -> dict[Partition, int]:
    wanted = f'{name}: write earliest, latest or offsets by topic and partition, for instance {{"orders": {{"0": 42}}}}'
    found: dict[Partition, int] = {}
    for topic, partitions in _read_json(text, wanted).items():
        if not isinstance(partitions, dict):
            raise Invalid(f"{wanted}; topic {topic!r} has {partitions!r}")
        for index, offset in partitions.items():
            number = {"earliest": EARLIEST, "latest": LATEST}.get(offset, offset) if type(offset) is str else offset
            if not index.isdigit() or type(number) is not int or number < EARLIEST:
                raise Invalid(f"{wanted}; topic {topic!r} has {index!r}: {offset!r}")
            found[topic, int(index)] = number
    return found


def _read_times(text: str, name: str) -> dict[Partition, int]:
    wanted = f'{name}: write times in ms by topic and partition, for instance {{"orders": {{"0": 1700000000000}}}}'
    found: dict[Partition, int] = {}
    for topic, partitions in _read_json(text, wanted).items():
        for index, time_ms in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            if not index.isdigit() or type(time_ms) is not int or time_ms < 0:
                raise Invalid(f"{wanted}; topic {topic!r} has {partitions!r}")
            found[topic, int(index)] = time_ms
    return found


def _read_json(text: str, wanted: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        raise Invalid(f"{wanted}; {text[:80]!r} is not JSON") from None
    if not isinstance(found, dict) or not found:
        raise Invalid(f"{wanted}; {text[:80]!r} is not that")
    return found


def read_time(text: str, name: str) -> int:
    """Milliseconds since 1970, or ISO 8601; a time without a zone is UTC."""
    if text.lstrip("-").isdigit():
        return int(text)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"{name}: {text!r} is no time; write milliseconds since 1970 or 2024-05-06T12:00:00+00:00"
        ) from None
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000)


def read_positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if not text:
        return None
    if not text.isdigit() or int(text) < 1:
        raise Invalid(f"{name}: {text!r} is not a whole number above zero")
    return int(text)


def read_flag(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower(), "").lower()
    if not text:
        return default
    if text not in ("true", "false"):
        raise Invalid(f"{name}: {text!r} is neither true nor false")
    return text == "true"


def read_seconds(options: Mapping[str, str], name: str, default: float) -> float:
    text = options.get(name.lower(), "")
    if not text:
        return default
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise Invalid(f"{name}: {text!r} is no number of seconds; write for instance 300")
    return seconds


def read_choice(options: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    """The first choice is the default."""
    text = options.get(name.lower(), "").lower() or choices[0]
    if text not in choices:
        raise Invalid(f"{name}: {text!r} is none of {', '.join(choices)}{near_matches(text, choices)}")
    return text
