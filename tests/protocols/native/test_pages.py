"""The reference pages of this protocol are right."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from tests.protocols.native.kit import JsonLines
from tests.support.server import ROOT, Server
from waystation.message import Message
from waystation.message_json import from_json_object
from waystation.protocol import MAX_FRAME_BYTES, DescribeQueue
from waystation.protocols.native.framing.frames import Frames
from waystation.protocols.native.framing.json_lines import COMMANDS, MAX_LINE_BYTES

PROTOCOL = (ROOT / "docs" / "reference" / "native-protocol.md").read_text()
LINES = (ROOT / "docs" / "reference" / "json-lines.md").read_text()

_ROW = re.compile(r"^\| `(\w+)` \| (.*?) ?\| (.*) \|$", re.MULTILINE)
_FIELD = re.compile(r"(\w+)(?: \[((?:\[\]|[^\]])*)\])?")


def _table() -> dict[str, dict[str, str | None]]:
    section = PROTOCOL[PROTOCOL.index("## Commands") : PROTOCOL.index("## Errors and malformed input")]
    return {
        action: {name: default or None for name, default in _FIELD.findall(fields)}
        for action, fields, _ in _ROW.findall(section)
    }


def test_every_command_is_on_the_page_and_nothing_else() -> None:
    assert set(_table()) == set(COMMANDS)


@pytest.mark.parametrize("action", sorted(COMMANDS))
def test_its_fields_and_defaults_are_right(action: str) -> None:
    written = _table()[action]
    fields = {field.name: field for field in msgspec.structs.fields(COMMANDS[action]) if field.name != "id"}
    assert list(written) == list(fields)
    for name, field in fields.items():
        default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        text = written[name]
        if default is msgspec.NODEFAULT:
            assert text is None, f"{name} is needed"
        else:
            assert text is not None, f"{name} has a default"
            assert json.loads(text) == (default.decode() if isinstance(default, bytes) else default)


def test_the_places_in_a_message_are_right() -> None:
    section = PROTOCOL[PROTOCOL.index("## Messages") : PROTOCOL.index("## Commands")]
    rows = re.findall(r"^\| (\d+) \| (\w+) \|", section, re.MULTILINE)
    assert rows == [(str(i), name) for i, name in enumerate(Message.__struct_fields__)]


def test_the_bytes_on_the_page_are_what_is_sent() -> None:
    (text,) = re.findall(r"^```text\n(.*?)^```$", PROTOCOL, re.DOTALL | re.MULTILINE)
    sent = bytes.fromhex("".join(re.match(r"(?:[0-9a-f]{2} ?)+", line)[0] for line in text.splitlines()))  # type: ignore[index]
    frames = Frames()
    frames.intake.feed(sent)
    assert frames.commands() == [DescribeQueue(id=1, queue="jobs")]
    assert frames.intake.unread == 0


def test_the_limits_are_right() -> None:
    assert f"{MAX_FRAME_BYTES // 2**20} MiB" in PROTOCOL
    assert f"{MAX_LINE_BYTES // 2**20} MiB" in LINES


def test_the_message_on_the_page_is_one() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```$", LINES, re.DOTALL | re.MULTILINE)
    given = json.loads(text)
    assert from_json_object(given).priority == given["priority"]


def test_the_examples_run(tmp_path: Path) -> None:
    blocks = re.findall(r"^```console\n(.*?)^```$", LINES, re.DOTALL | re.MULTILINE)
    requests = [line for block in blocks for line in block.splitlines() if line.startswith("{")]
    assert len(requests) > 10
    with Server(tmp_path) as server, JsonLines(server.bootstrap) as lines:
        for request in requests:
            lines.send_raw(request.encode() + b"\n")
            answer = lines.answer()
            assert answer["status"] == "success", (request, answer)
            if '"consume"' in request:
                assert [message["id"] for message in answer["messages"]] == ["o-7"]
        assert lines.push()["messages"][0]["id"] == "jobs#1"
