"""Values that are JSON → one Arrow struct column, decoded by Arrow itself.

All values of a batch are read in one go. If that fails, some value is malformed: the batch is halved until the bad ones
stand alone, so a few bad rows cost little, and good and bad rows are told apart by the same decoder.

A malformed value (no JSON object, or one whose fields do not have the schema's types) is null and its bytes are in the
column `_corrupt`, or it is an error, or the row is left out, by the mode. A record without a value is null and not
malformed. Pure; for the readers.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from waystation.errors import Invalid

CORRUPT = "_corrupt"

_OPEN, _BETWEEN, _CLOSE = b'{"v":', b'}\n{"v":', b"}"
_BLOCK_ROOM = 1024


def decode_values(values: pa.Array, kind: pa.StructType) -> tuple[pa.Array, pa.Array]:
    """The structs, and which values were malformed (as booleans)."""
    texts = values.to_pylist()
    missing = [text is None for text in texts]
    given = [b"{}" if text is None else text for text in texts]
    bad = np.zeros(len(texts), bool)
    parts = _decode(given, 0, kind, bad)
    structs = pa.concat_arrays(parts) if parts else pa.nulls(0, kind)
    hidden = bad | np.array(missing, bool)
    if hidden.any():
        structs = pc.if_else(pa.array(hidden), pa.scalar(None, kind), structs)
    return structs, pa.array(bad)


def _decode(texts: list[bytes], first: int, kind: pa.StructType, bad: Any) -> list[pa.Array]:
    if not texts:
        return []
    found = _try(texts, kind)
    if found is not None:
        return found
    if len(texts) == 1:
        bad[first] = True
        return [pa.nulls(1, kind)]
    half = len(texts) // 2
    return [*_decode(texts[:half], first, kind, bad), *_decode(texts[half:], first + half, kind, bad)]


def _try(texts: list[bytes], kind: pa.StructType) -> list[pa.Array] | None:
    """Each value is wrapped in an object of its own, so that no two values can run together."""
    joined = _OPEN + _BETWEEN.join(texts) + _CLOSE
    parsing = arrow_json.ParseOptions(
        explicit_schema=pa.schema([pa.field("v", _readable(kind))]),
        newlines_in_values=True,
        unexpected_field_behavior="ignore",
    )
    reading = arrow_json.ReadOptions(use_threads=False, block_size=len(joined) + _BLOCK_ROOM)
    try:
        table = arrow_json.read_json(io.BytesIO(joined), read_options=reading, parse_options=parsing)
        column = table.column("v")
        if len(column) != len(texts) or column.null_count:
            return None
        return [chunk.cast(kind) for chunk in column.chunks]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, KeyError):
        return None


def _readable(kind: pa.DataType) -> pa.DataType:
    """A type that Arrow's JSON reader knows, from which Arrow can cast to `kind`."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _readable(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(_readable(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _readable(kind.item_type))
    if pa.types.is_binary(kind):
        return pa.string()
    if pa.types.is_timestamp(kind):
        return pa.string()
    return kind


# -- a schema from examples --------------------------------------------------------------------------------------------


def infer_type(values: Iterable[bytes]) -> pa.StructType:
    """The struct type that these values have together; what is no JSON object is passed over, Invalid if all are.

    Of a field that has several types the first one counts; whole numbers and fractions together are fractions.
    Times stay text, as in Spark's own JSON source.
    """
    found: pa.DataType = pa.null()
    for text in values:
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(value, dict):
            found = _merged(found, _type_of(value))
    if pa.types.is_null(found):
        raise Invalid("no value is a JSON object, so no schema can be inferred; give the option valueSchema")
    return _settled(found)


def _type_of(value: Any) -> pa.DataType:
    match value:
        case bool():
            return pa.bool_()
        case int():
            return pa.int64() if -(2**63) <= value < 2**63 else pa.float64()
        case float():
            return pa.float64()
        case str():
            return pa.string()
        case list():
            kind: pa.DataType = pa.null()
            for one in value:
                kind = _merged(kind, _type_of(one))
            return pa.list_(kind)
        case dict():
            return pa.struct([pa.field(name, _type_of(one)) for name, one in value.items()])
    return pa.null()


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        kinds = {field.name: field.type for field in one}
        for field in other:
            kinds[field.name] = _merged(kinds.get(field.name, pa.null()), field.type)
        return pa.struct([pa.field(name, kind) for name, kind in kinds.items()])
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_merged(one.value_type, other.value_type))
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    return one


def _settled(kind: pa.DataType) -> pa.DataType:
    """What was never seen with a value is text."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(one.name, _settled(one.type)) for one in kind])
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    return pa.string() if pa.types.is_null(kind) else kind
