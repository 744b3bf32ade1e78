"""The small API that message-queue tutorials use, by a client of the kind that they show."""

from __future__ import annotations

import json
from typing import Any

from websockets.sync.client import connect

from tests.protocols.http.kit import Answer, Http, name
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for


class MessageQueueClient:
    """As tutorials write it, without asyncio."""

    def __init__(self, http: Http) -> None:
        self._http = http

    def enqueue(self, queue: str, message: Any, priority: int = 1, ttl: int | None = None, delay: float = 0) -> Any:
        payload = {"queue": queue, "message": message, "priority": priority, "ttl": ttl, "delay": delay}
        return self._http("POST", "/queue/enqueue", payload).json

    def dequeue(self, queue: str, timeout: int = 0) -> Any:
        answer = self._http("GET", f"/queue/dequeue?queue={name(queue)}&timeout={timeout}")
        return answer.json if answer.status == 200 else None

    def acknowledge(self, ack_id: str) -> Answer:
        return self._http("POST", "/queue/ack", {"ack_id": ack_id}, ok=False)

    def publish(self, channel: str, message: Any) -> Any:
        return self._http("POST", "/pubsub/publish", {"channel": channel, "message": message}).json


def test_its_client_puts_takes_and_acknowledges(http: Http) -> None:
    client, queue = MessageQueueClient(http), unique("orders/ü")
    assert client.enqueue(queue, {"item": "Laptop", "qty": 1})["queue"] == queue
    client.enqueue(queue, {"item": "Mouse", "qty": 2}, priority=2)
    client.enqueue(queue, ["Keyboard", None], ttl=3600)
    stats = http("GET", f"/queue/{name(queue)}/stats").json
    assert stats == {"name": queue, "total_messages": 3, "pending": 0, "available": 3, "delayed": 0}
    first = client.dequeue(queue)
    assert first["body"] == {"item": "Mouse", "qty": 2}
    assert (first["queue_name"], first["priority"], first["retry_count"]) == (queue, 2, 0)
    assert client.acknowledge(first["ack_id"]).json == {"acknowledged": True}
    assert [client.dequeue(queue)["body"], client.dequeue(queue)["body"]] == [
        {"item": "Laptop", "qty": 1},
        ["Keyboard", None],
    ]
    assert client.dequeue(queue) is None
    assert http("GET", f"/queue/{name(queue)}/stats").json["pending"] == 2


def test_an_ack_id_works_once(http: Http) -> None:
    client, queue = MessageQueueClient(http), unique("q")
    client.enqueue(queue, "x")
    taken = client.dequeue(queue)
    assert client.acknowledge(taken["ack_id"]).status == 200
    again = client.acknowledge(taken["ack_id"])
    assert (again.status, again.error) == (409, "Conflict")


def test_a_rejected_message_is_retried_or_dead_lettered(http: Http) -> None:
    client, queue = MessageQueueClient(http), unique("q")
    http("PUT", f"/v1/queues/{queue}", {"dead_letter": f"{queue}.dead", "retry_base_ms": 1, "retry_max_ms": 1})
    client.enqueue(queue, "x")
    first = client.dequeue(queue)
    rejected = http("POST", "/queue/reject", {"ack_id": first["ack_id"], "error": "no printer"})
    assert rejected.json == {"rejected": True}
    assert http.refused("POST", "/queue/reject", {"ack_id": first["ack_id"]}) == (409, "Conflict")
    again = client.dequeue(queue, timeout=int(DEADLINE_S))
    assert (again["body"], again["retry_count"]) == ("x", 1)
    http("POST", "/queue/reject", {"ack_id": again["ack_id"], "requeue": False})
    assert client.dequeue(f"{queue}.dead", timeout=int(DEADLINE_S))["body"] == "x"
    assert client.dequeue(queue) is None


def test_purge_deletes_what_is_not_in_flight(http: Http) -> None:
    client, queue = MessageQueueClient(http), unique("q")
    for body in ("in flight", "ready", "ready"):
        client.enqueue(queue, body)
    client.enqueue(queue, "delayed", delay=3600)
    taken = client.dequeue(queue)
    assert http("POST", "/queue/purge", {"queue": queue}).json == {"purged": 3}
    stats = http("GET", f"/queue/{queue}/stats").json
    assert (stats["pending"], stats["total_messages"]) == (1, 1)
    assert client.acknowledge(taken["ack_id"]).status == 200
    assert http.refused("POST", "/queue/purge", {"queue": unique("none")}) == (404, "NotFound")
    assert http.refused("GET", "/queue/purge?queue=x")[0] in (404, 405)  # what changes something is a POST


