"""Neighbours that the broker takes as one are answered as if they had come alone."""

from __future__ import annotations

import gc
import itertools
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.protocols.native.kit import Frames
from tests.support.names import unique
from tests.support.waiting import wait_for
from waystation.errors import Full
from waystation.message import Message
from waystation.protocol import (
    Answer,
    AnyCommand,
    Consume,
    CreateTopic,
    DeclareQueue,
    Deliver,
    DescribeQueue,
    DescribeTopic,
    Failure,
    Get,
    Ping,
    Publish,
    Put,
    Settle,
)
from waystation.protocols.native.commands.putting import answers_of, puts_together
from waystation.protocols.native.commands.refused_series import RefusedSeries
from waystation.protocols.native.commands.settling import joined, settles_together, share_out
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.shard import PutResult

X = Message(b"x")
RECEIPT: Any = None  # nobody looks at it here


def _puts_together(*commands: AnyCommand) -> list[int]:
    ends, at = [], 0
    while at < len(commands):
        at = puts_together(commands, at)
        ends.append(at)
    return ends


def test_only_neighbours_outside_of_transactions_go_together() -> None:
    assert _puts_together(
        Put(queue="a", messages=[X]),
        Put(queue="a", messages=[X]),
        Put(queue="b", messages=[X]),
        Ping(),
        Put(queue="b", messages=[X]),
        Put(queue="b", messages=[X], tx=1),
        Put(queue="b", messages=[X]),
    ) == [3, 4, 5, 6, 7]


def test_a_series_does_not_go_together_with_what_it_puts_to_another_queue() -> None:
    assert _puts_together(
        Put(queue="a", messages=[X], series=1),
        Put(queue="b", messages=[X], series=2),
        Put(queue="a", messages=[X], series=1),
        Put(queue="a", messages=[X], series=2),
        Put(queue="b", messages=[X]),
        Put(queue="b", messages=[X], series=2),
    ) == [3, 5, 6]


def test_only_the_same_verdict_of_one_consumer_goes_together() -> None:
    commands: list[AnyCommand] = [
        Settle(consumer=1, runs=[(0, 1)]),
        Settle(consumer=1, runs=[(1, 1)]),
        Settle(consumer=2, runs=[(1, 1)]),
        Settle(consumer=2, runs=[(2, 1)], verdict="reject"),
        Settle(consumer=2, runs=[(3, 1)], verdict="reject", error="why"),
        Settle(consumer=2, runs=[(4, 1)], verdict="reject", delay_ms=5),
        Settle(consumer=2, runs=[(5, 1)], tx=1),
        Settle(consumer=2, runs=[(6, 1)], deliveries=1),
        Settle(consumer=2, runs=[(6, 1)], deliveries=2),
    ]
    ends, at = [], 0
    while at < len(commands):
        at = settles_together(commands, at)
        ends.append(at)
    assert ends == [2, 3, 4, 5, 6, 7, 8, 9]


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=6), st.integers(0, 1000))
def test_each_put_gets_its_own_tags_and_duplicates(batches: list[list[bool]], first: int) -> None:
    """A boolean is whether the message at that place is a duplicate."""
    flat = list(itertools.chain(*batches))
    duplicates = [i for i, duplicate in enumerate(flat) if duplicate]
    commands = [Put(id=i + 1, queue="q", messages=[X] * len(batch)) for i, batch in enumerate(batches)]
    answers = answers_of(commands, PutResult(first, len(flat) - len(duplicates), duplicates, RECEIPT))
    tag = first
    for (request, answer), (i, batch) in zip(answers, enumerate(batches), strict=True):
        assert request == i + 1
        assert answer.first == tag
        assert answer.count == batch.count(False)
        assert answer.duplicates == [j for j, duplicate in enumerate(batch) if duplicate]
        tag += answer.count


def _tags(runs: list[tuple[int, int]]) -> list[int]:
    return [tag for first, count in runs for tag in range(first, first + count)]


runs = st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=4)


