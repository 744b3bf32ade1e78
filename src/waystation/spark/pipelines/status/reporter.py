"""Tells the broker how a pipeline is doing, and hears whether it should stop: one thread, one connection.

Spark never waits for it: who has news changes the state and goes on; the thread sends the newest state at most once a
second, and at least every few. A broker that is away costs nothing but the report; it is tried again until it is back,
and `on_note` hears when it goes and comes. No wish to stop is missed in between, since the position is kept.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec

from waystation.client.records.offsets import offsets_at
from waystation.client.records.publishing import OutgoingRecord, RecordPublisher
from waystation.client.records.reading import RecordReader
from waystation.client.sync.client import Client
from waystation.errors import WaystationError
from waystation.observe.pipeline_state import CONTROL, HEARTBEAT_S, TOPIC, Control, PipelineState
from waystation.spark.links.servers import Servers
from waystation.spark.pipelines.status.registry import connect_any, ensure_topic

EVERY_S = 1.0
AGAIN_S = 2.0
CLOSE_S = 10.0


class Reporter:
    """The link between a running pipeline and the broker's topic of pipelines."""

    def __init__(
        self,
        servers: str | Servers,
        state: PipelineState,
        on_note: Callable[[str], None],
        on_look: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_look` is called every second while the broker is there, on the reporter's thread."""
        self._servers = servers
        self._state = state
        self._note = on_note
        self._look = on_look
        self._lock = threading.Lock()
        self._dirty = threading.Event()
        self._ended = threading.Event()
        self._sent_at = 0.0
        self._position: int | None = None
        self._away = False
        self._thread = threading.Thread(target=self._work, name="pipeline-reporter", daemon=True)
        self.stop_wished = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def update(self, change: Callable[[PipelineState], None]) -> None:
        """Changes the state; it is sent soon. From any thread."""
        with self._lock:
            change(self._state)
        self._dirty.set()

    def close(self, wait_s: float = CLOSE_S) -> None:
        """Sends the last state, if the broker takes it now, and ends; waits so long for that."""
        self._ended.set()
        self._dirty.set()
        if wait_s and self._thread.is_alive():
            self._thread.join(wait_s)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            try:
                with connect_any(self._servers) as mq:
                    self._converse(mq)
                return
            except (WaystationError, OSError) as error:
                if not self._away and not self._ended.is_set():
                    self._note(
                        f"the broker at {self._servers} is away ({_first(error)}); trying again until it is back"
                    )
                self._away = True
            if self._ended.wait(AGAIN_S):
                return  # there is nobody to tell

    def _converse(self, mq: Client) -> None:
        ensure_topic(mq)
        publisher = RecordPublisher(mq, TOPIC)
        reader = RecordReader(mq)
        place = (TOPIC, 0)
        if self._position is None:
            self._position = offsets_at(mq, TOPIC)[0].end
        reader.assign({place: self._position})
        self._sent_at = 0.0
        while True:
            ended = self._ended.is_set()
            if ended or self._due():
                self._send(publisher)
                if self._away:
                    self._away = False
                    self._note(f"the broker at {self._servers} is back")
            if ended:
                return
            for incoming in reader.poll(0):
                self._hear(incoming.record.key, incoming.record.value)
            self._position = reader.positions[place]
            self._look()
            self._ended.wait(EVERY_S)

    def _due(self) -> bool:
        silent_s = time.monotonic() - self._sent_at
        return silent_s >= HEARTBEAT_S or (self._dirty.is_set() and silent_s >= EVERY_S)

    def _send(self, publisher: RecordPublisher) -> None:
        self._dirty.clear()
        with self._lock:
            self._state.updated_ms = time.time_ns() // 1_000_000
            value = msgspec.json.encode(self._state)
        publisher.publish(OutgoingRecord(value, self._state.pipeline.encode()))
        publisher.flush()
        self._sent_at = time.monotonic()

    def _hear(self, key: bytes | None, value: bytes | None) -> None:
        if key != f"{self._state.pipeline}{CONTROL}".encode() or value is None:
            return
        try:
            control = msgspec.json.decode(value, type=Control)
        except msgspec.DecodeError:
            return
        if control.run == self._state.run:
            self.stop_wished.set()


def _first(error: Exception) -> str:
    return str(error).splitlines()[0].partition(";")[0]
