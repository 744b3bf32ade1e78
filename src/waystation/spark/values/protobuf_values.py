"""Protobuf: messages of a descriptor set as Arrow types, and values by the package `protobuf`.

Enums are text, `google.protobuf.Timestamp` is a timestamp, unsigned numbers are of the next wider type. An optional
field or message that is not set is null; others have their default. Messages that contain themselves have no column
type. Used by `value_formats.py`.
"""

from __future__ import annotations

import base64
import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from waystation.errors import Invalid, near_matches
from waystation.spark.values.value_formats import Malformed, ValueFormat, unframed

TIMESTAMP = "google.protobuf.Timestamp"
UTC_TIME = pa.timestamp("us", tz="UTC")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
HOW = "make it with `protoc --include_imports --descriptor_set_out=FILE`"

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    _FIELD.TYPE_DOUBLE: pa.float64(),
    _FIELD.TYPE_FLOAT: pa.float32(),
    _FIELD.TYPE_INT32: pa.int32(),
    _FIELD.TYPE_SINT32: pa.int32(),
    _FIELD.TYPE_SFIXED32: pa.int32(),
    _FIELD.TYPE_INT64: pa.int64(),
    _FIELD.TYPE_SINT64: pa.int64(),
    _FIELD.TYPE_SFIXED64: pa.int64(),
    _FIELD.TYPE_UINT32: pa.int64(),
    _FIELD.TYPE_FIXED32: pa.int64(),
    _FIELD.TYPE_UINT64: pa.decimal128(20, 0),
    _FIELD.TYPE_FIXED64: pa.decimal128(20, 0),
    _FIELD.TYPE_BOOL: pa.bool_(),
    _FIELD.TYPE_STRING: pa.string(),
    _FIELD.TYPE_BYTES: pa.binary(),
    _FIELD.TYPE_ENUM: pa.string(),
}


class ProtobufCodec:
    """Values of one message."""

    def __init__(self, wanted: ValueFormat) -> None:
        message = _message(wanted)
        self._class: Any = message_factory.GetMessageClass(message)
        self._framed = wanted.registry is not None
        self.type = _struct(message, ())

    def decode(self, value: bytes) -> dict[str, Any]:
        if self._framed:
            value = _without_indexes(unframed(value)[1])
        try:
            return _fields(self._class.FromString(value))
        except Malformed:
            raise
        except Exception as error:  # whatever a decoder raises at bytes that are something else
            raise Malformed(str(error)) from error

    def encode(self, fields: Mapping[str, Any]) -> bytes:
        made = self._class()
        try:
            _fill(made, fields)
            return made.SerializeToString()  # type: ignore[no-any-return]
        except (ValueError, TypeError, OverflowError, AttributeError) as error:
            raise Invalid(f"a row cannot be written as Protobuf: {error}") from None


def _message(wanted: ValueFormat) -> Any:
    pool = descriptor_pool.DescriptorPool()
    names = []
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(wanted.schema))
        for file in files.file:
            pool.Add(file)
            names += [f"{file.package}.{one.name}".lstrip(".") for one in file.message_type]
        if not names:
            raise ValueError("no message is in it")
        return pool.FindMessageTypeByName(wanted.message)
    except KeyError:
        near = near_matches(wanted.message, names) or f"; there are: {', '.join(sorted(names))}"
        raise Invalid(f"the descriptor has no message {wanted.message!r}{near}") from None
    except Exception as error:  # of many kinds
        raise Invalid(f"the descriptor is not a whole descriptor set ({error}); {HOW}") from None


# -- types -------------------------------------------------------------------------------------------------------------


def _struct(message: Any, above: tuple[str, ...]) -> pa.StructType:
    if message.full_name in above:
        raise Invalid(f"the message {message.full_name} contains itself, for which a column has no type")
    return pa.struct([pa.field(one.name, _type(one, (*above, message.full_name))) for one in message.fields])


def _type(field: Any, above: tuple[str, ...]) -> pa.DataType:
    if _is_map(field):
        parts = field.message_type.fields_by_name
        return pa.map_(_single(parts["key"], above), _single(parts["value"], above))
    single = _single(field, above)
    return pa.list_(single) if field.is_repeated else single


def _single(field: Any, above: tuple[str, ...]) -> pa.DataType:
    if field.message_type is None:
        return _TYPES[field.type]
    return UTC_TIME if field.message_type.full_name == TIMESTAMP else _struct(field.message_type, above)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


# -- from bytes --------------------------------------------------------------------------------------------------------


def _fields(message: Any) -> dict[str, Any]:
    return {field.name: _read(message, field) for field in message.DESCRIPTOR.fields}


def _read(message: Any, field: Any) -> Any:
    if _is_map(field):
        value = _reader(field.message_type.fields_by_name["value"])
        return [(key, value(one)) for key, one in getattr(message, field.name).items()]
    if field.is_repeated:
        return [_reader(field)(one) for one in getattr(message, field.name)]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _reader(field)(getattr(message, field.name))


def _reader(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return _time if field.message_type.full_name == TIMESTAMP else _fields
    if field.enum_type is not None:
        names = field.enum_type.values_by_number
        return lambda number: names[number].name if number in names else str(number)
    return Decimal if field.type in (_FIELD.TYPE_UINT64, _FIELD.TYPE_FIXED64) else lambda value: value


def _time(stamp: Any) -> datetime.datetime:
    try:
        return EPOCH + datetime.timedelta(seconds=stamp.seconds, microseconds=stamp.nanos // 1000)
    except OverflowError as error:
        raise Malformed(str(error)) from error


def _without_indexes(data: bytes) -> bytes:
    """Confluent writes which message of the file it is: how many numbers, then those, as zigzag varints; a zero alone
    is the first message."""
    count, at = _varint(data, 0)
    for _ in range(count >> 1):
        _, at = _varint(data, at)
    return data[at:]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 35:
        value |= (data[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not data[at - 1] & 0x80:
            return value, at
    raise Malformed("it ends in front of the message")


# -- to bytes ----------------------------------------------------------------------------------------------------------


def _fill(message: Any, fields: Mapping[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        value = fields.get(field.name)
        if value is None:
            continue
        target = getattr(message, field.name)
        if _is_map(field):
            inner = field.message_type.fields_by_name["value"]
            for key, one in value.items():
                if inner.message_type is not None:
                    _put(target[key], inner, one)
                else:
                    target[key] = _plain(inner, one)
        elif field.is_repeated:
            for one in value:
                if field.message_type is not None:
                    _put(target.add(), field, one)
                else:
                    target.append(_plain(field, one))
        elif field.message_type is not None:
            _put(target, field, value)
        else:
            setattr(message, field.name, _plain(field, value))


def _put(target: Any, field: Any, value: Any) -> None:
    """A message in its place. One without a set field is there, too."""
    if field.message_type.full_name == TIMESTAMP:
        target.FromDatetime(value if value.tzinfo is not None else value.astimezone(datetime.UTC))
        return
    target.SetInParent()
    _fill(target, value)


def _plain(field: Any, value: Any) -> Any:
    if field.enum_type is not None:
        known = field.enum_type.values_by_name
        if value in known:
            return known[value].number
        if value.lstrip("-").isdigit():
            return int(value)
        raise ValueError(f"{field.enum_type.name} has no value {value!r}{near_matches(value, known)}")
    if isinstance(value, Decimal):
        return int(value)
    return bytes(value) if isinstance(value, bytearray) else value
