"""RabbitMQ's management API: what declares, binds and deletes, as an AMQP client would.

RabbitMQ's own management opens a channel for each of these calls and says what the channel would have said. So do we,
without the channel: what is refused there is refused here, in the same words, since both ask `vhosts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.protocols.management.calls import flag, table, text
from waystation.routing.namespace_names import Names
from waystation.vhosts.exchanges import VhostExchanges
from waystation.vhosts.queues import VhostQueues
from waystation.vhosts.sources import Sources
from waystation.vhosts.vhost import Vhost

if TYPE_CHECKING:
    from waystation.protocols.management.api import Management

OWNER = "management"


def _vhost(api: Management, names: Names) -> Vhost:
    return Vhost(api.broker, names, OWNER, Sources(api.broker, names))


def queues(api: Management, names: Names) -> VhostQueues:
    return VhostQueues(_vhost(api, names))


def exchanges(api: Management, names: Names) -> VhostExchanges:
    return VhostExchanges(_vhost(api, names))


async def declare_queue(api: Management, names: Names, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    full = names.full(name)
    there = full in api.broker.queues or Sources(api.broker, names).find(name) is not None
    await queues(api, names).declare(
        name,
        table(said.get("arguments"), "arguments"),
        durable=flag(said.get("durable", False), "durable"),
        auto_delete=flag(said.get("auto_delete", False), "auto_delete"),
    )
    return not there


async def declare_exchange(api: Management, names: Names, name: str, said: dict[str, Any]) -> bool:
    """True if it was made."""
    there = names.full(name) in api.broker.routing.exchange_names()
    await exchanges(api, names).declare(
        name,
        text(said.get("type", "direct"), "type"),
        table(said.get("arguments"), "arguments"),
        durable=flag(said.get("durable", False), "durable"),
        auto_delete=flag(said.get("auto_delete", False), "auto_delete"),
        internal=flag(said.get("internal", False), "internal"),
    )
    return not there
