"""A vocabulary for cases of exchange.* and queue.* methods: steps that a client takes, and how the last one ends."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class Step:
    """A method and its fields, by their names in the specification."""

    method: str
    fields: dict[str, Any] = field(default_factory=dict)
    other: bool = False  # on another connection

    def elsewhere(self) -> Step:
        return Step(self.method, self.fields, other=True)


class Refusal(NamedTuple):
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Case:
    """`refusal`: how the last step ends; None: it succeeds."""

    name: str
    steps: list[Step]
    refusal: Refusal | None = None


def declare(queue: str = "q", **fields: Any) -> Step:
    return Step("queue_declare", {"queue": queue, **fields})


def durable(**arguments: Any) -> Step:
    """The queue `q` with arguments by their names, `_` for `-`."""
    given = {name.replace("_", "-"): value for name, value in arguments.items()}
    return Step("queue_declare", {"queue": "q", "durable": True, "arguments": given})


def exchange(name: str = "e", exchange_type: str = "direct", **fields: Any) -> Step:
    return Step("exchange_declare", {"exchange": name, "exchange_type": exchange_type, **fields})


def bind(queue: str = "q", exchange: str = "e", routing_key: str = "k", **fields: Any) -> Step:
    return Step("queue_bind", {"queue": queue, "exchange": exchange, "routing_key": routing_key, **fields})


def unbind(queue: str = "q", exchange: str = "e", routing_key: str = "k", **fields: Any) -> Step:
    return Step("queue_unbind", {"queue": queue, "exchange": exchange, "routing_key": routing_key, **fields})


def link(destination: str = "d", source: str = "e", routing_key: str = "k") -> Step:
    return Step("exchange_bind", {"destination": destination, "source": source, "routing_key": routing_key})


def unlink(destination: str = "d", source: str = "e", routing_key: str = "k") -> Step:
    return Step("exchange_unbind", {"destination": destination, "source": source, "routing_key": routing_key})


def purge(queue: str = "q") -> Step:
    return Step("queue_purge", {"queue": queue})


def delete(queue: str = "q", **fields: Any) -> Step:
    return Step("queue_delete", {"queue": queue, **fields})


def drop(exchange: str = "e", **fields: Any) -> Step:
    return Step("exchange_delete", {"exchange": exchange, **fields})


def publish(queue: str = "q") -> Step:
    return Step("publish", {"queue": queue})


def consume(queue: str = "q") -> Step:
    return Step("consume", {"queue": queue})


def invalid(name: str, reason: str) -> Refusal:
    return Refusal(406, f"invalid arg '{name}' for queue 'q' in vhost '/': {reason}")


def unfit(name: str, kind: str) -> Refusal:
    return Refusal(406, f"invalid arg '{name}' for queue 'q' in vhost '/' of queue type rabbit_{kind}_queue")


def property_of(name: str) -> Refusal:
    return Refusal(406, f"invalid property '{name}' for queue 'q' in vhost '/'")


def differs(name: str, received: str, current: str, what: str = "queue 'q'") -> Refusal:
    return Refusal(
        406, f"inequivalent arg '{name}' for {what} in vhost '/': received {received} but current is {current}"
    )
