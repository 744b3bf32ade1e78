"""Formats of values that have a schema of their own: Avro and Protobuf, each by its package from PyPI.

A format says which Arrow type its values have, and gives a codec: values in, structs and which were malformed out, and
the way back for sinks. What Confluent's serialisers write in front of a value (a zero, the number of a schema) is
expected where a schema registry is named, and only there: a bare value may begin with the same bytes.

For the readers and for pipelines; the packages are imported when a codec is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal, Protocol

from waystation.errors import Invalid, Unavailable

if TYPE_CHECKING:
    import pyarrow as pa

FormatKind = Literal["avro", "protobuf"]
FORMATS: tuple[FormatKind, ...] = ("avro", "protobuf")
MODULES = {"avro": "fastavro", "protobuf": "google.protobuf"}
VALUE_OPTIONS = ("avroSchema", "protobufDescriptor", "protobufMessage", "schemaRegistry")
MAGIC = 0
FRAME = 5
"""The bytes before a value in Confluent's format: the magic byte, and the number of its schema."""


@dataclass(frozen=True, slots=True)
class ValueFormat:
    """`schema` is Avro's JSON, or a descriptor set of Protobuf in base64. Picklable: it goes to the workers."""

    kind: FormatKind
    schema: str
    message: str = ""
    registry: str | None = None


class Codec(Protocol):
    """What is made of a format. `decode` raises Malformed."""

    type: pa.StructType

    def decode(self, value: bytes) -> dict[str, Any]: ...

    def encode(self, fields: Mapping[str, Any]) -> bytes: ...


class Malformed(Exception):
    """A value that is not one of the schema."""


def read_value_format(options: Mapping[str, str], kind: str) -> ValueFormat | None:
    """The format that a source's options name; Invalid if something is missing. Option names are in lower case."""
    registry = options.get("schemaregistry") or None
    if kind == "avro":
        if not options.get("avroschema"):
            raise Invalid("valueFormat=avro needs the option avroSchema: the schema, as JSON")
        return ValueFormat("avro", options["avroschema"], registry=registry)
    if kind == "protobuf":
        if not options.get("protobufdescriptor") or not options.get("protobufmessage"):
            raise Invalid(
                "valueFormat=protobuf needs the options protobufDescriptor (a descriptor set, in base64) and"
                " protobufMessage (the full name of the message)"
            )
        return ValueFormat("protobuf", options["protobufdescriptor"], options["protobufmessage"], registry)
    for name in VALUE_OPTIONS:
        if options.get(name.lower()):
            raise Invalid(f"{name} is for valueFormat=avro or protobuf, and valueFormat is {kind}")
    return None


@lru_cache(maxsize=32)
def codec_of(wanted: ValueFormat) -> Codec:
    """Invalid if the schema is not one, or has types that Spark has not; Unavailable without the package."""
    if _missing(MODULES[wanted.kind]):
        raise Unavailable(
            f"values in {wanted.kind} need a package that is not installed here;"
            f" `pip install 'waystation[{wanted.kind}]'`"
        )
    if wanted.kind == "avro":
        from waystation.spark.values.avro_values import AvroCodec

        return AvroCodec(wanted)
    from waystation.spark.values.protobuf_values import ProtobufCodec

    return ProtobufCodec(wanted)


def _missing(module: str) -> bool:
    try:
        return find_spec(module) is None
    except ModuleNotFoundError:  # the package around it
        return True


def decode_typed(values: pa.Array, kind: pa.StructType, wanted: ValueFormat) -> tuple[pa.Array, pa.Array]:
    """The structs, and which values were malformed, as `json_values.decode_values` does it for JSON."""
    import pyarrow as pa

    decode = codec_of(wanted).decode
    rows: list[dict[str, Any] | None] = []
    bad: list[bool] = []
    for value in values.to_pylist():
        try:
            rows.append(None if value is None else decode(value))
            bad.append(False)
        except Malformed:
            rows.append(None)
            bad.append(True)
    try:
        return pa.array(rows, kind), pa.array(bad, pa.bool_())
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return _one_by_one(rows, bad, kind)


def _one_by_one(rows: list[dict[str, Any] | None], bad: list[bool], kind: pa.StructType) -> tuple[pa.Array, pa.Array]:
    """For values that are right in their format and have no room in Spark's type."""
    import pyarrow as pa

    made = []
    for number, row in enumerate(rows):
        try:
            made.append(pa.array([row], kind))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            made.append(pa.nulls(1, kind))
            bad[number] = True
    return pa.concat_arrays(made), pa.array(bad, pa.bool_())


def unframed(value: bytes) -> tuple[int, bytes]:
    """The number of the schema, and what follows; Malformed without the magic byte."""
    if len(value) < FRAME or value[0] != MAGIC:
        raise Malformed("it does not begin as values of a schema registry do")
    return int.from_bytes(value[1:FRAME], "big"), value[FRAME:]
