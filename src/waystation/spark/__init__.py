"""Spark: topics and queues as DataFrames, in and out, and pipelines. Needs `pip install waystation[spark]`.

Nothing here is imported by the broker, and importing this package imports no pyspark: `register` does.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession, *, report: bool = True) -> None:
    """Makes the format "waystation" known to a session, classic or Connect; again does no harm.

    Spark finds it by itself through the module `pyspark_waystation`, where the package is installed and no other data
    source's discovery fails. This always works, also where the virtual environment is not activated: unless somebody
    has chosen a Python for the workers, those of a local session run this one, which has the package.

    `report`: whether streaming queries that use Waystation are shown with the pipelines on the broker that they use.
    """
    from waystation.spark.source import WaystationDataSource

    _work_with_this_python(spark)
    spark.dataSource.register(WaystationDataSource)
    from waystation.spark.query_reports import report_queries

    report_queries(spark, report)


def _work_with_this_python(spark: SparkSession) -> None:
    """Spark's default is whatever `python3` is on the path. On a cluster, that is for its people to say."""
    if "PYSPARK_PYTHON" in os.environ or getattr(spark, "_jvm", None) is None:  # None: a Connect server's
        return
    context = spark.sparkContext
    if context.master.startswith("local"):
        context.pythonExec = sys.executable
