"""Share groups (KIP-932) with the real `confluent_kafka.ShareConsumer`: records to whoever is free, each settled alone.

The behaviours are Kafka's; what we do beyond it (dead letters, connections that end) is said in the test's name.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from confluent_kafka import Message, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients import kit
from tests.clients.share_kit import (
    ACCEPT,
    REJECT,
    RELEASE,
    commit,
    configure,
    counts,
    from_the_beginning,
    hold,
    poll,
    share_consumer,
    take,
    work,
)
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for


def test_records_come_once_and_acknowledged_ones_never_again(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic(2)
    from_the_beginning(admin, group)
    kit.produce(bootstrap, topic, kit.numbered(100))
    with share_consumer(bootstrap, group, [topic]) as first:
        assert sorted(kit.values(take(first, 100))) == kit.numbered(100)  # type: ignore[type-var]
    kit.produce(bootstrap, topic, kit.numbered(5, 100))
    with share_consumer(bootstrap, group, [topic]) as second:
        assert sorted(kit.values(take(second, 5))) == kit.numbered(5, 100)  # type: ignore[type-var]


def test_members_share_one_partition(bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str) -> None:
    topic = new_topic(1)
    from_the_beginning(admin, group, share_partition_max_record_locks="20")
    members = [share_consumer(bootstrap, group, [topic], client_id=f"m{n}") for n in range(3)]
    for member in members:
        poll(member)
    kit.produce(bootstrap, topic, kit.numbered(300), config={"batch.num.messages": 5})
    got: list[list[Message]] = [[] for _ in members]

    def everybody_works() -> bool:
        for member, mine in zip(members, got, strict=True):
            for message in poll(member, 0.1):
                mine.append(message)
                member.acknowledge(message)
        return sum(map(len, got)) >= 300

    wait_for(everybody_works, "300 records")
    for member in members:
        member.close()
    assert Counter(message.value() for mine in got for message in mine) == Counter(kit.numbered(300))
    assert all(got), "every member got some of the one partition"


def test_released_records_come_again_and_are_counted(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()
    from_the_beginning(admin, group)
    kit.produce(bootstrap, topic, [b"one", b"two"])
    with share_consumer(bootstrap, group, [topic]) as client:
        assert counts(take(client, 2, RELEASE)) == {b"one": 1, b"two": 1}
        assert counts(take(client, 2, RELEASE)) == {b"one": 2, b"two": 2}
        assert counts(take(client, 2)) == {b"one": 3, b"two": 3}


def test_rejected_records_are_dead_and_go_to_the_dead_letter_topic_with_their_story(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic, dead = new_topic(), unique("dead")
    from_the_beginning(admin, group, errors_deadletterqueue_topic_name=dead)
    client = kit.producer(bootstrap)
    client.produce(topic, b"bad", key=b"k", headers=[("src", b"web"), ("src", b"twice")])
    client.produce(topic, b"good")
    kit.flush(client)
    with share_consumer(bootstrap, group, [topic]) as member:
        got: list[Message] = []
        work(
            [member],
            lambda: len(got) >= 2,
            "two records",
            lambda message: REJECT if message.value() == b"bad" else ACCEPT,
            got.append,
        )
    (letter,) = wait_for(lambda: letters(bootstrap, admin, dead), "the dead letter")
    assert (letter.key(), letter.value()) == (b"k", b"bad")
    headers = list(letter.headers() or [])
    assert headers[:2] == [("src", b"web"), ("src", b"twice")]
    (death,) = json.loads(header(letter, "x-death"))
    assert death["reason"] == "rejected"
    assert (death["queue"], death["group"], death["deliveries"]) == (f"topic:{topic}", group, 1)
    assert header(letter, "__dlq.errors.topic") == topic.encode()
    assert header(letter, "__dlq.errors.offset") == b"0"


def header(message: Message, name: str) -> bytes:
    found = [pair[1] for pair in message.headers() or [] if pair[0] == name]
    assert isinstance(found[-1], bytes)
    return found[-1]


def letters(bootstrap: str, admin: AdminClient, topic: str) -> list[Message]:
    if topic not in admin.list_topics(timeout=10).topics:
        return []
    return kit.read_all(bootstrap, topic)


def test_the_delivery_limit_ends_in_the_dead_letter_topic(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic, dead = new_topic(), unique("dead")
    from_the_beginning(admin, group, share_delivery_count_limit="2", errors_deadletterqueue_topic_name=dead)
    kit.produce(bootstrap, topic, [b"poison", b"fine"])
    seen: list[Message] = []
    with share_consumer(bootstrap, group, [topic]) as member:
        work(
            [member],
            lambda: len(seen) >= 3,
            "poison twice and fine once",
            lambda message: RELEASE if message.value() == b"poison" else ACCEPT,
            seen.append,
        )
        (letter,) = wait_for(lambda: letters(bootstrap, admin, dead), "the dead letter")
        assert not poll(member, 0.5)
    assert letter.value() == b"poison"
    (death,) = json.loads(header(letter, "x-death"))
    assert (death["reason"], death["deliveries"]) == ("delivery-limit", 2)


def test_a_lock_that_runs_out_gives_the_record_to_another_and_the_late_ack_is_refused(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()
    from_the_beginning(admin, group, share_record_lock_duration_ms="1000")
    kit.produce(bootstrap, topic, [b"slow"])
    with share_consumer(bootstrap, group, [topic]) as slow, share_consumer(bootstrap, group, [topic]) as other:
        (held,) = hold(slow, 1)
        assert counts(take(other, 1)) == {b"slow": 2}
        slow.acknowledge(held)
        (failure,) = slow.commit_sync(10).values()
        assert failure is not None


def test_a_member_that_closes_gives_back_what_it_did_not_settle(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()
    from_the_beginning(admin, group)
    kit.produce(bootstrap, topic, kit.numbered(4))
    with share_consumer(bootstrap, group, [topic]) as quitter:
        held = hold(quitter, 4)
        quitter.acknowledge(held[0])
        commit(quitter)
    with share_consumer(bootstrap, group, [topic]) as heir:
        assert counts(take(heir, 3)) == dict.fromkeys(kit.numbered(3, 1), 2)


def test_implicit_mode_accepts_with_the_next_poll(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()
    from_the_beginning(admin, group)
    kit.produce(bootstrap, topic, kit.numbered(10))
    got: list[Message] = []
    with share_consumer(bootstrap, group, [topic], share_acknowledgement_mode="implicit") as member:

        def ten() -> bool:
            got.extend(poll(member))
            return len(got) >= 10

        wait_for(ten, "ten records")
        commit(member)
    with share_consumer(bootstrap, group, [topic]) as other:
        assert not poll(other, 1.5)


def test_a_new_group_begins_at_the_end_unless_told_otherwise(
    bootstrap: str, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()
    kit.produce(bootstrap, topic, [b"old"])
    with share_consumer(bootstrap, group, [topic]) as member:
        assert not poll(member, 1.0)
        kit.produce(bootstrap, topic, [b"new"])
        assert kit.values(take(member, 1)) == [b"new"]


def test_a_topic_made_after_its_subscriber_is_read_from_its_beginning(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    here, later = new_topic(), unique("later")
    with share_consumer(bootstrap, group, [here, later]) as member:
        assert not poll(member, 0.5)
        kit.produce(bootstrap, later, [b"first"])  # makes the topic
        assert kit.values(take(member, 1)) == [b"first"]


def test_aborted_transactions_are_left_out_when_the_group_reads_committed(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()
    from_the_beginning(admin, group, share_isolation_level="read_committed")
    client = kit.producer(bootstrap, {"transactional.id": unique("tx")})
    client.init_transactions(30)
    for value, good in ((b"aborted", False), (b"committed", True), (b"open", None)):
        client.begin_transaction()
        client.produce(topic, value)
        kit.flush(client)
        if good is not None:
            client.commit_transaction(30) if good else client.abort_transaction(30)
    with share_consumer(bootstrap, group, [topic]) as member:
        assert kit.values(take(member, 1)) == [b"committed"]
        assert not poll(member, 0.5)
        client.commit_transaction(30)
        assert kit.values(take(member, 1)) == [b"open"]


def test_what_is_left_of_a_batch_after_delete_records_is_delivered_once(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()
    from_the_beginning(admin, group)
    kit.produce(bootstrap, topic, kit.numbered(10), config={"linger.ms": 500})  # one batch
    place = TopicPartition(topic, 0, 5)
    admin.delete_records([place])[place].result(DEADLINE_S)
    with share_consumer(bootstrap, group, [topic]) as member:
        assert counts(take(member, 5)) == dict.fromkeys(kit.numbered(10)[5:], 1)
        assert not poll(member, 0.5)


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_batches_are_taken_a_window_at_a_time(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str, codec: str
) -> None:
    topic = new_topic()
    from_the_beginning(admin, group, share_partition_max_record_locks="150")
    kit.produce(bootstrap, topic, kit.numbered(1000), config={"linger.ms": 200, "compression.type": codec})
    seen: Counter[bytes | None] = Counter()
    with share_consumer(bootstrap, group, [topic]) as member:
        work([member], lambda: seen.total() >= 1000, "all of it", sink=lambda message: seen.update([message.value()]))
    assert seen == Counter(kit.numbered(1000))


def test_group_settings_are_told_and_checked(admin: AdminClient, group: str) -> None:
    configure(admin, group, {"share.record.lock.duration.ms": "1234"})
    from confluent_kafka.admin import ConfigResource, ResourceType

    resource = ConfigResource(ResourceType.GROUP, group)
    told = admin.describe_configs([resource])[resource].result(30)
    assert told["share.record.lock.duration.ms"].value == "1234"
    assert told["share.delivery.count.limit"].value == "5"
    with pytest.raises(Exception, match=r"share\.auto\.offset\.reset"):
        configure(admin, group, {"share.auto.offset.reset": "sometimes"})
    with pytest.raises(Exception, match="did you mean"):
        configure(admin, group, {"share.delivery.count.limits": "7"})
