"""All that is in a topic, as a reader of committed messages sees it."""

from __future__ import annotations

from tests.support.server import Server
from waystation.client.records.offsets import offsets_at
from waystation.client.records.reading import RecordReader
from waystation.spark.pipelines.registry import connect_any


def read_topic(server: Server, topic: str, partitions: int) -> list[tuple[bytes, bytes]]:
    """Keys and values, in the order of each partition."""
    found: list[tuple[bytes, bytes]] = []
    with connect_any(server.bootstrap) as mq:
        ends = {(topic, number): bounds.end for number, bounds in offsets_at(mq, topic).items()}
        reader = RecordReader(mq)
        reader.assign({(topic, number): 0 for number in range(partitions)})
        while any(at < ends[place] for place, at in reader.positions.items()):
            found += [(i.record.key or b"", i.record.value or b"") for i in reader.poll(200)]
    return found
