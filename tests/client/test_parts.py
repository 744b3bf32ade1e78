"""The client's parts by themselves: frames in pieces, brokers that speak something else, runs, values, budgets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation import aio, errors
from waystation.client.consuming.settler import runs_of
from waystation.client.links.failures import failure
from waystation.client.links.servers import parse_urls
from waystation.client.options.payloads import value_of
from waystation.client.options.queue_options import QueueOptions, Retry, queue_settings
from waystation.client.options.values import make_message, milliseconds, moment_ms
from waystation.client.sending.budget import Budget, ThreadBudget
from waystation.client.sending.producing import in_groups
from waystation.client.sending.results import Stored
from waystation.message import Message
from waystation.protocol import MAGIC, Answer, AnyCommand, Failure, Hello, HelloAnswer, Ping

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(AnyCommand).decode


def frame(item: Any) -> bytes:
    body = encode(item)
    return len(body).to_bytes(4, "big") + body


async def read_frame(reader: asyncio.StreamReader) -> Any:
    return decode(await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big")))


def with_broker(talk: Talk, use: Callable[[str], Awaitable[None]]) -> None:
    """A broker that says what the test wants."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await talk(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            host, port = server.sockets[0].getsockname()
            await use(f"waystation://{host}:{port}")

    asyncio.run(main())


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    assert await reader.readexactly(4) == MAGIC
    hello = await read_frame(reader)
    assert isinstance(hello, Hello)
    writer.write(frame(Answer(hello.id, HelloAnswer("c-1", 1, "0"))))


