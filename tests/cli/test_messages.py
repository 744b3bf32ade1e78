"""Messages in and out: `--format`, `--json`, lines from a pipe."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.cli.messages.lines import lines_of
from waystation.cli.messages.message_json import from_json, to_json
from waystation.cli.messages.template import compile_template
from waystation.client.records.reading import IncomingRecord
from waystation.errors import Invalid
from waystation.log.batches.batch import Record

MESSAGE = IncomingRecord(
    "orders", 3, Record(42, 1_772_366_400_123, b"k\xff", b"va{l}ue", (("a", b"1"), ("a", None), ("b", b"2")))
)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (r"{value}\n", b"va{l}ue\n"),
        ("{topic}/{partition}/{offset}", b"orders/3/42"),
        (r"{timestamp}\t{time}", b"1772366400123\t2026-03-01T12:00:00.123Z"),
        ("{key}", b"k\xff"),
        ("{headers}", b"a=1,a=,b=2"),
        ("{{{value}}}", b"{va{l}ue}"),
        (r"\\ \q \0", b"\\ \\q \0"),
        ("ü", "ü".encode()),
        ("", b""),
    ],
)
def test_a_format_is_filled_in(template: str, expected: bytes) -> None:
    assert compile_template(template)(MESSAGE) == expected


def test_an_absent_key_and_value_are_nothing() -> None:
    assert compile_template("[{key}|{value}]")(IncomingRecord("t", 0, Record(0, 0, None, None))) == b"[|]"


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(Invalid, match="offset"):
        compile_template("{ofset}")


maybe_bytes = st.none() | st.binary(max_size=20)


@given(maybe_bytes, maybe_bytes, st.lists(st.tuples(st.text(max_size=5), maybe_bytes), max_size=3))
def test_json_keeps_every_byte(key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    message = IncomingRecord("t", 1, Record(7, 8, key, value, tuple(headers)))
    line = json.dumps(to_json(message)).encode()
    back = from_json(line, None)
    assert (back.key, back.value, back.headers) == (key, value, tuple(headers))


def test_json_says_what_is_base64() -> None:
    fields = to_json(MESSAGE)
    assert fields["key_encoding"] == "base64"
    assert fields["value"] == "va{l}ue"
    assert "value_encoding" not in fields


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"{}", b'{"value": 1}',
     b'{"value": "x", "value_encoding": "rot13"}', b'{"value": "x", "headers": [1]}',
     b'{"value": "!", "value_encoding": "base64"}', b"\xff"],
)  # fmt: skip
def test_a_line_that_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(Invalid, match="not a message"):
        from_json(line, None)


@given(st.binary(max_size=200))
def test_lines_are_what_is_between_line_feeds(data: bytes) -> None:
    reading, writing = os.pipe()
    with open(writing, "wb") as pipe:
        pipe.write(data)
    with open(reading, "rb") as pipe:
        lines = [line for line in lines_of(pipe.fileno()) if line is not None]
    expected = data.split(b"\n")
    assert lines == (expected[:-1] if expected[-1] == b"" else expected)


def test_a_pause_in_the_input_is_told() -> None:
    reading, writing = os.pipe()
    with open(reading, "rb") as pipe:
        lines = lines_of(pipe.fileno())
        assert next(lines) is None, "nothing was written yet"
        os.write(writing, b"one\ntw")
        assert next(lines) == b"one"
        assert next(lines) is None, "the second line is not complete"
        os.write(writing, b"o\n")
        os.close(writing)
        assert list(lines) == [b"two"]
