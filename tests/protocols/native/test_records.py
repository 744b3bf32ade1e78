"""Topics read by offsets over the native protocol, alone and as a member of a consumer group."""

from __future__ import annotations

import threading
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer

from tests.protocols.native.kit import Frames, JsonLines
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.log.batches.batch import records_of, scan
from waystation.protocol import (
    AwaitRecords,
    Cease,
    CommitOffsets,
    CreateTopic,
    DescribeTopic,
    Failure,
    GroupAssignment,
    JoinGroup,
    PartitionBatches,
    ReadBatches,
    View,
)
from waystation.protocols.native.commands.records import MAX_AWAITED, MAX_POSITIONS


@pytest.fixture
def topic(lines: JsonLines) -> str:
    name = unique("t")
    lines.ask("create_topic", topic=name, partitions=2)
    return name


def publish(lines: JsonLines, topic: str, *payloads: str, partition: int = 0) -> None:
    messages = [{"payload": payload} for payload in payloads]
    lines.ask("publish_messages", topic=topic, messages=messages, partition=partition)


def read(frames: Frames, *positions: tuple[str, int, int], uncommitted: bool = False) -> list[PartitionBatches]:
    answer = frames.ask(ReadBatches(positions=list(positions), uncommitted=uncommitted))
    return msgspec.convert(answer, list[PartitionBatches])


def values(answer: PartitionBatches) -> list[bytes | None]:
    data = memoryview(answer.batches)
    found: list[bytes | None] = []
    for start, header in scan(data):
        dropped = any(p == header.producer_id and a <= header.base_offset <= b for p, a, b in answer.aborted)
        if not header.control and not (header.transactional and dropped):
            found += [record.value for record in records_of(data[start : start + header.size], header)]
    return found


def test_batches_come_as_they_are_stored_from_the_one_on_that_has_the_offset(
    lines: JsonLines, frames: Frames, topic: str
) -> None:
    publish(lines, topic, "a", "b")
    publish(lines, topic, "c")
    publish(lines, topic, "d", partition=1)
    first, second = read(frames, (topic, 0, 1), (topic, 1, 0))
    assert (first.topic, first.partition, first.start_offset, first.end_offset, first.next_offset) == (
        topic,
        0,
        0,
        3,
        3,
    )
    assert values(first) == [b"a", b"b", b"c"]
    assert values(second) == [b"d"]
    assert values(read(frames, (topic, 0, 2))[0]) == [b"c"]
    over_json = lines.ask("read_batches", positions=[[topic, 0, 2]])
    assert b"c" in b64decode(over_json[0]["batches"])


def test_a_position_outside_of_the_partition_gets_its_bounds_and_nothing_else(
    lines: JsonLines, frames: Frames, topic: str
) -> None:
    publish(lines, topic, "a", "b", "c")
    lines.ask("act", what="delete-records", query={"topic": topic, "partition": 0, "before_offset": 2})
    for offset, following in ((-1, 2), (0, 2), (3, 3), (99, 2)):
        (answer,) = read(frames, (topic, 0, offset))
        assert (answer.start_offset, answer.end_offset, answer.next_offset, answer.batches) == (2, 3, following, b"")


def test_an_answer_has_so_many_bytes_or_one_batch(lines: JsonLines, frames: Frames, topic: str) -> None:
    for _ in range(3):
        publish(lines, topic, "x" * 700_000)
        publish(lines, topic, "y" * 700_000, partition=1)
    answers = read(frames, (topic, 0, 0), (topic, 1, 0))
    assert [len(values(answer)) for answer in answers] == [1, 0], "a megabyte at first"
    assert [answer.next_offset for answer in answers] == [1, 0]


def test_only_what_was_committed_is_read_unless_asked_for(server: Server, frames: Frames, topic: str) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "transactional.id": topic, "log_level": 3})
    producer.init_transactions(DEADLINE_S)
    for word, commit in (("kept", True), ("dropped", False)):
        producer.begin_transaction()
        producer.produce(topic, word, partition=0)
        producer.flush(DEADLINE_S)
        if commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, "open", partition=0)
    producer.flush(DEADLINE_S)
    (committed,) = read(frames, (topic, 0, 0))
    (everything,) = read(frames, (topic, 0, 0), uncommitted=True)
    assert values(committed) == [b"kept"]
    assert values(everything) == [b"kept", b"dropped", b"open"]
    assert everything.end_offset > committed.end_offset
    assert frames.ask(AwaitRecords(positions=[(topic, 0, committed.end_offset)])) is False
    assert frames.ask(AwaitRecords(positions=[(topic, 0, committed.end_offset)], uncommitted=True)) is True
    producer.abort_transaction(DEADLINE_S)


def test_whoever_waits_is_told_when_there_is_something(lines: JsonLines, frames: Frames, topic: str) -> None:
    assert frames.ask(AwaitRecords(positions=[(topic, 0, 0), (topic, 1, 0)], wait_ms=10)) is False
    later = threading.Timer(0.2, publish, (lines, topic, "a"), {"partition": 1})
    later.start()
    assert frames.ask(AwaitRecords(positions=[(topic, 0, 0), (topic, 1, 0)], wait_ms=30_000)) is True
    later.join()


