"""The JSON-lines framing, sans I/O: bytes in, JSON objects out; and how commands and answers look as JSON.

One JSON object per line, each way. A line that does not parse, or is too long, is one `BadLine`; the next line is read
as if nothing had happened. The command set is `protocol.py`'s, by its `action` tags, with messages as JSON objects
(`message_json.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import msgspec

from waystation.errors import Invalid, nearest_field
from waystation.message import Delivered, Message
from waystation.message_json import from_sender, to_json_object
from waystation.protocol import AnyCommand, Ceased, Command, DeclareQueue, Deliver, Found, Got, Peeked
from waystation.protocols.budget import FREE_BYTES
from waystation.protocols.native.framing.intake import LARGEST_STEP, Intake

MAX_LINE_BYTES = 8 * 1024 * 1024
LINES_AT_ONCE = 256
"""In one turn of the loop: some ten milliseconds."""
SHORT_LINES = 64
"""The same while other clients wait for answers."""
LONG_LINE_BYTES = 256 * 1024
"""A line of which more has come is given all the room that a line may need: it would be moved while it grows."""

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class BadLine(NamedTuple):
    """A line that is no JSON object; the connection is fine."""

    why: str


Line = dict[str, Any] | BadLine


class Lines:
    """One connection's side of the framing."""

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        self.intake = Intake()
        self._max_line = max_line
        self._searched = 0  # so much of what is unread has no end of a line in it
        self._skipping = False  # inside a line that is too long

    @property
    def awaited(self) -> int:
        """Bytes of the line that has begun to arrive: nobody knows, so as many as it may have."""
        return self._max_line if self._searched > FREE_BYTES else 0

    @property
    def more(self) -> bool:
        """Whether a whole line is here."""
        return self.intake.find(b"\n", self._searched) >= 0

    def lines(self, limit: int = LINES_AT_ONCE) -> list[Line]:
        """The next whole lines, up to `limit` with those that are blank, which are left out."""
        found: list[Line] = []
        intake = self.intake
        for _ in range(limit):
            end = intake.find(b"\n", self._searched)
            if end < 0:
                self._searched = intake.unread
                if intake.unread > self._max_line:
                    self._skip(found)
                intake.expected = self._max_line + LARGEST_STEP if self._searched > LONG_LINE_BYTES else 0
                break
            line = bytes(intake.view(0, end))
            intake.drop(end + 1)
            self._searched = 0
            if self._skipping:
                self._skipping = False
            elif len(line) > self._max_line:
                found.append(self._too_long())
            elif line.strip():
                found.append(_open(line))
        return found

    def _skip(self, found: list[Line]) -> None:
        if not self._skipping:
            self._skipping = True
            found.append(self._too_long())
        self.intake.drop(self.intake.unread)
        self._searched = 0

    def _too_long(self) -> BadLine:
        return BadLine(f"a line of more than {self._max_line} bytes; send less at once, or speak msgpack")


