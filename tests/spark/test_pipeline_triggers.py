"""When a pipeline makes batches: once, all there is in portions, or on and on until it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.spark.pipeline_kit import Kit
from tests.spark.sink_kit import committed, connect, texts
from tests.support.names import unique
from tests.support.server import Server

if TYPE_CHECKING:
    pass


def batches(kit: Kit) -> list[int]:
    """The numbers of the batches that are committed."""
    folder = kit.folder / ".waystation" / "one" / "sinks" / "out" / "commits"
    return sorted(int(file.name) for file in folder.iterdir() if file.name.isdigit())


def copies(server: Server, source: str, target: str, trigger: str) -> str:
    return f"""servers = "{server.bootstrap}"
trigger = "{trigger}"
[source.rows]
{source}
maxRowsPerTrigger = 10
[sink.out]
from = "rows"
topic = "{target}"
"""


def test_once_is_one_batch_of_all_there_is(kit: Kit, server: Server) -> None:
    name = unique("once")
    with connect(server) as mq:
        for topic in (f"{name}-in", f"{name}-out"):
            mq.create_topic(topic, partitions=2)
        mq.publish_many(f"{name}-in", [str(n) for n in range(35)])
        text = copies(server, f'topics = "{name}-in"', f"{name}-out", "once")
        assert kit.run(text) == "finished"
        assert batches(kit) == [0], "the limit is for batches that others follow"
        mq.publish_many(f"{name}-in", [str(n) for n in range(35, 50)])
        assert kit.run(text) == "finished"
        assert batches(kit) == [0, 1]
        assert kit.run(text) == "finished", "nothing is new"
    assert sorted(map(int, texts(committed(server, f"{name}-out")))) == list(range(50))


def test_once_takes_a_whole_queue(kit: Kit, server: Server) -> None:
    name = unique("once")
    with connect(server) as mq:
        mq.create_topic(name, partitions=1)
        queue = mq.queue(name)
        queue.put_many([str(n) for n in range(35)])
        text = copies(server, f'queue = "{name}"', name, "once")
        assert kit.run(text) == "finished"
        assert batches(kit) == [0]
        assert kit.run(text) == "finished", "the messages of the batch are acked, and there are no more"
        assert len(queue) == 0
    assert sorted(map(int, texts(committed(server, name)))) == list(range(35))


def test_the_option_once_ends_a_pipeline_that_goes_on_otherwise(kit: Kit, server: Server) -> None:
    name = unique("once")
    with connect(server) as mq:
        for topic in (f"{name}-in", f"{name}-out"):
            mq.create_topic(topic, partitions=1)
        mq.publish_many(f"{name}-in", [str(n) for n in range(25)])
    text = copies(server, f'topics = "{name}-in"', f"{name}-out", "1s")
    assert kit.run(text, once=True) == "finished"
    assert batches(kit) == [0, 1, 2], "in batches that keep the limit"
    assert sorted(map(int, texts(committed(server, f"{name}-out")))) == list(range(25))
