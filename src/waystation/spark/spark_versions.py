"""What PySpark's data source API has in one version and not in another: 4.0 to 4.3 are supported.

* Since 4.2 a stream reader is told where a batch begins and how large it may be (`TELLS_START`). Before, it knows only
  what it was asked before. Limits cannot be kept: with `trigger(availableNow=True)` Spark asks once, and takes the
  answer for the end of the whole run. Nor can queues be streams: it asks before it has done its last batch again, and
  then nobody could say whether the messages of that may be acked.
* Since 4.1 a stream can be written as Arrow batches. 4.0 hands them to whoever is a writer of batch writes, too.

For the readers and writers of this package; nothing else asks which version it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyspark
from pyspark.sql import datasource
from pyspark.sql.pandas import types as arrow_types
from pyspark.sql.types import StructType

from waystation.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    TELLS_START: bool
else:
    try:
        from pyspark.sql.streaming.datasource import (
            ReadAllAvailable,
            ReadLimit,
            ReadMaxBytes,
            ReadMaxRows,
            SupportsTriggerAvailableNow,
        )

        TELLS_START = True
    except ImportError:
        TELLS_START = False

        class ReadLimit:
            pass

        class ReadAllAvailable(ReadLimit):
            pass

        @dataclass
        class ReadMaxRows(ReadLimit):
            max_rows: int

        @dataclass
        class ReadMaxBytes(ReadLimit):
            max_bytes: int

        class SupportsTriggerAvailableNow:
            pass

    try:
        from pyspark.sql.datasource import DataSourceStreamArrowWriter
    except ImportError:

        class DataSourceStreamArrowWriter(datasource.DataSourceStreamWriter, datasource.DataSourceArrowWriter):
            pass


__all__ = [
    "TELLS_START",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "Told",
    "check_limits",
    "check_tells_start",
    "to_arrow_schema",
]


def check_limits(**limits: object) -> None:
    """Raises Invalid for limits of a stream, by the options' names, where this PySpark cannot keep them."""
    given = sorted(name for name, value in limits.items() if value is not None)
    if given:
        check_tells_start(f"{' and '.join(given)} of a stream")


def check_tells_start(what: str) -> None:
    """Raises Invalid where this PySpark does not tell a stream reader where a batch begins."""
    if not TELLS_START:
        raise Invalid(
            f"{what}: this needs PySpark 4.2 or later, and here is {pyspark.__version__}; upgrade it, or do without"
        )


class Told:
    """Where a stream's next batch begins, for a reader that Spark does not tell: behind the last batch that it planned.

    A query that goes on from its checkpoint is told first: Spark asks for the partitions of an empty range there.
    """

    def __init__(self) -> None:
        self._end: dict[str, Any] | None = None

    def planned(self, end: dict[str, Any]) -> None:
        self._end = end

    def start(self, given: dict[str, Any] | None, initial: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        if given is not None:
            return given
        return initial() if self._end is None else self._end


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """With times in UTC."""
    convert: Any = arrow_types.to_arrow_schema
    try:
        return convert(schema, timezone="UTC")
    except TypeError:  # before 4.2, where that is how it is
        return convert(schema)
