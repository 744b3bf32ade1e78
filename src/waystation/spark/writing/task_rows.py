"""A task's rows on their way to the broker: Arrow batches in, record batches and messages out.

The exactly-once and the plain sink, stream and batch, all write through here. A batch of rows is checked and encoded
before any of it is sent. Runs in a task.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from waystation.client.sync.client import Client
from waystation.errors import NotFound
from waystation.message import Message
from waystation.spark.links.broker_link import patiently
from waystation.spark.writing.partition_choice import choose
from waystation.spark.writing.record_building import BATCH_BYTES, build_batches, messages_of
from waystation.spark.writing.sink_columns import Layout, Rows, places_of
from waystation.spark.writing.sink_options import SinkOptions
from waystation.spark.writing.staging import Writing

FRAME_BYTES = 4 * 1024 * 1024
FRAME_MESSAGES = 2_000


@dataclass(slots=True)
class _Topic:
    partitions: int
    limit_bytes: int
    turn: int
    """Whose turn it is to get the rows without a key."""


class RowWriter:
    """Writes Arrow batches; `rows` counts them."""

    def __init__(self, client: Client, writing: Writing, layout: Layout, options: SinkOptions, task: int) -> None:
        self._client = client
        self._writing = writing
        self._layout = layout
        self._options = options
        self._task = task
        self._topics: dict[str, _Topic] = {}
        self._pending: dict[str, list[tuple[int, bytearray]]] = {}
        self._pending_bytes = 0
        self.rows = 0

    def write(self, batches: Iterable[pa.RecordBatch]) -> None:
        """All of them; what does not fill a frame goes at the end."""
        for batch in batches:
            for (kind, name), rows in places_of(batch, self._layout):
                if kind == "topic":
                    self._to_topic(name, rows)
                else:
                    self._to_queue(name, rows)
            self.rows += batch.num_rows
        self._flush()

    def _to_topic(self, name: str, rows: Rows) -> None:
        topic = self._topics.get(name) or self._look_up(name)
        now_ms = time.time_ns() // 1_000_000
        pending = self._pending.setdefault(name, [])
        for partition, share in choose(rows, topic.partitions, topic.turn, name):
            for batch in build_batches(share, now_ms, topic.limit_bytes):
                pending.append((partition, batch))
                self._pending_bytes += len(batch)
        topic.turn += 1
        if self._pending_bytes >= FRAME_BYTES:
            self._flush()

    def _flush(self) -> None:
        pending, self._pending = self._pending, {}
        self._pending_bytes = 0
        for name, batches in pending.items():
            self._writing.batches(name, batches)

    def _to_queue(self, name: str, rows: Rows) -> None:
        frame: list[Message] = []
        size = 0
        for message in messages_of(rows, time.time_ns() // 1_000_000):
            frame.append(message)
            size += len(message.payload) + 100
            if len(frame) >= FRAME_MESSAGES or size >= FRAME_BYTES:
                self._writing.messages(name, frame)
                frame, size = [], 0
        if frame:
            self._writing.messages(name, frame)

    def _look_up(self, name: str) -> _Topic:
        """A topic that is not there is created, as for every publisher, where the broker creates topics by itself."""
        try:
            info = patiently(
                lambda: self._client.describe_topic(name, create=True), self._options.servers, self._options.retry_s
            )
        except NotFound as error:
            raise NotFound(f"{error}; make it first, for instance: waystation topics create {name}") from None
        limit = int(info.settings.get("max.message.bytes", 2 * BATCH_BYTES))
        found = _Topic(len(info.partitions), min(BATCH_BYTES, limit), self._task)
        self._topics[name] = found
        return found
