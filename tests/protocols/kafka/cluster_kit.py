"""A broker in this process that believes to be a node of a cluster: its view is what the test says.

It has all logs itself, so that handlers find something; `moved` makes it a follower of a partition.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tests.protocols.kafka.admin_kit import Desk, build, entity
from tests.support.entrances import entrance_of
from waystation.catalog import MemoryCatalog
from waystation.cluster.decisions.state import (
    Address,
    DiskState,
    NodeState,
    PartitionState,
    disk_key,
    encode,
    node_key,
    partition_key,
    read_partition,
)
from waystation.cluster.store_view import StoreView
from waystation.protocols.budget import Budgets
from waystation.protocols.kafka.connection import KafkaConnection
from waystation.protocols.kafka.requests.codec import API_KEYS
from waystation.protocols.kafka.server import KafkaListener

RACKS = {1: "a", 2: "b", 3: ""}
ADDRESSES = {number: Address(f"node{number}.test", 9_090 + number) for number in RACKS}


class ClusterDesk(Desk):
    """Node 1 of three, in two racks and in none."""

    def __init__(self, root: Path, settings: Mapping[str, str]) -> None:
        self.known = StoreView(1)
        self.catalog = MemoryCatalog()
        super().__init__(root, settings, self.known, self.catalog)
        for number in RACKS:
            self.node(number)
        for topic in self.broker.topics:
            for partition in topic.partitions:
                self.placed(topic.id, partition.index)

    def node(self, number: int, listeners: Mapping[str, Address] | None = None) -> None:
        """A node lives, with these listeners or that of Kafka's clients."""
        told = dict(listeners) if listeners is not None else {"kafka": ADDRESSES[number], "http": Address("x", 1)}
        self._tell(node_key(number), encode(NodeState(1, told, RACKS[number], "1.0", f"folder{number}")))

    def dies(self, number: int) -> None:
        self._tell(node_key(number), None)

    def placed(
        self,
        topic_id: UUID,
        index: int,
        *,
        leader: int = 1,
        epoch: int = 0,
        replicas: Sequence[int] = (1, 2, 3),
        in_sync: Sequence[int] = (1, 2, 3),
        adding: Sequence[int] = (),
        removing: Sequence[int] = (),
    ) -> None:
        """The store says this of a partition."""
        state = PartitionState(
            tuple(replicas), leader, epoch, tuple(in_sync), adding=tuple(adding), removing=tuple(removing)
        )
        self._tell(partition_key(topic_id, index), encode(state))

    def forget(self, name: str, index: int = 0) -> None:
        """The store says nothing of a partition, as before it was told."""
        self._tell(partition_key(self.broker.topics.get(name).id, index), None)

    def moved(self, name: str, index: int, leader: int, epoch: int = 7) -> None:
        """Another node leads a partition, and this one follows."""
        partition = self.broker.topics.get(name).partition(index)
        partition.follow(epoch)
        self.placed(partition.topic.id, index, leader=leader, epoch=epoch)

    def disk(self, number: int) -> None:
        """What outlives the node's own entry."""
        self._tell(disk_key(number), encode(DiskState(f"folder{number}", 1)))

    def create_placed(self, name: str, partitions: int = 1) -> UUID:
        """A topic that is on all nodes and led here."""
        topic = self.create(name, partitions)
        for index in range(partitions):
            self.placed(topic.id, index)
        return UUID(str(topic.id))

    def state(self, name: str, index: int = 0) -> PartitionState:
        """What the store has of a partition."""
        entry = self.catalog.get(partition_key(self.broker.topics.get(name).id, index))
        assert entry is not None
        return read_partition(entry.value)

    def _tell(self, key: str, value: bytes | None) -> None:
        self.run(self.broker.follower.change({key: value}))


class HotClient:
    """A connection without a socket: for Produce and Fetch, which the connection answers itself."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._listener = KafkaListener(
            desk.broker, Budgets(desk.broker.settings, desk.broker.world.clock), entrance_of(desk.broker)
        )

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        """The answer to one request, however long it takes."""
        return self._desk.run(self.asking(name, version, **fields))

    async def asking(self, name: str, version: int, **fields: Any) -> Any:
        connection = KafkaConnection(self._listener, lambda: None)
        wire = Wire()
        connection.connection_made(wire)  # type: ignore[arg-type]
        request = entity(name, version, EntityType.request)
        buffer = BytesIO()
        entity_writer(request)(buffer, build(request, fields))
        head = struct.pack(">hhih", API_KEYS[name], version, 1, 4) + b"test" + b"\0" * bool(request.__flexible__)
        frame = head + buffer.getvalue()
        data = struct.pack(">i", len(frame)) + frame
        connection.get_buffer(-1)[: len(data)] = data
        connection.buffer_updated(len(data))
        answer = await wire.answered
        response = entity(name, version, EntityType.response)
        read, end = entity_reader(response)(answer[8 + bool(response.__flexible__) :], 0)
        assert end == len(answer) - 8 - bool(response.__flexible__)
        connection.connection_lost(None)
        return read


class Wire:
    """A transport whose client takes one answer."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def write(self, data: bytes) -> None:
        self.writelines([data])

    def writelines(self, parts: list[Any]) -> None:
        self.answered.set_result(b"".join(bytes(part) for part in parts))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, **_limits: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
