"""`min.insync.replicas` where nobody sets it: 2 for topics with three replicas, and clients are told what holds."""

from __future__ import annotations

import pytest
from confluent_kafka.admin import ConfigResource, NewTopic, ResourceType

from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S

pytestmark = pytest.mark.timeout(300)


def described(cluster: ClusterOfThree, topic: str) -> tuple[str, bool]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entry = cluster.admin.describe_configs([resource])[resource].result(DEADLINE_S)["min.insync.replicas"]
    return entry.value, entry.is_default


@pytest.mark.parametrize(("replicas", "wanted"), [(3, "2"), (2, "1"), (1, "1")])
def test_the_default_depends_on_the_replicas_and_is_described(
    cluster: ClusterOfThree, replicas: int, wanted: str
) -> None:
    topic = cluster.create(unique("copies"), 1, replicas)
    assert described(cluster, topic) == (wanted, True)


def test_what_a_topic_says_of_itself_wins(cluster: ClusterOfThree) -> None:
    topic = unique("own")
    created = cluster.admin.create_topics([NewTopic(topic, 1, 3, config={"min.insync.replicas": "3"})])
    created[topic].result(DEADLINE_S)
    assert described(cluster, topic) == ("3", False)
