"""`Node`: what a protocol may know of the broker that it serves. Everything that users have is a verb of `Access`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from waystation.config import BrokerSettings
from waystation.observe.connections import Connections
from waystation.observe.meters import Meters, ProtocolMeter
from waystation.security.authenticator import Authenticator
from waystation.security.principals import Principal
from waystation.world import World

if TYPE_CHECKING:
    from waystation.broker.access.access import Access
    from waystation.health.admission import Admission
    from waystation.observe.tracing import Tracing


class Node(Protocol):
    """A broker, as its protocols see it."""

    node_id: int
    cluster_id: str
    root: str
    started_ms: int
    world: World
    settings: BrokerSettings
    meters: Meters
    connections: Connections
    admission: Admission
    authenticator: Authenticator
    tracing: Tracing | None

    def access(self, principal: Principal, namespace: str, meter: ProtocolMeter, *, waits: bool = False) -> Access:
        """For a session. `waits`: it blocks publishers itself while an alarm is on."""
