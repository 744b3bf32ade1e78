"""Whether a command says what the broker can read, before it is sent: an error names the argument that is wrong.

The same with a broker elsewhere, which would refuse the command in the words of its decoder, and with one in this
process, which trusts what it is handed. Messages are not looked at: whoever makes one has checked it. Pure; for the
client's parts, on any thread.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from waystation.errors import Invalid
from waystation.message import Message
from waystation.protocol import Command

_SAID = re.compile(r"^(?P<what>.*) - at `\$\.(?P<field>\w+)(?P<inside>.*)`$", re.DOTALL)
_EXPECTED = re.compile(r"^Expected `(?P<kinds>[^`]+)`")
_WORDS = {
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "True or False",
    "array": "a list",
    "object": "a mapping of names to values",
}


def check(command: Command) -> None:
    """Raises Invalid, naming the field. About a microsecond."""
    try:
        msgspec.convert(command, _plain_fields(type(command)), from_attributes=True)
    except msgspec.ValidationError as error:
        raise Invalid(_readable(command, str(error))) from None


@cache
def _plain_fields(kind: type[Command]) -> type[msgspec.Struct]:
    """A struct of the command's fields, without messages and batches: an instance of the command's own type would be
    taken as it is."""
    fields = [(name, hint) for name, hint in _hints(kind).items() if not _carries_bytes(hint)]
    return msgspec.defstruct(kind.__name__, fields)


@cache
def _hints(kind: type[Command]) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {name: hints[name] for name in kind.__struct_fields__}


def _carries_bytes(hint: Any) -> bool:
    return hint in (Message, bytes, bytearray) or any(map(_carries_bytes, get_args(hint)))


def _readable(command: Command, said: str) -> str:
    found = _SAID.match(said)
    if found is None:
        return said
    field, inside, what = found["field"], found["inside"], found["what"]
    expected = _EXPECTED.match(what)
    if inside or (expected is None and not what.startswith("Invalid enum value")):
        return f"{field}{inside}: {what[:1].lower()}{what[1:]}"
    value = getattr(command, field)
    if expected is None:
        return f"{field}: {value!r:.60} is not one of {', '.join(_choices(_hints(type(command))[field]))}"
    kinds = [kind for kind in expected["kinds"].split(" | ") if kind != "null"]
    return f"{field}: {value!r:.60} is not {' or '.join(_WORDS.get(kind, kind) for kind in kinds)}"


def _choices(hint: Any) -> list[str]:
    if get_origin(hint) is Literal:
        return [str(one) for one in get_args(hint)]
    return [choice for inner in get_args(hint) for choice in _choices(inner)]
