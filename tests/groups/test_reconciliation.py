"""However members come, go, stall, lose answers and change their minds: no partition ever has two owners.

A machine plays many clients against one group. A client believes that it owns what it was last told, until it has
revoked it; its answers may get lost, its revocations may take their time. After every step the beliefs of all living
clients must be disjoint, and once everybody has had some quiet heartbeats, everything must be owned.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.groups.kit import FakeTopics, first_beat
from waystation.groups.machines.assignors import ASSIGNORS
from waystation.groups.machines.calls import ConsumerBeat, ConsumerBeatAnswer, TopicPartition
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.errors import FencedMemberEpoch, UnknownMember, UnreleasedInstance
from waystation.groups.machines.settings import GroupSettings
from waystation.groups.records import (
    consumer_member_record,
    consumer_record,
    read_consumer,
    read_consumer_member,
)

SETTINGS = GroupSettings(consumer_session_timeout_ms=20_000)
TOPICS = ("red", "green", "blue")

_subscriptions = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=3, unique=True).map(tuple)
_names = st.sampled_from(["a", "b", "c", "d", "e"])


class Believer:
    """A client. `owned` is what it reads from; `wanted` is what it was last told to own."""

    def __init__(self, name: str, topics: tuple[str, ...], instance_id: str | None) -> None:
        self.name = name
        self.instance_id = instance_id
        self.topics = topics
        self.epoch = 0
        self.owned: frozenset[TopicPartition] = frozenset()
        self.wanted: frozenset[TopicPartition] = frozenset()
        self.unsure = True
        """It has to send a full heartbeat: it just joined, or an answer got lost."""

    def beat(self, assignor: str | None = None) -> ConsumerBeat:
        if self.epoch == 0:
            return first_beat(self.name, *self.topics, instance_id=self.instance_id, assignor=assignor)
        values: dict[str, Any] = {"owned": self.owned}
        if self.unsure:
            values |= {"rebalance_timeout_ms": 30_000, "topics": self.topics}
        return ConsumerBeat(
            group_id="g", member_id=self.name, member_epoch=self.epoch, instance_id=self.instance_id, **values
        )

    def hear(self, answer: ConsumerBeatAnswer) -> None:
        self.epoch = answer.member_epoch
        self.unsure = False
        if answer.assignment is not None:
            self.wanted = answer.assignment

    def revoke(self) -> None:
        self.owned &= self.wanted

    def take(self) -> None:
        """A client takes new partitions only when it has let go of the old ones."""
        if self.owned <= self.wanted:
            self.owned = self.wanted

    def give_up(self) -> None:
        self.owned = self.wanted = frozenset()
        self.epoch = 0
        self.unsure = True


class Reconciliation(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics = FakeTopics(red=3, green=2)
        self.group = ConsumerGroup("g", SETTINGS)
        self.clients: dict[str, Believer] = {}
        self.now_ms = 0
        self.number = 0

    def talk(self, client: Believer, *, lost: bool = False, assignor: str | None = None) -> None:
        try:
            answer = self.group.heartbeat(client.beat(assignor), self.topics, self.now_ms)
        except (FencedMemberEpoch, UnknownMember):
            client.give_up()
            return
        except UnreleasedInstance:
            del self.clients[client.name]
            return
        if lost:
            client.unsure = True
        else:
            client.hear(answer)

    @rule(topics=_subscriptions, static=st.booleans(), assignor=st.sampled_from([None, *ASSIGNORS]))
    def join(self, topics: tuple[str, ...], static: bool, assignor: str | None) -> None:
        if len(self.clients) >= 6:
            return
        self.number += 1
        name = f"m{self.number}"
        client = Believer(name, topics, f"i{self.number % 3}" if static else None)
        self.clients[name] = client
        self.talk(client, assignor=assignor)

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), lost=st.booleans(), obey=st.booleans())
    def heartbeat(self, data: st.DataObject, lost: bool, obey: bool) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        self.talk(client, lost=lost)
        if obey:
            client.revoke()
            client.take()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), taking=st.booleans())
    def work_off(self, data: st.DataObject, taking: bool) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.revoke()
        if taking:
            client.take()

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), topics=_subscriptions)
    def resubscribe(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        client = self.clients[data.draw(st.sampled_from(sorted(self.clients)))]
        client.topics = topics
        client.unsure = True

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), for_good=st.booleans())
    def stop(self, data: st.DataObject, for_good: bool) -> None:
        client = self.clients.pop(data.draw(st.sampled_from(sorted(self.clients))))
        epoch = -1 if for_good or client.instance_id is None else -2
        beat = ConsumerBeat(group_id="g", member_id=client.name, member_epoch=epoch, instance_id=client.instance_id)
        try:
            self.group.heartbeat(beat, self.topics, self.now_ms)
        except UnknownMember:
            pass

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        """Without a word: the others wait for its session to end."""
        del self.clients[data.draw(st.sampled_from(sorted(self.clients)))]

    @rule(ms=st.integers(1, 12_000))
    def pass_time(self, ms: int) -> None:
        """A client that could not reach us for a whole session stops by itself, before we give its work away."""
        self.now_ms += ms
        self.group.tick(self.now_ms)
        for client in self.clients.values():
            if client.name not in self.group.members:
                client.give_up()

    @rule(topic=st.sampled_from(TOPICS), partitions=st.integers(1, 4))
    def change_topic(self, topic: str, partitions: int) -> None:
        present = self.topics.partitions_of(topic)
        if present is None or partitions > present:
            self.topics.put(topic, partitions)
        elif partitions == 1:
            self.topics.drop(topic)
        self.group.topics_changed(self.topics)

    @rule()
    def restart_broker(self) -> None:
        """What the records hold is all that survives."""
        reborn = ConsumerGroup("g", SETTINGS)
        key, value = consumer_record(self.group)
        read_consumer(value or b"", reborn)
        for member in self.group.members.values():
            key, value = consumer_member_record("g", member)
            assert key
            reborn.restore_member(read_consumer_member(value or b"", member.member_id))
        assert dict(reborn.holders()) == dict(self.group.holders())
        reborn.start_sessions(self.now_ms)
        reborn.topics_changed(self.topics)
        self.group = reborn

    @invariant()
    def no_partition_has_two_owners(self) -> None:
        owners: dict[TopicPartition, str] = {}
        for client in self.clients.values():
            for partition in client.owned:
                assert owners.setdefault(partition, client.name) == client.name, f"{partition} has two owners"

    @invariant()
    def the_group_agrees_with_itself(self) -> None:
        seen: dict[TopicPartition, str] = {}
        for member in self.group.members.values():
            assert not member.holding.assigned & member.holding.revoking
            for partition in member.has():
                assert seen.setdefault(partition, member.member_id) == member.member_id
        assert seen == dict(self.group.holders())
        assert self.group.assignment_epoch <= self.group.epoch

    def teardown(self) -> None:
        """Everybody who is left does as told for a while: then all is read, and the group is at rest."""
        for _ in range(12):
            self.now_ms += 2_500
            self.group.tick(self.now_ms)
            for client in list(self.clients.values()):
                if client.name not in self.group.members:
                    client.give_up()
                for _ in range(3):
                    if client.name in self.clients:
                        self.talk(client)
                        client.revoke()
                        client.take()
            self.no_partition_has_two_owners()
        wanted = {
            (topic, part)
            for client in self.clients.values()
            for name in client.topics
            if (topic := self.topics.id_of(name)) is not None
            for part in range(self.topics.partitions_of(name) or 0)
        }
        assert {partition for client in self.clients.values() for partition in client.owned} == wanted
        assert self.group.state == ("Stable" if self.clients else "Empty")


TestReconciliation = Reconciliation.TestCase
TestReconciliation.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
