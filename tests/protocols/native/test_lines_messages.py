"""Messages: content, headers, priorities, times; shown with nothing but a socket and JSON."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from tests.protocols.native.kit import Frames, JsonLines
from tests.support.names import unique
from tests.support.server import Server
from waystation.message import Message
from waystation.protocol import Get, Put

EVERYTHING: dict[str, Any] = {
    "id": "m-1",
    "payload": "grüße",
    "key": "k",
    "headers": {"text": "é", "number": 5, "yes": True, "nothing": None, "list": [1, "a"], "object": {"a": 1}},
    "priority": 7,
    "ttl_ms": 3_600_000,
    "correlation_id": "c",
    "reply_to": "somewhere",
    "content_type": "text/plain",
    "type": "event",
    "max_deliveries": 4,
    "timestamp_ms": 1_700_000_000_000,
}


def _of_sender(message: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name in EVERYTHING or name in ("encoding", "key_base64")}


def test_every_field_comes_back_from_a_queue(lines: JsonLines) -> None:
    queue = lines.queue(unique("m1"))
    lines.put(queue, EVERYTHING)
    (message,) = lines.get(queue)
    assert _of_sender(message) == EVERYTHING
    assert (message["deliveries"], message["queue"]) == (1, queue)
    assert abs(message["taken_ms"] - time.time() * 1000) < 60_000


def test_every_field_comes_back_from_a_topic(lines: JsonLines) -> None:
    topic = unique("m1")
    lines.ask("publish_messages", topic=topic, message=EVERYTHING)
    lines.ask("subscribe_topics", consumer=1, topics=[topic], mode="shared", group=topic, start="earliest", credit=1)
    (message,) = lines.delivered(1)
    found = _of_sender(message)
    # Headers cross a topic as Kafka has them: values that are not text become their JSON.
    assert found.pop("headers") == {
        "text": "é",
        "number": "5",
        "yes": "true",
        "nothing": None,
        "list": '[1,"a"]',
        "object": '{"a":1}',
    }
    assert found == {name: value for name, value in EVERYTHING.items() if name != "headers"}
    assert (message["source"], message["partition"], message["offset"]) == (topic, 0, 0)


def test_bytes_that_are_no_text_survive(lines: JsonLines, frames: Frames) -> None:
    queue = lines.queue(unique("m1"))
    raw = bytes(range(256))
    text = base64.b64encode(raw).decode()
    lines.put(queue, {"payload_base64": text, "key_base64": text, "headers_base64": {"h": text}})
    lines.put(queue, {"payload": text, "encoding": "base64"})
    got = frames.ask(Get(queue=queue, count=2))
    assert [delivered[3][0] for delivered in got["messages"]] == [raw, raw]
    frames.ask(Put(queue=queue, messages=[Message(raw, key=raw, headers={"h": raw, "t": "x"})]))
    (message,) = lines.get(queue)
    assert (message["payload"], message["encoding"]) == (text, "base64")
    assert (message["key_base64"], message["headers_base64"], message["headers"]) == (text, {"h": text}, {"t": "x"})
    del message["consumer"]
    lines.put(queue, message)  # as it came
    (again,) = frames.ask(Get(queue=queue))["messages"]
    assert (again[3][0], again[3][2], again[3][3]) == (raw, raw, {"h": raw, "t": "x"})


def test_text_json_and_bytes(lines: JsonLines) -> None:
    queue = lines.queue(unique("m2"))
    lines.put(queue, {"payload": "text"}, {"json": {"a": [1, None]}}, {"payload_base64": "AP8="})
    text, json_value, binary = lines.get(queue, 3)
    assert text["payload"] == "text"
    assert (json_value["payload"], json_value["content_type"]) == ('{"a":[1,null]}', "application/json")
    assert (binary["payload"], binary["encoding"]) == ("AP8=", "base64")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({}, "payload"),
        ({"payload": 5}, "payload"),
        ({"payload": "a", "json": 1}, "payload"),
        ({"payload": "a", "encoding": "hex"}, "encoding"),
        ({"payload_base64": "!"}, "payload_base64"),
        ({"payload": "a", "priority": 256}, "priority"),
        ({"payload": "a", "priority": "high"}, "priority"),
        ({"payload": "a", "delay_ms": -1}, "delay_ms"),
        ({"payload": "a", "ttl_ms": 0}, "ttl_ms"),
        ({"payload": "a", "ttl_ms": 1.5}, "ttl_ms"),
        ({"payload": "a", "headers": []}, "headers"),
        ({"payload": "a", "headers": {"n": 2**80}}, "headers.n"),
        ({"payload": "a", "id": ""}, "id"),
        ({"payload": "a", "id": "x" * 256}, "id"),
        ({"payload": "a", "colour": "red"}, "colour"),
        ([], "message"),
    ],
)
def test_a_message_that_makes_no_sense_names_the_field(lines: JsonLines, message: Any, field: str) -> None:
    queue = lines.queue(unique("m1"))
    refused = lines.refusal("put", queue=queue, messages=[message])
    assert refused.kind == "Invalid"
    assert refused.text.startswith(f"{field}:")
    assert lines.counts(queue) == (0, 0, 0)


def test_a_payload_over_the_limit_is_too_large(lines: JsonLines) -> None:
    """A queue takes larger ones than a topic: more than a line can hold."""
    large = {"payload": "x" * (2 * 1024 * 1024)}
    assert lines.ask("put", queue=lines.queue(unique("m1")), message=large)["count"] == 1
    assert lines.refusal("publish_messages", topic=unique("m1"), message=large).kind == "TooLarge"


def test_a_message_is_found_by_its_id(lines: JsonLines) -> None:
    queue, topic = lines.queue(unique("m4")), unique("m4")
    mine, yours = unique("id"), unique("id")
    lines.put(queue, {"payload": "in a queue", "id": mine, "delay_ms": 10**9}, "anonymous")
    lines.ask("publish_messages", topic=topic, messages=[{"payload": "in a topic", "id": yours}, {"payload": "x"}])
    found = lines.ask("find", message_id=mine)
    assert (found["place"], found["state"]) == (f"queue:{queue}", "parked")
    assert found["message"]["payload"] == "in a queue"
    assert lines.ask("find", message_id=f"{queue}#1")["message"]["payload"] == "anonymous"
    assert lines.ask("find", message_id=yours, topic=topic)["place"] == f"topic:{topic}"
    assert lines.ask("find", message_id=f"{topic}-0@1")["message"]["payload"] == "x"
    assert lines.ask("find", message_id="nobody") is None
    assert lines.ask("find", message_id=mine, queue=queue)["place"] == f"queue:{queue}"


def test_an_id_counts_once_in_its_window(lines: JsonLines) -> None:
    queue = lines.queue(unique("m5"), dedup_window_ms=3_600_000)
    lines.put(queue, {"payload": "a", "id": "1"})
    answer = lines.put(
        queue, {"payload": "b", "id": "2"}, {"payload": "a again", "id": "1"}, {"payload": "b", "id": "2"}
    )
    assert (answer["count"], answer["duplicates"]) == (1, [1, 2])
    assert lines.get_payloads(queue) == ["a", "b"]


def test_the_window_survives_a_restart(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        with JsonLines(server.bootstrap) as lines:
            lines.queue("once", dedup_window_ms=3_600_000)
            lines.put("once", {"payload": "a", "id": "1"})
        server.kill()
        server.restart()
        with JsonLines(server.bootstrap) as lines:
            assert lines.put("once", {"payload": "a", "id": "1"})["duplicates"] == [0]
            assert lines.get_payloads("once") == ["a"]
