"""A stream reader that could not be made: it says why when it is first used.

Where making a stream reader raises, Spark (4.0 to 4.3) shows an error of its own about a variable that has no value,
and the reason is lost. For `source`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from pyspark.sql.datasource import DataSourceStreamReader

from waystation.errors import WaystationError
from waystation.spark.worker_errors import without_traceback


class RefusedReader(DataSourceStreamReader):
    """Raises the reason, whatever Spark asks."""

    def __init__(self, reason: WaystationError) -> None:
        self._reason = reason

    def initialOffset(self) -> dict[str, Any]:
        self._refuse()

    def latestOffset(self, start: object = None, limit: object = None) -> dict[str, Any]:
        self._refuse()

    def partitions(self, start: object, end: object) -> list[Any]:
        self._refuse()

    def read(self, partition: object) -> Any:
        self._refuse()

    @without_traceback()
    def _refuse(self) -> NoReturn:
        raise self._reason
