"""The values of a sink in Avro or Protobuf: rows of its table as the fields of the schema, encoded by Spark's workers.

Each field is the column of its name, cast to the field's type; Spark itself refuses what cannot be cast. Fields that no
column has are left to their defaults. Used by `sinks.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from waystation.errors import Invalid, near_matches
from waystation.spark.values.value_formats import ValueFormat, codec_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType


def encoded(frame: DataFrame, wanted: ValueFormat, expression: str | None, *, without: tuple[str, ...] = ()) -> Column:
    """The value of each row: of the struct that an expression gives, or of the columns but those of `without`. Invalid
    if a column has no field in the schema."""
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_type
    from pyspark.sql.types import StructType

    schema = from_arrow_type(codec_of(wanted).type)
    given = frame.schema if expression is None else frame.selectExpr(expression).schema[0].dataType
    if not isinstance(given, StructType):
        raise Invalid(f"value has to be a struct to be written as {wanted.kind}, and is {given.simpleString()}")
    left_out = without if expression is None else ()
    _check(given, schema, wanted.kind, left_out)
    whole = None if expression is None else F.expr(expression)
    fields = [
        (F.col(f"`{one.name}`") if whole is None else whole[one.name]).cast(one.dataType).alias(one.name)
        for one in schema
        if one.name in given.names
    ]
    encode = F.udf(lambda row: codec_of(wanted).encode(row.asDict(recursive=True)), "binary")
    return encode(F.struct(*fields))


def _check(given: StructType, schema: StructType, kind: str, left_out: tuple[str, ...]) -> None:
    for name in given.names:
        if name not in schema.names and name not in left_out:
            near = near_matches(name, schema.names) or f"; it has {', '.join(schema.names)}"
            raise Invalid(f"the {kind} schema has no field {name!r}{near}")
    for field in schema:
        if field.name in given.names:
            _check_names(given[field.name].dataType, field.dataType, field.name)


def _check_names(given: DataType, wanted: DataType, where: str) -> None:
    """Spark casts structs by position: fields of other names would be exchanged without a word."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    pairs: list[tuple[Any, Any, str]] = []
    if isinstance(given, StructType) and isinstance(wanted, StructType):
        if given.names != wanted.names:
            raise Invalid(f"{where} has the fields {', '.join(given.names)}, and has to have {', '.join(wanted.names)}")
        pairs = [(given[name].dataType, wanted[name].dataType, f"{where}.{name}") for name in wanted.names]
    elif isinstance(given, ArrayType) and isinstance(wanted, ArrayType):
        pairs = [(given.elementType, wanted.elementType, where)]
    elif isinstance(given, MapType) and isinstance(wanted, MapType):
        pairs = [(given.valueType, wanted.valueType, where)]
    for pair in pairs:
        _check_names(*pair)