def test_a_frame_may_come_byte_by_byte_and_many_at_once() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        first = await read_frame(reader)
        for byte in frame(Answer(first.id, {"n": 1})):
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        asked = [await read_frame(reader) for _ in range(3)]
        writer.write(b"".join(frame(Answer(one.id, {"n": one.id - asked[0].id})) for one in reversed(asked)))
        await reader.read()

    async def use(url: str) -> None:
        async with aio.connect(url) as mq:
            assert await mq.stats() == {"n": 1}
            answers = await asyncio.gather(mq.stats(), mq.stats(), mq.stats())
            assert [answer["n"] for answer in answers] == [0, 1, 2]

    with_broker(talk, use)


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00\x00\x00\x02\xc1\xc1", b"", b"\x00\x00"])
def test_a_port_where_something_else_listens_is_an_error(said: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(4)
        writer.write(said)
        await writer.drain()

    async def use(url: str) -> None:
        with pytest.raises(errors.ConnectionLost):
            await aio.connect(url, timeout=5)

    with_broker(talk, use)


def test_a_broker_that_never_greets_is_given_up() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async def use(url: str) -> None:
        with pytest.raises(errors.ConnectionLost, match="greet"):
            await aio.connect(url, timeout=0.05)

    with_broker(talk, use)


def test_the_brokers_last_words_are_passed_on() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await read_frame(reader)
        writer.write(frame(Failure(0, "Invalid", "that frame was too long")))
        await writer.drain()

    async def use(url: str) -> None:
        async with aio.connect(url, timeout=5) as mq:
            with pytest.raises(errors.ConnectionLost, match=r"that frame was too long.*may have been carried out"):
                await mq.delete_topic("t")

    with_broker(talk, use)


def test_what_may_be_asked_twice_is_asked_again_and_the_rest_is_not() -> None:
    seen: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        first = await read_frame(reader)
        seen.append(type(first).__name__)
        if seen.count("Ping") == 2:
            writer.write(frame(Answer(first.id)))
            await reader.read()

    async def use(url: str) -> None:
        async with aio.connect(url, timeout=20) as mq:
            with pytest.raises(errors.ConnectionLost):
                await mq.delete_topic("t")
            assert await mq.ping() >= 0

    with_broker(talk, use)
    assert seen == ["DeleteTopic", "Ping", "Ping"]


def test_no_answer_in_time_is_an_error() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        while not isinstance(await read_frame(reader), Ping):
            pass
        await reader.read()

    async def use(url: str) -> None:
        async with aio.connect(url, timeout=0.1) as mq:
            with pytest.raises(errors.RequestTimeout, match="ping"):
                await mq.ping()

    with_broker(talk, use)


@given(st.lists(st.integers(0, 60), max_size=80))
def test_runs_cover_exactly_the_tags(tags: list[int]) -> None:
    covered = [tag for first, count in runs_of(tags) for tag in range(first, first + count)]
    assert covered == sorted(set(tags))


@given(st.one_of(st.binary(), st.text(), st.lists(st.one_of(st.integers(-(2**53), 2**53), st.text(), st.none()))))
def test_a_value_comes_back(value: Any) -> None:
    message = make_message(value, {})
    assert value_of(message.payload, message.content_type) == value


@given(st.lists(st.integers(0, 200_000), max_size=60))
def test_groups_keep_everything_in_order_and_are_small(sizes: list[int]) -> None:
    messages = [Message(b"x" * size, id=str(number)) for number, size in enumerate(sizes)]
    groups = list(in_groups(iter(messages)))
    assert [message for group in groups for message in group.messages] == messages
    assert all(len(group.messages) == 1 or group.size <= 512 * 1024 for group in groups)
    assert [group.more for group in groups] == [True] * (len(groups) - 1) + [False] * bool(groups)


def test_ids_of_what_was_stored() -> None:
    messages = [Message(b""), Message(b"", id="a"), Message(b"", id="b"), Message(b"")]
    stored = Stored.of("q", messages, 10, [1])
    assert stored.ids == ["q#10", "a", "b", "q#12"]
    both = Stored.joined("q", [stored, Stored.of("q", [Message(b"")], 20, [])])
    assert (len(both), both.duplicates, both.ids[-1]) == (4, [1], "q#20")


@pytest.mark.parametrize(
    ("value", "ms"), [(0, 0), (1, 1000), (0.0004, 1), (1.5, 1500), (timedelta(minutes=1), 60_000), (None, None)]
)
def test_seconds_are_never_cut_short(value: Any, ms: int | None) -> None:
    assert milliseconds("delay", value) == ms


@pytest.mark.parametrize("value", [-1, float("nan"), "5", True, timedelta(days=-1), float("inf")])
def test_wrong_seconds_are_refused_by_name(value: Any) -> None:
    with pytest.raises(errors.Invalid, match="delay"):
        milliseconds("delay", value)


def test_times_are_epoch_milliseconds() -> None:
    assert moment_ms("at", datetime(2026, 1, 1, tzinfo=UTC)) == 1_767_225_600_000
    assert moment_ms("at", 1.5) == 1500
    with pytest.raises(errors.Invalid, match="at"):
        moment_ms("at", "noon")  # type: ignore[arg-type]


def test_a_queues_options_are_seconds() -> None:
    options: QueueOptions = {"hold": 5, "retry": Retry(base=0.5, factor=3, max=60, jitter=0.1), "expires": None}
    settings = queue_settings(options)
    assert settings is not None
    assert (settings.hold_ms, settings.retry_base_ms, settings.retry_factor) == (5_000, 500, 3)
    assert (settings.retry_max_ms, settings.retry_jitter, settings.expires_ms) == (60_000, 0.1, None)
    assert queue_settings({}) is None


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("waystation://broker:9093", "broker:9093"),
        ("waystation://broker", "broker:9092"),
        ("127.0.0.1:7", "127.0.0.1:7"),
        ("tcp://[::1]:7/", "[::1]:7"),
    ],
)
def test_urls(url: str, address: str) -> None:
    assert list(map(str, parse_urls(url))) == [address]


@pytest.mark.parametrize("url", ["http://x", "waystation://user@x", "waystation://x/path", "waystation://x:y"])
def test_wrong_urls_are_refused(url: str) -> None:
    with pytest.raises(errors.Invalid):
        parse_urls(url)


def test_errors_come_back_as_what_they_were() -> None:
    assert type(failure("UnknownTopic", "x")) is errors.UnknownTopic
    assert type(failure("FilterSyntax", "x")) is errors.FilterSyntax
    assert type(failure("FromTheFuture", "x")) is errors.WaystationError
    assert type(failure("near_matches", "x")) is errors.WaystationError


def test_a_budget_lets_pass_what_it_has() -> None:
    async def main() -> None:
        budget = Budget(100)
        await budget.take(80)
        with pytest.raises(errors.Full):
            budget.take_now(30)
        waiting = [asyncio.create_task(budget.take(size)) for size in (30, 90)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        budget.give(80)
        await waiting[1]
        budget.give(90)
        await budget.take(1000)

    asyncio.run(main())


def test_a_budget_holds_threads_back() -> None:
    budget = ThreadBudget(100)
    budget.take_waiting(80)
    passed = threading.Event()

    def take() -> None:
        budget.take_waiting(50)
        passed.set()

    thread = threading.Thread(target=take)
    thread.start()
    assert not passed.wait(0.05)
    budget.give(80)
    assert passed.wait(30)
    thread.join()
