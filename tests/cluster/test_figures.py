"""What a node tells Prometheus and health checks of its cluster: who is away, what lags, and what changed hands."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request

import pytest

from tests.clients import kit
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)


def get(cluster: ClusterOfThree, number: int, path: str) -> str:
    try:
        with urllib.request.urlopen(f"http://{cluster.address(number, 'http')}{path}", timeout=10) as answer:
            return bytes(answer.read()).decode()
    except urllib.error.HTTPError as refused:  # a node that is not well says so with its status, too
        return bytes(refused.read()).decode()


def figures(cluster: ClusterOfThree, number: int) -> dict[str, float]:
    """By name and labels, without the prefix."""
    lines = re.findall(r"^waystation_(\S+) (\S+)$", get(cluster, number, "/metrics"), re.MULTILINE)
    return {name: float(value) for name, value in lines}


def reasons(cluster: ClusterOfThree, number: int) -> list[str]:
    return [reason["what"] for reason in json.loads(get(cluster, number, "/healthz"))["reasons"]]


def speaks_of_it(cluster: ClusterOfThree, number: int) -> bool:
    return any("in sync" in reason or "cluster" in reason for reason in reasons(cluster, number))


def test_metrics_and_health_tell_of_a_node_that_is_away(cluster: ClusterOfThree) -> None:
    topic = cluster.create(unique("told"))
    cluster.wait_whole()
    killed = cluster.leader(topic)
    asked = next(number for number in cluster.nodes if number != killed)
    before = figures(cluster, asked)
    assert before['cluster_nodes{state="alive"}'] == 3
    assert before['cluster_nodes{state="away"}'] == 0
    assert before["under_replicated_partitions"] == before["offline_partitions"] == 0
    assert not speaks_of_it(cluster, asked)
    kit.produce(cluster.bootstrap, topic, kit.numbered(300))
    cluster.kill(killed)
    kit.produce(cluster.bootstrap, topic, kit.numbered(300), config={"message.timeout.ms": 60_000})

    def told() -> bool:
        now = figures(cluster, asked)
        return now['cluster_nodes{state="away"}'] == 1 and now["under_replicated_partitions"] > 0

    wait_for(told, "the metrics tell")
    living = [figures(cluster, number) for number in cluster.nodes if number != killed]
    assert sum(one["leader_changes_total"] for one in living) > 0
    assert sum(one.get(f'replication_lag{{node="{killed}"}}', 0) for one in living) > 0
    told_reasons = reasons(cluster, asked)
    assert any("not in sync" in reason for reason in told_reasons)
    assert any(f"Node '{killed}' of the cluster does not live" in reason for reason in told_reasons)
    cluster.start_node(killed)
    cluster.wait_whole()
    wait_for(
        lambda: not any("sync" in reason or "cluster" in reason for reason in reasons(cluster, asked)), "all is well"
    )
    for counted in ("in_sync_shrinks_total", "in_sync_expansions_total"):
        assert sum(figures(cluster, number)[counted] for number in cluster.nodes) > 0
