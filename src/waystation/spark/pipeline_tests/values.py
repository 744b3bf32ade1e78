"""Values as they are written in a test → the Python values of a Spark type, and how a value is spelled for people.

TOML has no null: what is not written is null. Times are UTC unless they say otherwise. A table or list for a column of
text or bytes is JSON: `AsJson` until it is known whether it is to be sent or to be compared. Pure.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from waystation.errors import Invalid, near_matches

EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_BITS: dict[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


@dataclass(frozen=True, slots=True)
class AsJson:
    """A value whose JSON stands in a text or in bytes."""

    value: Any

    def text(self) -> str:
        return json.dumps(self.value, ensure_ascii=False, default=_spelled_time)


def as_struct(values: Mapping[str, Any], kind: StructType, where: str = "") -> dict[str, Any]:
    """A row or a struct; Invalid with the field that does not fit."""
    known = {field.name: field.dataType for field in kind}
    for name in values:
        if name not in known:
            near = near_matches(name, known) or f"; there are {', '.join(known)}"
            raise Invalid(f"there is no column {where + name!r}{near}")
    return {name: as_type(values.get(name), one, where + name) for name, one in known.items()}


def as_type(value: Any, kind: DataType, where: str) -> Any:
    """A value of a column called `where`; Invalid if it is of another type."""
    if value is None:
        return None
    convert = _CONVERT.get(type(kind))
    if convert is None:
        raise Invalid(f"{where} is {kind.simpleString()}, and a test cannot have values of that type")
    try:
        return convert(value, kind, where)
    except (TypeError, ValueError, InvalidOperation, OverflowError):
        raise Invalid(f"{where} is {kind.simpleString()}, which {spell(value)} is not") from None


def _integer(value: Any, kind: DataType, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -1 <= value >> (_BITS[type(kind)] - 1) <= 0:
        raise TypeError
    return value


def _fraction(value: Any, kind: DataType, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        raise TypeError
    return float(value)


def _decimal(value: Any, kind: DataType, where: str) -> Decimal:
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float | Decimal)
        or not isinstance(kind, DecimalType)
    ):
        raise TypeError
    return Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))


def _boolean(value: Any, kind: DataType, where: str) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _text(value: Any, kind: DataType, where: str) -> str | AsJson:
    if isinstance(value, dict | list):
        return AsJson(value)
    if not isinstance(value, str):
        raise TypeError
    return value


def _bytes(value: Any, kind: DataType, where: str) -> bytes | AsJson:
    return value if isinstance(value, bytes) else _encoded(_text(value, kind, where))


def _encoded(text: str | AsJson) -> bytes | AsJson:
    return text.encode() if isinstance(text, str) else text


def _date(value: Any, kind: DataType, where: str) -> datetime.date:
    if isinstance(value, str):
        return datetime.date.fromisoformat(value)
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
        raise TypeError
    return value


def _time(value: Any, kind: DataType, where: str) -> datetime.datetime:
    """A number is milliseconds since 1970."""
    if isinstance(value, str):
        value = datetime.datetime.fromisoformat(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        value = EPOCH + datetime.timedelta(milliseconds=value)
    if not isinstance(value, datetime.datetime):
        raise TypeError
    return value.replace(tzinfo=datetime.UTC) if value.tzinfo is None else value.astimezone(datetime.UTC)


def _local_time(value: Any, kind: DataType, where: str) -> datetime.datetime:
    return _time(value, kind, where).replace(tzinfo=None)


def _struct(value: Any, kind: DataType, where: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not isinstance(kind, StructType):
        raise TypeError
    return as_struct(value, kind, f"{where}.")


def _array(value: Any, kind: DataType, where: str) -> list[Any]:
    if not isinstance(kind, ArrayType):
        raise TypeError
    inner = kind.elementType
    if isinstance(value, dict) and isinstance(inner, StructType) and inner.names == ["key", "value"]:
        value = [{"key": key, "value": one} for key, one in value.items()]  # headers
    if not isinstance(value, list):
        raise TypeError
    return [as_type(one, inner, f"{where}[{number}]") for number, one in enumerate(value)]


def _map(value: Any, kind: DataType, where: str) -> dict[Any, Any]:
    """Keys are texts in TOML, also those that are numbers."""
    if not isinstance(value, dict) or not isinstance(kind, MapType):
        raise TypeError
    number = isinstance(kind.keyType, ByteType | ShortType | IntegerType | LongType)
    return {
        as_type(int(key) if number else key, kind.keyType, where): as_type(one, kind.valueType, f"{where}.{key}")
        for key, one in value.items()
    }


_CONVERT: dict[type[DataType], Callable[[Any, DataType, str], Any]] = {
    ByteType: _integer,
    ShortType: _integer,
    IntegerType: _integer,
    LongType: _integer,
    FloatType: _fraction,
    DoubleType: _fraction,
    DecimalType: _decimal,
    BooleanType: _boolean,
    StringType: _text,
    BinaryType: _bytes,
    DateType: _date,
    TimestampType: _time,
    TimestampNTZType: _local_time,
    StructType: _struct,
    ArrayType: _array,
    MapType: _map,
}


def sent(value: Any, kind: DataType) -> Any:
    """The value as a frame is made of it: JSON as the text or the bytes that it stands for."""
    if isinstance(value, AsJson):
        return value.text().encode() if isinstance(kind, BinaryType) else value.text()
    if isinstance(value, dict) and isinstance(kind, StructType):
        return {field.name: sent(value.get(field.name), field.dataType) for field in kind}
    if isinstance(value, dict) and isinstance(kind, MapType):
        return {key: sent(one, kind.valueType) for key, one in value.items()}
    if isinstance(value, list) and isinstance(kind, ArrayType):
        return [sent(one, kind.elementType) for one in value]
    return value


def from_arrow(value: Any, kind: DataType) -> Any:
    """What Arrow has read in the form that converted values have: its maps are lists of pairs."""
    if value is None:
        return None
    if isinstance(kind, MapType):
        return {key: from_arrow(one, kind.valueType) for key, one in value}
    if isinstance(kind, StructType):
        return {field.name: from_arrow(value[field.name], field.dataType) for field in kind}
    if isinstance(kind, ArrayType):
        return [from_arrow(one, kind.elementType) for one in value]
    return value


# -- for people --------------------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """The value as JSON has it."""
    match value:
        case AsJson():
            return plain(value.value)
        case bytes():
            return value.decode("utf-8", "backslashreplace")
        case datetime.date():
            return _spelled_time(value)
        case Decimal():
            return str(value)
        case dict():
            return {str(plain(key)): plain(one) for key, one in value.items()}
        case list() | tuple():
            return [plain(one) for one in value]
    return value


def spell(value: Any) -> str:
    """The value on one line: `{country: "DE", total: 10.0}`."""
    value = plain(value)
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {spell(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(spell(one) for one in value) + "]"
    return json.dumps(value, ensure_ascii=False, default=str)


def _spelled_time(value: Any) -> str:
    return str(value.isoformat()).replace("+00:00", "Z") if isinstance(value, datetime.date) else str(value)