@given(st.lists(runs, min_size=1, max_size=5), st.sets(st.integers(0, 26)))
def test_each_settle_is_told_what_it_did_not_hold(asked: list[list[tuple[int, int]]], held: set[int]) -> None:
    commands = [Settle(id=i + 1, consumer=1, runs=each) for i, each in enumerate(asked)]
    tags = [tag for each in asked for tag in _tags(each)]
    together = joined(commands)
    if len(tags) != len(set(tags)):
        assert together is None or len(tags) == len(asked[0])
        return
    assert together is not None
    assert sorted(_tags(together)) == sorted(tags)
    unknown = [(tag, 1) for tag in sorted(tags) if tag not in held]
    for (_, answer), each in zip(share_out(commands, unknown), asked, strict=True):
        assert sorted(_tags(answer.unknown)) == sorted(set(_tags(each)) - held)


# -- against the broker ------------------------------------------------------------------------------------------------


def _answers(frames: Frames, count: int) -> dict[int, Answer | Failure]:
    found: dict[int, Answer | Failure] = {}
    while len(found) < count:
        received = frames.receive()
        if isinstance(received, Answer | Failure):
            assert received.id not in found
            found[received.id] = received
    return found


def test_a_bad_put_among_good_ones_spoils_no_other(frames: Frames) -> None:
    queue = unique("hot")
    frames.ask(DeclareQueue(queue=queue, settings=QueueSettings(max_length=10)))
    frames.send(
        Put(id=1, queue=queue, messages=[X] * 4),
        Put(id=2, queue=queue, messages=[Message(b"", priority=777)]),
        Put(id=3, queue=queue, messages=[X] * 4),
        Put(id=4, queue=queue, messages=[X] * 4),
        Put(id=5, queue=queue, messages=[]),
        Put(id=6, queue=queue, messages=[X] * 2),
        Put(id=7, queue=unique("nowhere"), messages=[X]),
    )
    found = _answers(frames, 7)
    errors = {id: answer.error for id, answer in found.items() if isinstance(answer, Failure)}
    assert errors == {2: "Invalid", 4: "Full", 5: "Invalid", 7: "NotFound"}
    firsts = {id: answer.value["first"] for id, answer in found.items() if isinstance(answer, Answer)}
    assert firsts == {1: 0, 3: 4, 6: 8}
    assert frames.ask(DescribeQueue(queue=queue))["ready"] == 10


def test_an_empty_put_among_others_is_refused_as_it_is_alone(frames: Frames) -> None:
    queues = [unique("hot") for _ in range(3)]
    for queue in queues:
        frames.ask(DeclareQueue(queue=queue))
    frames.send(Put(id=1, queue=queues[0], messages=[]))
    alone = _answers(frames, 1)[1]
    assert isinstance(alone, Failure)
    frames.send(
        Put(id=2, queue=queues[0], messages=[X]),
        Put(id=3, queue=queues[1], messages=[]),
        Put(id=4, queue=queues[2], messages=[X]),
        Put(id=5, queue=queues[2], messages=[]),
        Put(id=6, queue=queues[2], messages=[X]),
    )
    found = _answers(frames, 5)
    refused = {id: (answer.error, answer.text) for id, answer in found.items() if isinstance(answer, Failure)}
    assert refused == dict.fromkeys((3, 5), (alone.error, alone.text))
    firsts = {id: answer.value["first"] for id, answer in found.items() if isinstance(answer, Answer)}
    assert firsts == {2: 0, 4: 0, 6: 1}


def test_a_bad_put_to_one_of_several_queues_spoils_no_other(frames: Frames) -> None:
    queues = [unique("hot") for _ in range(8)]
    full = queues[5]
    for queue in queues:
        frames.ask(DeclareQueue(queue=queue, settings=QueueSettings(max_length=1 if queue == full else None)))
    wrong = [Put(id=20, queue=unique("nowhere"), messages=[X]), Put(id=21, queue=full, messages=[X])]
    bad = Put(id=22, queue=queues[1], messages=[Message(b"", priority=777)])
    good = [Put(id=i + 1, queue=queue, messages=[Message(b"%d" % i)]) for i, queue in enumerate(queues)]
    frames.send(*good[:6], *wrong, bad, *good[6:])
    found = _answers(frames, 11)
    errors = {id: answer.error for id, answer in found.items() if isinstance(answer, Failure)}
    assert errors == {20: "NotFound", 21: "Full", 22: "Invalid"}
    for i, queue in enumerate(queues):
        (delivered,) = frames.ask(Get(queue=queue, count=10))["messages"]
        assert delivered[3][0] == b"%d" % i


