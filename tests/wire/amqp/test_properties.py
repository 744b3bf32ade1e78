"""Basic properties ↔ messages: what AMQP clients say comes back to them, and pamqp agrees on the bytes."""

from __future__ import annotations

import struct
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pamqp import commands

from waystation.message import MAX_HORIZON_MS, AmqpDetails, Message, check_message, size_of
from waystation.routing.namespace_names import NamespaceNames
from waystation.wire.amqp.errors import AmqpError
from waystation.wire.amqp.properties import encode, template_of
from waystation.wire.amqp.tables import encode_table
from waystation.wire.amqp.template import AT_ONCE_MS, MAX_CACHED_BYTES

HERE = NamespaceNames("/")
SHOP = NamespaceNames("shop")
NOON = datetime(2024, 5, 6, 12, 0, 0, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1000

short = st.text(max_size=60)
headers = st.dictionaries(
    st.text(min_size=1, max_size=20).filter(lambda name: name not in ("CC", "BCC")),
    st.text() | st.integers(-(2**63), 2**63 - 1) | st.booleans() | st.none() | st.lists(st.text()),
    min_size=1,
    max_size=5,
)
said = st.fixed_dictionaries(
    {},
    optional={
        "content_type": short,
        "content_encoding": short,
        "headers": headers,
        "delivery_mode": st.integers(1, 2),
        "priority": st.integers(1, 255),
        "correlation_id": short,
        "reply_to": short,
        "expiration": st.integers(1, 10**10).map(str),
        "message_id": st.text(min_size=1, max_size=60),
        "timestamp": st.integers(0, 2**32 - 1).map(lambda at: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)),
        "message_type": short,
        "user_id": short,
        "app_id": short,
    },
)


def blob(**fields: Any) -> bytes:
    """The properties as pamqp writes them."""
    return commands.Basic.Properties(**fields).marshal()


def unblob(data: bytes) -> dict[str, Any]:
    """The properties as pamqp reads them."""
    found = commands.Basic.Properties()
    found.unmarshal(struct.unpack_from(">H", data)[0], data[2:])
    return {name: value for name, value in dict(found).items() if value is not None and name != "cluster_id"}


def made(**fields: Any) -> Message:
    message = template_of(blob(**fields)).make(b"body", "ex", "key")
    check_message(message)
    return message


def table_blob(table: dict[str, Any]) -> bytes:
    """Only headers, with types that pamqp does not write."""
    return b"\x20\x00" + encode_table(table)


# -- fields ------------------------------------------------------------------------------------------------------------


def test_every_property_is_a_field() -> None:
    assert made(
        content_type="text/plain",
        content_encoding="gzip",
        headers={"h": "v"},
        delivery_mode=2,
        priority=7,
        correlation_id="c",
        reply_to="r",
        expiration="1500",
        message_id="m",
        timestamp=NOON,
        message_type="t",
        user_id="u",
        app_id="a",
        cluster_id="",
    ) == Message(
        b"body",
        id="m",
        headers={"h": "v"},
        priority=7,
        ttl_ms=1500,
        correlation_id="c",
        reply_to="r",
        content_type="text/plain",
        type="t",
        timestamp_ms=NOON_MS,
        exchange="ex",
        routing_key="key",
        content_encoding="gzip",
        delivery_mode=2,
        user_id="u",
        app_id="a",
    )


def test_nothing_said_is_a_plain_message() -> None:
    assert made() == Message(b"body", exchange="ex", routing_key="key")
    assert encode(Message(b"body"), HERE) == b"\x00\x00"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x08\x00\x00", id="priority 0"),
        pytest.param(b"\x10\x00\x00", id="delivery mode 0"),
        pytest.param(b"\x20\x00" + bytes(4), id="no headers"),
        pytest.param(b"\x00\x80\x00", id="empty message id"),
        pytest.param(b"\x00\x04\x03abc", id="cluster id"),
        pytest.param(b"\x00\x04\x00", id="empty cluster id"),
        pytest.param(b"\xff\xfc\x00\x00" + bytes(4) + b"\x00\x00\x00\x00\x0220\x00" + bytes(12), id="everything"),
    ],
)
def test_what_says_nothing_comes_back_as_it_was_sent(data: bytes) -> None:
    message = template_of(data).make(b"body", "ex", "key")
    check_message(message)
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)
    assert encode(stored, HERE) == encode(stored, HERE) == data


