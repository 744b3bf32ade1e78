"""Options by the names that Spark's Kafka connector has for them: `format("kafka")` becomes `format("waystation")`, and
the rest of a job stays as it is.

What says the same is renamed. What tunes a Kafka client (`kafka.*`, poll timeouts) is taken and does nothing, as Kafka
clients do with settings that they do not know. What says who logs in is translated, or refused (`kafka_security`).
Pure; for the data source, which reads all its options through `in_our_words`.
"""

from __future__ import annotations

from collections.abc import Mapping

from waystation.errors import Invalid, near_matches
from waystation.spark.links.kafka_security import is_security, login_in_our_words

SPELLED = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "topics",
    "subscribePattern": "pattern",
    "maxOffsetsPerTrigger": "maxRowsPerTrigger",
    "minOffsetsPerTrigger": "minRowsPerTrigger",
    "kafka.isolation.level": "isolation",
}
"""Their names and ours."""
SAME = {theirs.lower(): ours for theirs, ours in SPELLED.items()}
_CLIENTS = tuple(name for name in SPELLED if name.startswith("kafka."))

WITHOUT_EFFECT = frozenset(
    (
        "includeheaders",  # the column is there for who wants it
        "groupidprefix",
        "kafkaconsumer.polltimeoutms",
        "fetchoffset.numretries",
        "fetchoffset.retryintervalms",
        "usedeprecatedoffsetfetching",
    )
)


def is_known(name: str) -> bool:
    """Whether it is one of the connector's options, rather than nobody's."""
    lower = name.lower()
    return lower in SAME or lower in WITHOUT_EFFECT or lower.startswith("kafka.")


def in_our_words(given: Mapping[str, str]) -> dict[str, str]:
    """The options with our names; raises Invalid."""
    found: dict[str, str] = {}
    for name, value in given.items():
        lower = name.lower()
        ours = SAME.get(lower)
        if ours is not None:
            if any(other.lower() == ours.lower() for other in given):
                raise Invalid(f"{name} and {ours} say the same: leave one of them out")
            found[ours] = _found_anywhere(value.strip()) if lower == "subscribepattern" else value
        elif is_security(name):
            continue
        elif lower.startswith("kafka."):
            _check_spelling(name)
        elif lower not in WITHOUT_EFFECT:
            found[name] = value
    return _with_login(found, login_in_our_words(given))


def _with_login(found: dict[str, str], login: Mapping[str, str]) -> dict[str, str]:
    """Our own options may add what Kafka's have not said (`passwordFile` instead of a password in the job)."""
    ours = {name.lower(): name for name in found}
    for name in login:
        if name.lower() in ours:
            raise Invalid(
                f"{ours[name.lower()]} and one of Kafka's security options say the same: leave one of them out"
            )
    return {**found, **login}


def _found_anywhere(expression: str) -> str:
    """Our pattern for a regular expression of theirs: it has to be found in a topic's name, ours match all of it."""
    flag = "(?i)" if expression.startswith("(?i)") else ""
    return f"^{flag}.*(?:{expression.removeprefix(flag)}).*"


def _check_spelling(name: str) -> None:
    """A Kafka client's setting has no effect here, but one that is nearly `kafka.bootstrap.servers` was to have one."""
    alike = [known for known in _CLIENTS if abs(len(known) - len(name)) <= 2 and known[:8] == name.lower()[:8]]
    near = near_matches(name, alike)
    if near:
        raise Invalid(f"the waystation source and sink have no option {name!r}{near}")
