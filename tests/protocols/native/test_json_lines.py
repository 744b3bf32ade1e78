"""The JSON-lines framing's engine, and how commands look as JSON."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import pytest

from waystation.errors import Invalid
from waystation.message import Message
from waystation.protocol import Publish, Put, Reply, Settle
from waystation.protocols.native.framing.json_lines import COMMANDS, BadLine, Lines, to_command


def _fed(data: bytes, **options: int) -> Lines:
    lines = Lines(**options)
    lines.intake.feed(data)
    return lines


def test_a_line_is_an_object() -> None:
    assert _fed(b'{"a": 1}\n{"b": 2}\r\n\n  \n{"c"').lines() == [{"a": 1}, {"b": 2}]


def test_bytes_may_come_one_by_one() -> None:
    lines, found = Lines(), []
    for byte in b'{"a": "\xc3\xa9"}\n{"b": 2}\n':
        lines.intake.feed(bytes([byte]))
        found += lines.lines()
    assert found == [{"a": "é"}, {"b": 2}]


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b'{"a": 1',
        b"[1, 2]",
        b"5",
        b'{"a": NaN}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b"\x00",
        b"[" * 100_000,
    ],
)
def test_a_bad_line_is_one_bad_line(line: bytes) -> None:
    bad, good = _fed(line + b'\n{"a": 1}\n').lines()
    assert isinstance(bad, BadLine)
    assert bad.why.startswith("Invalid JSON")
    assert good == {"a": 1}


@pytest.mark.parametrize("in_pieces", [False, True])
def test_a_line_that_is_too_long_is_skipped_to_its_end(in_pieces: bool) -> None:
    lines = Lines(max_line=100)
    data = b'{"a": "' + b"x" * 500 + b'"}\n{"b": 1}\n'
    found = []
    for piece in [data[i : i + 30] for i in range(0, len(data), 30)] if in_pieces else [data]:
        lines.intake.feed(piece)
        found += lines.lines()
    assert len(found) == 2
    assert isinstance(found[0], BadLine)
    assert "100 bytes" in found[0].why
    assert found[1] == {"b": 1}


def test_a_line_without_end_takes_bounded_memory() -> None:
    lines = Lines(max_line=10_000)
    for _ in range(1_000):
        lines.intake.feed(b"x" * 5_000)
        lines.lines()
    assert lines.intake.unread <= 15_000


def test_every_command_has_an_action() -> None:
    assert {"put", "get", "settle", "publish_messages", "subscribe_topics", "begin", "end", "ping"} <= set(COMMANDS)


def test_messages_are_json_objects() -> None:
    command = to_command(
        {"action": "put", "id": 3, "queue": "q", "messages": [{"payload": "é", "priority": 2}, {"json": [1]}]}, "put"
    )
    assert command == Put(
        id=3,
        queue="q",
        messages=[Message("é".encode(), priority=2), Message(b"[1]", content_type="application/json")],
    )
    one = to_command({"action": "publish_messages", "topic": "t", "message": {"payload": "x"}}, "publish_messages")
    assert one == Publish(topic="t", messages=[Message(b"x")])
    reply = to_command({"action": "reply", "to": "i", "message": {"payload": "x"}}, "reply")
    assert reply == Reply(to="i", message=Message(b"x"))


def test_tags_are_runs() -> None:
    command = to_command({"action": "settle", "consumer": 1, "tags": [4, 9]}, "settle")
    assert command == Settle(consumer=1, runs=[(4, 1), (9, 1)])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"action": "put"}, "queue"),
        ({"action": "put", "queue": "q"}, "messages"),
        ({"action": "put", "queue": 5, "messages": []}, "^queue: expected `str`"),
        ({"action": "put", "queue": "q", "messages": {}}, "^messages: "),
        ({"action": "put", "queue": "q", "messages": [5]}, "^message: "),
        ({"action": "put", "queue": "q", "messages": [{"payload": "x", "priority": 256}]}, "^priority: 256"),
        ({"action": "put", "queue": "q", "messages": [{"payload": "x", "delay_ms": -1}]}, "^delay_ms: -1"),
        ({"action": "put", "queue": "q", "messages": [{"payload": "x", "ttl_ms": 0}]}, "^ttl_ms: 0"),
        ({"action": "put", "queue": "q", "messages": [{"payload": "a"}, {}]}, r"^messages\[1\].payload"),
        ({"action": "put", "que": "q", "messages": []}, "^que: put has no such field; did you mean queue?"),
        ({"action": "settle", "consumer": 1, "runs": [[1]]}, "^runs"),
        ({"action": "settle", "consumer": 1, "tags": 1}, "^tags"),
        ({"action": "settle", "consumer": 1, "runs": [], "verdict": "maybe"}, "^verdict"),
        ({"action": "declare_queue", "queue": "q", "settings": {"hold_ms": "x"}}, "^settings.hold_ms"),
        ({"action": "get", "queue": "q", "count": 2**70}, "^count"),
    ],
)
def test_what_makes_no_sense_names_the_field(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid, match=said):
        to_command(fields, fields["action"])


def test_random_objects_become_commands_or_errors() -> None:
    rng = random.Random(5)
    values: list[Any] = [None, True, -1, 2**65, 1.5, "", "q", [], [[1, 2]], {}, {"payload": "x"}, [{"payload": "x"}]]
    for _ in range(5_000):
        action = rng.choice(list(COMMANDS))
        names = [*COMMANDS[action].__struct_fields__, "tags", "message"]
        fields = {name: rng.choice(values) for name in rng.sample(names, rng.randrange(len(names)))}
        with contextlib.suppress(Invalid):
            assert isinstance(to_command({"action": action, **fields}, action), COMMANDS[action])