def test_an_empty_message_id_gives_way_to_one_that_a_dead_letter_gets() -> None:
    message = msgspec.structs.replace(template_of(b"\x00\x80\x00").make(b"", "", ""), id="q#1")
    assert encode(message, HERE) == b"\x00\x80\x03q#1"


def test_what_no_amqp_client_can_have_said_is_left_out() -> None:
    """Clients of the native protocol may put anything there."""
    message = Message(b"", amqp=AmqpDetails(0xFFFF, "c" * 256))
    assert unblob(encode(message, HERE)) == {"headers": {}, "priority": 0, "delivery_mode": 0, "message_id": ""}


@given(said)
def test_what_was_said_comes_back(said: dict[str, Any]) -> None:
    message = template_of(blob(**said)).make(b"body", "ex", "key")
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)
    assert stored == message
    assert unblob(encode(stored, HERE)) == unblob(blob(**said))


@given(said)
def test_messages_of_one_template_are_alike_and_apart(said: dict[str, Any]) -> None:
    template = template_of(blob(**said))
    one, other = template.make(b"1", "a", "b"), template_of(blob(**said)).make(b"1", "a", "b")
    assert one == other
    one.headers["new"] = 1
    assert "new" not in other.headers
    assert "new" not in template.make(b"1", "a", "b").headers


def test_the_same_short_bytes_are_read_once() -> None:
    data = blob(delivery_mode=2, content_type="a/b")
    assert template_of(data) is template_of(bytes(bytearray(data)))
    long = blob(headers={"h": "x" * MAX_CACHED_BYTES})
    assert template_of(long) is not template_of(long)


# -- header values as they were sent -----------------------------------------------------------------------------------


def typed(letter: str, size: int) -> st.SearchStrategy[bytes]:
    """Values of one type, any bits."""
    return st.binary(min_size=size, max_size=size).map(lambda value: letter.encode() + value)


