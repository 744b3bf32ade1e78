"""A group changes from the classic protocol to KIP-848's and back, with its members in it: nobody loses its place."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from tests.groups.kit import Stage, first_beat, join, join_request, play, settle, subscription, topic_id
from waystation.errors import WaystationError
from waystation.groups.machines.calls import (
    ConsumerBeat,
    ConsumerBeatAnswer,
    JoinAnswer,
    LeavingMember,
    OffsetToCommit,
    SyncRequest,
)
from waystation.groups.machines.classic_member import assigned_partitions, read_subscription, write_assignment
from waystation.groups.machines.errors import (
    FencedInstance,
    GroupFull,
    IllegalGeneration,
    InconsistentProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMember,
)
from waystation.groups.machines.settings import GroupSettings

Owned = set[int]
"""Partitions of the topic `orders`, which has four."""


def owned_bytes(owned: Iterable[int]) -> bytes:
    return write_assignment(1, {"orders": owned} if owned else {})[2:-4]


class ClassicClient:
    """A consumer of the classic protocol, as the coordinator sees one. Eager ones give up all before they join."""

    def __init__(self, stage: Stage, *, cooperative: bool = False, instance_id: str | None = None) -> None:
        self.stage, self.cooperative, self.instance_id = stage, cooperative, instance_id
        self.member_id, self.generation = "", -1
        self.owned: Owned = set()
        self.joins = 0

    async def join(self) -> JoinAnswer:
        self.joins += 1
        if not self.cooperative:
            self.owned = set()
        metadata = subscription("orders", owned=owned_bytes(self.owned))
        name = "cooperative-sticky" if self.cooperative else "range"
        fields: dict[str, Any] = {"protocols": ((name, metadata),), "instance_id": self.instance_id}
        coordinator = self.stage.coordinator
        try:
            answer = await coordinator.join(join_request(member_id=self.member_id, **fields))
        except MemberIdRequired as required:
            self.member_id = required.member_id
            answer = await coordinator.join(join_request(member_id=self.member_id, **fields))
        self.member_id, self.generation = answer.member_id, answer.generation_id
        return answer

    async def sync(self, answer: JoinAnswer) -> None:
        """A leader deals the partitions out in turn."""
        members = [one.member_id for one in answer.members]
        dealt = {one: [index for index in range(4) if members[index % len(members)] == one] for one in members}
        given = tuple((one, write_assignment(1, {"orders": indexes})) for one, indexes in dealt.items())
        request = SyncRequest(
            group_id="g",
            member_id=self.member_id,
            generation_id=self.generation,
            instance_id=self.instance_id,
            assignments=given,
        )
        synced = await self.stage.coordinator.sync(request)
        now = {index for _, indexes in assigned_partitions(synced.assignment) or () for index in indexes}
        revoked = self.owned - now
        self.owned = now
        if self.cooperative and revoked:
            await self.rejoin()

    async def rejoin(self) -> None:
        while True:
            try:
                await self.sync(await self.join())
            except RebalanceInProgress:
                continue
            return

    async def beat(self) -> bool:
        """Whether it had to join."""
        if self.generation < 0:
            await self.rejoin()
            return True
        try:
            await self.stage.coordinator.heartbeat("g", self.member_id, self.generation, self.instance_id)
        except RebalanceInProgress:
            await self.rejoin()
            return True
        return False

    async def leave(self) -> None:
        (result,) = await self.stage.coordinator.leave("g", [LeavingMember(self.member_id, self.instance_id)])
        if result.error is not None:
            raise result.error


class NewClient:
    """A member of the consumer protocol, which lets go of what it is told to and says so with its next heartbeat."""

    def __init__(self, stage: Stage, name: str = "new", instance_id: str | None = None) -> None:
        self.stage, self.name, self.instance_id = stage, name, instance_id
        self.answer: ConsumerBeatAnswer | None = None
        self.owned: Owned = set()

    async def beat(self) -> bool:
        coordinator = self.stage.coordinator
        before = self.owned
        if self.answer is None:
            self.answer = await coordinator.consumer_heartbeat(first_beat(self.name, instance_id=self.instance_id))
        else:
            parts = frozenset((topic_id("orders"), index) for index in self.owned)
            self.answer = await coordinator.consumer_heartbeat(
                ConsumerBeat(
                    group_id="g",
                    member_id=self.name,
                    member_epoch=self.answer.member_epoch,
                    instance_id=self.instance_id,
                    owned=parts,
                )
            )
        if self.answer.assignment is not None:
            self.owned = {index for _, index in self.answer.assignment}
        return self.owned != before

    async def leave(self) -> None:
        self.owned = set()
        await self.stage.coordinator.consumer_heartbeat(
            ConsumerBeat(group_id="g", member_id=self.name, member_epoch=-1, instance_id=self.instance_id)
        )


Client = ClassicClient | NewClient


async def come_to_rest(clients: Iterable[Client]) -> None:
    """Everybody heartbeats until nothing changes; no partition ever has two owners."""
    everyone = list(clients)
    for _ in range(20):
        moved = False
        for client in everyone:
            moved = await client.beat() or moved
            assert max(Counter(index for one in everyone for index in one.owned).values(), default=0) <= 1
        if not moved:
            assert sorted(index for one in everyone for index in one.owned) == [0, 1, 2, 3]
            return
    raise AssertionError("the group does not come to rest")


async def classic_group(stage: Stage, count: int, *, cooperative: bool = False) -> list[ClassicClient]:
    clients = [ClassicClient(stage, cooperative=cooperative) for _ in range(count)]
    await asyncio.gather(*(client.rejoin() for client in clients))
    return clients


def kinds(stage: Stage) -> list[str]:
    return [listing.kind for listing in stage.coordinator.list_groups()]


@pytest.mark.parametrize("cooperative", [False, True])
def test_members_of_both_protocols_share_the_partitions(cooperative: bool) -> None:
    async def story(stage: Stage) -> None:
        clients = await classic_group(stage, 2, cooperative=cooperative)
        offsets = [OffsetToCommit("orders", 0, 5)]
        member = {"member_id": clients[0].member_id, "generation_id": clients[0].generation}
        await stage.coordinator.commit_offsets("g", offsets, **member)  # type: ignore[arg-type]
        new = NewClient(stage)
        await new.beat()
        assert kinds(stage) == ["Consumer"]
        await come_to_rest([*clients, new])
        everyone: list[Client] = [*clients, new]
        assert all(one.owned for one in everyone)
        assert stage.coordinator.fetch_offsets("g")[0].offset == 5
        (view,) = stage.coordinator.describe_consumer_groups(["g"])
        assert [one.classic for one in view.members] == [one.member_id != "new" for one in view.members]

    play(story)


def test_a_cooperative_member_keeps_what_is_not_moved() -> None:
    async def story(stage: Stage) -> None:
        (classic,) = await classic_group(stage, 1, cooperative=True)
        new = NewClient(stage)
        kept = set(classic.owned)
        await new.beat()
        while len(new.owned) < 2:
            await classic.beat()
            kept &= classic.owned
            await new.beat()
        assert len(kept) == 2, "two partitions were its own all the time"

    play(story)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_group_that_changes_over_is_remembered_after_a_crash(compacted: bool) -> None:
    async def story(stage: Stage) -> None:
        clients: list[Client] = [*await classic_group(stage, 2), NewClient(stage)]
        for client in clients:
            await client.beat()
        for _ in range(2):
            stage = await stage.restart(only_durable=True, compacted=compacted)
            for client in clients:
                client.stage = stage
            await come_to_rest(clients)
        assert kinds(stage) == ["Consumer"]
        await clients[2].leave()
        assert kinds(stage) == ["Classic"]
        stage = await stage.restart(only_durable=True, compacted=compacted)
        assert kinds(stage) == ["Classic"]
        assert len(stage.coordinator.describe_groups(["g"])[0].members) == 2
        await stage.coordinator.close()

    play(story)


def test_the_group_is_a_classic_one_again_when_its_last_new_member_has_left() -> None:
    async def story(stage: Stage) -> None:
        clients = await classic_group(stage, 2)
        new = NewClient(stage)
        await new.beat()
        await come_to_rest([*clients, new])
        await new.leave()
        assert kinds(stage) == ["Classic"]
        await asyncio.gather(*(client.beat() for client in clients))
        assert sorted(index for one in clients for index in one.owned) == [0, 1, 2, 3]
        assert not any([await client.beat() for client in clients])

    play(story)


def test_a_new_member_that_dies_leaves_a_classic_group_behind() -> None:
    async def story(stage: Stage) -> None:
        clients = await classic_group(stage, 1)
        new = NewClient(stage)
        await new.beat()
        await come_to_rest([*clients, new])
        for _ in range(60):
            await asyncio.sleep(1)
            await clients[0].beat()
        assert kinds(stage) == ["Classic"]
        assert clients[0].owned == {0, 1, 2, 3}

    play(story)


def test_a_classic_member_joins_and_leaves_a_group_of_the_new_protocol() -> None:
    async def story(stage: Stage) -> None:
        new, classic = NewClient(stage), ClassicClient(stage)
        await come_to_rest([new])
        await classic.rejoin()
        await come_to_rest([new, classic])
        assert len(classic.owned) == 2
        await classic.leave()
        await come_to_rest([new])
        assert kinds(stage) == ["Consumer"]
        with pytest.raises(UnknownMember):
            await stage.coordinator.heartbeat("g", classic.member_id, classic.generation)

    play(story)


def test_a_rolling_change_of_every_member_and_back() -> None:
    async def story(stage: Stage) -> None:
        old: list[Client] = [*await classic_group(stage, 3)]
        for number in range(3):
            await old[number].leave()
            old[number] = NewClient(stage, f"new-{number}")
            await come_to_rest(old)
        assert kinds(stage) == ["Consumer"]
        for number in range(3):
            await old[number].leave()
            if number < 2:
                client = old[number] = ClassicClient(stage)
                await client.rejoin()
                await come_to_rest(old)
        assert kinds(stage) == ["Classic"]
        last = ClassicClient(stage)
        old[2] = last
        await asyncio.gather(last.rejoin(), old[0].beat(), old[1].beat())
        assert sorted(index for one in old for index in one.owned) == [0, 1, 2, 3]

    play(story)


def test_who_waits_in_a_join_is_sent_to_join_again() -> None:
    async def story(stage: Stage) -> None:
        (classic,) = await classic_group(stage, 1)
        late = ClassicClient(stage)
        waiting = asyncio.ensure_future(late.join())  # until the other one joins again
        await asyncio.sleep(0.2)
        assert not waiting.done()
        new = NewClient(stage)
        await new.beat()
        with pytest.raises(RebalanceInProgress):
            await waiting
        await late.rejoin()
        await come_to_rest([classic, late, new])

    play(story)


def test_a_classic_member_that_is_called_back_and_does_not_come_is_removed() -> None:
    async def story(stage: Stage) -> None:
        (classic,) = await classic_group(stage, 1)
        new = NewClient(stage)
        await new.beat()
        for _ in range(70):  # its rebalance timeout is 60 s
            await asyncio.sleep(1)
            with pytest.raises((RebalanceInProgress, UnknownMember)):
                await stage.coordinator.heartbeat("g", classic.member_id, classic.generation)
            await new.beat()
        assert new.owned == {0, 1, 2, 3}

    play(story)


def test_a_static_member_changes_its_protocol_in_place() -> None:
    async def story(stage: Stage) -> None:
        classic = ClassicClient(stage, instance_id="i")
        await classic.rejoin()
        new = NewClient(stage, instance_id="i")  # the same process, started again with another setting
        await new.beat()
        assert new.owned == {0, 1, 2, 3}
        with pytest.raises(FencedInstance):
            await stage.coordinator.heartbeat("g", classic.member_id, classic.generation, "i")

    play(story)


def test_a_commit_of_another_generation_is_refused() -> None:
    async def story(stage: Stage) -> None:
        (classic,) = await classic_group(stage, 1)
        new = NewClient(stage)
        await new.beat()
        await come_to_rest([classic, new])
        offsets = [OffsetToCommit("orders", 0, 1)]
        await stage.coordinator.commit_offsets(
            "g", offsets, member_id=classic.member_id, generation_id=classic.generation
        )
        with pytest.raises(IllegalGeneration):
            await stage.coordinator.commit_offsets("g", offsets, member_id=classic.member_id, generation_id=1)

    play(story)


def test_members_that_are_no_consumers_stay_among_themselves() -> None:
    async def story(stage: Stage) -> None:
        worker = await join(stage, protocol_type="connect", protocols=(("default", b"\0"),))
        await settle(stage, [worker])
        with pytest.raises(InconsistentProtocol):
            await stage.coordinator.consumer_heartbeat(first_beat("new"))
        await stage.coordinator.heartbeat("g", worker.member_id, 1)
        await stage.coordinator.leave("g", [LeavingMember(worker.member_id)])
        await stage.coordinator.consumer_heartbeat(first_beat("new"))
        with pytest.raises(InconsistentProtocol):
            await join(stage, protocol_type="connect", protocols=(("default", b"\0"),))

    play(story)


def test_an_assignment_that_only_its_members_understand_is_not_taken_over() -> None:
    async def story(stage: Stage) -> None:
        await settle(stage, [await join(stage)])  # each is assigned its own name
        with pytest.raises(InconsistentProtocol):
            await stage.coordinator.consumer_heartbeat(first_beat("new"))
        assert kinds(stage) == ["Classic"]

    play(story)


def test_subscriptions_are_read_with_what_they_own() -> None:
    read = read_subscription(subscription("a", "b", owned=owned_bytes({1, 3})))
    assert read is not None
    assert (read.version, read.topics, read.owned) == (1, frozenset({"a", "b"}), [("orders", [1, 3])])
    bare = read_subscription(subscription("a"))
    assert bare is not None
    assert bare.owned == []
    assert read_subscription(b"\0\1\0\0\0\1\0\5a") is None
    assert read_subscription(subscription("a", owned=b"\0\0")) is None


def test_what_classic_members_bring_fits_into_one_record_or_is_refused() -> None:
    """The group may be a classic one again, which is one record."""

    async def story(stage: Stage) -> None:
        await come_to_rest([NewClient(stage)])
        await ClassicClient(stage).rejoin()
        with pytest.raises(GroupFull):
            await join(stage, protocols=(("range", subscription("orders") + b"\0" * 4 + b"x" * 100),))

    play(story, GroupSettings(max_group_bytes=100))


SESSION_S = 10
"""A member that was silent for longer is removed, and may not know it yet."""
MOVES = ("classic", "classic", "new", "new", "leave", "leave", "die", "beat", "restart", "wait", "wait", "wait")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_members_do_no_partition_ever_has_two_owners(seed: int) -> None:
    random = Random(seed)
    moves = [(random.choice(MOVES), random.randrange(6)) for _ in range(100)]

    async def story(stage: Stage) -> None:
        clients: list[Client] = []
        heard_s: dict[Client, float] = {}

        async def act(client: Client, move: str) -> None:
            await _do(client, move)
            now_s = heard_s[client] = stage.world.clock.monotonic()
            alive = [one for one in clients if now_s - heard_s[one] < SESSION_S]
            owners = Counter(index for one in alive for index in one.owned)
            assert max(owners.values(), default=0) <= 1

        for number, (move, which) in enumerate(moves):
            if move in ("classic", "new") and len(clients) < 4:
                new = NewClient(stage, f"n{number}")
                clients.append(new if move == "new" else ClassicClient(stage, cooperative=seed % 2 == 1))
                await act(clients[-1], move)
            elif move == "restart":
                stage = await stage.restart(only_durable=True, compacted=bool(which % 2))
                for client in clients:
                    client.stage = stage
            elif move == "wait":
                for _ in range(2 * which):
                    await asyncio.sleep(1)
                    for client in clients:
                        await act(client, "beat")
            elif clients:
                one = clients[which % len(clients)]
                if move in ("leave", "die"):
                    clients.remove(one)
                await act(one, move)
        await stage.coordinator.close()

    play(story, GroupSettings(consumer_session_timeout_ms=SESSION_S * 1000))


async def _do(client: Client, move: str) -> None:
    """A client that waits for others is left waiting: then its request is over, as when its connection ends."""
    if move == "die" or (move == "leave" and isinstance(client, ClassicClient) and client.generation < 0):
        client.owned = set()
        return
    act = client.leave() if move == "leave" else client.beat()
    with suppress(TimeoutError, WaystationError):
        await asyncio.wait_for(act, 0.5)
        return
    client.owned = set()
    if isinstance(client, ClassicClient):
        client.member_id, client.generation = "", -1
    else:
        client.answer = None
