"""RabbitMQ's management API: what declares, binds and deletes, as an AMQP client would.

RabbitMQ's own management opens a channel for each of these calls and says what the channel would have said. So do we,
without the channel: what is refused there is refused here, in the same words, since both ask `vhosts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.protocols.management.calls import flag, table, text
from waystation.vhosts.exchanges import VhostExchanges
from waystation.vhosts.queues import VhostQueues
from waystation.vhosts.sources import Sources
from waystation.vhosts.vhost import Vhost

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.protocols.management.api import Management

OWNER = "management"


def sources(api: Management, access: Access) -> Sources:
    return Sources(access, api.node.world)


def queues(api: Management, access: Access) -> VhostQueues:
    return VhostQueues(Vhost(access, api.node.world, OWNER, sources(api, access)))


def exchanges(api: Management, access: Access) -> VhostExchanges:
    return VhostExchanges(Vhost(access, api.node.world, OWNER, sources(api, access)))


def has_queue(api: Management, access: Access, name: str) -> bool:
    """Whether there is something of this name that AMQP clients of the virtual host see as a queue."""
    return access.queue_exists(access.names.full(name)) or sources(api, access).find(name) is not None


async def declare_queue(api: Management, access: Access, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    there = has_queue(api, access, name)
    await queues(api, access).declare(
        name,
        table(said.get("arguments"), "arguments"),
        durable=flag(said.get("durable", False), "durable"),
        auto_delete=flag(said.get("auto_delete", False), "auto_delete"),
    )
    return not there


async def declare_exchange(api: Management, access: Access, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    there = access.exchanges.find(access.names.full(name)) is not None
    await exchanges(api, access).declare(
        name,
        text(said.get("type", "direct"), "type"),
        table(said.get("arguments"), "arguments"),
        durable=flag(said.get("durable", False), "durable"),
        auto_delete=flag(said.get("auto_delete", False), "auto_delete"),
        internal=flag(said.get("internal", False), "internal"),
    )
    return not there
