"""Consumers of a share group in a simulated cluster: they fetch where a partition is led, wherever their group is.

Each asks as Kafka's ShareFetch and ShareAcknowledge do: the leader of the partition, which asks the group's coordinator
if that is another node. Of what it gets a consumer accepts most, releases some, and forgets the rest. What must hold:

- a record whose acceptance was confirmed is not delivered again: not by a fetch that was sent after that;
- every other record is delivered, again and again, until somebody has accepted it (`drain`, when all has healed).

A coordinator that was deposed and cannot know it may deliver what has been accepted elsewhere meanwhile, as a queue's
leader may. If its answer came by way of another node, what counts is what it knew when it was asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from tests.simulation.cluster_clients import PARTITIONS, REFUSED, TOPIC, Clients, access, epoch_at
from tests.simulation.cluster_world import Lost, Node
from tests.simulation.promises import expect
from waystation.broker.broker import Broker
from waystation.errors import NotLeader
from waystation.queues.feed import Verdict
from waystation.share.group import SharedGroup
from waystation.share.machines.calls import ShareBeat
from waystation.share.peer_calls import Settling
from waystation.topics.topics import SHARE_TOPIC

GROUP = "sharers"
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.isolation.level": "read_committed",
    "share.record.lock.duration.ms": "2000",
    "share.delivery.count.limit": "0",
}
MOST = 10
"""Records in one fetch."""

Record = tuple[int, int]
"""A partition, and an offset."""


@dataclass
class Shared:
    """What is known of a record that somebody had."""

    deliveries: int = 0
    ending: bool = False  # somebody has asked to accept it
    accepted_s: float | None = None  # and was told that it is
    accepted_in: int = -1  # the newest epoch of the coordinator then


@dataclass(frozen=True)
class Fetched:
    home: int
    """The node that coordinates the group."""
    epoch: int | None
    """In which that node did so, if it is the one that was asked; another does not say."""
    topic: UUID
    offsets: tuple[int, ...]


class ShareConsumers:
    """Of one run."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.records: dict[Record, Shared] = {}

    async def declare(self) -> None:
        """The group begins at the beginning of the topic."""
        while True:
            try:
                node = self._clients.leader(SHARE_TOPIC)
                await node.ask(lambda broker: access(broker).shares.alter_settings(GROUP, SETTINGS))
                return
            except REFUSED:
                await self._clients._pause(0.1)

    async def consume(self, member: str) -> None:
        clients = self._clients
        while True:
            await clients._pause(0.15)
            index = clients.rng.randrange(PARTITIONS)
            try:
                node = clients.leader(TOPIC, index)
                broker = node.broker
                fetched = await self._fetch(node, member, index, clients.rng.choice((1, 3, MOST)))
                if clients.rng.random() < 0.2:
                    await clients._pause(1.0)  # the locks may run out
                if node.broker is not broker:
                    raise Lost("connection closed")
                for verdict, offsets in self._verdicts(fetched.offsets).items():
                    await self._settle(node, member, index, fetched.topic, verdict, offsets)
            except REFUSED:
                continue

    def _verdicts(self, offsets: Iterable[int]) -> dict[Verdict, list[int]]:
        chosen: dict[Verdict, list[int]] = {}
        for offset in offsets:
            verdict = self._clients.rng.choices((Verdict.ACK, Verdict.RELEASE, None), (65, 15, 20))[0]
            if verdict is not None:
                chosen.setdefault(verdict, []).append(offset)
        return chosen

    async def _fetch(self, node: Node, member: str, index: int, most: int) -> Fetched:
        sent_s = self._clients.time.seconds
        knew = {one.id: epoch_at(one.broker, SHARE_TOPIC) for one in self._clients.nodes.values() if one.broker}
        fetched = await node.ask(lambda broker: _fetch(broker, member, index, most))
        epoch = knew.get(fetched.home) if fetched.epoch is None else fetched.epoch
        for offset in fetched.offsets:
            record = self.records.setdefault((index, offset), Shared())
            record.deliveries += 1
            late = record.accepted_s is not None and record.accepted_s < sent_s
            if late and (epoch is None or epoch >= record.accepted_in):
                expect(False, f"offset {offset} of partition {index} was accepted, and is delivered again: {record}")
        return fetched

    async def _settle(
        self, node: Node, member: str, index: int, topic: UUID, verdict: Verdict, offsets: list[int]
    ) -> None:
        records = [self.records[index, offset] for offset in offsets]
        for record in records:
            record.ending |= verdict is Verdict.ACK
        held = await node.ask(lambda broker: _settle(broker, member, topic, index, verdict, offsets))
        if held and verdict is Verdict.ACK:
            self._clients.look_at_leaders()
            for record in records:
                record.accepted_s = self._clients.time.seconds
                record.accepted_in = self._clients.promises.newest.get((SHARE_TOPIC, 0), -1)
            self._clients._succeeded("share")

    # -- the end ------------------------------------------------------------------------------------------------------

    async def drain(self, index: int, there: Iterable[int]) -> bool:
        """Takes and accepts what is left. Whether that was all, and everything that nobody had accepted was in it."""
        wanted = [offset for offset in there if not self.records.get((index, offset), Shared()).ending]
        try:
            node = self._clients.leader(TOPIC, index)
            fetched = await self._fetch(node, "audit", index, 500)
            if fetched.offsets:
                await self._settle(node, "audit", index, fetched.topic, Verdict.ACK, list(fetched.offsets))
        except REFUSED:
            return False
        return not fetched.offsets and not wanted

    def missing(self, index: int, there: Iterable[int]) -> str:
        left = [offset for offset in there if not self.records.get((index, offset), Shared()).ending]
        return f"of partition {index}, offsets {left[:10]} are not delivered, though nobody has accepted them"


