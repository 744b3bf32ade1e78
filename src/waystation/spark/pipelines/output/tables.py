"""Delta Lake and Iceberg tables as sinks, through their Python packages where those are installed: no jar.

`table_commits.py` does the work; this can be imported where neither Arrow nor Spark is. Used by `sinks.py`, and for
what is missing by `checking.py` and `running.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING

from waystation.errors import Unavailable
from waystation.spark.pipelines.file.declared import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PACKAGES = {"delta": "deltalake", "iceberg": "pyiceberg"}


def need_package(sink: Sink) -> None:
    """Unavailable, with what to install, where the package of a table format is missing."""
    package = PACKAGES.get(sink.kind)
    if package is not None and find_spec(package) is None:
        raise Unavailable(f"a {sink.kind} sink needs the package {package}; `pip install 'waystation[{sink.kind}]'`")


def table_writer(sink: Sink, query: str) -> Callable[[DataFrame, int], None]:
    """What `foreachBatch` calls. `query` is the same after a restart; empty for a frame that is written once."""
    need_package(sink)
    from waystation.spark.pipelines.output.table_commits import write_delta, write_iceberg

    write = write_delta if sink.kind == "delta" else write_iceberg

    def work(frame: DataFrame, batch: int) -> None:
        write(sink, query, batch, frame)

    return work
