"""All that is in a topic, as a reader of committed messages sees it."""

from __future__ import annotations

from tests.support.server import Server
from waystation.client.reader import Reader
from waystation.client.topics import LATEST, find_offsets
from waystation.spark.pipelines.registry import connect_any


def read_topic(server: Server, topic: str, partitions: int) -> list[tuple[bytes, bytes]]:
    """Keys and values, in the order of each partition."""
    found: list[tuple[bytes, bytes]] = []
    with connect_any(server.bootstrap) as connection:
        places = {(topic, number): 0 for number in range(partitions)}
        ends = find_offsets(connection, dict.fromkeys(places, LATEST))
        reader = Reader(connection)
        reader.assign(places)
        while any(at < ends[place].offset for place, at in reader.positions.items()):
            found += [(i.record.key or b"", i.record.value or b"") for i in reader.poll(200)]
    return found
