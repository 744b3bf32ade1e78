"""A KIP-848 group's life, told as stories: who joins, what they are given, what they must give up first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.groups.kit import FakeTopics, first_beat, topic_id
from waystation.errors import InvalidPattern
from waystation.groups.machines.calls import ConsumerBeat, ConsumerBeatAnswer, TopicPartition
from waystation.groups.machines.consumer import ConsumerGroup
from waystation.groups.machines.errors import (
    FencedInstance,
    FencedMemberEpoch,
    GroupFull,
    IllegalGeneration,
    InvalidGroupRequest,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
)
from waystation.groups.machines.settings import GroupSettings

SETTINGS = GroupSettings(max_group_size=4)


class Client:
    """A member as its own process sees it: it owns what it was given, and says so."""

    def __init__(self, story: Story, name: str, *topics: str, **changes: Any) -> None:
        self.story = story
        self.name = name
        self.epoch = 0
        self.owned: frozenset[TopicPartition] = frozenset()
        self.told: frozenset[TopicPartition] | None = None
        self.interval_ms = 0
        self._instance = changes.get("instance_id")
        self.take(story.beat(first_beat(name, *topics, **changes)))

    def take(self, answer: ConsumerBeatAnswer) -> None:
        """Obeys at once: revokes and takes what it is told."""
        self.epoch = answer.member_epoch
        self.told = answer.assignment
        self.interval_ms = answer.heartbeat_interval_ms
        if answer.assignment is not None:
            self.owned = answer.assignment

    def beat(self, **changes: Any) -> None:
        values: dict[str, Any] = {
            "group_id": "g",
            "member_id": self.name,
            "member_epoch": self.epoch,
            "instance_id": self._instance,
            "owned": self.owned,
        }
        self.take(self.story.beat(ConsumerBeat(**(values | changes))))

    def names(self) -> set[str]:
        return {f"{self.story.topics.name_of(topic)}-{part}" for topic, part in self.owned}


class Story:
    """A group, its topics and the time."""

    def __init__(self, **counts: int) -> None:
        self.topics = FakeTopics(**(counts or {"orders": 4}))
        self.group = ConsumerGroup("g", SETTINGS)
        self.topics.subscribe_changes(lambda: self.group.topics_changed(self.topics))
        self.now_ms = 0

    def beat(self, beat: ConsumerBeat) -> ConsumerBeatAnswer:
        return self.group.heartbeat(beat, self.topics, self.now_ms)

    def client(self, name: str, *topics: str, **changes: Any) -> Client:
        return Client(self, name, *topics, **changes)

    def settle(self, *clients: Client) -> None:
        for _ in range(4):
            for client in clients:
                client.beat()
        assert self.group.state == "Stable"

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self.group.tick(self.now_ms)


def test_the_first_member_is_given_everything_at_once() -> None:
    story = Story()
    alone = story.client("a")
    assert alone.names() == {"orders-0", "orders-1", "orders-2", "orders-3"}
    assert alone.epoch == 1
    assert story.group.state == "Stable"


def test_a_partition_changes_hands_only_after_its_owner_let_go() -> None:
    story = Story()
    first = story.client("a")
    second = story.client("b")
    assert second.owned == frozenset(), "all partitions are still in use"
    first.beat(owned=None)  # told to give up two, it has not said that it did
    kept = first.told
    assert kept is not None
    assert len(kept) == 2
    second.beat()
    assert second.owned == frozenset()
    first.beat()  # now it lists what it has: two partitions
    second.beat()
    assert len(second.owned) == 2
    assert not first.owned & second.owned
    assert story.group.state == "Stable"


def test_heartbeats_are_asked_for_often_while_the_group_settles_and_less_and_less_afterwards() -> None:
    story = Story()
    first, second = story.client("a"), story.client("b")
    assert second.interval_ms == SETTINGS.consumer_settling_interval_ms
    story.settle(first, second)
    seen = []
    for _ in range(12):
        first.beat()
        seen.append(first.interval_ms)
        story.wait(2_000)
    assert seen[0] == SETTINGS.consumer_settling_interval_ms
    assert seen[-1] == SETTINGS.consumer_heartbeat_interval_ms
    assert seen == sorted(seen)
    third = story.client("c")
    assert third.interval_ms == SETTINGS.consumer_settling_interval_ms


def test_a_heartbeat_that_brings_nothing_new_is_told_nothing_and_writes_nothing() -> None:
    story = Story()
    alone = story.client("a")
    assert story.group.take_changes()
    alone.beat(owned=None)
    assert alone.told is None
    assert not story.group.take_changes()


def test_a_full_heartbeat_is_answered_in_full() -> None:
    story = Story()
    alone = story.client("a")
    alone.beat(rebalance_timeout_ms=30_000, topics=("orders",))
    assert alone.told == alone.owned != frozenset()


def test_who_leaves_gives_everything_to_those_who_stay() -> None:
    story = Story()
    first, second = story.client("a"), story.client("b")
    story.settle(first, second)
    story.beat(ConsumerBeat(group_id="g", member_id="a", member_epoch=-1))
    second.beat()
    assert len(second.owned) == 4


def test_a_silent_member_is_removed_and_has_to_start_over() -> None:
    story = Story()
    first, second = story.client("a"), story.client("b")
    story.settle(first, second)
    for _ in range(10):
        story.wait(5_000)
        second.beat()
    assert len(second.owned) == 4
    with pytest.raises(UnknownMember):
        first.beat()


def test_who_does_not_let_go_within_its_rebalance_timeout_is_removed() -> None:
    story = Story()
    first = story.client("a", rebalance_timeout_ms=9_000)
    second = story.client("b")
    first.beat(owned=None)
    stubborn = first.owned | story.group.members["a"].holding.revoking
    for _ in range(3):
        story.wait(3_000)
        second.beat()
        if "a" in story.group.members:
            first.beat(owned=stubborn)
    assert set(story.group.members) == {"b"}
    second.beat()
    assert len(second.owned) == 4


def test_a_wrong_epoch_is_fenced_and_a_lost_answer_is_not() -> None:
    story = Story()
    first = story.client("a")
    before = first.epoch
    story.client("b")
    first.beat()
    assert first.epoch == before + 1
    first.beat(member_epoch=before)  # the answer to the last one never arrived
    assert first.told == first.owned
    with pytest.raises(FencedMemberEpoch):
        first.beat(member_epoch=before, owned=None)  # it has to say what it owns
    with pytest.raises(FencedMemberEpoch):
        first.beat(member_epoch=before, owned=frozenset({(topic_id("orders"), 99)}))
    with pytest.raises(FencedMemberEpoch):
        first.beat(member_epoch=first.epoch + 1)


def test_not_listing_a_partition_means_nothing_until_the_member_knows_that_it_has_to_let_go() -> None:
    """It was promised everything and has not taken it yet; that half of it is taken back, it does not hear."""
    story = Story()
    first = story.client("a")
    promised, before = first.owned, first.epoch
    second = story.client("b")
    first.beat(owned=frozenset())
    first.beat(owned=frozenset(), member_epoch=before)  # the answer was lost; it may take what it was promised now
    second.beat()
    assert second.owned == frozenset()
    first.beat(owned=promised)
    second.beat()
    assert second.owned == frozenset()
    first.beat()
    second.beat()
    assert len(second.owned) == 2


def test_a_fenced_member_rejoins_with_epoch_zero_and_gets_its_partitions_back() -> None:
    story = Story()
    alone = story.client("a")
    with pytest.raises(FencedMemberEpoch):
        alone.beat(member_epoch=7)
    again = story.client("a")
    assert len(again.owned) == 4
    assert story.group.epoch == 1, "nothing has changed, so nobody else is bothered"


# -- subscriptions -----------------------------------------------------------------------------------------------


def test_a_topic_that_appears_grows_or_goes_is_noticed() -> None:
    story = Story(orders=1)
    alone = story.client("a", "orders", "later")
    assert alone.names() == {"orders-0"}
    story.topics.put("later", 2)
    alone.beat()
    assert alone.names() == {"orders-0", "later-0", "later-1"}
    story.topics.put("orders", 3)
    alone.beat()
    assert alone.names() == {"orders-0", "orders-1", "orders-2", "later-0", "later-1"}
    story.topics.drop("later")
    for _ in range(3):
        alone.beat()
    assert alone.names() == {"orders-0", "orders-1", "orders-2"}


def test_a_topic_that_nobody_reads_disturbs_nobody() -> None:
    story = Story()
    story.client("a")
    epoch = story.group.epoch
    story.topics.put("elsewhere", 9)
    assert story.group.epoch == epoch


def test_a_topic_recreated_under_its_old_name_is_another_topic() -> None:
    story = Story(orders=1)
    alone = story.client("a")
    old = alone.owned
    story.topics.drop("orders")
    story.topics.put("orders", 1)
    for _ in range(3):
        alone.beat()
    assert alone.names() == {"orders-0"}
    assert alone.owned != old


def test_a_pattern_follows_the_topics_there_are() -> None:
    story = Story(eu=1, us=1)
    alone = story.client("a", topics=None, pattern="eu.*")
    assert alone.names() == {"eu-0"}
    story.topics.put("eu.west", 2)
    alone.beat()
    assert alone.names() == {"eu-0", "eu.west-0", "eu.west-1"}
    alone.beat(pattern="us")
    alone.beat()
    assert alone.names() == {"us-0"}
    alone.beat(pattern="", topics=("eu",))
    alone.beat()
    assert alone.names() == {"eu-0"}


def test_a_pattern_that_does_not_compile_changes_nothing() -> None:
    story = Story()
    with pytest.raises(InvalidPattern):
        story.client("a", topics=None, pattern="(")
    assert story.group.is_empty
    assert not story.group.take_changes()


def test_members_with_different_subscriptions_get_only_what_they_asked_for() -> None:
    story = Story(orders=2, payments=2)
    one, two = story.client("a", "orders"), story.client("b", "payments")
    assert one.names() == {"orders-0", "orders-1"}
    assert two.names() == {"payments-0", "payments-1"}


def test_the_assignor_that_most_members_ask_for_is_used() -> None:
    story = Story(orders=2, payments=2)
    both = ("orders", "payments")
    first = story.client("a", *both, assignor="range")
    second = story.client("b", *both, assignor="range")
    story.settle(first, second)
    assert story.group.view().assignor == "range"
    assert first.names() == {"orders-0", "payments-0"}


# -- static members ----------------------------------------------------------------------------------------------


def test_a_static_member_that_stops_for_a_while_finds_its_partitions_waiting() -> None:
    story = Story()
    static, other = story.client("a", instance_id="s"), story.client("b")
    story.settle(static, other)
    had, epoch = static.owned, story.group.epoch
    static.beat(member_epoch=-2)
    other.beat()
    assert len(other.owned) == 2
    back = story.client("a2", instance_id="s")
    assert back.owned == had
    assert story.group.epoch == epoch
    with pytest.raises(FencedInstance):
        static.beat(member_epoch=epoch)


def test_a_static_member_that_does_not_come_back_loses_its_partitions() -> None:
    story = Story()
    static, other = story.client("a", instance_id="s"), story.client("b")
    story.settle(static, other)
    static.beat(member_epoch=-2)
    for _ in range(10):
        story.wait(5_000)
        other.beat()
    assert len(other.owned) == 4


def test_an_instance_id_in_use_is_not_given_away() -> None:
    story = Story()
    story.client("a", instance_id="s")
    with pytest.raises(UnreleasedInstance):
        story.client("b", instance_id="s")


def test_a_member_cannot_change_its_instance_id() -> None:
    story = Story()
    story.client("a", instance_id="s")
    with pytest.raises(InvalidGroupRequest):
        story.client("a", instance_id="t")


def test_a_static_member_that_leaves_for_good_frees_its_instance_id() -> None:
    story = Story()
    static = story.client("a", instance_id="s")
    static.beat(member_epoch=-1)
    assert story.client("b", instance_id="s").names() == {"orders-0", "orders-1", "orders-2", "orders-3"}


# -- the rest ----------------------------------------------------------------------------------------------------


def test_a_full_group_takes_no_more_members() -> None:
    story = Story()
    for name in "abcd":
        story.client(name)
    with pytest.raises(GroupFull):
        story.client("e")


def test_offsets_are_committed_and_fetched_with_the_members_epoch() -> None:
    story = Story()
    story.group.check_commit("", None, -1, 0, transactional=False)
    alone = story.client("a")
    story.group.check_commit("a", None, alone.epoch, 0, transactional=False)
    story.group.check_fetch("a", alone.epoch)
    story.group.check_fetch(None, -1)
    with pytest.raises(StaleMemberEpoch):
        story.group.check_commit("a", None, alone.epoch + 1, 0, transactional=False)
    with pytest.raises(IllegalGeneration):
        story.group.check_commit("a", None, alone.epoch + 1, 0, transactional=True)
    with pytest.raises(StaleMemberEpoch):
        story.group.check_fetch("a", 0)
    with pytest.raises(UnknownMember):
        story.group.check_commit("", None, -1, 0, transactional=False)
