"""What operators are shown of a cluster, and what they do to it, as every protocol hands it on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.protocols.kafka.cluster_kit import ClusterDesk
from waystation.cluster.decisions.state import NOBODY
from waystation.errors import Conflict, Invalid, NoSuchNode, NotFound, UnknownTopic


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterDesk]:
    desk = ClusterDesk(tmp_path, {})
    yield desk
    desk.close()


def view(desk: ClusterDesk, what: str, **query: Any) -> Any:
    return msgspec.to_builtins(desk.run(desk.access.views.view(what, query)))


def act(desk: ClusterDesk, what: str, **query: Any) -> Any:
    return msgspec.to_builtins(desk.run(desk.access.views.act(what, query)))


def test_nodes_are_shown_with_what_they_lead_and_follow_also_those_that_do_not_live(cluster: ClusterDesk) -> None:
    before = {node["id"]: node for node in view(cluster, "cluster")["nodes"]}
    topic = cluster.create_placed("a", 3)
    cluster.placed(topic, 1, leader=2, in_sync=(1, 2))
    cluster.placed(topic, 2, leader=NOBODY, replicas=(1, 3), in_sync=(3,))
    for number in (1, 2, 3):
        cluster.disk(number)
    cluster.dies(3)
    shown = view(cluster, "cluster")
    nodes = {node["id"]: node for node in shown["nodes"]}
    assert [(node["id"], node["alive"], node["version"]) for node in shown["nodes"]] == [
        (1, True, "1.0"), (2, True, "1.0"), (3, False, ""),
    ]  # fmt: skip
    more = [(nodes[n]["leads"] - before[n]["leads"], nodes[n]["follows"] - before[n]["follows"]) for n in (1, 2, 3)]
    assert more == [(1, 2), (1, 1), (0, 3)]
    assert nodes[1]["listeners"]["kafka"] == "node1.test:9091"
    assert (shown["node"], shown["under_replicated"], shown["offline"]) == (1, 2, 1)


def test_partitions_are_shown_in_pages_in_order_and_by_what_is_wrong_with_them(cluster: ClusterDesk) -> None:
    topic = cluster.create_placed("a", 12)
    cluster.placed(topic, 3, leader=2, epoch=4, replicas=(2, 1), in_sync=(2,))
    cluster.placed(topic, 4, leader=NOBODY, in_sync=(3,))
    cluster.placed(topic, 5, leader=2, replicas=(2, 3, 1), in_sync=(1, 2, 3), adding=(2,), removing=(1,))
    first = view(cluster, "partitions", topic="a", limit=5)
    rest = view(cluster, "partitions", topic="a", after=first["next"])
    assert [one["partition"] for one in first["partitions"] + rest["partitions"]] == list(range(12))
    assert (first["total"], rest["next"]) == (12, None)
    assert first["partitions"][3] == {
        "topic": "a", "partition": 3, "leader": 2, "epoch": 4, "replicas": [2, 1], "isr": [2], "offline": [],
        "adding": [], "removing": [], "high_watermark": 0, "log_end": 0,
    }  # fmt: skip
    for which, numbers in (("under-replicated", [3, 4]), ("offline", [4]), ("moving", [5])):
        found = view(cluster, "partitions", topic="a", which=which)["partitions"]
        assert [one["partition"] for one in found] == numbers, which
    led = view(cluster, "partitions", topic="a", led=True)["partitions"]
    assert [one["partition"] for one in led] == [0, 1, 2, *range(6, 12)]


def test_offsets_are_of_replicas_that_the_node_has(cluster: ClusterDesk) -> None:
    topic = cluster.create_placed("a")
    cluster.placed(topic, 0, leader=2, replicas=(2, 3), in_sync=(2, 3))
    (one,) = view(cluster, "partitions", topic="a")["partitions"]
    assert (one["high_watermark"], one["log_end"]) == (None, None)


def test_replicas_are_moved_to_the_nodes_that_are_named(cluster: ClusterDesk) -> None:
    topic = cluster.create_placed("a", 2)
    cluster.placed(topic, 1, replicas=(1, 2), in_sync=(1, 2))
    asked = {"topics": ["a"], "partition": 1, "replicas": [3, 1]}
    moved = {"partitions": [{"topic": "a", "partition": 1, "replicas": [3, 1]}]}
    assert act(cluster, "reassign", **asked, dry_run=True) == moved
    assert cluster.state("a", 1).adding == ()
    assert act(cluster, "reassign", **asked) == moved
    state = cluster.state("a", 1)
    assert (state.replicas, state.adding, state.removing) == ((3, 1, 2), (3,), (2,))
    assert act(cluster, "reassign", topics=["a"], cancel=True) == {
        "partitions": [{"topic": "a", "partition": 1, "replicas": [1, 2]}]
    }
    assert (cluster.state("a", 1).replicas, cluster.state("a", 1).adding) == ((1, 2), ())


def test_replicas_are_moved_away_from_a_node_wherever_it_has_some(cluster: ClusterDesk) -> None:
    topic = cluster.create_placed("a", 2)
    cluster.placed(topic, 0, leader=1, replicas=(1, 3), in_sync=(1, 3))
    cluster.placed(topic, 1, leader=1, replicas=(1, 2), in_sync=(1, 2))
    moved = act(cluster, "reassign", topics=["a"], away_from=[3])["partitions"]
    assert moved == [{"topic": "a", "partition": 0, "replicas": [1, 2]}]
    everywhere = act(cluster, "reassign", away_from=[3])["partitions"]
    assert {"__consumer_offsets", "__queues"} <= {one["topic"] for one in everywhere}
    with pytest.raises(NotFound, match="no node 9"):
        act(cluster, "reassign", away_from=[9])


def test_the_number_of_replicas_is_changed(cluster: ClusterDesk) -> None:
    topic = cluster.create_placed("a", 3)
    for index in range(3):
        cluster.placed(topic, index, replicas=(1,), in_sync=(1,))
    moved = act(cluster, "reassign", topics=["a"], replication_factor=2)["partitions"]
    assert [one["partition"] for one in moved] == [0, 1, 2]
    assert all(len(set(one["replicas"])) == 2 for one in moved)


@pytest.mark.parametrize(
    ("query", "error", "says"),
    [
        ({}, Invalid, "one of replicas"),
        ({"replicas": [1], "cancel": True}, Invalid, "one of replicas"),
        ({"partition": 0, "replicas": [1]}, Invalid, "name one topic"),
        ({"topics": ["orders"], "replicas": [1]}, UnknownTopic, "no topic 'orders'"),
        ({"topics": ["a"], "partition": 1, "replicas": [1]}, UnknownTopic, "has 1 partitions"),
    ],
)
def test_a_reassignment_that_makes_no_sense_is_refused(
    cluster: ClusterDesk, query: dict[str, Any], error: type[Exception], says: str
) -> None:
    cluster.create_placed("a")
    with pytest.raises(error, match=says):
        act(cluster, "reassign", **query)


def test_preferred_replicas_are_made_leaders_where_they_are_not(cluster: ClusterDesk) -> None:
    topic = cluster.create_placed("a", 2)
    cluster.placed(topic, 1, leader=2, epoch=3)
    assert act(cluster, "elect-leaders", topics=["a"]) == {"partitions": [{"topic": "a", "partition": 1}]}
    assert (cluster.state("a", 1).leader, cluster.state("a", 1).epoch) == (1, 4)


def test_an_unclean_election_is_for_one_partition_by_name(cluster: ClusterDesk) -> None:
    topic = cluster.create_placed("a", 2)
    cluster.disk(1)
    cluster.dies(3)
    cluster.placed(topic, 1, leader=3, in_sync=(3,))
    for query in ({}, {"topics": ["a"]}):
        with pytest.raises(Invalid, match="one partition"):
            act(cluster, "elect-leaders", unclean=True, **query)
    act(cluster, "elect-leaders", topics=["a"], partition=1, unclean=True)
    assert (cluster.state("a", 1).leader, cluster.state("a", 1).in_sync) == (1, (1,))


def test_a_node_is_removed_when_it_has_stopped_and_has_nothing(cluster: ClusterDesk) -> None:
    cluster.disk(3)
    with pytest.raises(Conflict, match="runs"):
        act(cluster, "remove-node", node=3)
    cluster.dies(3)
    with pytest.raises(Conflict, match="replicas"):
        act(cluster, "remove-node", node=3)
    for topic in cluster.broker.topics:
        for partition in topic.partitions:
            cluster.placed(topic.id, partition.index, replicas=(1, 2), in_sync=(1, 2))
    act(cluster, "remove-node", node=3)
    assert [node["id"] for node in view(cluster, "cluster")["nodes"]] == [1, 2]
    with pytest.raises(NoSuchNode):
        act(cluster, "remove-node", node=3)
