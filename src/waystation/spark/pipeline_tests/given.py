"""The rows that a test gives a source, as the source would have read them.

A value may be written as a table, decoded, or as the text of the message: then it is decoded here by the source's own
decoder, and one that does not fit is malformed here as it is there. Used by `running.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from waystation.errors import Invalid
from waystation.spark.pipeline_tests.values import as_struct, from_arrow
from waystation.spark.pipelines.file.declared import Source
from waystation.spark.values.json_values import CORRUPT, decode_values


def given_rows(values: Mapping[str, Any], schema: StructType, source: Source) -> list[dict[str, Any]]:
    """The row; none if the source leaves a malformed one out. Invalid if it has no such columns or other types."""
    text = values.get("value")
    if source.options.get("valueFormat") != "json" or not isinstance(text, str):
        return [as_struct(values, schema)]
    kind = schema["value"].dataType
    structs, bad = decode_values(pa.array([text.encode()]), to_arrow_type(kind, timezone="UTC"))
    if not bad[0].as_py():
        return [as_struct({**values, "value": from_arrow(structs[0].as_py(), kind)}, schema)]
    mode = source.options.get("mode", "permissive").lower()
    if mode == "failfast":
        raise Invalid(f"the value does not fit the schema, which is an error with mode = {mode!r}: {text}")
    rest = {name: value for name, value in values.items() if name != "value"}
    return [] if mode == "dropmalformed" else [as_struct({**rest, CORRUPT: text}, schema)]