def sized(letter: str, content: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return content.map(lambda value: letter.encode() + struct.pack(">I", len(value)) + value)


def named(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """The entries of a table."""
    names = st.text(min_size=1, max_size=8).filter(lambda name: name not in ("CC", "BCC")).map(str.encode)
    return st.dictionaries(names, values, min_size=1, max_size=4).map(
        lambda table: b"".join(bytes([len(name)]) + name + value for name, value in table.items())
    )


not_nan = st.floats(allow_nan=False)
values = st.recursive(
    st.one_of(
        *(typed(letter, size) for letter, size in zip("bBsuIilLtTD", (1, 1, 2, 2, 4, 4, 8, 8, 1, 8, 5), strict=True)),
        st.floats(allow_nan=False, width=32).map(lambda number: b"f" + struct.pack(">f", number)),
        not_nan.map(lambda number: b"d" + struct.pack(">d", number)),
        sized("S", st.binary(max_size=8)),
        sized("x", st.binary(max_size=8)),
        st.just(b"V"),
    ),
    lambda inner: sized("A", st.lists(inner, max_size=3).map(b"".join)) | sized("F", named(inner)),
    max_leaves=8,
)


@given(named(values))
def test_header_values_come_back_byte_by_byte(table: bytes) -> None:
    data = b"\x20\x00" + struct.pack(">I", len(table)) + table
    message = template_of(data).make(b"body", "ex", "key")
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)
    assert encode(stored, HERE) == data
    one_more = encode(stored, HERE, {"x-delivery-count": 1})
    assert one_more.startswith(table, 6)
    assert one_more[6 + len(table) :] == b"\x10x-delivery-countl" + struct.pack(">q", 1)


ODD = b"\x01ab\x05" + b"\x01bI\x00\x00\x00\x06" + b"\x01cf" + struct.pack(">f", 2.32)


def test_values_that_others_write_alike_take_no_room() -> None:
    message = template_of(b"\x20\x00" + struct.pack(">I", len(ODD)) + ODD).make(b"", "", "")
    assert message.amqp == AmqpDetails(values=(("a", b"b\x05"), ("c", b"f" + struct.pack(">f", 2.32))))
    assert size_of(message) > size_of(msgspec.structs.replace(message, amqp=None))
    assert made(headers={"text": "x", "big": 2**40, "none": None, "when": NOON}).amqp is None


def test_a_header_that_was_changed_has_its_new_value() -> None:
    message = template_of(b"\x20\x00" + struct.pack(">I", len(ODD)) + ODD).make(b"", "", "")
    changed = msgspec.structs.replace(message, headers={"c": message.headers["c"], "a": 6, "d": True})
    table = b"\x01cf" + struct.pack(">f", 2.32) + b"\x01aI\x00\x00\x00\x06" + b"\x01dt\x01"
    assert encode(changed, HERE) == b"\x20\x00" + struct.pack(">I", len(table)) + table


@given(st.binary(max_size=20) | values)
def test_what_was_never_sent_is_not_written(claimed: bytes) -> None:
    """Clients of the native protocol may claim anything."""
    message = Message(b"", headers={"a": 5}, amqp=AmqpDetails(values=(("a", claimed), ("b", claimed))))
    table = unblob(encode(message, HERE))["headers"]
    assert table == {"a": 5}
    assert encode(Message(b"", amqp=AmqpDetails(values=(("a", claimed),))), HERE) == b"\x00\x00"


def test_an_empty_message_id_is_none() -> None:
    assert template_of(b"\x00\x80\x00").make(b"", "", "").id is None


def test_a_timestamp_keeps_its_milliseconds_by_a_header() -> None:
    message = Message(b"", timestamp_ms=NOON_MS + 123)
    found = unblob(encode(message, HERE))
    assert found["timestamp"] == NOON
    assert found["headers"] == {"timestamp_in_ms": NOON_MS + 123}
    again = template_of(encode(message, HERE)).make(b"", "", "")
    assert (again.timestamp_ms, again.headers) == (NOON_MS + 123, {})
    odd = made(timestamp=NOON, headers={"timestamp_in_ms": 5})
    assert (odd.timestamp_ms, odd.headers) == (NOON_MS, {"timestamp_in_ms": 5})
    whole = made(timestamp=NOON, headers={"timestamp_in_ms": NOON_MS})
    assert (whole.timestamp_ms, whole.headers) == (NOON_MS, {"timestamp_in_ms": NOON_MS})
    before = unblob(encode(Message(b"", timestamp_ms=-5), HERE))
    assert before == {"headers": {"timestamp_in_ms": -5}}


def test_timestamps_in_headers_stay_timestamps() -> None:
    message = made(headers={"at": NOON, "deep": [{"at": NOON}]})
    stored = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=Message)
    assert unblob(encode(stored, HERE))["headers"] == {"at": NOON, "deep": [{"at": NOON}]}


# -- expiration --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("abc", "no_integer"),
        ("", "no_integer"),
        ("5.5", '{leftover_string,".5"}'),
        ("-5", "{value_negative,-5}"),
        ("315360000001", "{value_too_large,315360000001}"),
    ],
)
def test_an_invalid_expiration_is_refused_in_rabbitmqs_words(text: str, reason: str) -> None:
    data = b"\x01\x00" + bytes((len(text),)) + text.encode()
    with pytest.raises(AmqpError) as caught:
        template_of(data)
    assert (caught.value.code, caught.value.hard) == (406, False)
    assert caught.value.reply_text == f"PRECONDITION_FAILED - invalid expiration '{text}': {reason}"


def test_an_expiration_of_zero_is_the_shortest_time() -> None:
    assert made(expiration="0").ttl_ms == AT_ONCE_MS
    assert made(expiration="+7").ttl_ms == 7


# -- headers that say something ----------------------------------------------------------------------------------------


def test_fields_that_amqp_has_no_property_for_are_headers() -> None:
    message = made(headers={"x-delay": 5000, "x-deliver-at": NOON_MS, "x-max-deliveries": 3, "x-key": "k", "own": 1})
    assert (message.delay_ms, message.deliver_at_ms, message.max_deliveries, message.key) == (5000, NOON_MS, 3, b"k")
    assert message.headers == {"own": 1}
    assert unblob(encode(message, HERE))["headers"] == {
        "own": 1,
        "x-delay": -5000,
        "x-deliver-at": NOON_MS,
        "x-max-deliveries": 3,
        "x-key": "k",
    }


