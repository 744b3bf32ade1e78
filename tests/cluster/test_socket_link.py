"""A link to a node that hangs: each who asks waits for it once, and nothing is left open."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.broker.kit import run
from waystation.catalog import CatalogChange, Update
from waystation.cluster.decisions.state import Address, NodeState, encode, node_key
from waystation.cluster.links import socket_link
from waystation.cluster.links.link import LinkLost, PeerRefused
from waystation.cluster.links.peer import Answer, Fetched, Hurry, PartitionGiven, PeerDone
from waystation.cluster.links.socket_link import SocketLink
from waystation.cluster.store_view import StoreView
from waystation.protocol import MAGIC, HelloAnswer
from waystation.protocol import Answer as NativeAnswer
from waystation.security.node_links import LinkLogin

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def link_to(address: Address) -> SocketLink:
    view = StoreView(1)
    state = NodeState(1, {"kafka": address})
    await view.apply(Update(1, (CatalogChange(node_key(2), encode(state)),)))
    return SocketLink(view, 2, LinkLogin(b"secret", None), "kafka")


async def listening(serve: Serve) -> tuple[asyncio.Server, Address]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    return server, Address(host, port)


def test_all_who_ask_a_node_that_hangs_hear_of_it_after_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_link, "CONNECT_S", 0.2)
    closed = asyncio.Event()
    connections = 0

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.read(1000):
            pass
        closed.set()
        writer.close()

    async def main() -> None:
        server, address = await listening(hang)
        link = await link_to(address)
        began = time.monotonic()
        told = await asyncio.gather(*[link.ask(Hurry(1, 1), 5.0) for _ in range(20)], return_exceptions=True)
        assert {type(one) for one in told} == {LinkLost}
        assert time.monotonic() - began < 2.0
        assert connections == 1
        await asyncio.wait_for(closed.wait(), 2.0)
        server.close()

    run(main())


def test_a_node_that_listens_no_more_refuses() -> None:
    async def main() -> None:
        server, address = await listening(lambda reader, writer: asyncio.sleep(0))
        server.close()
        await server.wait_closed()
        link = await link_to(address)
        told = await asyncio.gather(*[link.ask(Hurry(1, 1), 5.0) for _ in range(3)], return_exceptions=True)
        assert {type(one) for one in told} == {PeerRefused}

    run(main())


def test_one_question_without_an_answer_does_not_end_the_link_for_others() -> None:
    """Replication is on it, too."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(len(MAGIC)) == MAGIC
        while True:
            try:
                (size,) = struct.unpack(">I", await reader.readexactly(4))
            except asyncio.IncompleteReadError:
                return
            asked: dict[str, Any] = msgspec.msgpack.decode(await reader.readexactly(size))
            value: object = HelloAnswer("c", 1, "")
            if "request" in asked:
                hurry: dict[str, Any] = msgspec.msgpack.decode(asked["request"])
                if hurry["session"] == 0:
                    continue  # this one waits for something
                value = msgspec.msgpack.encode(PeerDone())
            frame = msgspec.msgpack.encode(NativeAnswer(asked["id"], value))
            writer.write(struct.pack(">I", len(frame)) + frame)

    async def main() -> None:
        server, address = await listening(answer)
        link = await link_to(address)
        waiting = asyncio.ensure_future(link.ask(Hurry(1, 0), 5.0))
        slow = asyncio.ensure_future(link.ask(Hurry(1, 0), 0.3))
        answers: list[Answer] = []
        while not slow.done():
            answers.append(await link.ask(Hurry(1, 1), 5.0))
            await asyncio.sleep(0.02)
        with pytest.raises(LinkLost):
            await slow
        assert not waiting.done()
        assert answers
        link.stop()
        with pytest.raises(LinkLost):
            await waiting
        server.close()

    run(main())


def test_an_answer_may_be_as_large_as_the_largest_batch_that_kafkas_clients_can_send() -> None:
    """A leader gives a follower a whole batch at least. Were it refused, nothing of that leader would ever be copied
    again: the follower asks for the same as long as it does not have it."""
    size = 100 * 1024 * 1024  # `socket.request.max.bytes`
    given = Fetched(1, (PartitionGiven(UUID(int=1), 0, 2, 0, 0, 0, 0, bytes(size)),))

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(MAGIC))
        for value in (HelloAnswer("c", 1, ""), msgspec.msgpack.encode(given)):
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            asked: dict[str, Any] = msgspec.msgpack.decode(await reader.readexactly(length))
            frame = msgspec.msgpack.encode(NativeAnswer(asked["id"], value))
            writer.write(struct.pack(">I", len(frame)) + frame)
        await writer.drain()

    async def main() -> None:
        server, address = await listening(answer)
        link = await link_to(address)
        heard = await link.ask(Hurry(1, 1), 20.0)
        assert isinstance(heard, Fetched)
        assert len(heard.partitions[0].records) == size
        link.stop()
        server.close()

    run(main())


LONG = Fetched(1, (PartitionGiven(UUID(int=1), 0, 2, 0, 0, 0, 0, bytes(1024 * 1024)),))


async def answer_slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, part: float) -> None:
    """To the first question, over more than a second, or only a part of it. Others are answered behind it."""
    await reader.readexactly(len(MAGIC))
    for value in (HelloAnswer("c", 1, ""), msgspec.msgpack.encode(LONG), msgspec.msgpack.encode(PeerDone())):
        (length,) = struct.unpack(">I", await reader.readexactly(4))
        asked: dict[str, Any] = msgspec.msgpack.decode(await reader.readexactly(length))
        frame = msgspec.msgpack.encode(NativeAnswer(asked["id"], value))
        data = struct.pack(">I", len(frame)) + frame
        step = max(1, len(data) // 10)
        for begin in range(0, int(len(data) * part) if len(data) > 1000 else len(data), step):
            writer.write(data[begin : begin + step])
            if len(data) > 1000:
                await asyncio.sleep(0.12)
        if len(data) > 1000 and part < 1:
            await reader.read()
            return


def test_an_answer_is_waited_for_as_long_as_it_goes_on_arriving() -> None:
    async def main() -> None:
        server, address = await listening(partial(answer_slowly, part=1.0))
        link = await link_to(address)
        first = asyncio.ensure_future(link.ask(Hurry(1, 1), 0.4))
        await asyncio.sleep(0.05)
        assert isinstance(await link.ask(Hurry(1, 2), 0.4), PeerDone)
        assert await first == LONG
        link.stop()
        server.close()

    run(main())


def test_an_answer_that_does_not_go_on_arriving_is_given_up() -> None:
    async def main() -> None:
        server, address = await listening(partial(answer_slowly, part=0.3))
        link = await link_to(address)
        began = time.monotonic()
        with pytest.raises(LinkLost, match="no answer within"):
            await link.ask(Hurry(1, 1), 0.4)
        assert time.monotonic() - began < 1.8
        assert link._writer is None
        link.stop()
        server.close()

    run(main())
