"""Streams of long messages get a part of one in a turn that no other long work has; short ones do not wait."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import msgspec

from tests.protocols.test_long_work import ByHand
from waystation.errors import Unavailable, WaystationError
from waystation.message import Delivered, Message
from waystation.protocols.budget import FREE_BYTES
from waystation.protocols.http.deliveries.consuming import HttpConsumer
from waystation.protocols.http.transport.calls import SHORT_STEP_BYTES, STEP_BYTES
from waystation.protocols.http.transport.json_pieces import PIECE_CHARS


class Feed:
    """Counts what it was told."""

    def __init__(self) -> None:
        self.credits: list[int] = []

    def credit(self, count: int) -> None:
        self.credits.append(count)

    def pause(self) -> None: ...
    def resume(self) -> None: ...


class Outlet:
    """Takes everything, while it can."""

    def __init__(self) -> None:
        self.writable = True
        self.parts: list[tuple[bytes, bool, bool]] = []
        self.delivered: list[Any] = []
        self.ended: WaystationError | None = None

    def deliver(self, messages: Any) -> None:
        self.delivered += messages

    def deliver_part(self, part: bytes, *, first: bool, last: bool) -> None:
        self.parts.append((part, first, last))

    def finish(self, error: WaystationError) -> None:
        self.ended = error

    def messages(self) -> list[Any]:
        """Those that have come in parts."""
        found, whole = [], b""
        for part, first, last in self.parts:
            assert first == (not whole)
            whole += part
            if last:
                found.append(msgspec.json.decode(whole))
                whole = b""
        return found


def consumer_of(line: ByHand) -> tuple[Any, Feed]:
    feed = Feed()
    ack_ids = SimpleNamespace(add=lambda *_: object(), drop=lambda *_: None)
    access = SimpleNamespace(consume_wait_s=lambda: 0.0)
    dispatcher: Any = SimpleNamespace(long_work=line, ack_ids=ack_ids, delivered=lambda *_, **__: None, access=access)
    dispatcher.spoken = None
    dispatcher.explained = lambda error: error
    consumer: Any = HttpConsumer(dispatcher, acks=False)
    consumer.attach(feed, "place", 1_000)
    return consumer, feed


def message(size: int) -> Delivered:
    return Delivered(1, 1, 0, Message(bytes(size)))


def test_at_first_and_after_a_long_portion_a_stream_waits_for_its_turn() -> None:
    async def story() -> None:
        line = ByHand()
        (first, first_feed), (second, second_feed) = consumer_of(line), consumer_of(line)
        first.outlet = Outlet()
        first.begin(first.outlet)
        second.begin(Outlet())
        await line.turns()
        assert (len(first_feed.credits), len(second_feed.credits)) == (1, 0)
        first.deliver([message(FREE_BYTES + 1)])
        await line.rested()
        assert (len(first_feed.credits), len(second_feed.credits)) == (1, 1), "the one that waited is the next"
        while not first.outlet.messages():
            await line.rested()
        assert (len(first_feed.credits), len(second_feed.credits)) == (1, 1), "not while it sends"
        await line.rested()
        assert (len(first_feed.credits), len(second_feed.credits)) == (2, 1)

    asyncio.run(story())


def test_a_long_message_is_sent_part_by_part_each_in_a_turn_of_its_own_and_as_far_as_the_client_reads() -> None:
    async def story() -> None:
        line = ByHand()
        consumer, feed = consumer_of(line)
        outlet = Outlet()
        consumer.begin(outlet)
        await line.turns()
        payload = bytes(range(128)) * 4096
        consumer.deliver([Delivered(1, 1, 0, Message(payload)), message(10)])
        assert outlet.parts == [], "not in the turn in which it comes"
        for parts in range(1, 4):
            await line.rested()
            assert len(outlet.parts) == parts
        outlet.writable = False
        await line.rested()
        await line.rested()
        assert len(outlet.parts) == 3, "the client does not read"
        outlet.writable = True
        consumer.filled()
        consumer.drained()
        while len(outlet.messages()) < 2:
            assert len(feed.credits) == 1, "no more is asked for meanwhile"
            await line.rested()
        first, second = outlet.messages()
        assert first["payload"].encode() == payload
        assert second["payload"] == "\0" * 10
        assert max(len(part) for part, _, _ in outlet.parts) <= STEP_BYTES + 6 * PIECE_CHARS
        await line.rested()
        assert len(feed.credits) == 2

    asyncio.run(story())


def test_the_end_of_a_stream_is_told_behind_what_it_was_given() -> None:
    async def story() -> None:
        line = ByHand()
        consumer, _ = consumer_of(line)
        outlet = Outlet()
        consumer.begin(outlet)
        await line.turns()
        consumer.deliver([message(FREE_BYTES + 1)])
        consumer.ceased(Unavailable("gone"))
        assert outlet.ended is None
        while outlet.ended is None:
            await line.rested()
        assert len(outlet.messages()) == 1

    asyncio.run(story())


def test_a_stream_whose_client_is_gone_sends_no_more() -> None:
    async def story() -> None:
        line = ByHand()
        consumer, _ = consumer_of(line)
        outlet = Outlet()
        consumer.begin(outlet)
        await line.turns()
        consumer.deliver([message(10 * FREE_BYTES)])
        await line.rested()
        consumer.end()
        for _ in range(5):
            await line.rested()
        assert len(outlet.parts) == 1

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


def test_while_others_wait_for_short_answers_the_parts_of_a_long_message_are_shorter() -> None:
    async def story() -> None:
        line = ByHand()
        line.now_s = 100.0
        consumer, _ = consumer_of(line)
        outlet = Outlet()
        consumer.begin(outlet)
        await line.turns()
        line.asked(object())
        consumer.deliver([Delivered(1, 1, 0, Message(b"x" * 500_000))])
        while not outlet.messages():
            await line.rested()
        assert max(len(part) for part, _, _ in outlet.parts) <= SHORT_STEP_BYTES + PIECE_CHARS
        assert outlet.messages()[0]["payload"] == "x" * 500_000

    asyncio.run(story())
