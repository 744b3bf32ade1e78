"""All 256 priorities of a queue through the clients that users have: a higher one is always delivered first."""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel

import waystation as ws
from tests.support.server import Server
from tests.support.waiting import wait_for

SENT = [*range(256), *range(0, 256, 7)]
random.Random(14).shuffle(SENT)
EXPECTED = sorted(range(len(SENT)), key=lambda number: (-SENT[number], number))
"""The numbers of what was sent, in the order in which they are to be delivered."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


@contextmanager
def _amqp(server: Server) -> Iterator[BlockingChannel]:
    host, _, port = server.addresses["amqp"].rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        yield channel
    finally:
        connection.close()


def _http(server: Server, path: str, body: object, method: str = "POST") -> Any:
    request = urllib.request.Request(
        f"http://{server.addresses['http']}/v1/{path}",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
        method=method,
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def _numbers(messages: list[ws.Message]) -> list[int]:
    return [int(message.text()) for message in messages]


def test_every_priority_is_strict_for_native_clients_also_after_a_kill_a_redelivery_and_a_death(server: Server) -> None:
    with ws.connect(f"waystation://{server.bootstrap}") as mq:
        mq.queue("dead", max_priority=255)
        jobs = mq.queue("jobs", max_priority=255, dead_letter="dead")
        for number, priority in enumerate(SENT):
            jobs.put(str(number), priority=priority)
        first = jobs.get_many(20, timeout=5)
        assert _numbers(first) == EXPECTED[:20]
        for message in first:
            message.release()
        assert _numbers(jobs.get_many(20, timeout=5)) == EXPECTED[:20], "released: in their order again"
    server.kill()
    server.restart()
    with ws.connect(f"waystation://{server.bootstrap}") as mq:
        jobs = mq.queue("jobs")
        messages = jobs.get_many(len(SENT), timeout=5)
        assert _numbers(messages) == EXPECTED
        for message in sorted(messages, key=lambda message: int(message.text())):
            message.kill("no")
        wait_for(lambda: len(mq.queue("dead")) == len(SENT), "all dead letters have been moved")
        assert _numbers(mq.queue("dead").get_many(len(SENT), timeout=5)) == EXPECTED


def test_every_priority_is_strict_after_a_snapshot(server: Server) -> None:
    """A clean stop writes a snapshot, and nothing of the log is read again."""
    with ws.connect(f"waystation://{server.bootstrap}") as mq:
        jobs = mq.queue("jobs", max_priority=255)
        for number, priority in enumerate(SENT):
            jobs.put(str(number), priority=priority)
    server.stop()
    assert list(server.data.glob("**/*.queues"))
    server.restart()
    with ws.connect(f"waystation://{server.bootstrap}") as mq:
        assert _numbers(mq.queue("jobs").get_many(len(SENT), timeout=5)) == EXPECTED


def test_every_priority_is_strict_for_amqp_clients(server: Server) -> None:
    with _amqp(server) as channel:
        channel.queue_declare("jobs", durable=True, arguments={"x-max-priority": 255})
        for number, priority in enumerate(SENT):
            channel.basic_publish("", "jobs", b"%d" % number, pika.BasicProperties(priority=priority, delivery_mode=2))
        got = []
        for method, _, body in channel.consume("jobs", inactivity_timeout=5):
            assert method is not None
            got.append(int(body))
            if len(got) == len(SENT):
                break
        channel.cancel()
    assert got == EXPECTED
    with _amqp(server) as channel:  # all came back, and each is asked for
        bodies = [channel.basic_get("jobs", auto_ack=True)[2] for _ in SENT]
    assert [int(body) for body in bodies if body is not None] == EXPECTED


def test_every_priority_is_strict_for_http_clients(server: Server) -> None:
    _http(server, "queues/jobs", {"max_priority": 255}, "PUT")
    messages = [{"payload": str(number), "priority": priority} for number, priority in enumerate(SENT)]
    _http(server, "queues/jobs/messages", messages)
    got = _http(server, f"queues/jobs/take?count={len(SENT)}", {})
    assert [int(message["payload"]) for message in got["messages"]] == EXPECTED
