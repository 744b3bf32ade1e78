"""What a pipeline of two sources, two steps and two sinks says of itself, without Spark: for tests and pictures."""

from __future__ import annotations

import time

from waystation.observe.pipeline_state import GraphNode, PipelineState, SinkState, SourceState


def enriching(name: str) -> PipelineState:
    """It runs on another machine, and is a little behind."""
    read = SourceState("topic orders", 500, 812.4, bytes=1_250_000, lag=34, lag_ms=12_000)
    return PipelineState(
        name,
        f"run-{name}",
        phase="running",
        host="worker-3",
        pid=4711,
        started_ms=time.time_ns() // 1_000_000,
        file="/pipelines/enrich.toml",
        checkpoint="/data/checkpoints/enrich",
        master="local[2]",
        trigger="0 seconds",
        ui_url="http://worker-3:4040",
        graph=[
            GraphNode("orders", "source", "topic orders"),
            GraphNode("customers", "source", "parquet customers (static)"),
            GraphNode("paid", "step", "filter, select", ("orders",)),
            GraphNode("named", "step", "join", ("paid", "customers")),
            GraphNode("sink:totals", "sink", "topic totals", ("named",)),
            GraphNode("sink:files", "sink", "parquet /data/files", ("paid",)),
        ],
        sinks=[
            SinkState(
                "totals", "topic", "running", 4, 500, 500, rows_per_s=812.4, lag=34, query_id="1", sources=[read]
            ),
            SinkState("files", "parquet", "running", 3, 400, 400, lag=134, query_id="2", sources=[]),
        ],
    )
