"""What a leader knows of the process of a follower: whether it is there still, and which of its lives that was."""

from __future__ import annotations

import pytest

from tests.broker.kit import run
from tests.clients import kit
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique
from tests.support.waiting import wait_for
from waystation.cluster.links.peer import Answer, Fetch, Fetched, Leaving, PeerRefusal
from waystation.cluster.replication.serving import FetchServer
from waystation.cluster.replication.throttle import Throttle
from waystation.world import real_world

FOLLOWER = 2


def leader() -> FetchServer:
    world = real_world()
    return FetchServer(world, 1, Throttle(world.clock, lambda: 0))


async def fetch(
    server: FetchServer, number: int, *, incarnation: int = 1, session: int = 0, connection: str = "first"
) -> Answer:
    return await server.fetch(Fetch(FOLLOWER, "folder", incarnation, number, session, ()), connection)


def test_a_follower_that_leaves_is_not_there_until_its_next_process_fetches() -> None:
    async def main() -> None:
        server = leader()
        await fetch(server, 1)
        assert not server.has_ended(FOLLOWER)
        server.left(Leaving(FOLLOWER, 1, 2))
        assert server.has_ended(FOLLOWER)
        assert isinstance(await fetch(server, 1, incarnation=2), Fetched)
        assert not server.has_ended(FOLLOWER)

    run(main())


def test_a_leader_that_was_never_asked_hears_that_a_node_leaves() -> None:
    server = leader()
    server.left(Leaving(FOLLOWER, 1, 2))
    assert server.has_ended(FOLLOWER)


def test_an_earlier_process_that_leaves_says_nothing_of_this_one() -> None:
    async def main() -> None:
        server = leader()
        await fetch(server, 1, incarnation=2)
        server.left(Leaving(FOLLOWER, 1, 99))
        assert not server.has_ended(FOLLOWER)

    run(main())


def test_what_was_asked_before_a_node_left_and_comes_later_does_not_bring_it_back() -> None:
    async def main() -> None:
        server = leader()
        answer = await fetch(server, 1)
        assert isinstance(answer, Fetched)
        server.left(Leaving(FOLLOWER, 1, 4))
        assert isinstance(await fetch(server, 2, session=answer.session), PeerRefusal)
        assert isinstance(await fetch(server, 3), PeerRefusal)
        assert server.has_ended(FOLLOWER)

    run(main())


def test_a_node_that_refuses_connections_has_ended_if_the_one_that_it_fetches_by_is_gone() -> None:
    async def main() -> None:
        server = leader()
        await fetch(server, 1)
        server.refused(FOLLOWER, 1)
        assert not server.has_ended(FOLLOWER)  # its listener is closed, and it fetches still
        assert server.disconnected("of somebody else") == []
        assert server.disconnected("first") == [(FOLLOWER, 1)]
        assert not server.is_connected(FOLLOWER)
        server.refused(FOLLOWER, 0)
        assert not server.has_ended(FOLLOWER)  # that was an earlier process
        server.refused(FOLLOWER, 1)
        assert server.has_ended(FOLLOWER)

    run(main())


def test_a_follower_that_fetches_by_another_connection_lives() -> None:
    async def main() -> None:
        server = leader()
        await fetch(server, 1)
        server.disconnected("first")
        server.refused(FOLLOWER, 1)
        await fetch(server, 2, connection="second")
        assert server.is_connected(FOLLOWER)
        assert not server.has_ended(FOLLOWER)
        assert server.disconnected("first") == []

    run(main())


@pytest.mark.timeout(300)
def test_a_killed_node_that_led_nothing_is_known_to_be_dead_by_its_leaders(cluster: ClusterOfThree) -> None:
    """Nobody fetches from it, and so nobody but a leader can see that it is gone before its lease has run out."""
    topic = cluster.create(unique("dead"))
    cluster.wait_whole()
    killed, asked = 3, 1
    cluster.run("cluster", "drain", str(killed), asked=asked)
    said = f"node {killed} refuses connections"
    before = {number: cluster.nodes[number].log().count(said) for number in (1, 2)}
    cluster.kill(killed)
    kit.produce(cluster.bootstrap, topic, kit.numbered(300), config={"message.timeout.ms": 60_000})
    try:
        wait_for(lambda: any(cluster.nodes[one].log().count(said) > before[one] for one in (1, 2)), "a leader knows")
    finally:
        cluster.start_node(killed)
        cluster.wait_whole()