def test_a_channel_has_a_history(http: Http) -> None:
    client, channel = MessageQueueClient(http), unique("notifications")
    assert http("GET", f"/pubsub/history?{channel}").json == {"channel": channel, "messages": []}
    for number in range(12):
        client.publish(channel, {"n": number})
    latest = http("GET", "/pubsub/history", channel=channel).json["messages"]
    assert [one["message"]["n"] for one in latest] == list(range(2, 12))
    assert {one["channel"] for one in latest} == {channel}
    assert all(one["timestamp"] for one in latest)
    assert len(http("GET", "/pubsub/history", channel=channel, limit=3).json["messages"]) == 3
    assert http.refused("GET", f"/pubsub/history?channel={channel}&limit=1001") == (400, "Invalid")


def test_pubsub_stats_count_channels_and_subscriptions(http: Http) -> None:
    client, prefix = MessageQueueClient(http), unique("news")
    for channel in ("a", "b", "c"):
        client.publish(f"{prefix}.{channel}", 0)
    before = http("GET", "/pubsub/stats").json
    url = f"ws://{http.address}/pubsub/subscribe?channel={prefix}"
    with connect(f"{url}.*"), connect(f"{url}.a"):
        stats = http("GET", "/pubsub/stats").json
        ours = {name: count for name, count in stats["channels"].items() if name.startswith(prefix)}
        assert ours == {f"{prefix}.a": 2, f"{prefix}.b": 1, f"{prefix}.c": 1}
        assert stats["total_channels"] == before["total_channels"] + 3
        assert stats["total_subscriptions"] == before["total_subscriptions"] + 2
        page = http("GET", "/pubsub/stats", limit=1, after=f"{prefix}.a").json
        assert page["channels"] == {f"{prefix}.b": 1}
        assert page["next"] == f"{prefix}.b"


def test_dequeue_waits_so_many_seconds(http: Http) -> None:
    client, queue = MessageQueueClient(http), unique("q")
    client.enqueue(queue, "later", delay=0.1)
    assert client.dequeue(queue) is None
    assert client.dequeue(queue, timeout=int(DEADLINE_S))["body"] == "later"


def test_the_name_may_stand_alone_in_the_query_as_its_client_writes_it(http: Http) -> None:
    client, queue = MessageQueueClient(http), unique("q")
    client.enqueue(queue, "x")
    assert http("GET", f"/queue/dequeue?{queue}&timeout=0").json["body"] == "x"
    assert http("GET", f"/queue/dequeue?{queue}&timeout=0").status == 204
    assert http.refused("GET", "/queue/dequeue?timeout=0") == (400, "Invalid")


def test_subscribers_get_what_is_published_to_their_channel(http: Http) -> None:
    client, channel = MessageQueueClient(http), unique("notifications")
    assert client.publish(channel, "Hello World!") == {"delivered": 0}
    with connect(f"ws://{http.address}/pubsub/subscribe?{channel}") as socket:
        assert client.publish(channel, {"text": "New message"}) == {"delivered": 1}
        got = json.loads(socket.recv(timeout=DEADLINE_S))
        assert (got["channel"], got["message"]) == (channel, {"text": "New message"})
        assert got["timestamp"]
    wait_for(lambda: client.publish(channel, "x") == {"delivered": 0}, "the subscriber is gone")
    with connect(f"ws://{http.address}/pubsub/subscribe?channel={channel}&history=1") as socket:
        assert json.loads(socket.recv(timeout=DEADLINE_S))["message"] == "x"


def test_a_channel_may_be_a_pattern(http: Http) -> None:
    client, prefix = MessageQueueClient(http), unique("news")
    with connect(f"ws://{http.address}/pubsub/subscribe?channel={prefix}.*") as socket:
        client.publish(f"{prefix}.sport", 1)
        assert json.loads(socket.recv(timeout=DEADLINE_S))["channel"] == f"{prefix}.sport"


def test_what_other_protocols_put_is_taken_here(http: Http, queue: str) -> None:
    http.put(queue, "plain text", {"payload_base64": "/wA="}, {"json": {"a": 1}})
    client = MessageQueueClient(http)
    assert [client.dequeue(queue)["body"] for _ in range(3)] == ["plain text", "/wA=", {"a": 1}]


def test_what_makes_no_sense_is_refused_by_field(http: Http) -> None:
    for body, field in (
        ({"message": 1}, "queue"),
        ({"queue": "q"}, "message"),
        ({"queue": "q", "message": 1, "priority": 256}, "priority"),
        ({"queue": "q", "message": 1, "delay": -1}, "delay"),
        ({"queue": "q", "message": 1, "ttl": 0}, "ttl"),
    ):
        answer = http("POST", "/queue/enqueue", body, ok=False)
        assert (answer.status, answer.json["field"]) == (400, field)
    assert http.refused("POST", "/pubsub/publish", {"channel": "a/b", "message": 1}) == (400, "InvalidTopicName")
    assert http.refused("GET", "/pubsub/subscribe?channel=x") == (400, "Invalid")
    assert http.refused("GET", "/queue/not-there/stats") == (404, "NotFound")
