"""A transaction, as both faces use it: messages to topics and queues, acks and offsets, all of it or nothing.

It lives on the connection on which messages are received, since it acknowledges what is in flight there; when that link
is lost the broker undoes it, and every further call says so. Only the thread of the client's loop may call this.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from waystation.client.admin import NOTHING
from waystation.client.consuming.received import Received
from waystation.client.consuming.settler import Settler, runs_of
from waystation.client.core import Core
from waystation.client.sending.producing import id_used
from waystation.client.sending.results import Published, Stored
from waystation.errors import AlreadyExists, Conflict, ConnectionLost
from waystation.message import Message
from waystation.protocol import (
    Begin,
    CommitOffsets,
    End,
    Publish,
    PublishAnswer,
    PublishBatches,
    Put,
    PutAnswer,
    Settle,
    SettleAnswer,
    Stage,
    StagedTransaction,
)

_MAYBE_STAGED: Any = StagedTransaction | None

Offset = tuple[str, int, int]
"""(topic, partition, the next offset to read)."""


class Tx:
    """One transaction, from `begin` to `end`."""

    def __init__(self, core: Core, transactional_id: str, timeout_ms: int) -> None:
        self.transactional_id = transactional_id
        self.core = core
        self._timeout_ms = timeout_ms
        self._number = 0
        self._epoch = -1
        self._acked: list[Received] = []

    async def begin(self) -> None:
        """Whoever used the same transactional id before is fenced off."""
        command = Begin(transactional_id=self.transactional_id, timeout_ms=self._timeout_ms)
        self._number = await self.core.ask(command, int, resend=True)
        self._epoch = self.core.main.epoch

    async def publish(self, topic: str, messages: list[Message], partition: int | None = None) -> Published:
        command = Publish(messages=messages, topic=topic, partition=partition, tx=self._live())
        answer = await self.core.ask(command, PublishAnswer)
        return Published.of(topic, messages, answer)

    async def publish_batches(self, topic: str, batches: list[tuple[int, bytearray]]) -> None:
        """Record batches that the caller built, each with its partition."""
        await self.core.ask(PublishBatches(topic=topic, batches=batches, tx=self._live()), PublishAnswer)

    async def put(self, queue: str, messages: list[Message]) -> Stored:
        answer = await self.core.ask(Put(queue=queue, messages=messages, tx=self._live()), PutAnswer)
        return Stored.of(queue, messages, answer.first, answer.duplicates)

    async def put_one(self, queue: str, message: Message, *, forgiving: bool) -> None:
        """AlreadyExists if the queue has its id, unless that is what the sender expects of a repetition."""
        stored = await self.put(queue, [message])
        if stored.duplicates and not forgiving:
            raise AlreadyExists(id_used(queue, message))

    async def ack(self, messages: Iterable[Received]) -> None:
        """Messages of a queue are done, messages of a stream passed, when the transaction commits."""
        together: dict[tuple[Settler, int], list[Received]] = {}
        for message in messages:
            together.setdefault((message._settler, message.deliveries), []).append(message)
        for (settler, deliveries), some in together.items():
            if not settler.queue and not settler.group:
                raise Conflict(
                    f"{some[0].id}: only messages of a queue or of a stream subscription can be acked in a transaction"
                )
            await self._settle(settler, some, deliveries)
            for message in some:
                message._verdict = "ack"
                self._acked.append(message)

    async def _settle(self, settler: Settler, messages: list[Received], deliveries: int) -> None:
        if not settler.alive:
            raise Conflict(f"{messages[0].id}: it was in flight on a connection that was lost since: it is redelivered")
        for message in messages:
            if message.settled is not None:
                raise Conflict(f"{message.id}: it is settled already ({message.settled})")
        runs = runs_of([message.delivered.tag for message in messages])
        command = Settle(consumer=settler.consumer, runs=runs, tx=self._live(), deliveries=deliveries)
        answer = await self.core.ask(command, SettleAnswer)
        if answer.unknown:
            where = settler.queue or settler.group
            raise Conflict(
                f"messages {answer.unknown} of {where!r} are not in flight any more: they may be redelivered"
            )

    async def commit_offsets(self, group: str, offsets: Sequence[Offset]) -> None:
        command = CommitOffsets(group=group, offsets=list(offsets), tx=self._live())
        await self.core.ask(command, NOTHING)

    async def end(self, *, commit: bool) -> None:
        """Durable when this returns. What was acked in a transaction that is undone is delivered again."""
        number = self._live() if commit or self._epoch == self.core.main.epoch else 0
        self._number = 0
        if not commit:
            for message in self._acked:
                message._verdict = "release"
        if number:
            await self.core.ask(End(tx=number, commit=commit), NOTHING)

    async def stage(self) -> StagedTransaction | None:
        """Leaves it on the broker, complete and durable, for `commit_staged`; None if nothing is in it."""
        number = self._live()
        staged: StagedTransaction | None = await self.core.ask(Stage(tx=number), _MAYBE_STAGED)
        self._number = 0
        return staged

    def _live(self) -> int:
        if not self._number:
            raise Conflict(f"transaction {self.transactional_id!r} is not open")
        if self._epoch != self.core.main.epoch:
            raise ConnectionLost(f"transaction {self.transactional_id!r} was lost with its connection, and is undone")
        return self._number


class WorkerIds:
    """Transactional ids for handlers that work at the same time: each has its own, and the next one takes it over.

    Nobody else may have the prefix: two who use one id fence each other off."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._free: list[str] = []
        self._numbers = itertools.count(1)

    @contextmanager
    def one(self) -> Iterator[str]:
        """On any thread."""
        try:
            mine = self._free.pop()
        except IndexError:
            mine = f"{self._prefix}/{next(self._numbers)}"
        try:
            yield mine
        finally:
            self._free.append(mine)
