"""When a message of a topic is too old, and when it is too early."""

from __future__ import annotations

import pytest

from waystation.message import Delivered, Message
from waystation.topics.expiry import early_ms, expired, is_timed, unexpired

TAKEN_MS = 1_772_366_400_000


def delivered(message: Message, taken_ms: int = TAKEN_MS) -> Delivered:
    return Delivered(0, 1, taken_ms, message, "t", 0, 0)


@pytest.mark.parametrize(("after_ms", "over"), [(-5, False), (0, False), (99, False), (100, True), (10**9, True)])
def test_a_message_is_expired_from_the_end_of_its_time_on(after_ms: int, over: bool) -> None:
    one = delivered(Message(b"", ttl_ms=100))
    assert expired(one, TAKEN_MS + after_ms) is over
    assert unexpired([one, delivered(Message(b""))], TAKEN_MS + after_ms) == [one] * (not over) + [
        delivered(Message(b""))
    ]


def test_a_message_waits_until_it_is_due_and_not_longer() -> None:
    late = delivered(Message(b"", delay_ms=100))
    due_ms = late.message.ready_at_ms(TAKEN_MS)
    assert due_ms is not None
    assert [early_ms(late, due_ms + more) for more in (-100, -1, 0, 1)] == [100, 1, 0, 0]
    at = delivered(Message(b"", delay_ms=100, deliver_at_ms=TAKEN_MS + 500))  # the time wins over the delay
    assert [early_ms(at, TAKEN_MS + after) for after in (0, 499, 500)] == [500, 1, 0]
    assert early_ms(delivered(Message(b"", deliver_at_ms=TAKEN_MS - 1)), TAKEN_MS - 10) == 0


def test_a_record_without_a_time_neither_waits_nor_expires() -> None:
    one = delivered(Message(b"", ttl_ms=1, delay_ms=10**9), taken_ms=0)
    assert not expired(one, TAKEN_MS)
    assert early_ms(one, 1) == 0


@pytest.mark.parametrize(
    ("message", "timed"),
    [
        (Message(b"", priority=9, max_deliveries=3, timestamp_ms=5, id="i"), False),
        (Message(b"", ttl_ms=1), True),
        (Message(b"", delay_ms=1), True),
        (Message(b"", deliver_at_ms=0), True),
    ],
)
def test_most_messages_have_nothing_to_do_with_time(message: Message, timed: bool) -> None:
    assert is_timed(delivered(message)) is timed
