"""Micro-batches written one by one, each exactly once: what `foreachBatch` calls.

For queries in `update` output mode. Spark lets the streaming sink of a Python data source append, or write everything
again (`complete`), but not update. A batch write with the query's id and the batch's number does the same work, and a
batch that is replayed is not written a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.errors import Invalid

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

QUERY_ID = "sql.streaming.queryId"


def each_batch(**options: Any) -> Callable[[DataFrame, int], None]:
    """A function for `foreachBatch` that writes to where the options say; they are those of `df.write`.

    A `txnId` is the query's own id, unless one is given: it has to be over Spark Connect, and then a query with a new
    checkpoint needs a new one.
    """
    given = {name: str(value) for name, value in options.items()}

    def write(frame: DataFrame, number: int) -> None:
        chosen = dict(given)
        names = {name.lower(): value for name, value in given.items()}
        if names.get("guarantee", "").lower() != "at-least-once":
            if not names.get("txnid"):
                chosen["txnId"] = _query_of(frame)
            chosen["txnVersion"] = str(number)
        frame.write.format("waystation").options(**chosen).mode("append").save()

    return write


def _query_of(frame: DataFrame) -> str:
    try:
        found = frame.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
    except Exception:  # Connect has no context, and says so by an error of its own
        found = None
    if not found:
        raise Invalid("the query's id is not known here: give the option txnId, one for each checkpoint of the query")
    return str(found)
