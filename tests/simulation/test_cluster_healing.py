"""Single troubles of a cluster, told as stories: what a seed has met once is met here every time.

A story is told on the brokers, disks and network of `cluster_machine.py`, where nothing breaks but what the story
breaks.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import msgspec
import pytest

from tests.simulation.cluster_clients import TOPIC, records
from tests.simulation.cluster_machine import SETTINGS, ClusterMachine
from tests.simulation.cluster_world import Node
from tests.simulation.disk import Fault
from waystation.cluster.decisions.state import encode, read_partition
from waystation.cluster.memory_store import Fate
from waystation.message import Message
from waystation.topics.partitions.partition import log_of
from waystation.topics.partitions.replicated_partition import ReplicatedPartition


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Told(ClusterMachine):
    def __init__(self, story: Callable[[Told], Coroutine[Any, Any, None]], nodes: int = 3) -> None:
        super().__init__(1, faults=[], work=[], nodes=nodes)
        self._story = story

    async def _main(self, seconds: float) -> None:
        await self.begin()
        await self._story(self)

    def replica(self, node: Node, index: int = 0) -> ReplicatedPartition:
        return next(one for other, one in self.clients.replicas() if other is node and one.index == index)

    def leader(self) -> Node:
        return self.clients.leader(TOPIC, 0)

    def follower(self) -> Node:
        return next(node for node in self.nodes.values() if node is not self.leader())

    async def publish(self, value: bytes) -> None:
        async def publish(broker: Any) -> None:
            await broker.durable(*broker.messages.publish(TOPIC, [Message(value)], 0).receipts)

        await self.leader().ask(publish)

    def append_unsynced(self, node: Node, value: bytes) -> None:
        """The leader takes it, and nobody waits for it."""
        broker = node.broker
        assert broker is not None
        node.context.run(lambda: broker.messages.publish(TOPIC, [Message(value)], 0))

    def hand_over(self, to: Node) -> None:
        """Says to the store what the leader would say."""
        key = next(key for key in self.store.read("partitions/").entries if key.endswith("/0") and self._is_own(key))
        entry = self.store.get(key)
        assert entry is not None
        state = read_partition(entry.value)
        new = msgspec.structs.replace(state, leader=to.id, epoch=state.epoch + 1)
        self.store.write({key: encode(new)}, {key: entry.revision})

    async def place(self, *nodes: Node) -> None:
        """The topic's first partition is moved to these nodes."""
        topic_id = self.replica(self.leader()).topic.id
        ids = [node.id for node in nodes]
        await self.leader().ask(lambda broker: broker.operations.reassign(topic_id, 0, ids))

    def placed(self, *nodes: Node) -> bool:
        """They have it, and nobody else."""
        own = [node for node, one in self.clients.replicas() if one.index == 0]
        return self.whole() and sorted(node.id for node in own) == sorted(node.id for node in nodes)

    def has(self, node: Node) -> int:
        """How many records of it the node has; none without a replica."""
        return sum(one.end_offset for other, one in self.clients.replicas() if other is node and one.index == 0)

    def _is_own(self, key: str) -> bool:
        return str(self.replica(self.leader()).topic.id) in key

    def equal(self) -> bool:
        own = [one for _, one in self.clients.replicas() if one.index == 0]
        ends = {log_of(one).end_offset for one in own} | {one.visible_offset for one in own}
        return len(own) == len(self.nodes) and len(ends) == 1 and self.whole()


def test_a_follower_of_an_idle_partition_hears_how_far_it_is_acknowledged() -> None:
    async def story(told: Told) -> None:
        for number in range(5):
            await told.publish(b"%d" % number)
        node = told.follower()
        await told.switch_off(node, power=False)
        told.switch_on(node)
        await told.until(lambda: node.broker is not None, "it is back")
        await told.until(lambda: told.replica(node).visible_offset == 5, "its readers see all of it")

    Told(story).run()


def test_followers_of_a_leader_that_is_back_hear_how_far_it_is_acknowledged() -> None:
    """Its sessions with them still have what they asked for before, which is to be answered, too."""

    async def story(told: Told) -> None:
        await told.publish(b"1")
        first, second, third = sorted(told.nodes.values(), key=lambda node: node is not told.leader())
        told.hand_over(second)
        await told.until(lambda: told.replica(second).leads and not told.replica(first).leads, "another one leads")
        await told.publish(b"2")
        assert third.life is not None
        told.loop.pause(third.life)  # it has not heard yet that this is acknowledged, and asks last
        told.hand_over(first)
        await told.until(lambda: told.replica(first).leads, "the first one leads again")
        await asyncio.sleep(0.5)
        told.loop.resume(third.life)
        await told.until(told.equal, "all readers see all of it")

    Told(story).run()


