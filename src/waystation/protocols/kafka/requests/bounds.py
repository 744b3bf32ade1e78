"""Looks through a request before it is decoded: every length and count must fit the bytes that are really there.

The native reader believes an array's count and allocates for it; a count of two billion in a request of forty bytes
would end the process. So each request is first walked along its schema, without building anything. The walk also
bounds how many elements a request may have in all, since an element costs far more memory than its byte on the wire.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import lru_cache
from typing import Any

import msgspec

from waystation.wire.kafka_types import Malformed, Reader

MAX_ELEMENTS = 200_000
"""In all arrays of one request together; about 60 MB of objects at worst. Metadata of 100,000 topics fits. As many
tagged fields may be in it."""

_FIXED = {
    **dict.fromkeys(("int8", "bool"), 1),
    **dict.fromkeys(("int16", "uint16", "error_code"), 2),
    **dict.fromkeys(("int32", "uint32", "timedelta_i32"), 4),
    **dict.fromkeys(("int64", "timedelta_i64", "datetime_i64", "float64"), 8),
    "uuid": 16,
}


class FieldBounds(msgspec.Struct, frozen=True):
    """How to step over one field: `size` bytes, or a counted thing, or a structure."""

    size: int = 0  # fixed size in bytes; 0: see below
    short: bool = False  # classic strings count in 16 bits, all else in 32
    array: bool = False
    nested: Any = None  # the class of a structure
    nullable: bool = False  # a structure that may be absent


class StructureBounds(msgspec.Struct, frozen=True):
    """A structure: its fields in order, and those that come as tagged fields."""

    fields: tuple[FieldBounds, ...]
    tagged: dict[int, FieldBounds]
    flexible: bool


@lru_cache(maxsize=4096)
def plan_of(entity: type) -> StructureBounds:
    hints = typing.get_type_hints(entity)
    plain: list[FieldBounds] = []
    tagged: dict[int, FieldBounds] = {}
    for field in dataclasses.fields(entity):
        step = _field(hints[field.name], field.metadata.get("kafka_type"))
        if "tag" in field.metadata:
            tagged[int(field.metadata["tag"])] = step
        else:
            plain.append(step)
    return StructureBounds(tuple(plain), tagged, bool(getattr(entity, "__flexible__", False)))


def _field(kind: Any, kafka_type: str | None) -> FieldBounds:
    nullable = False
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        nullable = True
        kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
    if typing.get_origin(kind) is tuple:
        element = _field(typing.get_args(kind)[0], kafka_type)
        return msgspec.structs.replace(element, array=True, nullable=False)
    if dataclasses.is_dataclass(kind):
        return FieldBounds(nested=kind, nullable=nullable)
    return FieldBounds(size=_FIXED.get(kafka_type or "", 0), short=kafka_type == "string")


def check(entity: type, data: bytes) -> None:
    """Raises Malformed unless `data` can be a request of this class without allocating more than it is worth."""
    plan = plan_of(entity)
    _Walk(Reader(data, plan.flexible, MAX_ELEMENTS), len(data)).structure(plan)


class _Walk:
    __slots__ = ("_elements", "_reader", "_request_bytes")

    def __init__(self, reader: Reader, request_bytes: int) -> None:
        self._reader = reader
        self._request_bytes = request_bytes
        self._elements = 0

    def structure(self, plan: StructureBounds) -> None:
        reader = self._reader
        for field in plan.fields:
            self._field(field)
        if plan.flexible:
            for _ in range(reader.tag_count()):
                tag, size = reader.uvarint(), reader.uvarint()
                start = reader.position
                known = plan.tagged.get(tag)
                if known is not None:
                    self._field(known)
                reader.position = start
                reader.take(size)

    def _field(self, field: FieldBounds) -> None:
        if not field.array:
            self._one(field)
            return
        count = self._reader.size(short=False)
        if count <= 0:
            return
        self._elements += count
        if self._elements > MAX_ELEMENTS or count > self._reader.left:
            raise Malformed(f"an array of {count} elements in a request of {self._request_bytes} bytes")
        if field.size:
            self._reader.take(field.size * count)
            return
        for _ in range(count):
            self._one(field)

    def _one(self, field: FieldBounds) -> None:
        if field.size:
            self._reader.take(field.size)
        elif field.nested is None:
            self._reader.take(max(0, self._reader.size(field.short)))
        elif not field.nullable or self._reader.i8() >= 0:  # a structure that may be absent has a byte that says so
            self.structure(plan_of(field.nested))
