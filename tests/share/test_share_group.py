"""Members, sessions and settings of share groups: the pure parts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.groups.kit import FakeTopics, topic_id
from waystation.config import BrokerSettings
from waystation.errors import InvalidSetting
from waystation.groups.machines.errors import FencedMemberEpoch, GroupFull, InvalidGroupRequest, UnknownMember
from waystation.routing.matching.patterns import compile_pattern
from waystation.share.machines.calls import ShareBeat
from waystation.share.machines.errors import InvalidShareSessionEpoch, TooManyShareSessions, UnknownShareSession
from waystation.share.machines.members import ShareGroup, Subscription
from waystation.share.machines.records import GROUP, PARTITION, SETTINGS, ShareKey, read_key
from waystation.share.machines.sessions import FINAL_EPOCH, MAX_PARTITIONS, Evict, ShareSession, ShareSessions
from waystation.share.machines.settings import ShareSettings, check_setting, reset_of


def group(**settings: Any) -> ShareGroup:
    return ShareGroup("g", ShareSettings(**settings))


def beat(epoch: int, member: str = "m", topics: tuple[str, ...] | None = ("orders",)) -> ShareBeat:
    return ShareBeat(group_id="g", member_id=member, member_epoch=epoch, topics=topics)


# -- members -----------------------------------------------------------------------------------------------------------


def test_members_are_assigned_partitions_of_their_topics_and_feeds_have_all() -> None:
    topics, share = FakeTopics(orders=2, payments=1), group()
    share.enter("feed", Subscription(frozenset({"orders"})), "", 0)
    one = share.heartbeat(beat(0, "one"), topics, 0)
    two = share.heartbeat(beat(0, "two", ("orders", "payments")), topics, 0)
    orders = frozenset({(topic_id("orders"), 0), (topic_id("orders"), 1)})
    assert one.assignment == orders
    one = share.heartbeat(beat(one.member_epoch, "one", None), topics, 0)
    assert one.assignment is not None
    assert two.assignment is not None
    assert one.assignment | two.assignment == orders | {(topic_id("payments"), 0)}
    assert one.assignment.isdisjoint(two.assignment)
    told = {member.member_id: member.assignment for member in share.view(topics).members}
    assert told == {"feed": orders, "one": one.assignment, "two": two.assignment}


def test_assignment_is_told_with_a_new_epoch_only() -> None:
    topics, share = FakeTopics(orders=1), group()
    first = share.heartbeat(beat(0), topics, 0)
    again = share.heartbeat(beat(first.member_epoch, topics=None), topics, 10)
    assert (again.member_epoch, again.assignment) == (first.member_epoch, None)
    topics.put("orders", 3)
    assert share.topics_changed(topics, 20)
    grown = share.heartbeat(beat(first.member_epoch, topics=None), topics, 30)
    assert grown.member_epoch > first.member_epoch
    assert grown.assignment is not None
    assert len(grown.assignment) == 3
    lost = share.heartbeat(beat(first.member_epoch, topics=None), topics, 40)  # our answer did not arrive
    assert lost == grown


def test_epochs_that_were_not_given_are_fenced() -> None:
    topics, share = FakeTopics(orders=1), group()
    epoch = share.heartbeat(beat(0), topics, 0).member_epoch
    with pytest.raises(FencedMemberEpoch, match="join again"):
        share.heartbeat(beat(epoch + 5), topics, 0)
    with pytest.raises(UnknownMember):
        share.heartbeat(beat(epoch, "stranger"), topics, 0)
    with pytest.raises(InvalidGroupRequest, match="which topics"):
        share.heartbeat(beat(0, "new", None), topics, 0)


def test_silent_members_are_removed_and_feeds_stay() -> None:
    topics, share = FakeTopics(orders=1), group(session_timeout_ms=100)
    share.heartbeat(beat(0), topics, 0)
    share.enter("feed", Subscription(frozenset({"orders"})), "", 0)
    assert share.next_deadline_ms() == 100
    assert share.tick(99) == []
    assert share.tick(100) == ["m"]
    assert list(share.members) == ["feed"]
    assert share.state == "Stable"
    share.leave("feed", 200)
    assert share.state == "Empty"


def test_members_leave_and_there_is_a_limit() -> None:
    topics, share = FakeTopics(orders=1), group(max_members=1)
    epoch = share.heartbeat(beat(0), topics, 0).member_epoch
    with pytest.raises(GroupFull, match=r"group\.share\.max\.size"):
        share.heartbeat(beat(0, "two"), topics, 0)
    assert epoch > 0
    assert share.heartbeat(beat(-1), topics, 0).member_epoch == -1
    assert share.is_empty


def test_interval_is_short_after_a_change_and_grows() -> None:
    topics, share = FakeTopics(orders=1), group(heartbeat_interval_ms=5_000)
    epoch = share.heartbeat(beat(0), topics, 0).member_epoch
    told = [share.heartbeat(beat(epoch, topics=None), topics, at).heartbeat_interval_ms for at in (0, 8_000, 60_000)]
    assert told == [500, 2_000, 5_000]


def test_patterns_match_what_comes_later_and_never_the_brokers_own() -> None:
    topics = FakeTopics(**{"a.b": 1, "__own": 1})
    subscription = Subscription.of([compile_pattern(text, "wildcard") for text in ("a.*", "later")])
    assert subscription.matching(topics) == {"a.b"}
    topics.put("a.c", 1)
    topics.put("later", 1)
    assert subscription.matching(topics) == {"a.b", "a.c", "later"}
    assert Subscription.of([compile_pattern("#", "wildcard")]).matching(topics) == {"a.b", "a.c", "later"}


# -- sessions ----------------------------------------------------------------------------------------------------------


def refuse(session: ShareSession) -> None:
    raise AssertionError(f"nobody has more than {session.owner}")


def begun(
    sessions: ShareSessions,
    key: tuple[str, str] = ("g", "m"),
    owner: str = "User:alice",
    limit: int = 10,
    evict: Evict = refuse,
) -> ShareSession:
    return sessions.begin(key, owner, limit, evict)


def test_a_session_counts_its_requests() -> None:
    sessions, key = ShareSessions(), ("g", "m")
    with pytest.raises(UnknownShareSession):
        sessions.enter(key, 1)
    session = begun(sessions, key)
    assert sessions.enter(key, 1) is session
    with pytest.raises(InvalidShareSessionEpoch, match="at epoch 2"):
        sessions.enter(key, 1)
    assert sessions.enter(key, 2) is session
    session.epoch = 2**31 - 1
    sessions.enter(key, 2**31 - 1)
    assert session.epoch == 1
    assert sessions.enter(key, FINAL_EPOCH) is session
    assert sessions.end(key)
    assert not sessions.end(key)


def test_an_old_session_does_not_end_its_successor() -> None:
    sessions, key = ShareSessions(), ("g", "m")
    old = begun(sessions, key, limit=1)
    new = begun(sessions, key, limit=1)
    assert not sessions.end(key, old)
    assert sessions.find(key) is new
    with pytest.raises(TooManyShareSessions):
        begun(sessions, ("g", "other"), limit=1)


def test_partitions_that_gave_records_go_to_the_back() -> None:
    sessions = ShareSessions()
    session = begun(sessions)
    places = [(topic_id("t"), n) for n in range(3)]
    sessions.change(session, places, [], refuse)
    session.served(places[0])
    sessions.change(session, [places[1]], [places[2]], refuse)
    assert list(session.partitions) == [places[1], places[0]]


def test_partitions_of_all_sessions_have_a_limit() -> None:
    sessions = ShareSessions()
    one, two = (begun(sessions, ("g", name)) for name in "ab")
    some = topic_id("t")
    sessions.change(one, [(some, n) for n in range(MAX_PARTITIONS)], [], refuse)
    with pytest.raises(TooManyShareSessions, match="partitions"):
        sessions.change(two, [(some, 0)], [], refuse)
    sessions.end(one.key)
    sessions.change(two, [(some, 0)], [], refuse)


def test_the_session_that_ends_for_others_was_not_used_for_longest() -> None:
    sessions = ShareSessions()
    greedy = [begun(sessions, ("g", name), "User:bob", 3) for name in "abc"]
    sessions.enter(("g", "a"), 1)
    begun(sessions, limit=3, evict=lambda one: sessions.end(one.key))
    assert [one.ended for one in greedy] == [False, True, False]


def test_nobody_loses_a_session_to_one_who_would_have_as_many() -> None:
    """The two would take it from each other forever."""
    sessions = ShareSessions()
    for name in "ab":
        begun(sessions, ("g", name), "User:bob", 3)
    begun(sessions, limit=3)
    with pytest.raises(TooManyShareSessions):
        begun(sessions, ("g", "n"), limit=3)


def test_a_session_that_has_ended_names_no_partitions() -> None:
    """A fetch goes on behind what it waited for."""
    sessions = ShareSessions()
    session = begun(sessions)
    sessions.end(session.key)
    with pytest.raises(UnknownShareSession):
        sessions.change(session, [(topic_id("t"), 0)], [], refuse)


# -- settings and records ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("earliest", ("earliest", 0)),
        ("LATEST", ("latest", 0)),
        ("by_duration:PT1H", ("ago", 3_600_000)),
        ("by_duration:P1DT2H3M4.5S", ("ago", 93_784_500)),
    ],
)
def test_where_a_group_begins(text: str, meaning: tuple[str, int]) -> None:
    assert reset_of(text) == meaning


@pytest.mark.parametrize("text", ["", "none", "by_duration:", "by_duration:P", "by_duration:PT", "by_duration:-PT1H"])
def test_where_a_group_cannot_begin(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"share\.auto\.offset\.reset"):
        check_setting("share.auto.offset.reset", text)


def test_own_settings_go_before_the_brokers() -> None:
    broker = BrokerSettings({"group.share.delivery.count.limit": "7", "group.share.record.lock.duration.ms": "900"})
    settings = ShareSettings.of({"share.delivery.count.limit": "2", "waystation.dead.letter": "queue:dead"}, broker)
    assert (settings.max_deliveries, settings.lock_ms, settings.dead_letter) == (2, 900, "dead")
    assert ShareSettings.of({"errors.deadletterqueue.topic.name": "dlq"}, broker).dead_letter == "topic:dlq"
    assert ShareSettings.of({}, broker).dead_letter is None


@pytest.mark.parametrize(
    "key",
    [ShareKey(GROUP, "größe"), ShareKey(SETTINGS, "g"), ShareKey(PARTITION, "g\0h", topic_id("t"), 2**31 - 1)],
)
def test_keys_are_read_as_they_were_written(key: ShareKey) -> None:
    assert read_key(key.encode()) == key


def test_keys_of_a_later_version_are_left_alone() -> None:
    assert read_key(b"\0\x09\0\x01g") is None
