"""A Spark driver in a process of its own, to be killed: reads a queue, writes a topic exactly once.

`python -m tests.spark.queue_driver SERVERS QUEUE TOPIC CHECKPOINT`
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.spark.cluster_kit import QUICK_TO_START
from waystation.spark.sessions import SessionSettings, open_session

SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_TO_START,
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
}


def main(servers: str, queue: str, topic: str, checkpoint: str) -> None:
    log = Path(checkpoint).with_name("driver.log")
    spark = open_session(SessionSettings(master="local[2]", name="driver", settings=SETTINGS, log=log))
    jobs = (
        spark.readStream.format("waystation")
        .options(servers=servers, queue=queue, maxRowsPerTrigger=400, minPartitions=2)
        .load()
    )
    done = jobs.selectExpr("CAST(tag AS STRING) AS key", "concat('done ', CAST(value AS STRING)) AS value")
    query = (
        done.writeStream.format("waystation")
        .options(servers=servers, topic=topic, checkpointLocation=checkpoint)
        .trigger(processingTime="0 seconds")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