@pytest.mark.parametrize(
    ("action", "fields", "said"),
    [
        ("read_batches", {"positions": []}, "positions"),
        ("read_batches", {"positions": [["t", 0, 0]] * (MAX_POSITIONS + 1)}, f"between 1 and {MAX_POSITIONS}"),
        ("read_batches", {"positions": [["no-such-topic", 0, 0]]}, "no-such-topic"),
        ("await_records", {"positions": [["no-such-topic", 0, 0]]}, "no-such-topic"),
        ("join_group", {"consumer": 1, "group": "", "topics": ["t"]}, "group"),
        ("join_group", {"consumer": 1, "group": "g", "topics": []}, "topics"),
        ("join_group", {"consumer": 0, "group": "g", "topics": ["t"]}, "consumer"),
        ("group_assignment", {"consumer": 7}, "no consumer 7"),
        ("commit_offsets", {"group": "g", "offsets": [], "consumer": 7}, "no consumer 7"),
    ],
)
def test_what_makes_no_sense_is_refused(lines: JsonLines, action: str, fields: dict[str, Any], said: str) -> None:
    assert said in lines.refusal(action, **fields).text


def test_a_connection_waits_at_so_many_positions_at_most(lines: JsonLines, frames: Frames, topic: str) -> None:
    waiting = AwaitRecords(id=1, positions=[(topic, 0, 0)] * MAX_POSITIONS, wait_ms=300_000)
    for _ in range(MAX_AWAITED // MAX_POSITIONS):
        frames.send(waiting)
    refused = frames.ask(AwaitRecords(positions=[(topic, 0, 0)], wait_ms=1))
    assert isinstance(refused, Failure)
    assert str(MAX_AWAITED) in refused.text


def test_a_topic_is_made_for_whoever_is_about_to_publish(frames: Frames) -> None:
    name = unique("t")
    assert isinstance(frames.ask(DescribeTopic(topic=name)), Failure)
    assert len(frames.ask(DescribeTopic(topic=name, create=True))["partitions"]) == 1
    assert frames.ask(DescribeTopic(topic=name))["topic"] == name


# -- members of a group ------------------------------------------------------------------------------------------------


def assigned(
    member: Frames, owned: list[tuple[str, int]] | None = None, wait_ms: int = 0
) -> dict[tuple[str, int], int]:
    answer = member.ask(GroupAssignment(consumer=1, owned=owned or [], wait_ms=wait_ms))
    return {(topic, index): offset for topic, index, offset in answer}


def test_a_revoked_partition_is_the_members_until_it_lets_go(server: Server, lines: JsonLines, topic: str) -> None:
    group = unique("g")
    with Frames(server.bootstrap) as first, Frames(server.bootstrap) as second:
        assert first.ask(JoinGroup(consumer=1, group=group, topics=[topic])) is None
        both = [(topic, 0), (topic, 1)]
        assert assigned(first, [], 10_000) == {(topic, 0): -1, (topic, 1): -1}
        second.ask(JoinGroup(consumer=1, group=group, topics=[topic]))
        wait_for(lambda: len(assigned(first, both)) == 1, "one of them is to go", every_s=0.05)
        (left,) = assigned(first, both)
        (gone,) = set(both) - {left}
        assert assigned(second) == {}, "not before the first one has let go"
        publish(lines, topic, "a", partition=gone[1])
        assert first.ask(CommitOffsets(group=group, offsets=[(*gone, 1)], consumer=1)) is None
        assert assigned(first, [left]) == {left: -1}
        assert assigned(second, [], 10_000) == {gone: 1}
        refused = first.ask(CommitOffsets(group=group, offsets=[(*gone, 0)], consumer=1))
        assert isinstance(refused, Failure)
        assert refused.error == "Conflict"
        first.ask(Cease(consumer=1))
        wait_for(lambda: len(assigned(second, [gone])) == 2, "all of it is the second one's", every_s=0.05)


def test_a_member_is_in_its_group_as_long_as_its_connection_lives(server: Server, frames: Frames, topic: str) -> None:
    group = unique("g")

    def members() -> list[Any]:
        seen = frames.ask(View(what="group", query={"group": group}))
        return [] if isinstance(seen, Failure) else list(seen["members"])

    with Frames(server.bootstrap) as member:
        member.ask(JoinGroup(consumer=1, group=group, topics=[topic]))
        assert len(members()) == 1
        twice = member.ask(CommitOffsets(group="another", offsets=[], consumer=1))
        assert isinstance(twice, Failure)
    wait_for(lambda: not members(), "it has left", every_s=0.05)


def test_an_assignment_that_is_known_is_waited_for(server: Server, lines: JsonLines) -> None:
    topic, group = unique("t"), unique("g")
    with Frames(server.bootstrap) as member:
        member.ask(JoinGroup(consumer=1, group=group, topics=[topic]))
        assert assigned(member) == {}
        later = threading.Timer(0.2, lambda: lines.ask("create_topic", topic=topic, partitions=1))
        later.start()
        assert assigned(member, [], 30_000) == {(topic, 0): -1}
        later.join()


def test_a_topic_that_is_deleted_is_nobodys(server: Server, lines: JsonLines) -> None:
    topic, group = unique("t"), unique("g")
    with Frames(server.bootstrap) as member:
        member.ask(CreateTopic(topic=topic, partitions=1))
        member.ask(JoinGroup(consumer=1, group=group, topics=[topic]))
        assert assigned(member, [], 10_000) == {(topic, 0): -1}
        lines.ask("delete_topic", topic=topic)
        wait_for(lambda: assigned(member, [(topic, 0)]) == {}, "there is nothing to read", every_s=0.05)
