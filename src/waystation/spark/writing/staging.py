"""What one task writes: into a staged transaction, or plainly.

`Staging` sends record batches and messages in a transaction and leaves it on the broker, complete and durable, for the
job's commit. A connection that is lost takes the transaction with it; then all of it is staged again, from what is
kept of it here, as long as that is not too much. `Plain` sends without a transaction: what a task that failed has sent
stays, and comes again with the next attempt.

Made by the sink's `write`, in a task; used by one thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from waystation.client.sync.client import Client
from waystation.client.sync.transaction import Transaction
from waystation.errors import Conflict, ConnectionLost, RequestTimeout, Unavailable
from waystation.message import Message
from waystation.observe.events import event_logger
from waystation.protocol import StagedTransaction
from waystation.spark.links.broker_link import patiently
from waystation.spark.writing.sink_options import SinkOptions

T = TypeVar("T")

log = event_logger("waystation.spark")

KEPT_BYTES = 128 * 1024 * 1024
"""So much of what a task has sent is kept, in case its connection is lost."""
MOST_FLYING = 3
"""Frames that are sent and not answered: the next one is built meanwhile."""

_LOST = (ConnectionLost, RequestTimeout, Unavailable)


class Writing(Protocol):
    """Where a task's rows go."""

    def batches(self, topic: str, batches: list[tuple[int, bytearray]]) -> None: ...

    def messages(self, queue: str, messages: list[Message]) -> None: ...


@dataclass(slots=True)
class _Act:
    """One frame."""

    topic: str = ""
    batches: list[tuple[int, bytearray]] = field(default_factory=list)
    queue: str = ""
    messages: list[Message] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(len(batch) for _, batch in self.batches) + sum(len(m.payload) + 200 for m in self.messages)

    def send(self, tx: Transaction) -> Future[Any]:
        if self.batches:
            return tx.publish_batches_nowait(self.topic, self.batches)
        return tx.put_many_nowait(self.queue, self.messages)


class Staging:
    """A transaction from its beginning until it is staged."""

    def __init__(self, client: Client, transactional_id: str, options: SinkOptions) -> None:
        self._client = client
        self._id = transactional_id
        self._options = options
        self._acts: list[_Act] = []
        self._kept = 0
        self._flying: deque[Future[Any]] = deque()
        self._tx: Transaction | None = None

    def batches(self, topic: str, batches: list[tuple[int, bytearray]]) -> None:
        self._send(_Act(topic=topic, batches=batches))

    def messages(self, queue: str, messages: list[Message]) -> None:
        self._send(_Act(queue=queue, messages=messages))

    def stage(self) -> StagedTransaction | None:
        """All of it is on the broker, durable; None if there was nothing."""
        if self._tx is None:
            return None
        return self._patient(lambda: self._finish())

    def abort(self) -> None:
        """The task failed: nobody waits for what was staged."""
        if self._tx is not None:
            try:
                self._tx.abort()
            except _LOST:
                pass  # ended with its connection

    def _send(self, act: _Act) -> None:
        self._kept += act.size
        if self._kept <= KEPT_BYTES:
            self._acts.append(act)
        else:
            self._acts.clear()
        self._patient(lambda: self._fly(act))

    def _fly(self, act: _Act) -> None:
        if self._tx is None:
            self._begin()
            if self._acts and self._acts[-1] is act:
                return  # it was sent with the others
        tx = self._tx
        if tx is None:
            return
        while len(self._flying) >= MOST_FLYING:
            self._flying.popleft().result()
        self._flying.append(act.send(tx))

    def _begin(self) -> None:
        """A new transaction, with all that was in the one before."""
        self._flying.clear()
        tx = self._client.transaction(self._id, timeout=self._options.stage_timeout_s)
        tx.__enter__()
        for act in self._acts:
            act.send(tx).result()
        self._tx = tx

    def _finish(self) -> StagedTransaction | None:
        if self._tx is None:
            self._begin()
        while self._flying:
            self._flying.popleft().result()
        return None if self._tx is None else self._tx.stage()

    def _patient(self, ask: Callable[[], T]) -> T:
        """Does it; after a lost connection, in a new transaction with everything in it."""

        def attempt() -> T:
            try:
                return ask()
            except _LOST as error:
                self._tx = None
                if self._kept > KEPT_BYTES:
                    raise Conflict(
                        f"the connection to the broker was lost ({error}) when this task had staged more than "
                        f"{KEPT_BYTES >> 20} MiB, which is more than it keeps; Spark runs the task again, or use more "
                        "partitions or fewer rows per trigger"
                    ) from error
                log.warning(
                    "staging.restarted", "staging {id} again from its beginning: {error}", id=self._id, error=error
                )
                raise Unavailable(str(error)) from error

        return patiently(attempt, self._options.servers, self._options.retry_s)


class Plain:
    """At least once: everything is durable when its call returns."""

    def __init__(self, client: Client, options: SinkOptions) -> None:
        self._client = client
        self._options = options

    def batches(self, topic: str, batches: list[tuple[int, bytearray]]) -> None:
        self._patient(lambda: self._client.publish_batches(topic, batches))

    def messages(self, queue: str, messages: list[Message]) -> None:
        self._patient(lambda: self._client.queue(queue, passive=True).put_many(messages))

    def _patient(self, ask: Callable[[], object]) -> None:
        patiently(ask, self._options.servers, self._options.retry_s)
