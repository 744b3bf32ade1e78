"""A message as a JSON object, and back."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import Invalid
from waystation.message import LATEST_MS, Delivered, Message, check_message
from waystation.message_json import FIELDS, from_json_object, id_of, to_json_object

text = st.text(max_size=30).filter(lambda value: value.isprintable())
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
messages = st.builds(
    Message,
    payload=st.binary(max_size=60) | text.map(str.encode),
    id=st.none() | st.text(min_size=1, max_size=255),
    key=st.none() | st.binary(max_size=20) | text.map(str.encode),
    headers=st.dictionaries(text, json_values | st.binary(max_size=10), max_size=4),
    priority=st.integers(0, 255),
    delay_ms=st.integers(0, 10**9),
    deliver_at_ms=st.none() | st.integers(0, LATEST_MS),
    ttl_ms=st.none() | st.integers(1, 10**9),
    correlation_id=st.none() | text,
    reply_to=st.none() | text,
    content_type=st.none() | text,
    type=st.none() | text,
    max_deliveries=st.integers(0, 100),
    timestamp_ms=st.none() | st.integers(-(10**15), 10**15),
    exchange=st.none() | text,
    routing_key=st.none() | text,
    content_encoding=st.none() | text,
    delivery_mode=st.integers(0, 255),
    user_id=st.none() | text,
    app_id=st.none() | text,
)


@given(messages)
def test_every_message_survives_the_way_out_and_in(message: Message) -> None:
    check_message(message)
    line = msgspec.json.encode(to_json_object(message))
    assert from_json_object(msgspec.json.decode(line)) == message


@given(messages, st.integers(0, 2**40), st.integers(0, 2**30))
def test_what_was_received_can_be_sent_on(message: Message, tag: int, offset: int) -> None:
    delivered = Delivered(tag, 2, 5, message, "topic", 1, offset)
    found = to_json_object(delivered)
    assert (found["tag"], found["deliveries"], found["source"], found["offset"]) == (tag, 2, "topic", offset)
    again = from_json_object(found)
    assert again.id == (message.id or f"topic-1@{offset}")
    assert msgspec.structs.replace(again, id=message.id) == message


def test_an_id_is_its_own_or_its_place() -> None:
    message = Message(b"")
    assert id_of(Delivered(4, 1, 0, message), "jobs") == "jobs#4"
    assert id_of(Delivered(4, 1, 0, message, "t", 2, 9)) == "t-2@9"
    assert id_of(Delivered(4, 1, 0, Message(b"", id="own"), "t", 2, 9), "jobs") == "own"
    assert id_of(Delivered(4, 1, 0, message)) is None


def test_bytes_have_three_spellings() -> None:
    assert from_json_object({"payload": "é"}).payload == "é".encode()
    assert from_json_object({"payload": "/w==", "encoding": "base64"}).payload == b"\xff"
    assert from_json_object({"payload_base64": "/w=="}).payload == b"\xff"
    assert from_json_object({"json": {"a": [1, None]}}) == Message(b'{"a":[1,null]}', content_type="application/json")
    assert from_json_object({"json": None, "content_type": "x"}) == Message(b"null", content_type="x")
    assert to_json_object(Message(b"\xff")) == {"payload": "/w==", "encoding": "base64"}


def test_null_says_nothing() -> None:
    nothing = dict.fromkeys(FIELDS - {"payload", "payload_base64", "json"})
    assert from_json_object({"payload": "x", **nothing}) == Message(b"x")


@pytest.mark.parametrize(
    ("given_object", "field"),
    [
        (None, "message"),
        ([], "message"),
        ({}, "payload"),
        ({"payload": b"x"}, "payload"),
        ({"payload": "x", "payload_base64": "eA=="}, "payload"),
        ({"payload": "\ud800"}, "payload"),
        ({"payload_base64": "a"}, "payload_base64"),
        ({"payload_base64": "a b="}, "payload_base64"),
        ({"payload_base64": 5}, "payload_base64"),
        ({"payload": "x", "encoding": "rot13"}, "encoding"),
        ({"json": 1, "encoding": "base64"}, "encoding"),
        ({"json": object()}, "json"),
        ({"payload": "x", "key": 5}, "key"),
        ({"payload": "x", "key": "a", "key_base64": "YQ=="}, "key"),
        ({"payload": "x", "headers": "a"}, "headers"),
        ({"payload": "x", "headers": {5: "a"}}, "headers"),
        ({"payload": "x", "headers": {"a": "\ud800"}}, "headers.a"),
        ({"payload": "x", "headers": {"a": [2**64]}}, "headers.a"),
        ({"payload": "x", "headers_base64": {"a": "!"}}, "headers_base64.a"),
        ({"payload": "x", "id": 5}, "id"),
        ({"payload": "x", "id": ""}, "id"),
        ({"payload": "x", "priority": "9"}, "priority"),
        ({"payload": "x", "priority": True}, "priority"),
        ({"payload": "x", "priority": 256}, "priority"),
        ({"payload": "x", "delay_ms": 0.5}, "delay_ms"),
        ({"payload": "x", "delay_ms": math.inf}, "delay_ms"),
        ({"payload": "x", "delay_ms": math.nan}, "delay_ms"),
        ({"payload": "x", "ttl_ms": 0}, "ttl_ms"),
        ({"payload": "x", "ttl_ms": 1e300}, "ttl_ms"),
        ({"payload": "x", "deliver_at_ms": -1}, "deliver_at_ms"),
        ({"payload": "x", "max_deliveries": -1}, "max_deliveries"),
        ({"payload": "x", "delivery_mode": 256}, "delivery_mode"),
        ({"payload": "x", "exchange": 5}, "exchange"),
        ({"payload": "x", "priorty": 5}, "priorty"),
    ],
)
def test_what_makes_no_sense_names_the_field(given_object: Any, field: str) -> None:
    with pytest.raises(Invalid) as caught:
        from_json_object(given_object)
    assert str(caught.value).startswith(f"{field}:")


def test_a_field_that_does_not_exist_names_the_nearest() -> None:
    with pytest.raises(Invalid, match="did you mean priority"):
        from_json_object({"payload": "x", "priorty": 5})


@given(json_values | st.dictionaries(st.sampled_from(sorted(FIELDS)), json_values))
def test_anything_becomes_a_message_or_an_error(value: Any) -> None:
    try:
        check_message(from_json_object(value))
    except Invalid as error:
        text = str(error)
        assert ":" in text


def test_what_json_does_not_have_is_text_in_headers() -> None:
    """json.dumps can write it, whoever sent it: AMQP's timestamps, bytes in lists, msgpack's extensions."""
    moment = datetime(2024, 5, 6, 12, 0, 0, tzinfo=UTC)
    headers = {"at": moment, "list": [b"\xff", moment], "map": {"at": moment}, "ext": msgspec.msgpack.Ext(7, b"\xff")}
    assert json.loads(json.dumps(to_json_object(Message(b"", headers=headers))))["headers"] == {
        "at": "2024-05-06T12:00:00Z",
        "list": ["/w==", "2024-05-06T12:00:00Z"],
        "map": {"at": "2024-05-06T12:00:00Z"},
        "ext": "/w==",
    }


def test_a_field_with_an_endless_name_is_refused_in_a_few_words() -> None:
    with pytest.raises(Invalid) as refused:
        from_json_object({"ab" * 1_000_000: 1})
    assert len(str(refused.value)) < 200
