"""Spark: topics and queues as DataFrames, in and out, and pipelines. Needs `pip install waystation[spark]`.

Nothing here is imported by the broker, and importing this package imports no pyspark: `register` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes the format "waystation" known to a session, classic or Connect; again does no harm.

    Spark finds it by itself through the module `pyspark_waystation`, where the package is installed and no other data
    source's discovery fails. This always works.
    """
    from waystation.spark.source import WaystationDataSource

    spark.dataSource.register(WaystationDataSource)