# -- what a node does for a client, in its own context ----------------------------------------------------------------


async def _fetch(broker: Broker, member: str, index: int, most: int) -> Fetched:
    shares = access(broker).shares
    await shares.heartbeat(ShareBeat(group_id=GROUP, member_id=member, member_epoch=0, topics=(TOPIC,)))
    group = shares.open(GROUP)
    epoch = None
    topic_id = broker.topics.get(TOPIC).id
    partition = shares.led(topic_id, index)
    session = shares.begin_session(group, member)
    if isinstance(group, SharedGroup):
        one = shares.partition(group, topic_id, index)
        grants = one.acquire_bytes(member, most, 1 << 20, group.settings.lock_ms, whole=False)
        one.window.stored(grants)
        home, epoch = broker.node_id, epoch_at(broker, SHARE_TOPIC)
    else:
        await group.release(member, [(topic_id, index)])
        given = (await group.acquire(session, [partition], member, most, 1 << 20, whole=False)).get((topic_id, index))
        if given is not None and given.error is not None:
            raise given.error
        grants = [] if given is None else given.grants
        home = group.home
    if not partition.leads:
        raise NotLeader("deposed meanwhile")
    return Fetched(home, epoch, topic_id, tuple(grant.first + at for grant in grants for at in range(grant.count)))


async def _settle(
    broker: Broker, member: str, topic_id: UUID, index: int, verdict: Verdict, offsets: list[int]
) -> bool:
    """Whether the member held all of them; durable then."""
    shares = access(broker).shares
    group = shares.open(GROUP)
    runs = tuple((offset, 1) for offset in offsets)
    if isinstance(group, SharedGroup):
        verdicts = shares.partition(group, topic_id, index).settle(member, verdict, runs)
        await broker.durable(*(() if verdicts.receipt is None else (verdicts.receipt,)))
        return not verdicts.unknown
    (settled,) = await group.settle(member, [Settling(topic_id, index, ((verdict.value, runs),))])
    if settled.error is not None:
        raise settled.error
    return not any(count for _, count in settled.unknown)
