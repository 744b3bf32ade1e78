"""A Spark driver in a process of its own: copies one topic to another, exactly once. The kill tests end it by force.

python sink_driver.py SERVERS INPUT OUTPUT CHECKPOINT ROWS_PER_TRIGGER
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.cluster_kit import QUICK_TO_START
from waystation.spark import register
from waystation.spark.sessions import SessionSettings, open_session


def main(servers: str, source: str, target: str, checkpoint: str, rows: str) -> None:
    settings = {
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": QUICK_TO_START,
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    }
    log = Path(checkpoint).parent / "driver-spark.log"
    spark = open_session(SessionSettings(master="local[2]", name="killed", settings=settings, log=log))
    register(spark)
    frame = (
        spark.readStream.format("waystation")
        .options(servers=servers, topics=source, startingOffsets="earliest", maxRowsPerTrigger=rows)
        .load()
    )
    query = (
        frame.selectExpr("key", "concat('copy of ', cast(value as string)) as value")
        .writeStream.format("waystation")
        .options(servers=servers, topic=target, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