def test_sending_on_what_was_delayed_does_not_delay_it_again() -> None:
    message = made(headers={"x-delay": 5000})
    again = template_of(encode(message, HERE)).make(b"", "", "")
    assert (again.delay_ms, again.headers) == (0, {"x-delay": -5000})


@pytest.mark.parametrize("value", [-1, 0, True, 1.5, "soon", None, [5], MAX_HORIZON_MS + 1, "٣"])
def test_a_delay_that_is_none_stays_a_header(value: Any) -> None:
    message = template_of(table_blob({"x-delay": value})).make(b"", "", "")
    assert (message.delay_ms, message.headers) == (0, {"x-delay": value})


def test_numbers_may_be_text_and_a_time_a_timestamp() -> None:
    message = template_of(table_blob({"x-delay": "500", "x-deliver-at": NOON})).make(b"", "", "")
    assert (message.delay_ms, message.deliver_at_ms, message.headers) == (500, NOON_MS, {})


def test_a_key_may_be_any_bytes() -> None:
    message = template_of(table_blob({"x-key": b"\xff\x00"})).make(b"", "", "")
    assert message.key == b"\xff\x00"
    assert encode(message, HERE) == table_blob({"x-key": b"\xff\x00"})
    odd = template_of(table_blob({"x-key": 5})).make(b"", "", "")
    assert (odd.key, odd.headers) == (None, {"x-key": 5})


def test_cc_and_bcc_add_routing_keys() -> None:
    template = template_of(table_blob({"CC": ["a", "b"], "BCC": ["c", 7], "h": 1}))
    assert template.keys == ("a", "b", "c")
    assert template.make(b"", "", "").headers == {"CC": ["a", "b"], "h": 1}
    assert template_of(blob(delivery_mode=2)).keys == ()


@pytest.mark.parametrize("name", ["CC", "BCC"])
@pytest.mark.parametrize("value", ["a", 5, None, {"a": 1}])
def test_cc_that_is_no_list_is_refused(name: str, value: Any) -> None:
    with pytest.raises(AmqpError) as caught:
        template_of(table_blob({name: value}))
    assert (caught.value.code, caught.value.hard) == (406, False)
    assert f'invalid message: {{unacceptable_type_in_header,"{name}",' in caught.value.reply_text


def test_the_user_id_can_be_checked() -> None:
    assert template_of(blob(user_id="guest")).user_id == "guest"
    assert template_of(blob()).user_id is None


# -- out ---------------------------------------------------------------------------------------------------------------


def test_headers_of_the_delivery_win_and_have_64_bits() -> None:
    found = encode(Message(b"", headers={"x-delivery-count": "mine", "h": 1}), HERE, {"x-delivery-count": 2})
    assert unblob(found)["headers"] == {"h": 1, "x-delivery-count": 2}
    assert b"\x10x-delivery-countl" in found
    assert unblob(encode(Message(b""), HERE, {"x-stream-offset": 5})) == {"headers": {"x-stream-offset": 5}}


def test_texts_too_long_for_a_property_are_headers() -> None:
    long = "ä" * 200
    message = Message(b"", id=long, correlation_id=long, content_type=long, reply_to="r")
    assert unblob(encode(message, HERE)) == {
        "headers": {"x-message-id": long, "x-correlation-id": long, "x-content-type": long},
        "reply_to": "r",
    }


def test_plain_messages_may_say_much() -> None:
    long = "t" * 100_000
    for _ in range(2):
        assert unblob(encode(Message(b"", content_type=long), HERE)) == {"headers": {"x-content-type": long}}


def test_plain_messages_do_not_get_each_others_properties() -> None:
    fields = [{}, {"delivery_mode": 1}, {"delivery_mode": 2}, {"priority": 2}, {"ttl_ms": 2}, {"type": "2"}]
    fields += [{"user_id": "2"}, {"app_id": "2"}, {"delay_ms": 2}, {"max_deliveries": 2}, {"content_type": "2"}]
    fields += [{"content_encoding": "2"}, {"key": b"2"}, {"deliver_at_ms": 2}, {"reply_to": "2"}, {"id": "2"}]
    found = [encode(Message(b"", **one), HERE) for one in fields]  # type: ignore[arg-type]
    assert len(set(found)) == len(fields)
    assert found == [encode(Message(b"", **one), HERE) for one in fields]  # type: ignore[arg-type]


