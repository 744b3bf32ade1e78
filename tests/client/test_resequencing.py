"""Messages back in the order of their sequence numbers: what is waited for, what is skipped, what is handed back."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import waystation as ws
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for
from waystation import Resequencer, errors
from waystation.client.consuming.feeding import Unsettled
from waystation.client.consuming.received import Received
from waystation.client.consuming.resequencing import MOST_GAPS, SEQUENCE_HEADER
from waystation.client.consuming.settler import Settler
from waystation.message import Delivered, Message


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class NoSettler:
    """Of messages that came from nowhere."""

    queue = "q"


def arrived(number: Any, *, tag: int = -1, deliveries: int = 1, size: int = 0) -> Received:
    tag = number if tag < 0 else tag
    message = Message(bytes(size), headers={SEQUENCE_HEADER: number})
    return Received(Unsettled(Delivered(tag, deliveries, 0, message), cast(Settler, NoSettler())))


def numbers(messages: list[Received]) -> list[int]:
    return [message.headers[SEQUENCE_HEADER] for message in messages]


def test_messages_wait_for_a_missing_one_and_come_in_order() -> None:
    order: Resequencer[Received] = Resequencer(first=1, clock=Clock())
    assert numbers(order.add(arrived(3)).released) == []
    assert numbers(order.add(arrived(2)).released) == []
    assert (len(order), order.next, order.wait) == (2, 1, 5.0)
    assert numbers(order.add(arrived(1)).released) == [1, 2, 3]
    assert (len(order), order.next, order.wait, order.gaps) == (0, 4, None, 0)


def test_a_gap_is_skipped_when_the_oldest_message_behind_it_has_waited_long_enough() -> None:
    clock, gaps = Clock(), []
    order: Resequencer[Received] = Resequencer(
        first=1, timeout=10, clock=clock, on_gap=lambda first, last: gaps.append((first, last))
    )
    order.add(arrived(4))
    clock.now = 6
    order.add(arrived(6))
    clock.now = 9.9
    assert order.due() == []
    clock.now = 10
    assert order.wait == 0
    assert numbers(order.due()) == [4]  # 6 has waited for 4 seconds
    assert (gaps, order.gaps, order.wait) == ([(1, 3)], 3, 6.0)
    clock.now = 16
    assert numbers(order.due()) == [6]
    assert gaps == [(1, 3), (5, 5)]


def test_late_messages_duplicates_and_those_without_a_number_are_handed_back() -> None:
    order: Resequencer[Received] = Resequencer(first=10, timeout=0, clock=Clock())
    order.add(arrived(12, tag=1))
    assert numbers(order.due()) == [12]
    assert order.add(arrived(11)).discarded[0][1] == "late"
    assert order.add(arrived(12, tag=2)).discarded[0][1] == "duplicate"
    assert order.add(arrived(9)).discarded[0][1] == "duplicate"  # below the first: it was said to be done
    assert order.add(arrived("nothing", tag=5)).discarded[0][1] == "unnumbered"
    assert numbers(order.add(arrived(12, tag=1, deliveries=2)).released) == [12]  # redelivered: it was not done


def test_a_duplicate_of_a_message_that_waits_is_handed_back_and_a_redelivery_takes_its_place() -> None:
    order: Resequencer[Received] = Resequencer(first=1, clock=Clock())
    order.add(arrived(2, tag=7))
    assert order.add(arrived(2, tag=8)).discarded[0][1] == "duplicate"
    assert order.add(arrived(2, tag=7, deliveries=2)).discarded == []
    released = order.add(arrived(1)).released
    assert [message.deliveries for message in released] == [1, 2]


def test_without_a_first_number_the_lowest_of_the_beginning_is_it() -> None:
    clock = Clock()
    order: Resequencer[Received] = Resequencer(timeout=5, clock=clock)
    for number in (8, 7, 9):
        assert order.add(arrived(number)).released == []
    clock.now = 5
    assert numbers(order.due()) == [7, 8, 9]
    assert order.gaps == 0
    assert order.add(arrived(6)).discarded[0][1] == "late"  # nobody said that it was done


@pytest.mark.parametrize("bound", [{"max_messages": 10}, {"max_bytes": 10 * (1000 + 64 + 64)}])
def test_what_waits_is_bounded(bound: dict[str, Any]) -> None:
    order: Resequencer[Received] = Resequencer(first=0, timeout=1000, clock=Clock(), **bound)
    released: list[int] = []
    for number in range(2, 1000, 2):  # every other one is missing
        released += numbers(order.add(arrived(number, size=1000)).released)
        assert len(order) <= 10
    assert released == [*range(2, 2 * len(released) + 1, 2)]
    assert numbers(order.flush())[-1] == 998
    huge = order.add(arrived(2000, size=100_000))
    assert len(huge.released) == ("max_bytes" in bound)


def test_skipped_gaps_are_remembered_up_to_a_bound_and_older_numbers_count_as_late() -> None:
    order: Resequencer[Received] = Resequencer(first=0, timeout=0, clock=Clock())
    for number in range(1, 2 * MOST_GAPS + 21, 2):
        order.add(arrived(number))
        order.due()
    assert order.add(arrived(0)).discarded[0][1] == "late"
    assert order.add(arrived(1)).discarded[0][1] == "late"  # forgotten; nothing is lost
    assert order.add(arrived(2 * MOST_GAPS + 19, tag=0)).discarded[0][1] == "duplicate"


@given(st.permutations(range(30)), st.lists(st.integers(0, 29), max_size=10))
def test_whatever_the_order_each_is_released_once_in_order(arriving: list[int], again: list[int]) -> None:
    order: Resequencer[Received] = Resequencer(first=0, clock=Clock())
    released: list[int] = []
    duplicates = 0
    for tag, number in enumerate([*arriving[:15], *again, *arriving[15:]]):
        step = order.add(arrived(number, tag=tag))
        released += numbers(step.released)
        duplicates += [reason for _, reason in step.discarded].count("duplicate")
    assert released == [*range(30)]
    assert duplicates == len(again)


@given(st.lists(st.integers(0, 60), max_size=60), st.integers(1, 8))
def test_with_gaps_and_a_small_bound_numbers_rise_and_nothing_disappears(arriving: list[int], most: int) -> None:
    clock = Clock()
    order: Resequencer[Received] = Resequencer(first=0, timeout=5, max_messages=most, clock=clock)
    released: list[int] = []
    discarded = 0
    for tag, number in enumerate(arriving):
        step = order.add(arrived(number, tag=tag))
        released += numbers(step.released)
        discarded += len(step.discarded)
        assert len(order) <= most
        clock.now += 1
        released += numbers(order.due())
    released += numbers(order.flush())
    assert released == sorted(set(released))
    assert len(released) + discarded == len(arriving)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"max_messages": 0}, "max_messages"), ({"max_bytes": "x"}, "max_bytes"), ({"timeout": -1}, "timeout")],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    with pytest.raises(errors.Invalid, match=said):
        Resequencer(**options)


# -- through a broker --------------------------------------------------------------------------------------------------


def shuffled(count: int) -> list[int]:
    return [i ^ 5 for i in range(count)]


@pytest.mark.parametrize("where", ["queue", "shared", "stream", "live"])
def test_a_subscription_in_order(mq: Any, where: str) -> None:
    """Duplicates are acked, so nothing is left."""
    name = unique("ordered")
    queue = mq.queue(name)
    mq.create_topic(name, 1)
    options = {"live": {}, "shared": {"group": name}, "stream": {"group": name, "mode": "stream"}}
    opened = queue.consume() if where == "queue" else mq.subscribe(name, **options[where])
    with opened as subscription:
        for number in [*shuffled(48), 3, 40]:
            if where == "queue":
                queue.put(number, headers={"x-sequence": number})
            else:
                mq.publish(name, number, headers={"x-sequence": number})
        got = []
        for message in subscription.in_order(Resequencer(first=0, timeout=DEADLINE_S)):
            got.append(message.value)
            if len(got) == 48:
                break
        assert got == [*range(48)]
    if where == "queue":
        left = queue.get_many(10, timeout=0)  # the duplicates came behind the last in order
        assert all(message.value in (3, 40) for message in left)


def test_a_gap_is_skipped_and_what_comes_late_is_dead_lettered(mq: Any) -> None:
    queue = mq.queue(unique("gap"), dead_letter=unique("dead"))
    with queue.consume() as consumer:
        loop = iter(consumer.in_order(Resequencer(first=1, timeout=0.2)))
        for number in (1, 3, 4):
            queue.put(number, headers={"x-sequence": number})
        assert [next(loop).value for _ in range(3)] == [1, 3, 4]
        queue.put(2, headers={"x-sequence": 2})
        queue.put("no number")
        queue.put(5, headers={"x-sequence": 5})
        assert next(loop).value == 5
        dead = queue.dead_letters()
        wait_for(lambda: dead.describe().ready == 2, "both are dead letters")
        letters = {letter.value: letter.deaths[0]["error"] for letter in dead.peek(2)}
        assert letters == {2: "in_order: late", "no number": "in_order: unnumbered"}


def test_a_loop_that_fails_has_its_message_redelivered(mq: Any) -> None:
    queue = mq.queue(unique("fails"))
    for number in (2, 1):
        queue.put(number, headers={"x-sequence": number})

    def fail() -> None:
        with queue.consume() as consumer:
            for message in consumer.in_order(Resequencer(first=1)):
                raise ValueError(message.value)

    with pytest.raises(ValueError, match="1"):
        fail()
    with queue.consume() as consumer:
        loop = iter(consumer.in_order(Resequencer(first=1)))
        assert [next(loop).value, next(loop).value] == [1, 2]


def test_in_order_is_not_for_exactly_once(mq: Any) -> None:
    queue = mq.queue(unique("once"), dedup_window=60)
    with queue.consume(guarantee="exactly-once") as consumer, pytest.raises(errors.Conflict, match="transactions"):
        consumer.in_order()


def test_the_helper_is_a_public_name() -> None:
    assert ws.Resequencer is Resequencer
