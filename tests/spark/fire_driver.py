"""A Spark driver in a process of its own, which tests kill: it writes what comes to a topic, exactly once, for ever.

`python -m tests.spark.fire_driver MASTER SERVERS KIND SOURCE TARGET CHECKPOINT ROWS_PER_TRIGGER`

KIND is `topics` or `queue`. Every value is a number n and becomes 7 n + 1; keys become capital letters.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tests.spark.cluster_kit import spark_settings
from waystation.spark.sessions import SessionSettings, open_session

SETTINGS = {
    # An executor that is killed is counted against the tasks it had: with Spark's own limit of four, the query would
    # end after a few of them, which is right for a task that kills its executor and not what is tried here.
    "spark.task.maxFailures": "20",
}


def main(master: str, servers: str, kind: str, source: str, target: str, checkpoint: str, rows: str) -> None:
    settings = {**spark_settings(), **SETTINGS}
    log = Path(checkpoint).with_name("spark.log")
    spark = open_session(SessionSettings(master=master, name="under fire", settings=settings, log=log))
    options: dict[str, Any] = {"servers": servers, kind: source, "maxRowsPerTrigger": rows}
    options |= {"startingOffsets": "earliest"} if kind == "topics" else {"minPartitions": 2}
    frame = spark.readStream.format("waystation").options(**options).load()
    key = "key" if kind == "topics" else "concat('key-', cast(cast(value AS STRING) AS BIGINT) % 1000)"
    query = (
        frame.selectExpr(
            f"upper(cast({key} AS STRING)) AS key",
            "cast(7 * cast(cast(value AS STRING) AS BIGINT) + 1 AS STRING) AS value",
        )
        .writeStream.format("waystation")
        .options(servers=servers, topic=target, checkpointLocation=checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
