"""The examples of the guides that need Spark run as they stand, against a real broker.

The other examples are run by tests/docs, in an environment that has no Spark.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.docs.blocks import Block, blocks, run_block
from tests.spark.sink_kit import committed, connect
from tests.support.server import ROOT, Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

START = datetime.datetime(2026, 3, 1, 12, tzinfo=datetime.UTC)
FOUND = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    for number, block in enumerate((one for one in blocks(page) if "# needs: pyspark" in one.code), 1)
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("block", FOUND)
def test_an_example_runs_as_it_stands(tmp_path: Path, block: Block) -> None:
    with Server(tmp_path / "broker") as server:
        folder = tmp_path / "example"
        folder.mkdir()
        failure = run_block(block, folder, server.addresses)
        assert failure is None, f"{failure}\n{server.tail()}"


def test_the_guides_of_source_sink_and_queues_have_examples() -> None:
    assert len(FOUND) >= 3


@pytest.mark.timeout(600)
def test_the_first_pipeline_of_the_guide_counts_orders(spark: SparkSession, tmp_path: Path) -> None:
    """As `waystation pipeline run --once` runs it. All other files of the guide together are without a mistake."""
    from waystation.spark.pipelines.file.reading import read_pipeline, read_with_problems
    from waystation.spark.pipelines.running import run_pipeline

    page = blocks(ROOT / "docs" / "guide" / "pipelines.md")
    first, *more = [block.code for block in page if block.info == "toml"]
    file = tmp_path / "orders.toml"
    file.write_text(first)
    (tmp_path / "scoring.py").write_text(next(one.code for one in page if "def score(orders)" in one.code))
    (tmp_path / "sessions.py").write_text("class Session:\n    pass\n")
    whole = tmp_path / "whole.toml"
    clicks = '[source.clicks]\ntopics = "clicks"\nschema = "user STRING"\n'
    whole.write_text("\n".join((first, clicks, *more)))
    assert read_with_problems(whole).problems == []

    with Server(tmp_path / "broker") as server:
        with connect(server) as mq:
            for topic in ("orders", "orders-per-minute"):
                mq.create_topic(topic, partitions=1)
            for minute, paid in ((0, True), (0, False), (0, True), (60, True)):
                order = {"id": "x", "country": "NO", "amount": 10.5, "paid": paid}
                mq.publish("orders", order, timestamp=START + datetime.timedelta(minutes=minute))
        assert run_pipeline(read_pipeline(file, servers=server.bootstrap, master="local[2]"), once=True) == "finished"
        (total,) = [json.loads(message.value) for message in committed(server, "orders-per-minute")]
    assert (total["country"], total["total"], total["orders"]) == ("NO", 21.0, 2), "the other window is still open"
