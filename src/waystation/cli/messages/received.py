"""A message of the native client as commands print it: its bytes, a line of a format, an object of JSON, a table's row.

JSON is the form that all protocols share (`message_json`), so that `queues put --input json` takes it back byte for
byte. In tables and failure histories control characters are spelled out: a message must not be able to move somebody's
cursor.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.cli.messages.template import DEFAULT, compile_with
from waystation.cli.terminal.output import json_line, spell_count, visible
from waystation.cli.terminal.units import spell_about, spell_age, spell_moment
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.client.consuming.looked import Looked
    from waystation.client.consuming.received import Received

X_DEATH = "x-death"
PREVIEW = 48
HEX_ROW = 16


def add_format(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", metavar="TEXT", help=r"default: '{value}\n'; fields: " + " ".join(FIELDS))


def speller(arguments: argparse.Namespace) -> Callable[[Received], bytes]:
    """What `--format` or `--json` makes of a message."""
    if not arguments.json:
        return compile_with(DEFAULT if arguments.format is None else arguments.format, FIELDS)
    if arguments.format is not None:
        raise Invalid("give --format or --json, not both")
    return lambda message: json_line(as_json(message)).encode() + b"\n"


def as_json(message: Received) -> dict[str, Any]:
    from waystation.message_json import to_json_object

    return to_json_object(message.delivered, message.queue or "")


def looked_json(message: Looked) -> dict[str, Any]:
    """With where it is, and what it waits for."""
    found = as_json(message) | {"state": message.state, "place": message.place}
    if message.ready_at is not None:
        found["ready_at_ms"] = round(message.ready_at.timestamp() * 1000)
    return found


def taken_ms(message: Received) -> int:
    return message.delivered.taken_ms


def happened_ms(message: Received) -> int:
    said = message.delivered.message.timestamp_ms
    return taken_ms(message) if said is None else said


def wait_of(message: Looked) -> str | None:
    """How long until it is ready, roughly; None where it does not wait."""
    if message.ready_at is None:
        return None
    return spell_about(round(message.ready_at.timestamp() * 1000) - time.time_ns() // 1_000_000 + 999)


def spell_state(state: str) -> str:
    """For people; JSON has the broker's own names."""
    return {"parked": "delayed", "held": "in flight"}.get(state, state)


def _text(name: str) -> Callable[[Received], bytes]:
    return lambda message: str(getattr(message, name) or "").encode()


def _number(name: str) -> Callable[[Received], bytes]:
    return lambda message: b"%d" % getattr(message, name)


FIELDS: dict[str, Callable[[Received], bytes]] = {
    "id": _text("id"),
    "queue": _text("queue"),
    "topic": lambda message: b"" if message.queue else (message.topic or "").encode(),
    "partition": _number("partition"),
    "offset": _number("offset"),
    "timestamp": lambda message: b"%d" % happened_ms(message),
    "time": lambda message: spell_moment(happened_ms(message)).encode(),
    "priority": _number("priority"),
    "deliveries": _number("deliveries"),
    "key": lambda message: message.key_bytes or b"",
    "value": lambda message: message.payload,
    "headers": lambda message: ",".join(f"{n}={spell_header(v)}" for n, v in message.headers.items()).encode(),
}


# -- for people --------------------------------------------------------------------------------------------------------


def spell_header(value: object) -> str:
    if isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False, default=str)


def preview(payload: bytes, most: int = PREVIEW) -> str:
    """The beginning of it, on one line; bytes that are not text in hex."""
    try:
        text = visible(payload[: most * 4].decode())
    except UnicodeDecodeError as error:
        if len(payload) > most * 4 and error.start >= most:  # the cut went through a character
            text = visible(payload[: error.start].decode())
        else:
            text = f"0x{payload[:most].hex()}"
    return clip(text, most)


def clip(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def spell_payload(payload: bytes, form: str = "auto") -> str:
    """The whole of it: indented if it is JSON, as it is if it is text, else in hex. `form` says which, if it can be."""
    if form in ("auto", "json"):
        try:
            value = json.loads(payload)
            if form == "json" or isinstance(value, dict | list):
                return visible(json.dumps(value, ensure_ascii=False, indent=2), lines=True)
        except (ValueError, RecursionError):
            if form == "json":
                raise Invalid("the payload is not JSON; leave out --payload to see it as it is") from None
    if form in ("auto", "text"):
        try:
            return visible(payload.decode(), lines=True)
        except UnicodeDecodeError:
            if form == "text":
                raise Invalid("the payload is not UTF-8 text; --payload hex shows it") from None
    return hex_dump(payload)


def hex_dump(data: bytes) -> str:
    rows = []
    for start in range(0, len(data), HEX_ROW):
        row = data[start : start + HEX_ROW]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        rows.append(f"{start:08x}  {row.hex(' '):<{HEX_ROW * 3 - 1}}  {text}")
    return "\n".join(rows)


def _location(message: Looked) -> str:
    """`queue:jobs, ready`; `queue:jobs, delayed, due in 2h`."""
    waits = wait_of(message)
    return f"{message.place}, {spell_state(message.state)}" + ("" if waits is None else f", due in {waits}")


def print_fields(message: Looked) -> None:
    """What is known of a message beside its payload, a line each."""
    said = message.delivered.message
    fields: list[tuple[str, str | None]] = [
        ("id", message.id),
        ("location", _location(message)),
        ("offset", f"partition {message.partition}, offset {message.offset}" if message.offset >= 0 else None),
        ("enqueued", f"{spell_moment(taken_ms(message))} ({spell_age(taken_ms(message))} ago)"),
        ("happened", None if said.timestamp_ms is None else spell_moment(said.timestamp_ms)),
        ("expires", None if message.expires is None else spell_moment(round(message.expires.timestamp() * 1000))),
        ("deliveries", str(message.deliveries) if message.deliveries else None),
        ("priority", str(said.priority) if said.priority else None),
        ("key", None if said.key is None else preview(said.key)),
        ("type", said.type),
        ("correlation", said.correlation_id),
        ("reply to", said.reply_to),
        ("exchange", said.exchange or None),
        ("routing key", said.routing_key),
        ("user", said.user_id),
        ("application", said.app_id),
        ("encoding", said.content_encoding),
    ]
    fields += [
        ("header", f"{name} = {spell_header(value)}") for name, value in message.headers.items() if name != X_DEATH
    ]
    fields.append(
        ("payload", spell_count(len(said.payload), "byte") + (f", {said.content_type}" if said.content_type else ""))
    )
    for name, value in fields:
        if value is not None:
            print(f"{name:<12}{visible(value)}")
