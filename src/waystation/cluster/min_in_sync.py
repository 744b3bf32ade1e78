"""How many replicas of a partition have to be in sync, in a cluster: what leaders and operators' changes go by."""

from __future__ import annotations

from waystation.cluster.decisions.state import PartitionState
from waystation.config import MIN_IN_SYNC, BrokerSettings, default_min_in_sync
from waystation.topics.topics import Topic


def min_in_sync(settings: BrokerSettings, topic: Topic, state: PartitionState) -> int:
    """`min.insync.replicas`, or where nobody has set it: 2 of three or more replicas, and 1 of fewer."""
    if MIN_IN_SYNC in topic.overrides or settings.source(MIN_IN_SYNC) != "default":
        return topic.settings.min_insync_replicas
    return default_min_in_sync(len(state.replicas) - len(state.adding))