def _open(line: bytes) -> Line:
    try:
        value = _decode(line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        return BadLine(f"Invalid JSON: {error}")
    if not isinstance(value, dict):
        return BadLine('Invalid JSON: a line is a JSON object, such as {"action": "ping"}')
    return value


def encode_line(value: Mapping[str, Any]) -> bytes:
    return _encode(value) + b"\n"


# -- commands in -------------------------------------------------------------------------------------------------------

COMMANDS: dict[str, type[Command]] = {kind.__struct_config__.tag: kind for kind in get_args(AnyCommand)}
_AT = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<where>.*)`$", re.DOTALL)


def to_command(given: Mapping[str, Any], action: str) -> AnyCommand:
    """The command that a JSON object is. Raises Invalid, naming the field."""
    kind = COMMANDS[action]
    fields = dict(given)
    messages = _messages(fields, kind)
    if kind is DeclareQueue and fields.get("alter") is True and isinstance(fields.get("settings"), dict):
        fields.setdefault("only", list(fields["settings"]))
    if "tags" in fields and "runs" in kind.__struct_fields__ and "runs" not in fields:
        fields["runs"] = _runs(fields.pop("tags"))
    known = kind.__struct_fields__
    for name in fields:
        if name != "action" and name not in known:
            raise Invalid(f"{name[:60]}: {action} has no such field{nearest_field(name[:60], known)}")
        _check_numbers(fields[name], name)
    try:
        command = msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        raise Invalid(_readable(str(error), action)) from None
    if isinstance(messages, Message):
        command.message = messages  # type: ignore[attr-defined]
    elif messages is not None:
        command.messages = messages  # type: ignore[attr-defined]
    return command  # type: ignore[return-value]


def _messages(fields: dict[str, Any], kind: type[Command]) -> list[Message] | Message | None:
    """Takes the messages out of the fields, and leaves in their place something that converts."""
    if "message" in kind.__struct_fields__ and "message" in fields:
        message = from_sender(fields["message"])
        fields["message"] = [b""]
        return message
    if "messages" not in kind.__struct_fields__:
        return None
    if "message" in fields and "messages" not in fields:
        fields["messages"] = [fields.pop("message")]  # one is as good as a list of one
    given = fields.get("messages")
    if given is None:
        return None
    if not isinstance(given, list):
        raise Invalid("messages: must be an array of JSON objects")
    found = []
    for i, each in enumerate(given):
        try:
            found.append(from_sender(each))
        except Invalid as error:
            raise Invalid(f"messages[{i}].{error}" if len(given) > 1 else str(error)) from None
    fields["messages"] = []
    return found


def _runs(tags: Any) -> list[tuple[Any, int]]:
    if not isinstance(tags, list):
        raise Invalid("tags: must be an array of the tags that messages came with")
    return [(tag, 1) for tag in tags]


def _check_numbers(value: Any, name: str) -> None:
    """JSON has numbers of any length; everything behind this has 64 bits for one."""
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise Invalid(f"{name}: a number is out of range")
    if isinstance(value, list | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_numbers(inner, name)


def unknown_action(action: Any, also: tuple[str, ...]) -> Invalid:
    if action is None:
        return Invalid("Missing required field: 'action'")
    return Invalid(f"Unknown action: {str(action)[:60]}{nearest_field(str(action)[:60], (*COMMANDS, *also))}")


def _readable(text: str, action: str) -> str:
    """msgspec's words with the field first, as everybody else says it."""
    found = _AT.match(text)
    where = found["where"] if found else ""
    what = found["what"] if found else text
    return f"{where or action}: {what[:1].lower()}{what[1:]}"


# -- answers out -------------------------------------------------------------------------------------------------------


def answer_value(value: Any, queue: str) -> Any:
    """An answer's value as JSON, with messages as JSON objects. `queue`: where they are, if the request named one."""
    if isinstance(value, Got):
        messages = [to_json_object(each, queue) for each in value.messages]
        return {"consumer": value.consumer, "messages": messages, "more": value.more}
    if isinstance(value, Found):
        return {"place": value.place, **_looked_at(value.state, value.ready_at_ms, value.delivered, value.place)}
    if isinstance(value, Peeked):
        return _looked_at(value.state, value.ready_at_ms, value.delivered, f"queue:{queue}")
    if isinstance(value, list):
        return [answer_value(each, queue) for each in value]
    if isinstance(value, msgspec.Struct):  # all its fields: a reader of JSON does not know what is left out
        return {name: answer_value(getattr(value, name), queue) for name in value.__struct_fields__}
    return value


def _looked_at(state: str, ready_at_ms: int | None, delivered: Delivered, place: str) -> dict[str, Any]:
    queue = place.removeprefix("queue:") if place.startswith("queue:") else ""
    found: dict[str, Any] = {"state": state, "message": to_json_object(delivered, queue)}
    if ready_at_ms is not None:
        found["ready_at_ms"] = ready_at_ms
    return found


def push(outgoing: Deliver | Ceased, queue: str) -> dict[str, Any]:
    if isinstance(outgoing, Ceased):
        return {"push": "ceased", "consumer": outgoing.consumer, "error": outgoing.text, "error_type": outgoing.error}
    messages = [to_json_object(each, queue) for each in outgoing.messages]
    return {"push": "deliver", "consumer": outgoing.consumer, "messages": messages}