def test_a_deposed_leader_syncs_what_nobody_waits_for_and_follows() -> None:
    async def story(told: Told) -> None:
        await told.publish(b"1")
        old, new = told.leader(), told.follower()
        told.append_unsynced(old, b"2")
        told.hand_over(new)
        await told.until(lambda: told.replica(new).leads, "another one leads")
        await told.until(told.equal, "the old leader follows")

    Told(story).run()


def test_a_truncation_that_the_disk_has_interrupted_is_finished() -> None:
    async def story(told: Told) -> None:
        await told.publish(b"1")
        old, new = told.leader(), told.follower()
        told.append_unsynced(old, b"2")
        told.hand_over(new)
        fault = old.disk.inject(Fault("truncate", "/0/0", errno.EIO, times=1))
        await told.until(lambda: told.replica(new).leads and not told.replica(old).leads, "another one leads")
        await told.publish(b"3")
        await told.until(lambda: fault.times == 0, "the truncation is interrupted")
        await told.until(told.equal, "the old leader follows")

    Told(story).run()


def test_a_store_that_gives_no_answer_is_not_asked_all_the_time() -> None:
    async def story(told: Told) -> None:
        leader = told.leader()
        writes = 0

        def fate(call: str) -> Fate:
            nonlocal writes
            writes += call == "write"
            return Fate.UNANSWERED

        assert leader.face is not None
        leader.face.fate = fate
        await told.switch_off(told.follower(), power=False)
        await asyncio.sleep(8.0)
        assert 1 <= writes <= 40

    Told(story).run()


@pytest.mark.parametrize("comes_back", ["after_the_crash", "before_it"])
def test_a_replica_that_moved_away_and_back_begins_with_nothing(
    monkeypatch: pytest.MonkeyPatch, comes_back: str
) -> None:
    """Its node dies before it notes again how far its logs are: what it had noted is of files that it removed."""
    monkeypatch.setitem(SETTINGS, "waystation.checkpoint.interval.ms", "600000")
    values = [b"%d" % number * 100_000 for number in range(10, 50)]

    async def story(told: Told) -> None:
        leader, second, third, going = sorted(told.nodes.values(), key=lambda node: node is not told.leader())
        await told.place(leader, second, going)
        await told.until(lambda: told.placed(leader, second, going), "three nodes have it")
        for value in values:
            await told.publish(value)
        folder = log_of(told.replica(going)).folder
        await told.until(lambda: told.replica(going).visible_offset == len(values), "it has all of it")
        await going.ask(lambda broker: broker.housekeeping.checkpoint())
        await told.place(leader, second, third)
        await told.until(lambda: told.placed(leader, second, third), "it moves away")
        await told.until(lambda: not going.disk.list(folder), "its files are removed")
        if comes_back == "before_it":
            told.network.slow[going.id, leader.id] = 0.5
            await told.place(leader, second, going)
            await told.until(lambda: told.has(going) > 0, "it gets the beginning")
            assert told.has(going) < len(values)
        told.network.sever({(going.id, leader.id), (going.id, second.id), (going.id, third.id)})  # nobody sees it go
        await told.switch_off(going, power=False)
        told.network.heal()
        if comes_back == "after_the_crash":
            await told.place(leader, second, going)
        told.switch_on(going)
        await told.until(lambda: told.placed(leader, second, going), "it has a replica again")
        own = [one for _, one in told.clients.replicas() if one.index == 0]
        await told.until(lambda: all(one.visible_offset == len(values) for one in own), "all have all of it")
        assert [[value for _, value in records(one, len(values))] for one in own] == [values] * 3

    Told(story, nodes=4).run()


def test_files_of_a_replica_are_not_removed_while_it_is_being_noted_how_far_logs_are() -> None:
    """What was looked at before would be noted after they were removed."""

    async def story(told: Told) -> None:
        leader, second, third, going = sorted(told.nodes.values(), key=lambda node: node is not told.leader())
        await told.place(leader, second, going)
        await told.until(lambda: told.placed(leader, second, going), "three nodes have it")
        await told.publish(b"1")
        folder = log_of(told.replica(going)).folder
        assert going.broker is not None
        async with going.broker._points.changing:
            await told.place(leader, second, third)
            await told.until(lambda: told.placed(leader, second, third), "it moves away")
            await asyncio.sleep(5.0)
            assert going.disk.list(folder)
        await told.until(lambda: not going.disk.list(folder), "its files are removed")

    Told(story, nodes=4).run()
