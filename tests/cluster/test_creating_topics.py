"""A replication factor holds in every way to create a topic; more replicas than nodes are refused with both numbers."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

import waystation
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S
from waystation.errors import InvalidReplicationFactor

Create = Callable[[ClusterOfThree, str, int | None], None]

pytestmark = pytest.mark.timeout(200)


class Refused(Exception):
    """With what the user is told."""


def by_python(cluster: ClusterOfThree, topic: str, factor: int | None) -> None:
    with waystation.connect(cluster.address(2)) as mq:
        try:
            mq.create_topic(topic, 2, replication_factor=factor)
        except InvalidReplicationFactor as error:
            raise Refused(str(error)) from error


def by_http(cluster: ClusterOfThree, topic: str, factor: int | None) -> None:
    body = {"partitions": 2} if factor is None else {"partitions": 2, "replication_factor": factor}
    url = f"http://{cluster.address(3, 'http')}/v1/topics/{topic}"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"}, method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            assert answer.status == 201
    except urllib.error.HTTPError as error:
        raise Refused(error.read().decode()) from error


def by_command_line(cluster: ClusterOfThree, topic: str, factor: int | None) -> None:
    command = [sys.executable, "-m", "waystation", "topics", "create", topic, "--partitions", "2"]
    command += ["--server", cluster.address(1)]
    command += [] if factor is None else ["--replication-factor", str(factor)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    if done.returncode:
        raise Refused(done.stderr)


def by_first_use(cluster: ClusterOfThree, topic: str, factor: int | None) -> None:
    with waystation.connect(cluster.address(1)) as mq:
        mq.describe_topic(topic, create=True)


def replicas(cluster: ClusterOfThree, topic: str) -> set[int]:
    told = cluster.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions.values()
    return {len(one.replicas) for one in told}


@pytest.mark.parametrize("create", [by_python, by_http, by_command_line])
def test_a_topic_has_as_many_replicas_as_it_was_created_with(cluster: ClusterOfThree, create: Create) -> None:
    for factor, wanted in ((None, 3), (1, 1), (2, 2)):
        topic = unique("factor")
        create(cluster, topic, factor)
        assert replicas(cluster, topic) == {wanted}
    with pytest.raises(Refused, match=r"factor 4 .* 3"):
        create(cluster, unique("factor"), 4)


def test_a_topic_that_is_created_on_first_use_is_on_three_nodes(cluster: ClusterOfThree) -> None:
    topic = unique("used")
    by_first_use(cluster, topic, None)
    assert replicas(cluster, topic) == {3}
