"""What a query that was made by hand says of a mistake: the reason, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

from pyspark.errors import StreamingQueryException
from pyspark.sql.types import StructType

from tests.spark.source_kit import Run, Stage, numbers
from tests.support.names import unique
from tests.support.ports import free_port
from waystation.errors import Invalid
from waystation.spark import spark_versions
from waystation.spark.source import WaystationDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def stream_refusal(spark: SparkSession, schema: str, checkpoint: Path, **options: Any) -> str:
    """What a stream with these options ends with."""
    reader = spark.readStream.format("waystation").options(**options)
    frame = (reader.schema(schema) if schema else reader).load()
    query = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint)).start()
    try:
        with pytest.raises(StreamingQueryException) as caught:
            query.awaitTermination(120)
    finally:
        query.stop()
    text = str(caught.value)
    assert "Traceback" not in text
    return text


def test_a_stream_says_why_it_does_not_start(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    topic = stage.topic(1)
    here = {"servers": stage.servers, "topics": topic}
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("", {**here, "endingOffsets": "latest"}, "a stream has no end, so leave it out"),
        (
            "value STRING",
            here,
            "the waystation source is binary, not string; cast it after reading",
        ),
        ("velue BINARY", here, "has no column 'velue'; did you mean 'value'?"),
        ("", {**here, "topics": "not-there"}, "topic 'not-there' does not exist"),
        ("", {**here, "startingOffsets": f'{{"{topic}": {{"0": 7}}}}'}, "ends at offset 0, so 7 is not there yet"),
        (
            "",
            {**here, "servers": f"127.0.0.1:{free_port()}", "retryTimeout": 1},
            "cannot be reached (Connection refused), and 1 s of trying are over; start it, or check the option servers",
        ),
    ]
    for number, (schema, options, says) in enumerate(cases):
        assert says in stream_refusal(spark, schema, tmp_path / str(number), **options)


def test_a_checkpoint_of_something_else_is_refused(spark: SparkSession, stage: Stage, tmp_path: Path) -> None:
    topic, queue = stage.topic(1), unique("q")
    stage.fill(topic, numbers(3))
    run = Run(spark, stage, tmp_path, topics=topic, startingOffsets="earliest")
    assert run.drain() == numbers(3)
    here = {"servers": stage.servers}
    other = stage.topic(1)
    says = stream_refusal(spark, "", run.checkpoint, **here, topics=other)
    assert f"the checkpoint is of a query that read topic {topic!r}, and this one does not" in says
    assert "start the query with a new checkpoint" in says
    says = stream_refusal(spark, "", run.checkpoint, **here, queue=queue)
    assert "checkpoint belongs to another query" in says
    stage.delete(topic)
    stage.topic(1, topic)
    says = stream_refusal(spark, "", run.checkpoint, **here, topics=topic)
    assert "was deleted and re-created while the query was reading it, or servers names another cluster" in says
    assert "start the query with a new checkpoint" in says


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"topics": "t", "maxRowsPerTrigger": "5"}, "maxRowsPerTrigger of a stream: this needs PySpark"),
        ({"queue": "q"}, "a queue as a stream: this needs PySpark"),
    ],
)
def test_what_an_older_spark_cannot_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, str], says: str
) -> None:
    monkeypatch.setattr(spark_versions, "TELLS_START", False)
    source = WaystationDataSource({"servers": "h:1", **options})
    schema = source.schema()
    assert isinstance(schema, StructType)
    reader = source.streamReader(schema)
    with pytest.raises(Invalid, match=says):
        reader.initialOffset()
