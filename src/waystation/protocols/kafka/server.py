"""The Kafka listener: what connections of Kafka clients share. Their socket is the front's (`protocols/front.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.broker.access.types import ANONYMOUS, Entrance
from waystation.protocols.kafka.connection import KafkaConnection
from waystation.protocols.kafka.records.fetch_sessions import Sessions
from waystation.protocols.kafka.requests.registry import Listener

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.broker.access.node import Node
    from waystation.protocols.budget import Budgets

MAX_KNOWN = 1_000
LONGEST = 255


class KafkaListener:
    """Made for each of the broker's fronts; `connection` is called by it for each client that speaks Kafka."""

    def __init__(self, broker: Node, budgets: Budgets, entrance: Entrance) -> None:
        self.broker = broker
        self.entrance = entrance
        self.budgets = budgets
        self.sessions = Sessions(broker.world.random)
        self.now_s = broker.world.clock.monotonic
        self.meter = broker.meters.kafka
        self.anonymous = self.access_of_nobody()
        """One for all clients that have not shown who they are: it remembers nothing of a connection."""
        self.produce_times = self.meter.call("produce")
        self.fetch_times = self.meter.call("fetch")
        self._tasks: set[asyncio.Future[None]] = set()
        self._listeners: dict[Listener, Listener] = {}
        self._clients: dict[tuple[str, str], tuple[str, str]] = {}

    def access_of_nobody(self) -> Access:
        namespace = self.entrance.namespace(ANONYMOUS)
        return self.broker.access(ANONYMOUS.inside(namespace), namespace, self.meter)

    def connection(self, on_closed: Callable[[], None]) -> KafkaConnection:
        """`on_closed` is called when the connection is over."""
        return KafkaConnection(self, on_closed)

    def advertised(self, host: str, port: int, *, encrypted: bool) -> Listener:
        """The address that clients on a connection to (host, port) are told: the one that they have reached, unless the
        listener advertises another."""
        terms = self.entrance.terms
        made = Listener(
            terms.advertised_host or host, terms.advertised_port or port, terms.name, encrypted, self.entrance.required
        )
        if made not in self._listeners and len(self._listeners) >= MAX_KNOWN:
            self._listeners.clear()
        return self._listeners.setdefault(made, made)  # ten thousand connections need not have one each

    def known(self, client_id: str | None, request: Any, software: str) -> tuple[str, str]:
        """What a client calls itself, and its program, which ApiVersions says; alike ones share their texts."""
        name = getattr(request, "client_software_name", "")
        if name:
            software = f"{name} {getattr(request, 'client_software_version', '')}".strip()[:LONGEST]
        client = ((client_id or "")[:LONGEST], software)
        if len(self._clients) >= MAX_KNOWN:
            self._clients.clear()
        return self._clients.setdefault(client, client)

    def keep(self, task: asyncio.Future[None]) -> None:
        """Holds a task until it is done: the loop alone would let it be collected."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
