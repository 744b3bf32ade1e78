"""However a client behaves, the broker's memory stays below the figure in docs/operations/security.md, and others of
its protocol are served. Each attack is real: plain sockets against a broker process."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pika
import psutil
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

import waystation
from benchmarks import attackers
from benchmarks.attackers import ATTACKS, Attack
from benchmarks.kafka_wire import MIB
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.message import Message as Sent
from waystation.protocol import MAGIC, Put
from waystation.protocols.budget import FREE_BYTES

BUDGET = 64 * MIB
"""Of each direction; the default is four times as much, and so would be the time that these tests take."""
LARGEST = 50 * MIB
"""What the broker handles at this moment, while it is handled: one request or one answer of the largest size."""
CONNECTION = 2 * FREE_BYTES + 64 * 1024
"""What one connection may have that is not counted, and the connection itself."""
BASE = 120 * MIB
"""A broker that is at work without an attack: 60 MiB, its cache of messages, and what the allocator keeps."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    settings = {"queued.max.request.bytes": BUDGET, "waystation.unsent.max.bytes": BUDGET}
    with Server(tmp_path / "broker", settings=settings) as running:
        fill(running)
        yield running


def fill(server: Server) -> None:
    payload = bytes(attackers.MESSAGE_BYTES)
    with waystation.connect(server.bootstrap) as client:
        client.create_topic(attackers.EMPTY_TOPIC)
        client.create_topic(attackers.TOPIC)
        queue = client.queue(attackers.QUEUE)
        client.queue(attackers.EMPTY_QUEUE)
        client.queue("canary")
        client.create_topic("canary")
        for _ in range(attackers.STORED):
            client.publish(attackers.TOPIC, payload)
            queue.put(payload)


def peak_bytes(server: Server) -> int:
    """The most that the broker has ever had in memory."""
    assert server.process is not None
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found[1]) * 1024 if found else psutil.Process(server.process.pid).memory_info().rss


def kafka_canary(server: Server, size: int) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap, "message.max.bytes": 64 * MIB})
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "canary"})
    try:
        payload = b"k" * size
        told: list[Message] = []
        producer.produce("canary", payload, on_delivery=lambda error, message: told.append(message))
        assert producer.flush(DEADLINE_S) == 0
        consumer.assign([TopicPartition("canary", 0, told[0].offset() or 0)])
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        assert message.error() is None
        assert message.value() == payload
    finally:
        consumer.close()


def native_canary(server: Server, size: int) -> None:
    with waystation.connect(server.bootstrap, timeout=DEADLINE_S) as client:
        queue = client.queue("canary")
        queue.put(b"n" * size)
        with queue.get(timeout=DEADLINE_S) as message:
            assert bytes(message.payload) == b"n" * size


def amqp_canary(server: Server, size: int) -> None:
    host, _, port = server.addresses["amqp"].rpartition(":")
    with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        channel.basic_publish("", "canary", b"a" * size)
        method, _, body = channel.basic_get("canary", auto_ack=True)
        assert method is not None
        assert body == b"a" * size


def http_canary(server: Server, size: int) -> None:
    connection = http.client.HTTPConnection(server.addresses["http"], timeout=DEADLINE_S)
    connection.request("POST", "/v1/queues/canary/messages?raw=true", body=b"h" * size)
    assert connection.getresponse().read()
    connection.request("GET", "/v1/queues/canary")
    answer = connection.getresponse()
    assert answer.status == 200
    assert json.loads(answer.read())["bytes"] >= size
    connection.close()


CANARIES: dict[str, Callable[[Server, int], None]] = {
    "kafka": kafka_canary,
    "native": native_canary,
    "amqp": amqp_canary,
    "http": http_canary,
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_worth_no_more_memory_than_the_docs_say_and_others_are_served(server: Server, name: str) -> None:
    known = ATTACKS[name]
    attack = Attack(server.addresses)
    try:
        known.begin(attack)
        for _ in range(3):
            CANARIES[known.protocol](server, 1000)
        most = BASE + 2 * BUDGET + LARGEST + len(attack.sockets) * CONNECTION
        assert peak_bytes(server) < most, f"{peak_bytes(server) / MIB:.0f} MiB, and {most / MIB:.0f} are promised"
    finally:
        attack.close()


def test_the_largest_attack_at_the_default_settings(tmp_path: Path) -> None:
    """6.5 KB that were once worth 1,900 MiB."""
    with Server(tmp_path / "broker") as server:
        fill(server)
        attack = Attack(server.addresses)
        try:
            attackers.kafka_fetch_pile(attack)
            for _ in range(3):
                kafka_canary(server, 1000)
            assert peak_bytes(server) < BASE + LARGEST
        finally:
            attack.close()


@pytest.mark.parametrize(
    "name", ["Kafka, half-sent requests", "native, half-sent frames", "AMQP, half-sent messages", "HTTP, slow bodies"]
)
def test_a_large_request_gets_its_turn_while_half_sent_ones_hold_all_the_room(tmp_path: Path, name: str) -> None:
    """Those that do not go on are ended, in the order in which they came."""
    with Server(tmp_path / "broker") as server:
        fill(server)
        attack = Attack(server.addresses)
        try:
            ATTACKS[name].begin(attack)
            with waystation.connect(server.bootstrap, timeout=4 * DEADLINE_S) as client:
                client.queue("canary").put(b"n" * 10 * MIB)
            wait_for(lambda: "and others wait for room" in server.log.read_text(), "somebody was ended")
        finally:
            attack.close()


def test_a_client_that_pauses_in_a_large_request_is_let_go_on_while_nobody_waits(server: Server) -> None:
    attack = Attack(server.addresses)
    try:
        put = attackers.native_frame(Put(id=1, queue="canary", messages=[Sent(b"x" * 10 * MIB)]))
        opened = attack.open("kafka")
        attack.pour([(opened, MAGIC + put[: 5 * MIB])])
        native_canary(server, 1000)
        attack.pour([(opened, put[5 * MIB :])])
        opened.settimeout(DEADLINE_S)
        assert b"failure" not in opened.recv(100)
        with waystation.connect(server.bootstrap) as client:
            assert len(client.queue("canary")) == 1
    finally:
        attack.close()