# -- deaths ------------------------------------------------------------------------------------------------------------

STORY = [
    {
        "queue": "shop/jobs",
        "reason": "delivery-limit",
        "time": NOON_MS + 5,
        "count": 2,
        "exchange": "shop/ex",
        "routing-keys": ["jobs"],
    },
    {"queue": "shop/jobs", "reason": "overflow", "time": NOON_MS, "count": 1, "exchange": "", "routing-keys": ["a"]},
]
TOLD = [
    {"queue": "jobs", "reason": "delivery_limit", "time": NOON, "count": 2, "exchange": "ex", "routing-keys": ["jobs"]},
    {"queue": "jobs", "reason": "maxlen", "time": NOON, "count": 1, "exchange": "", "routing-keys": ["a"]},
]


@pytest.mark.parametrize("in_a_topic", [False, True])
def test_deaths_are_told_as_rabbitmq_tells_them(in_a_topic: bool) -> None:
    story: Any = msgspec.json.encode(STORY).decode() if in_a_topic else STORY
    headers = {"x-death": story, "x-first-death-queue": "shop/jobs", "x-first-death-reason": "overflow"}
    encoded = encode(Message(b"", headers=headers), SHOP)
    assert unblob(encoded)["headers"] == {
        "x-death": TOLD,
        "x-first-death-queue": "jobs",
        "x-first-death-reason": "maxlen",
    }
    assert b"\x05countl" in encoded  # Java's clients cast it to a long


def test_deaths_that_are_sent_on_are_the_brokers_again() -> None:
    message = made(headers={"x-death": TOLD, "x-first-death-reason": "maxlen"})
    assert [death["reason"] for death in message.headers["x-death"]] == ["delivery-limit", "overflow"]
    assert [death["time"] for death in message.headers["x-death"]] == [NOON_MS, NOON_MS]
    assert unblob(encode(message, HERE))["headers"] == {"x-death": TOLD, "x-first-death-reason": "maxlen"}


@pytest.mark.parametrize("odd", ["[", "text", 5, None, ["x", {"time": "noon", "reason": 5, "queue": None}], [[]]])
def test_what_is_no_story_is_left_alone(odd: Any) -> None:
    message = template_of(table_blob({"x-death": odd, "x-first-death-reason": 1})).make(b"", "", "")
    assert message.headers["x-death"] == odd
    assert encode(message, HERE) == table_blob({"x-death": odd, "x-first-death-reason": 1})


# -- bytes that are no properties --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x00",
        b"\x80\x00\x05abc",
        b"\x80\x00\x01\xff",
        b"\x20\x00\x00\x00",
        b"\x20\x00\x00\x00\x00\x09ab",
        b"\x20\x00\xff\xff\xff\xff",
        b"\x00\x40\x00\x00",
        b"\x10\x00",
        b"\x10\x00\x02\x00",
        b"\x00\x01\x00\x00",
        b"\x00\x02",
    ],
)
def test_broken_properties_are_refused(data: bytes) -> None:
    with pytest.raises(AmqpError) as caught:
        template_of(data)
    assert (caught.value.code, caught.value.hard) == (502, True)


def attempt(data: bytes) -> tuple[Message | None, int]:
    """A message, or the code of the refusal. Anything else is a failure."""
    try:
        return template_of(data).make(b"", "", ""), 0
    except AmqpError as error:
        return None, error.code


@given(st.binary(max_size=400))
def test_any_bytes_are_properties_or_refused(data: bytes) -> None:
    message, code = attempt(data)
    if message is None:
        assert code in (406, 502)
    else:
        check_message(message)
        msgspec.msgpack.encode(message)
        template_of(encode(message, SHOP))


@given(said, st.data())
def test_damaged_properties_are_read_or_refused(said: dict[str, Any], data: st.DataObject) -> None:
    encoded = bytearray(blob(**said))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    message, code = attempt(bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))
    assert code in (0, 406, 502)
    msgspec.msgpack.encode(message)
