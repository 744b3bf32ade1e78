"""A large message to many queues: everybody gets it, in order, and the loop has turns for others in between."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from pamqp import commands

import waystation.aio
from tests.protocols.amqp.kit import connected, publish
from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

QUEUES = 100
LARGE = 500_000
SHARDS = 4
"""The broker's, by default."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("fan")) as server:
        yield server


@pytest.fixture
def fan(server: Server) -> str:
    return make_fan(server)


def make_fan(server: Server, **settings: object) -> str:
    """A fanout exchange; its queues have its name and a number behind."""
    http = Http(server.addresses["http"])
    name = unique("fan")
    http("PUT", f"/v1/exchanges/{name}", {"kind": "fanout"})
    for number in range(QUEUES):
        http("PUT", f"/v1/queues/{name}.{number}", settings)
        http("POST", f"/v1/exchanges/{name}/bindings", {"target": f"queue:{name}.{number}"})
    return name


def bodies(server: Server, fan: str) -> set[tuple[int, ...]]:
    """What lies in each of the queues, by length of the payloads, in order."""
    http = Http(server.addresses["http"])
    found: set[tuple[int, ...]] = set()
    for number in (0, QUEUES // 2, QUEUES - 1):
        shown = http("GET", f"/v1/queues/{fan}.{number}/peek", count=10).json["messages"]
        found.add(tuple(len(each["payload"]) for each in shown))
    return found


def ready(server: Server, fan: str) -> int:
    rows = Http(server.addresses["http"])("GET", "/v1/queues", prefix=f"{fan}.", limit=1000).json["queues"]
    return sum(int(row["ready"]) for row in rows)


def test_amqp_publishes_to_many_queues_stay_in_order_and_are_confirmed_when_all_have_them(
    server: Server, fan: str
) -> None:
    with connected(server) as amqp:
        amqp.ask(commands.Confirm.Select())
        for payload in (b"a", b"b" * LARGE, b"cc"):
            amqp.send(publish(1, payload, "", exchange=fan))
        answer = amqp.ask(commands.Queue.Declare(0, f"{fan}.0", True))
        confirmed = 0
        while not isinstance(answer, commands.Queue.DeclareOk):
            confirmed = answer.delivery_tag
            answer = amqp.next()
        assert answer.message_count == 3, "what was published before the question is counted"
        while confirmed < 3:
            confirmed = amqp.expect(commands.Basic.Ack).delivery_tag
        assert ready(server, fan) == 3 * QUEUES
    assert bodies(server, fan) == {(1, LARGE, 2)}


def test_a_publisher_that_hangs_up_has_published_to_all(server: Server, fan: str) -> None:
    with connected(server) as amqp:
        amqp.send(publish(1, b"b" * LARGE, "", exchange=fan))
        wait_for(lambda: ready(server, fan), "the fan-out has begun")
        amqp.socket.shutdown(socket.SHUT_RDWR)
    wait_for(lambda: ready(server, fan) == QUEUES, "all have it")


def test_publishes_by_others_stay_in_order(server: Server, fan: str) -> None:
    async def pipelined() -> None:
        async with waystation.aio.connect(server.bootstrap) as mq:
            exchange = await mq.exchange(fan, "fanout")
            await asyncio.gather(*(exchange.publish(payload) for payload in (b"a", b"b" * LARGE, b"cc")))

    asyncio.run(pipelined())
    assert bodies(server, fan) == {(1, LARGE, 2)}
    assert ready(server, fan) == 3 * QUEUES


def written(server: Server) -> int:
    """Bytes that the broker has written to files, since it started."""
    assert server.process is not None
    counts = Path(f"/proc/{server.process.pid}/io").read_text()
    return int(next(line for line in counts.splitlines() if line.startswith("wchar:")).split()[1])


@pytest.mark.parametrize("transaction", [False, True])
def test_amqp_publishes_to_many_queues_are_written_once_for_each_shard(
    server: Server, fan: str, transaction: bool
) -> None:
    before = written(server)
    with connected(server) as amqp:
        if transaction:
            amqp.ask(commands.Tx.Select())
            amqp.send(publish(1, b"b" * LARGE, "", exchange=fan))
            assert isinstance(amqp.ask(commands.Tx.Commit()), commands.Tx.CommitOk)
        else:
            amqp.ask(commands.Confirm.Select())
            amqp.send(publish(1, b"b" * LARGE, "", exchange=fan))
            amqp.expect(commands.Basic.Ack)
    assert ready(server, fan) == QUEUES
    assert LARGE <= written(server) - before < SHARDS * (LARGE + 100_000)
    assert bodies(server, fan) == {(LARGE,)}


@pytest.mark.parametrize("path", ["/v1/exchanges/{}/messages", "/api/exchanges/%2F/{}/publish"])
def test_http_publishes_to_many_queues_are_written_once_for_each_shard(server: Server, fan: str, path: str) -> None:
    before = written(server)
    said = {"payload": "b" * LARGE}
    if path.startswith("/api"):
        said = {"properties": {}, "routing_key": "", "payload": "b" * LARGE, "payload_encoding": "string"}  # type: ignore[dict-item]
    Http(server.addresses["http"])("POST", path.format(fan), said)
    assert ready(server, fan) == QUEUES
    assert LARGE <= written(server) - before < SHARDS * (LARGE + 100_000)


def test_others_have_their_turns_during_a_fan_out(server: Server) -> None:
    """The broker answers somebody else while only some of the queues have the message. Queues that look at ids do not
    share what is written: this is the most that one publish can make the broker write."""
    fan = make_fan(server, dedup_window_ms=60_000)
    seen: set[int] = set()
    other = http.client.HTTPConnection(server.addresses["http"])
    with connected(server) as amqp:
        amqp.ask(commands.Confirm.Select())
        for _ in range(4):
            amqp.send(publish(1, b"b" * LARGE, "", exchange=fan))
        while 4 * QUEUES not in seen:
            other.request("GET", f"/v1/queues?prefix={fan}.&limit=1000")
            rows = json.loads(other.getresponse().read())["queues"]
            seen.add(sum(int(row["ready"]) for row in rows))
    assert len(seen - {0, 4 * QUEUES}) >= 3, seen
