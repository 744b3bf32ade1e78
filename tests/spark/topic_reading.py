"""All that is in a topic, as a reader of committed messages sees it."""

from __future__ import annotations

from tests.support.server import Server
from waystation.client.records.offsets import offsets_at
from waystation.client.records.reading import RecordReader
from waystation.log.batches.batch import Record
from waystation.spark.pipelines.status.registry import connect_any


def read_messages(server: Server, topic: str, partitions: int) -> list[Record]:
    """In the order of each partition."""
    found: list[Record] = []
    with connect_any(server.bootstrap) as mq:
        ends = {(topic, number): bounds.end for number, bounds in offsets_at(mq, topic).items()}
        reader = RecordReader(mq)
        reader.assign({(topic, number): 0 for number in range(partitions)})
        while any(at < ends[place] for place, at in reader.positions.items()):
            found += [incoming.record for incoming in reader.poll(200)]
    return found


def read_topic(server: Server, topic: str, partitions: int) -> list[tuple[bytes, bytes]]:
    """Keys and values, in the order of each partition."""
    return [(record.key or b"", record.value or b"") for record in read_messages(server, topic, partitions)]
