"""Streams of long messages get one portion in a turn that no other long work has; short ones do not wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from tests.doors.test_long_work import ByHand
from waystation.doors.budget import FREE_BYTES
from waystation.doors.http.consuming import Consumer
from waystation.message import Delivered, Message


class Feed:
    """Counts what it was told."""

    def __init__(self) -> None:
        self.credits: list[int] = []

    def credit(self, count: int) -> None:
        self.credits.append(count)


class Outlet:
    writable = True

    def deliver(self, messages: Any) -> None:
        """Takes everything."""


def consumer_of(line: ByHand) -> tuple[Any, Feed]:
    feed = Feed()
    holds = SimpleNamespace(add=lambda *_: None)
    desk: Any = SimpleNamespace(long_work=line, holds=holds, delivered=lambda *_, **__: None)
    consumer: Any = Consumer(desk, acks=False)
    consumer.attach(feed, "place", 1_000)
    return consumer, feed


def message(size: int) -> Delivered:
    return Delivered(1, 1, 0, Message(bytes(size)))


def test_at_first_and_after_a_long_portion_a_stream_waits_for_its_turn() -> None:
    async def story() -> None:
        line = ByHand()
        (first, first_feed), (second, second_feed) = consumer_of(line), consumer_of(line)
        first.begin(Outlet())
        second.begin(Outlet())
        await line.turns()
        assert (len(first_feed.credits), len(second_feed.credits)) == (1, 0)
        first.deliver([message(FREE_BYTES + 1)])
        await line.rested()
        assert (len(first_feed.credits), len(second_feed.credits)) == (1, 1), "the one that waited is the next"
        await line.rested()
        assert (len(first_feed.credits), len(second_feed.credits)) == (2, 1)

    asyncio.run(story())


def test_a_stream_of_short_messages_does_not_wait_for_those_with_long_ones() -> None:
    async def story() -> None:
        line = ByHand()
        consumer, feed = consumer_of(line)
        consumer.begin(Outlet())
        await line.turns()
        line.then(lambda: None)
        for portion in range(2, 12):
            consumer.deliver([message(100)])
            await asyncio.sleep(0)
            assert len(feed.credits) == portion
        assert len(line) == 1, "the line has not moved meanwhile"

    asyncio.run(story())
