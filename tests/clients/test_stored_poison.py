"""Batches that nobody can read, but that are stored: every reader passes them over and gets what is behind them.

They come from a broker without the check of records, or to a topic that does without it.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pika
import pytest
from confluent_kafka.admin import AdminClient
from websockets.sync.client import connect

import waystation
from tests.clients import kit
from tests.clients.raw_produce import batch_of, produce
from tests.clients.stage import create_topic
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.log.batches.batch import Record, encode_records

NOW_MS = int(time.time() * 1000)
GOOD = ["before", "behind"]


def poison() -> Iterator[bytearray]:
    """What does not decompress, by codec; a record that is cut off; and one that says it is longer than the batch."""
    yield batch_of(b"", 1, NOW_MS, 1, packed=b"not gzip")
    yield batch_of(b"", 1, NOW_MS, 2, packed=b"not snappy")
    yield batch_of(b"", 2, NOW_MS, 3, packed=b"not lz4")
    yield batch_of(b"", 1, NOW_MS, 4, packed=b"not zstd")
    records = encode_records([Record(0, NOW_MS, b"k", b"v", ())], 0, NOW_MS)[0]
    yield batch_of(records[:-2], 1, NOW_MS)
    yield batch_of(b"\x7e" + records[1:], 1, NOW_MS)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("poisoned")) as server:
        yield server


@pytest.fixture(scope="module")
def topic(server: Server) -> str:
    name = unique("poisoned")
    create_topic(AdminClient({"bootstrap.servers": server.bootstrap}), name, 1, {"waystation.validate.records": "crc"})
    kit.produce(server.bootstrap, name, [b"before"])
    for batch in poison():
        assert produce(server.bootstrap, name, batch).error == 0
    kit.produce(server.bootstrap, name, [b"behind"])
    return name


def get(server: Server, path: str) -> Any:
    with urllib.request.urlopen(f"http://{server.addresses['http']}/v1{path}", timeout=60) as answer:
        return json.load(answer)


def read(server: Server, topic: str) -> list[str]:
    found, at, end = [], 0, get(server, f"/topics/{topic}/history?count=1")["messages"][0]["offset"]
    while at <= end:
        answer = get(server, f"/topics/{topic}/messages?offset={at}&count=10")
        found += [one["payload"] for one in answer["messages"]]
        assert answer["next_offset"] > at, "a reader that goes on from there gets on"
        at = answer["next_offset"]
    return found


def history(server: Server, topic: str) -> list[str]:
    return [one["payload"] for one in get(server, f"/topics/{topic}/history?count=10")["messages"]]


def search(server: Server, topic: str) -> list[str]:
    found: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        answer = get(server, f"/topics/{topic}/search?text=be&cursor={cursor}")
        found += [one["payload"] for one in answer["messages"]]
        cursor = answer["cursor"]
    return found


def subscribed(server: Server, topic: str, **options: Any) -> list[str]:
    found: list[str] = []
    with waystation.connect(server.bootstrap) as client, client.subscribe(topic, **options) as subscription:

        def enough() -> bool:
            found.extend(one.payload.decode() for one in subscription.poll(timeout=0.2, max=10))
            return len(found) >= len(GOOD)

        wait_for(enough, "what is behind the poison comes")
    return found


def stream(server: Server, topic: str) -> list[str]:
    return subscribed(server, topic, group=unique("s"), mode="stream", start="earliest")


def shared(server: Server, topic: str) -> list[str]:
    return subscribed(server, topic, group=unique("g"), mode="shared", start="earliest")


def live(server: Server, topic: str) -> list[str]:
    return subscribed(server, topic, history=10)


def websocket(server: Server, topic: str) -> list[str]:
    found: list[str] = []
    with connect(f"ws://{server.addresses['http']}/v1/subscriptions/stream?topic={topic}&history=10") as socket:
        while len(found) < len(GOOD):
            found += [one["payload"] for one in json.loads(socket.recv(timeout=30)).get("messages", [])]
    return found


def amqp(server: Server, queue: str, declared: dict[str, Any], consumed: dict[str, Any]) -> list[str]:
    host, _, port = server.addresses["amqp"].rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    try:
        channel = connection.channel()
        channel.queue_declare(queue, durable=True, arguments=declared)
        channel.basic_qos(prefetch_count=10)
        found: list[str] = []
        for method, _, body in channel.consume(queue, arguments=consumed, inactivity_timeout=30):
            assert body is not None, "nothing came for 30 s"
            found.append(body.decode())
            channel.basic_ack(method.delivery_tag)
            if len(found) >= len(GOOD):
                return found
        return found
    finally:
        connection.close()


def amqp_stream(server: Server, topic: str) -> list[str]:
    return amqp(server, topic, {"x-queue-type": "stream"}, {"x-stream-offset": "first"})


def amqp_queue_on_topic(server: Server, topic: str) -> list[str]:
    return amqp(server, unique("q"), {"x-topic": topic}, {})


WAYS = {
    way.__name__: way
    for way in (read, history, search, stream, shared, live, websocket, amqp_stream, amqp_queue_on_topic)
}


@pytest.mark.parametrize("way", WAYS)
def test_a_reader_passes_over_what_nobody_can_read(server: Server, topic: str, way: str) -> None:
    assert sorted(WAYS[way](server, topic)) == sorted(GOOD)
    assert get(server, f"/topics/{topic}"), "the broker answers others"