def test_puts_to_many_queues_in_turn_keep_their_order_and_tags(frames: Frames) -> None:
    queues = [unique("hot") for _ in range(100)]
    for queue in queues:
        frames.ask(DeclareQueue(queue=queue))
    frames.send(*(Put(id=i + 1, queue=queues[i % 100], messages=[Message(b"%d" % i)]) for i in range(1_000)))
    found = _answers(frames, 1_000)
    assert all(answer.value["first"] == (id - 1) // 100 for id, answer in found.items() if isinstance(answer, Answer))
    for place, queue in enumerate(queues):
        got = frames.ask(Get(queue=queue, count=20))["messages"]
        assert [delivered[3][0] for delivered in got] == [b"%d" % i for i in range(place, 1_000, 100)]


def test_a_series_that_was_refused_in_one_queue_is_refused_in_the_next(frames: Frames) -> None:
    full, other = unique("full"), unique("other")
    frames.ask(DeclareQueue(queue=full, settings=QueueSettings(max_length=1)))
    frames.ask(DeclareQueue(queue=other))
    frames.send(
        Put(id=1, queue=full, messages=[X], series=5),
        Put(id=2, queue=full, messages=[X], series=5),
        Put(id=3, queue=other, messages=[X], series=5),
        Put(id=4, queue=other, messages=[X], series=6),
        Put(id=5, queue=full, messages=[X], series=6),
        Put(id=6, queue=other, messages=[X], series=6),
    )
    found = _answers(frames, 6)
    assert {id for id, answer in found.items() if isinstance(answer, Failure)} == {2, 3, 5, 6}


def test_a_series_that_was_refused_does_not_keep_what_it_brought() -> None:
    refused = RefusedSeries()
    payload = bytes(100_000)
    before = sys.getrefcount(payload)

    def bring(message: Message) -> str:
        try:
            refused.check(1)
            raise Full("full")
        except Full as error:
            refused.note(1, error)
            return str(error)

    for _ in range(3):
        assert bring(Message(payload)) == "full"
    assert 1 in refused
    gc.collect()
    assert sys.getrefcount(payload) == before


def test_what_is_refused_is_a_dead_letter_once_and_what_waits_for_room_is_none(frames: Frames) -> None:
    full, other, dead = unique("full"), unique("other"), unique("dead")
    settings = QueueSettings(max_length=1, overflow="reject-dead-letter", dead_letter=dead)
    frames.ask(DeclareQueue(queue=dead))
    frames.ask(DeclareQueue(queue=full, settings=settings))
    frames.ask(DeclareQueue(queue=other))
    frames.send(
        Put(id=1, queue=full, messages=[Message(b"first")]),
        Put(id=2, queue=other, messages=[X]),
        Put(id=3, queue=full, messages=[Message(b"refused")]),
        Put(id=4, queue=full, messages=[Message(b"refused, too")]),
        Put(id=5, queue=full, messages=[Message(b"patient")], wait_ms=60_000),
    )
    found = _answers(frames, 4)
    assert {id for id, answer in found.items() if isinstance(answer, Failure)} == {3, 4}
    frames.send(
        Put(id=6, queue=other, messages=[X]),
        Put(id=7, queue=unique("nowhere"), messages=[X]),
        Put(id=8, queue=full, messages=[Message(b"patient, too")], wait_ms=60_000),
    )
    assert isinstance(_answers(frames, 2)[6], Answer)
    for payload in (b"first", b"patient", b"patient, too"):
        (delivered,) = frames.ask(Get(queue=full, count=1, auto_ack=True, wait_ms=10_000))["messages"]
        assert delivered[3][0] == payload
    wait_for(lambda: frames.ask(DescribeQueue(queue=dead)).get("ready", 0) >= 2, "the refused are dead letters")
    got = frames.ask(Get(queue=dead, count=10))["messages"]
    assert sorted(delivered[3][0] for delivered in got) == [b"refused", b"refused, too"]


def test_many_puts_at_once_keep_their_order_and_tags(frames: Frames) -> None:
    queue = unique("hot")
    frames.ask(DeclareQueue(queue=queue))
    frames.send(*(Put(id=i + 1, queue=queue, messages=[Message(b"%d" % i)]) for i in range(3_000)))
    found = _answers(frames, 3_000)
    assert all(answer.value["first"] == id - 1 for id, answer in found.items() if isinstance(answer, Answer))
    payloads: list[bytes] = []
    more = True
    while more:  # while others wait, an answer has a part of them
        got = frames.ask(Get(queue=queue, count=3_000 - len(payloads)))
        payloads += [delivered[3][0] for delivered in got["messages"]]
        more = got.get("more", False)
    assert payloads == [b"%d" % i for i in range(3_000)]


def test_acks_in_one_go_are_answered_each(frames: Frames) -> None:
    queue = unique("hot")
    frames.ask(DeclareQueue(queue=queue))
    frames.ask(Put(queue=queue, messages=[X] * 5))
    frames.ask(Consume(consumer=1, queue=queue, credit=5))
    delivered = frames.receive()
    assert isinstance(delivered, Deliver)
    tags = [each.tag for each in delivered.messages]
    frames.send(
        Settle(id=1, consumer=1, runs=[(tags[0], 2)]),
        Settle(id=2, consumer=1, runs=[(tags[1], 2)]),  # the first of them is settled already
        Settle(id=3, consumer=1, runs=[(999, 1)]),
        Settle(id=4, consumer=9, runs=[(0, 1)]),
        Settle(id=5, consumer=1, runs=[(tags[3], 2)]),
        Settle(consumer=1, runs=[(tags[0], 1)]),  # no id, no answer
    )
    found = _answers(frames, 5)
    unknown = {id: answer.value.get("unknown", []) for id, answer in found.items() if isinstance(answer, Answer)}
    assert unknown == {1: [], 2: [[tags[1], 1]], 3: [[999, 1]], 5: []}
    assert isinstance(found[4], Failure)
    info = frames.ask(DescribeQueue(queue=queue))
    assert (info.get("ready", 0), info.get("held", 0), info["acked"]) == (0, 0, 5)


def test_publishes_together_have_their_own_offsets(frames: Frames) -> None:
    topic, wide = unique("hot"), unique("hot")
    frames.ask(CreateTopic(topic=topic, partitions=1))
    frames.ask(CreateTopic(topic=wide, partitions=4))
    frames.send(
        Publish(id=1, topic=topic, messages=[X, X]),
        Publish(id=2, topic=topic, messages=[X]),
        Publish(id=3, topic=topic, messages=[]),
        Publish(id=4, topic=topic, messages=[Message(b"", priority=999)]),
        Publish(id=5, topic=topic, messages=[X], acks="written"),
        Publish(id=6, topic=topic, messages=[X, Message(b"late", delay_ms=3_600_000), X]),
        Publish(id=7, topic=topic, messages=[X], partition=0),
        Publish(id=8, topic=topic, messages=[X], partition=5),
        Publish(id=9, topic=wide, messages=[X], partition=2),
        Publish(id=10, topic=wide, messages=[X], partition=2),
        Publish(id=11, topic=topic, messages=[X]),
        Publish(id=12, topic=topic, messages=[X], acks="none"),
    )
    found = _answers(frames, 11)
    errors = {id: answer.error for id, answer in found.items() if isinstance(answer, Failure)}
    assert errors == {3: "Invalid", 4: "Invalid", 8: "UnknownTopic"}
    places = {id: answer.value["places"] for id, answer in found.items() if isinstance(answer, Answer)}
    offsets = {1: 0, 2: 2, 5: 3, 6: 4, 7: 6, 11: 7}
    expected = {id: [[topic, 0, offset]] for id, offset in offsets.items()}
    assert places == expected | {9: [[wide, 2, 0]], 10: [[wide, 2, 1]]}
    assert frames.ask(DescribeTopic(topic=topic))["partitions"][0][1] == 9


def test_keys_keep_their_partitions_among_neighbours(frames: Frames) -> None:
    topic = unique("hot")
    frames.ask(CreateTopic(topic=topic, partitions=8))
    keyed = [Publish(id=i + 1, topic=topic, messages=[Message(b"x", key=b"key-%d" % (i % 5))]) for i in range(40)]
    frames.send(*keyed)
    found = _answers(frames, 40)
    partitions: dict[int, set[int]] = {}
    for id, answer in found.items():
        assert isinstance(answer, Answer)
        partitions.setdefault((id - 1) % 5, set()).add(answer.value["places"][0][1])
    assert all(len(each) == 1 for each in partitions.values())
