"""Looks through a request before it is decoded: every length and count must fit the bytes that are really there.

The native reader believes an array's count and allocates for it; a count of two billion in a request of forty bytes
would end the process. So each request is first walked along its schema, without building anything. The walk also
bounds how many elements a request may have in all, since an element costs far more memory than its byte on the wire.
"""

from __future__ import annotations

import dataclasses
import struct
import types
import typing
from functools import lru_cache
from typing import Any

from waystation.errors import Invalid

MAX_ELEMENTS = 200_000
"""In all arrays of one request together; about 60 MB of objects at worst. Metadata of 100,000 topics fits."""

_I16 = struct.Struct(">h")
_I32 = struct.Struct(">i")

_FIXED = {
    **dict.fromkeys(("int8", "bool"), 1),
    **dict.fromkeys(("int16", "uint16", "error_code"), 2),
    **dict.fromkeys(("int32", "uint32", "timedelta_i32"), 4),
    **dict.fromkeys(("int64", "timedelta_i64", "datetime_i64", "float64"), 8),
    "uuid": 16,
}


class Malformed(Invalid):
    """The peer sent bytes that are not a message of the protocol: the connection cannot go on."""


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """How to step over one field: `size` bytes, or a counted thing, or a structure."""

    size: int = 0  # fixed size in bytes; 0: see below
    short: bool = False  # classic strings count in 16 bits, all else in 32
    array: bool = False
    nested: Any = None  # the class of a structure
    nullable: bool = False  # a structure that may be absent


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """A structure: its fields in order, and those that come as tagged fields."""

    fields: tuple[Field, ...]
    tagged: dict[int, Field]
    flexible: bool


@lru_cache(maxsize=4096)
def plan_of(entity: type) -> Plan:
    hints = typing.get_type_hints(entity)
    plain: list[Field] = []
    tagged: dict[int, Field] = {}
    for field in dataclasses.fields(entity):
        step = _field(hints[field.name], field.metadata.get("kafka_type"))
        if "tag" in field.metadata:
            tagged[int(field.metadata["tag"])] = step
        else:
            plain.append(step)
    return Plan(tuple(plain), tagged, bool(getattr(entity, "__flexible__", False)))


def _field(kind: Any, kafka_type: str | None) -> Field:
    nullable = False
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        nullable = True
        kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
    if typing.get_origin(kind) is tuple:
        element = _field(typing.get_args(kind)[0], kafka_type)
        return dataclasses.replace(element, array=True, nullable=False)
    if dataclasses.is_dataclass(kind):
        return Field(nested=kind, nullable=nullable)
    return Field(size=_FIXED.get(kafka_type or "", 0), short=kafka_type == "string")


def check(entity: type, data: bytes) -> None:
    """Raises Malformed unless `data` can be a request of this class without allocating more than it is worth."""
    walk = _Walk(data)
    walk.structure(plan_of(entity))


class _Walk:
    __slots__ = ("_data", "_elements", "_position")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0
        self._elements = 0

    def structure(self, plan: Plan) -> None:
        flexible = plan.flexible
        for field in plan.fields:
            self._field(field, flexible)
        if flexible:
            for _ in range(self._uvarint()):
                tag, size = self._uvarint(), self._uvarint()
                end = self._position + size
                known = plan.tagged.get(tag)
                if known is not None:
                    self._field(known, flexible)
                self._position = end
                self._inside()

    def _field(self, field: Field, flexible: bool) -> None:
        if not field.array:
            self._one(field, flexible)
            return
        count = self._uvarint() - 1 if flexible else self._number(_I32)
        if count <= 0:
            return
        self._elements += count
        if self._elements > MAX_ELEMENTS or count > len(self._data) - self._position:
            raise Malformed(f"an array of {count} elements in a request of {len(self._data)} bytes")
        if field.size:
            self._skip(field.size * count)
            return
        for _ in range(count):
            self._one(field, flexible)

    def _one(self, field: Field, flexible: bool) -> None:
        if field.size:
            self._skip(field.size)
        elif field.nested is None:
            size = self._uvarint() - 1 if flexible else self._number(_I16 if field.short else _I32)
            self._skip(max(0, size))
        elif not field.nullable or self._present():
            self.structure(plan_of(field.nested))

    def _present(self) -> bool:
        """A structure that may be absent has a byte in front that says so."""
        self._skip(1)
        return self._data[self._position - 1] < 0x80

    def _skip(self, size: int) -> None:
        self._position += size
        self._inside()

    def _inside(self) -> None:
        if self._position > len(self._data):
            raise Malformed("a field is longer than its request")

    def _number(self, kind: struct.Struct) -> int:
        position = self._position
        self._skip(kind.size)
        return int(kind.unpack_from(self._data, position)[0])

    def _uvarint(self) -> int:
        result = shift = 0
        data = self._data
        while True:
            if self._position >= len(data) or shift > 28:
                raise Malformed("a variable-length number does not end")
            byte = data[self._position]
            self._position += 1
            result |= (byte & 0x7F) << shift
            if byte < 0x80:
                return result
            shift += 7
