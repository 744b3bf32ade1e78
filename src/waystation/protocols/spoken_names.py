"""Names of a namespace, as native and HTTP clients in it say them: one place for every command, route and view.

A client in the namespace `shop` says `jobs`, and the broker knows the queue as `shop/jobs`; its topic `orders` is
`shop.orders` (`routing/namespace_names.py`). What a client asks is translated before it is handled, by the tables here,
and what it is told before it is sent: handlers and `Access` know full names alone. That nobody reaches what is outside
is the business of permissions (`Principal.within`), so a name that is missing in a table is one that nobody can use
from inside, and never one that leads outside.

Names on the way in depend on the field. On the way out a name begins with the namespace's prefix, and loses it: it has
to be known where names are, not what they name. What clients made up themselves (payloads, headers, keys) is never
looked into. Kafka's translation is its own, by the types of its schemas. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from waystation.broker.access.types import NamespaceNames, regex_behind
from waystation.errors import WaystationError
from waystation.message import Delivered, Message
from waystation.protocol import Answer, Ceased, Deliver, Failure, Outgoing, RoutingInfo

NAMED, TOPIC, TARGET, DEAD, PREFIX, TOPIC_PREFIX, PATTERN, PATTERNS, TOPICS, POSITIONS, ID, IDS, AFTER, AFTER_TOPIC = (
    "named", "topic", "target", "dead", "prefix", "topic prefix", "pattern", "patterns", "topics", "positions", "id",
    "ids", "after", "after topic",
)  # fmt: skip
AFTER_LISTED = "after listed"

FIELDS: Mapping[str, str] = {
    "queue": NAMED,
    "exchange": NAMED,
    "alternate": NAMED,
    "group": NAMED,
    "transactional_id": NAMED,
    "dead_letter_exchange": NAMED,
    "topic": TOPIC,
    "target": TARGET,
    "dead_letter": DEAD,
    "positions": POSITIONS,
    "offsets": POSITIONS,
    "owned": POSITIONS,
}
"""Of what a client asks: what is in a field of this name, whichever struct it is of."""

OF_STRUCT: Mapping[str, Mapping[str, str]] = {
    "ListQueues": {"prefix": PREFIX, "after": NAMED},
    "QueuesQuery": {"prefix": PREFIX, "after": AFTER},
    "ExchangesQuery": {"after": AFTER},
    "GroupsQuery": {"after": AFTER},
    "StatsQuery": {"after": AFTER_TOPIC},
    "DelayedQuery": {"prefix": PREFIX, "topic_prefix": TOPIC_PREFIX, "after": AFTER_LISTED},
    "DeadLettersQuery": {"source": DEAD},
    "DeadLettersTerms": {"source": DEAD},
    "ListTopics": {"pattern": PATTERN},
    "TopicsQuery": {"pattern": PATTERN, "after": AFTER_TOPIC},
    "Subscribe": {"topics": PATTERNS},
    "SubscribeQuery": {"topic": PATTERNS, "channel": PATTERN},
    "JoinGroup": {"topics": TOPICS},
    "Publish": {"channel": TOPIC},
    "ChannelQuery": {"channel": TOPIC},
    "CommitStaged": {"name": NAMED, "abandon": NAMED},
    "AbortStaged": {"prefix": NAMED},
    "StagedPosition": {"name": NAMED},
    "Find": {"message_id": ID},
    "Cancel": {"message_id": ID},
    "CancelDelayed": {"id": ID},
    "SearchTerms": {"id": ID},
    "SearchQuery": {"id": ID},
    "Redrive": {"to": DEAD, "message_ids": IDS},
    "RedriveQueue": {"to": DEAD, "message_ids": IDS},
}
"""The same of a field that is a name in some structs only, by the struct's name."""

TOLD = frozenset(
    (
        "alternate", "bindings", "by_source", "channel", "channels", "dead_letter", "dead_letter_exchange", "exchange",
        "exchanges", "group", "id", "ids", "message_id", "name", "place", "places", "queue", "queue_name", "queues",
        "source", "sources", "subject", "target", "targets", "topic", "topics", "transactional_id",
    )
)  # fmt: skip
"""Fields of what a client is told that have names in them: a text, several, or a map by them."""
BY_NAME = frozenset(("by_source", "channels", "queues", "targets", "topics"))
"""Of these, those that may be maps by names."""
THEIR_OWN = frozenset(("payload", "json", "headers", "arguments", "key", "body", "message", "values", "amqp", "acls"))
"""What is not looked into: clients wrote it, or it has full names on purpose, as rules have."""
DEATHS = frozenset(
    ("x-death", *(f"x-{which}-death-{what}" for which in ("first", "last") for what in ("queue", "exchange")))
)
"""Headers that the broker writes into dead letters, with names in them."""
_QUEUED = re.compile(r".+#\d+")
_STORED = re.compile(r".+-\d+@\d+")


