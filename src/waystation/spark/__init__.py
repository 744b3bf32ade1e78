"""Spark: topics and queues as DataFrames, in and out, and pipelines. Needs `pip install waystation[spark]`.

Nothing here is imported by the broker, and importing this package imports no pyspark: `register` does.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from waystation.spark.foreach import each_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["each_batch", "register"]


def register(spark: SparkSession) -> None:
    """Makes the format "waystation" known to a session, classic or Connect; again does no harm.

    Spark finds it by itself through the module `pyspark_waystation`, where the package is installed and no other data
    source's discovery fails. This always works, also where the virtual environment is not activated: unless somebody
    has chosen a Python for the workers, those of a local session run this one, which has the package.

    After it, `df.write…save()` without a mode appends to this source (`waystation.spark.appending`).
    """
    from pyspark.errors import AnalysisException

    from waystation.spark.appending import append_by_default
    from waystation.spark.source import WaystationDataSource

    _work_with_this_python(spark)
    try:
        spark.dataSource.register(WaystationDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # 4.0 says so of one that it has found by itself
            raise
    append_by_default(_writers_of(spark), WaystationDataSource.name())


def _writers_of(spark: SparkSession) -> type:
    if getattr(spark, "_jvm", None) is None:
        from pyspark.sql.connect.readwriter import DataFrameWriter as ConnectWriter

        return ConnectWriter
    from pyspark.sql.readwriter import DataFrameWriter

    return DataFrameWriter


def _work_with_this_python(spark: SparkSession) -> None:
    """Spark's default is whatever `python3` is on the path. On a cluster, that is for its people to say."""
    if "PYSPARK_PYTHON" in os.environ or getattr(spark, "_jvm", None) is None:  # None: a Connect server's
        return
    context = spark.sparkContext
    if context.master.startswith("local"):
        context.pythonExec = sys.executable
