"""A broker that is killed while messages are in flight: they are redelivered as what they are, and die in time."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pika
import pytest

import waystation as ws
from tests.support.server import Server
from tests.support.waiting import wait_for

MESSAGES = 20
LIMIT = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path) as server:
        yield server


def _url(server: Server) -> str:
    return f"waystation://{server.bootstrap}"


def _amqp(server: Server) -> pika.BlockingConnection:
    host, _, port = server.addresses["amqp"].rpartition(":")
    return pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))


def _native_get(server: Server) -> list[tuple[str, int]]:
    """(payload, delivery count) of what was in flight when the broker was killed, in the moment of its delivery."""
    mq = ws.connect(_url(server))
    messages = mq.queue("jobs").get_many(MESSAGES, timeout=5)
    server.kill()
    mq.close()
    return [(message.text(), message.deliveries) for message in messages]


def _amqp_consume(server: Server) -> list[tuple[str, int]]:
    """AMQP says whether it was delivered before, not how often."""
    got = []
    channel = _amqp(server).channel()
    for method, _, body in channel.consume("jobs", inactivity_timeout=5):
        assert method is not None
        got.append((body.decode(), 1 + method.redelivered))
        if len(got) == MESSAGES:
            break
    server.kill()
    return got


def _amqp_get(server: Server) -> list[tuple[str, int]]:
    channel = _amqp(server).channel()
    found = [channel.basic_get("jobs") for _ in range(MESSAGES)]
    server.kill()
    return [(body.decode(), 1 + method.redelivered) for method, _, body in found]


def _http_take(server: Server) -> list[tuple[str, int]]:
    request = urllib.request.Request(
        f"http://{server.addresses['http']}/v1/queues/jobs/take?count={MESSAGES}", b"", method="POST"
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        messages: list[dict[str, Any]] = json.loads(answer.read())["messages"]
    server.kill()
    return [(message["payload"], message["deliveries"]) for message in messages]


CONSUMERS = [_native_get, _amqp_consume, _amqp_get, _http_take]


@pytest.mark.parametrize("consume", CONSUMERS)
def test_what_was_in_flight_when_the_broker_was_killed_is_marked_as_redelivered(
    server: Server, consume: Callable[[Server], list[tuple[str, int]]]
) -> None:
    sent = [str(number) for number in range(MESSAGES)]
    with ws.connect(_url(server)) as mq:
        mq.queue("jobs", hold=60).put_many(sent)
    assert consume(server) == [(text, 1) for text in sent]
    server.restart()
    assert consume(server) == [(text, 2) for text in sent]
    server.restart()
    with ws.connect(_url(server)) as mq:
        messages = mq.queue("jobs").get_many(MESSAGES, timeout=5)
        assert [message.text() for message in messages] == sent
        assert {message.deliveries for message in messages} == {3}
        assert all(message.redelivered for message in messages)


def test_a_message_that_kills_the_broker_at_each_delivery_is_dead_lettered(server: Server) -> None:
    with ws.connect(_url(server)) as mq:
        mq.queue("dead")
        mq.queue("jobs", max_deliveries=LIMIT, dead_letter="dead", hold=60).put("poison")
    for count in range(1, LIMIT + 1):
        mq = ws.connect(_url(server))
        message = mq.queue("jobs").get(timeout=5)
        server.kill()
        mq.close()
        assert message is not None
        assert message.deliveries == count
        server.restart()
    with ws.connect(_url(server)) as mq:
        wait_for(lambda: len(mq.queue("dead")), "the message has been dead-lettered")
        assert len(mq.queue("jobs")) == 0
        letter = mq.queue("dead").get(timeout=5)
        assert letter is not None
        assert [(death["reason"], death["deliveries"]) for death in letter.deaths] == [("delivery-limit", LIMIT)]


def test_what_was_only_waiting_or_acknowledged_is_not_counted(server: Server) -> None:
    with ws.connect(_url(server)) as mq:
        jobs = mq.queue("jobs", hold=60)
        jobs.put_many(str(number) for number in range(10))
        messages = jobs.get_many(5, timeout=5)
        jobs.ack_many(messages[:2])
    mq = ws.connect(_url(server))
    again = mq.queue("jobs").get_many(1, timeout=5)
    server.kill()
    mq.close()
    assert [(one.text(), one.deliveries) for one in again] == [("2", 2)]
    for _ in range(2):  # a crash in which nothing was in flight changes no count
        server.restart()
        server.kill()
    server.restart()
    with ws.connect(_url(server)) as mq:
        found = [(one.text(), one.deliveries) for one in mq.queue("jobs").get_many(10, timeout=5)]
    assert found == [("2", 3), ("3", 2), ("4", 2), *[(str(number), 1) for number in range(5, 10)]]