class SpokenNames:
    """One namespace's."""

    def __init__(self, names: NamespaceNames) -> None:
        self._names = names
        self._prefixes = (names.prefix, names.topic_prefix)
        self._in: Mapping[str, Callable[[Any], Any]] = {
            NAMED: self._named,
            TOPIC: lambda name: names.topic(name) if name else name,
            TARGET: self._target,
            DEAD: self._dead,
            PREFIX: names.full,
            TOPIC_PREFIX: names.topic,
            AFTER: lambda name: _behind(names.prefix, name),
            AFTER_TOPIC: lambda name: _behind(names.topic_prefix, name),
            PATTERN: self._pattern,
            TOPICS: lambda topics: [names.topic(topic) for topic in topics],
            POSITIONS: lambda positions: [(names.topic(one[0]), *one[1:]) for one in positions],
        }

    # -- what a client asks -------------------------------------------------------------------------------------------

    def asked(self, value: Any, queue: str = "", topic: str = "") -> Any:
        """A command, a query or a body with full names; the one that was given stays as it is. `queue`, `topic`: that
        it is about, as the client calls it, where another place says so."""
        if not isinstance(value, msgspec.Struct) or isinstance(value, Message):
            return value
        own = OF_STRUCT.get(type(value).__name__, {})
        queue = getattr(value, "queue", None) or queue
        topic = getattr(value, "topic", None) or topic
        changes: dict[str, Any] = {}
        for field in value.__struct_fields__:
            given = getattr(value, field)
            if given is None:
                continue
            kind = own.get(field) or FIELDS.get(field)
            if kind is None:
                changed = self._asked_within(given)
            elif kind == PATTERNS:
                changed = self._patterns(given, getattr(value, "syntax", "wildcard"))
            elif kind == ID:
                changed = self._id(given, queue, topic)
            elif kind == AFTER_LISTED:  # behind a name where queues are listed, else behind a message
                listed = not (queue or topic or getattr(value, "topics", False))
                changed = self._in[AFTER](given) if listed else given
            elif kind == IDS:
                changed = [self._id(one, queue, topic) for one in given]
            else:
                changed = self._in[kind](given)
            if changed is not given:
                changes[field] = changed
        return replace(value, **changes) if changes else value

    def _asked_within(self, value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            return value if isinstance(value[0], Message) else [self.asked(one) for one in value]
        return self.asked(value)

    def path(self, parts: Mapping[str, str]) -> dict[str, str]:
        """What a path names."""
        queue, topic = parts.get("queue", ""), parts.get("topic", "")
        return {
            name: self._id(text, queue, topic)
            if name == "id"
            else self._in[FIELDS[name]](text)
            if name in FIELDS
            else text
            for name, text in parts.items()
        }

    def _named(self, name: str) -> str:
        """Nothing is called so where there is no name, such as the default exchange."""
        return self._names.full(name) if name else name

    def _target(self, target: str) -> str:
        kind, colon, name = target.partition(":")
        if not colon:
            return target
        return f"{kind}:{self._names.topic(name) if kind == 'topic' else self._names.full(name)}"

    def _dead(self, target: str) -> str:
        """Where dead letters go: a queue, or a target."""
        if not target:
            return target
        return self._target(target) if target.startswith(("topic:", "queue:", "exchange:")) else self._named(target)

    def _pattern(self, pattern: str) -> str:
        """A wildcard for names in the namespace. `#` alone is any of them: the prefix by itself is no topic's name."""
        words = pattern.split(".")
        inside = "*.#" if set(words) == {"#"} else pattern
        return self._names.topic(inside) if pattern else pattern

    def _patterns(self, topics: list[str], syntax: str) -> list[str]:
        if syntax == "regex":
            return [regex_behind(self._names.topic_prefix, topic) for topic in topics]
        return [self._pattern(topic) for topic in topics]

    def _id(self, message_id: str, queue: str, topic: str) -> str:
        """A message's own id, or where it is: QUEUE#TAG, TOPIC-PARTITION@OFFSET."""
        if queue and message_id.startswith(f"{queue}#"):
            return self._names.full(message_id)
        stored = topic and message_id.startswith(f"{topic}-") and _STORED.fullmatch(message_id) is not None
        return self._names.topic(message_id) if stored else message_id

    # -- what it is told ----------------------------------------------------------------------------------------------

    def outgoing(self, outgoing: Outgoing) -> Outgoing:
        """Anything that a native session sends."""
        if isinstance(outgoing, Answer):
            return Answer(outgoing.id, self._answer(outgoing.value))
        if isinstance(outgoing, Deliver):
            return Deliver(outgoing.consumer, [self.delivered(one) for one in outgoing.messages])
        if isinstance(outgoing, Ceased):
            return Ceased(outgoing.consumer, outgoing.error, self.text(outgoing.text))
        return Failure(outgoing.id, outgoing.error, self.text(outgoing.text))

    def _answer(self, value: Any) -> Any:
        """A list by itself is one of targets, of positions, or of what has fields."""
        return self._names_in(value) if isinstance(value, list) else self.told(value)

    def told(self, value: Any) -> Any:
        """A struct, or what JSON has, with the names that those inside say."""
        if isinstance(value, Delivered):
            return self.delivered(value)
        if isinstance(value, RoutingInfo):
            return RoutingInfo(
                [(self._bare(name), kind, other and self._bare(other)) for name, kind, other in value.exchanges],
                [(self._bare(name), self._bare(target), key, more) for name, target, key, more in value.bindings],
            )
        if isinstance(value, dict):
            return {key: self._told_field(key, one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return _alike(value, [self.told(one) for one in value])
        if not isinstance(value, msgspec.Struct) or isinstance(value, Message):
            return value
        changes = {}
        for field in value.__struct_fields__:
            given = getattr(value, field)
            changed = self._told_field(field, given)
            if changed != given:
                changes[field] = changed
        return replace(value, **changes) if changes else value

    def _told_field(self, field: Any, value: Any) -> Any:
        if field in THEIR_OWN:
            return self._headers(value) if field == "headers" else value
        if field in ("id", "ids", "message_id"):
            return [self._bare_id(one) for one in value] if isinstance(value, list) else self._bare_id(value)
        if field in BY_NAME and isinstance(value, dict):
            return {self._bare(name): self.told(one) for name, one in value.items()}
        return self._names_in(value) if field in TOLD else self.told(value)

    def _names_in(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._bare(value)
        if isinstance(value, list | tuple):
            return _alike(value, [self._names_in(one) for one in value])
        return self.told(value)

    def delivered(self, delivered: Delivered) -> Delivered:
        """A message that is pushed."""
        message = delivered.message
        if message.exchange:
            message = replace(message, exchange=self._bare(message.exchange))
        if not DEATHS.isdisjoint(message.headers):
            message = replace(message, headers=self._headers(message.headers))
        source = self._bare(delivered.source)
        if message is delivered.message and source == delivered.source:
            return delivered
        return replace(delivered, message=message, source=source)

    def _headers(self, headers: Any) -> Any:
        """The sender's own, but for the failure history, which the broker wrote."""
        if not isinstance(headers, dict):
            return headers
        return {name: self._deaths(value) if name in DEATHS else value for name, value in headers.items()}

    def _deaths(self, history: Any) -> Any:
        if isinstance(history, str):
            if not history.startswith("["):
                return self._bare(history)
            try:  # it came through a topic, where headers are text
                return msgspec.json.encode(self.told(msgspec.json.decode(history))).decode()
            except msgspec.DecodeError:
                return history
        return self.told(history) if isinstance(history, list) else history

    def queue(self, name: str) -> str:
        """What those inside call a queue."""
        return self._bare(name)

    def _bare(self, name: str) -> str:
        """A full name, or a target, without the namespace. A topic's name has no slash, and what else is inside begins
        with the namespace and a slash: so it is clear which."""
        kind, colon, rest = name.partition(":")
        if colon and kind in ("queue", "topic", "exchange", "group"):
            return f"{kind}:{self._bare(rest)}"
        for prefix in self._prefixes:
            if name.startswith(prefix):
                return name[len(prefix) :]
        return name

    def _bare_id(self, value: Any) -> Any:
        if not isinstance(value, str) or not (_QUEUED.fullmatch(value) or _STORED.fullmatch(value)):
            return value
        return self._bare(value)

    def text(self, text: str) -> str:
        """A sentence that quotes names. Those that it was not asked for (did you mean …?) are of the namespace, too:
        `Access.told` sees to that."""
        for prefix in self._prefixes:
            for before in ("'", "queue:", "topic:", "exchange:"):
                text = text.replace(f"{before}{prefix}", before)
        return text

    def retold(self, error: WaystationError) -> WaystationError:
        """The error, with the names that those inside say."""
        error.args = tuple(self.text(one) if isinstance(one, str) else one for one in error.args)
        return error


def _behind(prefix: str, name: str) -> str:
    """Where a page begins: behind a name, or where the page before has said, which is a full name."""
    return name if not name or name.startswith(prefix) else prefix + name


def _alike(value: Any, parts: list[Any]) -> Any:
    """A list, a tuple, or a tuple whose parts have names."""
    return parts if isinstance(value, list) else type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
