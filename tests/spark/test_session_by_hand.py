"""A session that is made without `open_session`, by a Python whose virtual environment is not activated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.conftest import WITHOUT
from tests.spark.sink_kit import committed, texts
from tests.support.names import unique
from tests.support.server import Server

WRITE = """
import sys
from pyspark.sql import SparkSession
from waystation.spark import register
from waystation.spark.java import use_java

use_java()
local = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = local.config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1").getOrCreate()
register(spark)
rows = spark.sql("select 'by hand' as value")
rows.write.format("waystation").options(servers=sys.argv[1], topic=sys.argv[2]).mode("append").save()
spark.stop()
"""


@pytest.mark.quick
def test_the_workers_run_the_python_that_has_the_package(server: Server, tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason=WITHOUT)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python3").symlink_to(Path(sys.base_prefix, "bin", "python3"))  # it has no waystation
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHONPATH"))}
    environment["PATH"] = f"{tmp_path / 'bin'}{os.pathsep}{environment['PATH']}"
    topic = unique("hand")
    done = subprocess.run(
        [sys.executable, "-c", WRITE, server.bootstrap, topic],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert texts(committed(server, topic)) == ["by hand"]
