"""Real nodes on a network whose links are cut, one direction at a time: work goes on, and all that was acknowledged is
there, once and in order. Needs network namespaces."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from tests.clients import kit
from tests.clients.crash_load import Writing, wait_for_progress
from tests.support.cluster import RealCluster
from tests.support.names import unique
from tests.support.network import CLIENTS, SERVER, Network, why_not
from tests.support.waiting import wait_for

pytestmark = pytest.mark.timeout(300)

IMPATIENT = {"socket.timeout.ms": 3000, "request.timeout.ms": 3000}
"""Or a producer waits for a minute for a broker that does not answer."""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with Network(["1", "2", "3"]) as network:
        yield network


@pytest.fixture(scope="module")
def spread(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    """Each node is a host of its own, and so is etcd."""
    with RealCluster(tmp_path_factory.mktemp("spread"), network=network) as cluster:
        yield cluster


class Story:
    """A topic whose leader is cut off from somebody while a producer writes to it."""

    def __init__(self, cluster: RealCluster, network: Network) -> None:
        self.cluster, self.network = cluster, network
        self.topic = cluster.create(unique("cut"))
        self.leader = cluster.leader(self.topic)
        self.followers = [number for number in cluster.nodes if number != self.leader]
        self.writing = Writing(cluster.bootstrap, self.topic, IMPATIENT)
        self.writing.start()
        self.goes_on()

    def goes_on(self) -> None:
        """Each partition does: more is acknowledged than the producer keeps waiting."""
        wait_for_progress({self.writing: 3500})

    def partition(self) -> dict[str, object]:
        """The first one, as a follower knows it."""
        told = self.cluster.status(asked=self.followers[0])["partitions"]
        found: dict[str, object] = next(one for one in told if (one["topic"], one["partition"]) == (self.topic, 0))
        return found

    def ends(self) -> None:
        self.network.heal()
        self.cluster.wait_in_sync(self.topic)
        self.goes_on()
        self.writing.stop()
        self.writing.check(kit.read_all(self.cluster.bootstrap, self.topic))


@pytest.fixture
def story(spread: RealCluster, network: Network) -> Iterator[Story]:
    story = Story(spread, network)
    try:
        yield story
    finally:
        network.heal()
        spread.wait_whole()


def test_a_leader_that_is_cut_off_from_its_followers_but_not_from_etcd_resigns(story: Story) -> None:
    for follower in story.followers:
        story.network.cut_both(str(story.leader), str(follower))
    wait_for(lambda: story.partition()["leader"] in story.followers, "a follower leads", every_s=0.2)
    story.goes_on()
    story.ends()


def test_a_leader_that_is_cut_off_from_etcd_alone_goes_on_in_its_epoch(story: Story) -> None:
    before = story.partition()
    story.network.cut_both(str(story.leader), SERVER)

    def lease_is_gone() -> bool:
        nodes = story.cluster.status(asked=story.followers[0])["nodes"]
        return not next(node["alive"] for node in nodes if node["id"] == story.leader)

    wait_for(lease_is_gone, "the leader's lease has run out", every_s=0.2)
    story.goes_on()
    now = story.partition()
    assert (now["leader"], now["epoch"]) == (before["leader"], before["epoch"])
    story.ends()


@pytest.mark.soak
@pytest.mark.parametrize("direction", ["leader to follower", "follower to leader"])
def test_a_link_that_loses_one_direction_costs_one_follower(story: Story, direction: str) -> None:
    ends = [str(story.leader), str(story.followers[0])]
    story.network.cut(*(ends if direction == "leader to follower" else reversed(ends)))
    wait_for(
        lambda: story.partition()["isr"] == sorted({story.leader, story.followers[1]}),
        "the follower is out of the in-sync set",
        every_s=0.2,
    )
    story.goes_on()
    story.ends()


@pytest.mark.soak
def test_a_node_that_is_cut_off_from_everybody_is_replaced(story: Story) -> None:
    others = [*map(str, story.followers), SERVER, CLIENTS]
    for other in others:
        story.network.cut_both(str(story.leader), other)
    wait_for(lambda: story.partition()["leader"] in story.followers, "a follower leads", every_s=0.2)
    story.goes_on()
    story.ends()


def test_cut_links_are_silent(network: Network) -> None:
    """What the tests above rest on: nobody is refused, nobody is told."""
    probe = "import socket, sys; socket.create_connection((sys.argv[1], 9), 0.5)"
    ask = [*network.command("1"), "python3", "-c", probe, network.address("2")]
    network.heal()
    assert "refused" in subprocess.run(ask, capture_output=True, text=True, check=False).stderr
    network.cut("2", "1")
    try:
        assert "timed out" in subprocess.run(ask, capture_output=True, text=True, check=False).stderr
    finally:
        network.heal()
