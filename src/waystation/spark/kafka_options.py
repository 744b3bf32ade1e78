"""Options by the names that Spark's Kafka connector has for them: `format("kafka")` becomes `format("waystation")`, and
the rest of a job stays as it is.

What says the same is renamed. What tunes a Kafka client (`kafka.*`, poll timeouts) is taken and does nothing, as Kafka
clients do with settings that they do not know. What asks for security that this broker does not have is refused. Pure;
for the data source, which reads all its options through `in_our_words`.
"""

from __future__ import annotations

from collections.abc import Mapping

from waystation.errors import Invalid, near_matches

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

_SECURITY = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")


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
        elif lower.startswith(_SECURITY):
            if lower != "kafka.security.protocol" or value.strip().upper() != "PLAINTEXT":
                raise Invalid(
                    f"{name}: this broker has no authentication and no TLS yet, only kafka.security.protocol=PLAINTEXT;"
                    " leave the option out"
                )
        elif lower.startswith("kafka."):
            _check_spelling(name)
        elif lower not in WITHOUT_EFFECT:
            found[name] = value
    return found


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
