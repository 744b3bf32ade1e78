"""The broker's own topics in a cluster: created once, by whichever node finds first that they are not there.

Before the node follows the store: so it is the store itself that is asked and written. The entries of the partitions
come first, compared with nothing being there, and last the topic's own with its name: a topic exists when that is
written. Who comes second finds its name taken, and deletes what it wrote. Called at a node's start; blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from waystation.catalog import ABSENT, TopicRow, rows
from waystation.cluster.decisions.placement import Candidate, default_factor, first_state, place
from waystation.cluster.decisions.state import NODES, encode, node_of, partition_key, read_node
from waystation.cluster.store import MOST_CHANGES, Store
from waystation.errors import RevisionConflict
from waystation.world import World


class InternalTopic(msgspec.Struct, frozen=True):
    name: str
    partitions: int
    overrides: Mapping[str, str]


def ensure(store: Store, world: World, node_id: int, rack: str, topics: Sequence[InternalTopic]) -> None:
    """StoreUnavailable: call it again."""
    for topic in topics:
        if store.get(rows.topic_name_key(topic.name)) is None:
            _create(store, world, node_id, rack, topic)


def _create(store: Store, world: World, node_id: int, rack: str, topic: InternalTopic) -> None:
    found = {node_of(key): read_node(entry.value) for key, entry in store.read(NODES).entries.items()}
    nodes = [Candidate(one, state.rack) for one, state in found.items() if one != node_id]
    nodes.append(Candidate(node_id, rack))
    row = TopicRow(
        topic.name,
        world.random.uuid(),
        topic.partitions,
        internal=True,
        overrides=dict(topic.overrides),
        created_ms=world.clock.now_ms(),
    )
    replicas = place(topic.partitions, default_factor(len(nodes)), nodes)
    entries = {partition_key(row.id, index): encode(first_state(one)) for index, one in enumerate(replicas)}
    keys = list(entries)
    portions = [keys[at : at + MOST_CHANGES] for at in range(0, len(keys), MOST_CHANGES)]
    for some in portions:
        store.write({key: entries[key] for key in some}, dict.fromkeys(some, ABSENT))
    try:
        store.write(rows.topic_saved(row), {rows.topic_key(row.id): ABSENT, rows.topic_name_key(topic.name): ABSENT})
    except RevisionConflict:
        for some in portions:
            store.write(dict.fromkeys(some))
