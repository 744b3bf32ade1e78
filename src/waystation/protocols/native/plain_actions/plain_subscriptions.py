"""The subscriptions of the plain actions: by the id that the client chose, known to all connections.

So a consumer that connects again goes on without subscribing again, and a subscription is ended from any connection.
They are forgotten when the broker stops; the place of their consumer in its topics is not.
"""

from __future__ import annotations

from typing import Any, Protocol

from waystation.errors import Full, Invalid, nearest_field
from waystation.protocol import Subscribe

MAX_SUBSCRIPTIONS = 100_000
MAX_UNACKED = 100
MAX_IN_FLIGHT = 100_000
"""Messages per consumer whose ids are remembered until they are acknowledged; the oldest are forgotten first."""


MODES = ("at_most_once", "at_least_once", "exactly_once")
FIELDS = ("id", "topic_pattern", "consumer_id", "delivery_mode", "auto_ack", "max_unacked", "start", "created_at")
"""`created_at` is what clients note for themselves."""


class Dropper(Protocol):
    """A connection that uses subscriptions."""

    def drop(self, subscription: PlainSubscription) -> None:
        """The subscription is over."""


class PlainSubscription:
    """What a client asked for; the same for all connections."""

    __slots__ = ("auto_ack", "consumer_id", "id", "max_unacked", "owner", "pattern", "start", "users")

    def __init__(self, given: Any, owner: str = "") -> None:
        self.owner = owner
        if not isinstance(given, dict):
            raise Invalid("subscription: must be a JSON object")
        check_fields(given, FIELDS, "a subscription")
        self.id = text_of(given, "id")
        self.pattern = text_of(given, "topic_pattern")
        if "*" in self.pattern and "#" in self.pattern:
            raise Invalid("topic_pattern: use `*` (any characters) or `#` (any number of words), not both")
        self.consumer_id = text_of(given, "consumer_id")
        mode = given.get("delivery_mode", "at_least_once")
        if mode not in MODES:
            raise Invalid(f"delivery_mode: must be one of {', '.join(MODES)}")
        self.auto_ack = _auto_ack(given.get("auto_ack"), mode)
        self.max_unacked = count_of(given, "max_unacked", MAX_UNACKED, MAX_IN_FLIGHT)
        self.start = given.get("start", "earliest")
        if self.start not in ("earliest", "latest"):
            raise Invalid("start: must be 'earliest' or 'latest'")
        self.users: set[Dropper] = set()

    def command(self, number: int) -> Subscribe:
        topics, syntax = [self.pattern], "wildcard"
        if "*" in self.pattern:
            # Here, and only here, a star is any run of characters, dots included.
            topics, syntax = [".*".join(map(_quoted, self.pattern.split("*")))], "regex"
        return Subscribe(
            consumer=number,
            topics=topics,
            syntax=syntax,  # type: ignore[arg-type]  # one of the two
            mode="shared",
            group=self.consumer_id,
            start=self.start,
            prefetch=self.max_unacked,
            auto_ack=self.auto_ack,
        )


class PlainSubscriptions:
    """All of them, for all connections."""

    def __init__(self) -> None:
        # By the user as well: nobody can end or use another's.
        self._by_id: dict[tuple[str, str], PlainSubscription] = {}
        self._by_consumer: dict[tuple[str, str], dict[str, PlainSubscription]] = {}

    @property
    def consumers(self) -> int:
        return len(self._by_consumer)

    @property
    def idle(self) -> int:
        """Those that no connection uses now: they are there, and nothing is delivered to them."""
        return sum(not subscription.users for subscription in self._by_id.values())

    def add(self, subscription: PlainSubscription) -> None:
        key = subscription.owner, subscription.id
        if key not in self._by_id and len(self._by_id) >= MAX_SUBSCRIPTIONS:
            raise Full(f"there are {MAX_SUBSCRIPTIONS} subscriptions already; unsubscribe some")
        self.remove(subscription.owner, subscription.id)
        self._by_id[key] = subscription
        consumer = subscription.owner, subscription.consumer_id
        self._by_consumer.setdefault(consumer, {})[subscription.id] = subscription

    def remove(self, owner: str, id: str) -> PlainSubscription | None:
        """Also ends it wherever it is in use."""
        subscription = self._by_id.pop((owner, id), None)
        if subscription is None:
            return None
        consumer = owner, subscription.consumer_id
        of_consumer = self._by_consumer[consumer]
        del of_consumer[id]
        if not of_consumer:
            del self._by_consumer[consumer]
        for user in list(subscription.users):
            user.drop(subscription)
        return subscription

    def of(self, owner: str, consumer_id: str) -> list[PlainSubscription]:
        return list(self._by_consumer.get((owner, consumer_id), {}).values())


def _auto_ack(said: Any, mode: str) -> bool:
    """Whether messages are acknowledged by being delivered."""
    if said is None:
        return mode == "at_most_once"
    if not isinstance(said, bool):
        raise Invalid("auto_ack: must be true or false")
    if said and mode == "exactly_once":
        raise Invalid("auto_ack: a message that is acknowledged on delivery is delivered at_most_once; leave it out")
    if not said and mode == "at_most_once":
        raise Invalid("auto_ack: at_most_once acknowledges on delivery; for acks of your own say at_least_once")
    return said


def check_fields(given: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    """Raises Invalid for a field that would be ignored."""
    for name in given:
        if name not in known:
            raise Invalid(f"{name[:60]}: {what} has no such field{nearest_field(name[:60], known)}")


def text_of(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if value is None:
        raise Invalid(f"Missing required field: {name!r}")
    if not isinstance(value, str) or not 0 < len(value) <= 255:
        raise Invalid(f"{name}: must be text of 1 to 255 characters")
    return value


def count_of(given: dict[str, Any], name: str, default: int, highest: int, lowest: int = 1) -> int:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise Invalid(f"{name}: must be a whole number between {lowest} and {highest}")
    return value


def _quoted(text: str) -> str:
    """For a regular expression: only itself."""
    return "".join(char if char.isalnum() else f"\\{char}" for char in text)
