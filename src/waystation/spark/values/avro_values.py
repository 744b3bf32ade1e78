"""Avro: its schemas as Arrow types, and values by `fastavro`.

Types are those of Spark's own Avro reader: enums and UUIDs are text, a union with null is a type that may be null, int
with long is a long. Other unions, and types that contain themselves, have no column type. A value has to end where its
schema says. Used by `value_formats.py`.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from typing import Any

import fastavro
import pyarrow as pa

from waystation.errors import Invalid
from waystation.spark.values.schema_registry import schema_by_id
from waystation.spark.values.value_formats import Malformed, ValueFormat, unframed

UTC_TIME = pa.timestamp("us", tz="UTC")
PRIMITIVE = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": UTC_TIME,
    "timestamp-micros": UTC_TIME,
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
WIDER = {frozenset({"int", "long"}): "long", frozenset({"float", "double"}): "double"}


class AvroCodec:
    """Values of one schema. Those of other versions are read where a registry tells their schemas."""

    def __init__(self, wanted: ValueFormat) -> None:
        schema = _read(wanted.schema)
        self._schema = _parsed(schema)
        self.type = _Types().of(schema, "")
        if not pa.types.is_struct(self.type):
            raise Invalid("the Avro schema has to be a record, whose fields are the columns")
        self._registry = wanted.registry
        self._writers: dict[int, Any] = {}

    def decode(self, value: bytes) -> dict[str, Any]:
        writer = self._schema
        if self._registry is not None:
            number, value = unframed(value)
            writer = self._writer(number, self._registry)
        stream = io.BytesIO(value)
        try:
            reader = self._schema if writer is not self._schema else None
            found: Any = fastavro.schemaless_reader(stream, writer, reader)
        except Exception as error:  # whatever a decoder raises at bytes that are something else
            raise Malformed(str(error)) from error
        if stream.read(1):
            raise Malformed("bytes follow behind it")
        return found

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self._schema, dict(fields))
        except (ValueError, TypeError, KeyError, OverflowError, AttributeError) as error:
            raise Invalid(f"a row cannot be written as Avro: {error}") from None
        return out.getvalue()

    def _writer(self, number: int, registry: str) -> Any:
        if number not in self._writers:
            self._writers[number] = _parsed(_read(schema_by_id(registry, number)))
        return self._writers[number]


def _read(text: str) -> Any:
    try:
        return _without_odd_logical_types(json.loads(text))
    except ValueError as error:
        raise Invalid(f"the Avro schema is not JSON: {error}") from None


def _parsed(schema: Any) -> Any:
    try:
        return fastavro.parse_schema(schema)
    except Exception as error:  # of many kinds
        raise Invalid(f"the Avro schema is not one: {type(error).__name__}: {error}") from None


def _without_odd_logical_types(schema: Any) -> Any:
    """Those that have no column type are what they are made of: UUIDs text, times of a day numbers."""
    if isinstance(schema, list):
        return [_without_odd_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    known = schema.get("logicalType") in (*LOGICAL, "decimal")
    return {
        name: value if name in ("default", "symbols", "aliases", "doc") else _without_odd_logical_types(value)
        for name, value in schema.items()
        if name != "logicalType" or known
    }


class _Types:
    """Arrow types of one schema; knows the named types that it has passed."""

    def __init__(self) -> None:
        self._named: dict[str, pa.DataType | None] = {}

    def of(self, schema: Any, where: str, space: str = "") -> pa.DataType:
        if isinstance(schema, list):
            return self._union(schema, where, space)
        if isinstance(schema, str):
            return PRIMITIVE[schema] if schema in PRIMITIVE else self._reference(schema, where, space)
        kind, logical = schema["type"], schema.get("logicalType")
        if logical in LOGICAL:
            return LOGICAL[logical]
        if logical == "decimal":
            return self._name(schema, space, pa.decimal128(schema["precision"], schema.get("scale", 0)))
        match kind:
            case "record":
                return self._record(schema, where, space)
            case "array":
                return pa.list_(self.of(schema["items"], where, space))
            case "map":
                return pa.map_(pa.string(), self.of(schema["values"], where, space))
            case "enum" | "fixed":
                return self._name(schema, space, PRIMITIVE[kind])
        return self.of(kind, where, space)

    def _record(self, schema: Any, where: str, space: str) -> pa.DataType:
        space = schema.get("namespace") or (schema["name"].rpartition(".")[0] if "." in schema["name"] else space)
        self._named[_full(schema["name"], space)] = None  # under way: who refers to it now contains itself
        fields = [
            pa.field(one["name"], self.of(one["type"], f"{where}.{one['name']}".lstrip("."), space))
            for one in schema["fields"]
        ]
        return self._name(schema, space, pa.struct(fields))

    def _union(self, schema: list[Any], where: str, space: str) -> pa.DataType:
        rest = [one for one in schema if one != "null"]
        if len(rest) == 1:
            return self.of(rest[0], where, space)
        names = frozenset(one for one in rest if isinstance(one, str))
        if len(names) == len(rest) and names in WIDER:
            return PRIMITIVE[WIDER[names]]
        raise Invalid(f"the Avro field {where!r} is a union of several types, for which a column has no type")

    def _reference(self, name: str, where: str, space: str) -> pa.DataType:
        kind = self._named.get(_full(name, space), self._named.get(name))
        if kind is None:
            raise Invalid(f"the Avro field {where!r} contains itself (type {name}), for which a column has no type")
        return kind

    def _name(self, schema: Any, space: str, kind: pa.DataType) -> pa.DataType:
        if "name" in schema:
            self._named[_full(schema["name"], schema.get("namespace") or space)] = kind
        return kind


def _full(name: str, space: str) -> str:
    return name if "." in name or not space else f"{space}.{name}"
