"""A request of Kafka's protocol as its handler sees it, and a row of the table of APIs (`apis.py`).

A handler gets a `Call` and returns the response entity; if it is a coroutine function the answer may take its time,
and later answers on the connection wait for it, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from kio.schema.errors import ErrorCode

from waystation.protocols.kafka.requests.codec import ResponseMaker, response_maker
from waystation.protocols.kafka.requests.errors_map import refused

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.node import Node
    from waystation.protocols.budget import BudgetShare
    from waystation.protocols.kafka.requests.login import KafkaLogin

Handler = Callable[["Call"], Any]


class Listener(msgspec.Struct, frozen=True):
    """What a client has connected to: its name, and the address that clients are told to use."""

    host: str
    port: int
    name: str = "kafka"
    encrypted: bool = False
    asks: bool = False
    """Whether a client has to log in."""

    @property
    def protocol(self) -> str:
        """As Kafka calls what is spoken here."""
        transport = "SSL" if self.encrypted else "PLAINTEXT"
        return f"SASL_{transport}" if self.asks else transport

    @property
    def kafka_name(self) -> str:
        """As Kafka's settings spell its name; the one that has none of its own is called as what it speaks."""
        return self.protocol if self.name == "kafka" else self.name.upper()


class Call(msgspec.Struct):
    """One request as a handler sees it."""

    name: str
    version: int
    request: Any
    broker: Node
    access: Access
    client_id: str | None
    client_host: str
    listener: Listener
    at_close: dict[object, Callable[[], None]] = msgspec.field(default_factory=dict)
    """By name: what has to be done when the connection goes away."""
    unsent: BudgetShare | None = None
    """What the answer takes of the memory for unread answers; None: nobody counts."""
    apis: Mapping[int, Api] = msgspec.field(default_factory=dict)
    """What the broker answers, by number: for ApiVersions."""
    login: Callable[[], KafkaLogin] | None = None
    """The connection's, which is made when somebody asks for it."""

    @property
    def make(self) -> ResponseMaker:
        """Builds response entities of this call's version; see `ResponseMaker`."""
        return response_maker(self.name, self.version)

    def code(self, error: BaseException | None) -> ErrorCode:
        """The Kafka error code for an error of ours that the client is answered with; `none` for None."""
        return ErrorCode.none if error is None else refused(self.access.meter, error)


class Api(msgspec.Struct, frozen=True):
    """An API that the broker answers."""

    key: int
    name: str
    min_version: int
    max_version: int
    handler: Handler
