"""What the parts of a broker see of each other.

They need one another in circles: a queue's dead letters are moved by transactions, which write to queues and topics.
`broker/broker.py` constructs all of them, some before others; so a part is handed the whole, and takes what it needs
when it needs it. Only what is named here: what a broker shows to its protocols and to administrators is not their
affair.
"""

from __future__ import annotations

from typing import Protocol

from waystation.catalog import Catalog
from waystation.catalog.follower import CatalogFollower
from waystation.config import BrokerSettings
from waystation.groups.coordinator import GroupCoordinator
from waystation.log.commit import GroupCommit
from waystation.observe.connections import Connections
from waystation.observe.meters import Meters
from waystation.queues.queues import Queues
from waystation.queues.shard.shards import Shards
from waystation.routing.namespaces import Namespaces
from waystation.routing.routing import Routing
from waystation.share.share_groups import SharedGroups
from waystation.share.topic_queues import TopicQueues
from waystation.topics.messages import Messages
from waystation.topics.publishing import Publishing
from waystation.topics.topics import Topics
from waystation.transactions.coordinator import TransactionCoordinator
from waystation.transactions.transacting import Transacting
from waystation.world import World


class Core(Protocol):
    """A broker, as its own parts see it."""

    world: World
    settings: BrokerSettings
    catalog: Catalog
    follower: CatalogFollower
    meters: Meters
    connections: Connections
    commit: GroupCommit
    topics: Topics
    publishing: Publishing
    messages: Messages
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    transacting: Transacting
    shards: Shards
    queues: Queues
    shared: SharedGroups
    topic_queues: TopicQueues
    routing: Routing
    namespaces: Namespaces
