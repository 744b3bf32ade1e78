"""Spark: topics and queues as DataFrames, in and out, and pipelines. Needs `pip install waystation[spark]`.

Nothing here is imported by the broker, and importing this package imports no pyspark: `register` does.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.spark.writing.foreach import each_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["each_batch", "register"]


def register(spark: SparkSession, *, report: bool = True) -> None:
    """Makes the format "waystation" known to a session, classic or Connect; again does no harm.

    Spark finds it by itself through the module `pyspark_waystation`, where the package is installed and no other data
    source's discovery fails. This always works, also where the virtual environment is not activated: unless somebody
    has chosen a Python for the workers, those of a local session run this one, which has the package.

    After it, `df.write…save()` without a mode appends to this source (`waystation.spark.writing.appending`), and
    streams that write to it are checked when they start, and may be in update mode
    (`waystation.spark.writing.stream_starts`).
    `report`: whether streaming queries that use Waystation are shown with the pipelines on the broker that they use.
    """
    from pyspark.errors import AnalysisException

    from waystation.spark.query_reports import report_queries
    from waystation.spark.source import WaystationDataSource
    from waystation.spark.writing.appending import append_by_default
    from waystation.spark.writing.stream_starts import check_starts

    if getattr(spark, "_jvm", None) is not None:  # None: a Connect server's, which has its own
        _work_with_this_python(spark)
        _plan_with_this_package(spark)
    try:
        spark.dataSource.register(WaystationDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # 4.0 says so of one that it has found by itself
            raise
    writers, stream_writers = _writers_of(spark)
    append_by_default(writers, WaystationDataSource.name())
    check_starts(stream_writers, WaystationDataSource.name())
    report_queries(spark, report)


def _writers_of(spark: SparkSession) -> tuple[type, type]:
    """The classes of its writers, of batches and of streams."""
    if getattr(spark, "_jvm", None) is None:
        from pyspark.sql.connect.readwriter import DataFrameWriter as ConnectWriter
        from pyspark.sql.connect.streaming.readwriter import DataStreamWriter as ConnectStreamWriter

        return ConnectWriter, ConnectStreamWriter
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    return DataFrameWriter, DataStreamWriter


def _work_with_this_python(spark: SparkSession) -> None:
    """Spark's default is whatever `python3` is on the path. On a cluster, that is for its people to say."""
    context = spark.sparkContext
    if "PYSPARK_PYTHON" not in os.environ and context.master.startswith("local"):
        context.pythonExec = sys.executable


def _plan_with_this_package(spark: SparkSession) -> None:
    """Lets the driver's Python processes import this package where it came by `--py-files`.

    Spark gives those files to tasks, but not to the process that plans a stream's batches. Where tasks run, the path
    means nothing and is passed over.
    """
    root = Path(__file__).parent.parent.parent
    if root.is_file():
        environment = spark.sparkContext.environment
        paths = environment.get("PYTHONPATH", "").split(os.pathsep)
        if str(root) not in paths:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (*paths, str(root))))
