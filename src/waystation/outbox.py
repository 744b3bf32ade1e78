"""A transactional outbox: what your database commits is published, exactly once.

A program that changes its database and then publishes can die in between, and one that publishes first can be rolled
back. So the message is a row, written in the same database transaction as the change, and a relay carries rows to the
broker:

    outbox = Outbox("shop")
    with connection:                                    # your transaction
        connection.execute("INSERT INTO orders …")
        outbox.publish(connection, "orders", {"id": 7}, key="u1")

    with Relay(outbox, lambda: sqlite3.connect("shop.db"), mq):   # in any one process
        ...

How a row is published once, whatever dies at whatever moment: the relay begins a transaction of the broker, which
fences off every other relay of this outbox; reads notes that others left and deletes the rows that they name, since
those were published; then publishes the next rows and, in the same transaction, puts a *note* with their numbers into a
queue. After the commit it deletes the rows, then the note.

SQLite (the `sqlite3` module) and PostgreSQL (`psycopg`, or another DB-API driver with `%s`) are known.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, Unpack
from uuid import uuid4

import msgspec

from waystation.client.options.payloads import Value
from waystation.client.options.values import MessageOptions, make_message
from waystation.client.sending.producing import size_of
from waystation.client.sync.client import Client
from waystation.client.sync.queue import Queue
from waystation.errors import Invalid
from waystation.message import Message

TOPIC, QUEUE = "topic:", "queue:"
BATCH = 500
BATCH_BYTES = 4 * 1024 * 1024
"""Of a batch, or one message that is larger: what goes to one place goes in one frame, and a frame has a limit."""
NOTE_TYPE = "waystation.outbox.note"
_MAX_BACKOFF_S = 30.0


class Cursor(Protocol):
    """A DB-API cursor, as far as it is used here."""

    def execute(self, operation: str, parameters: Sequence[Any] = ..., /) -> object: ...
    def fetchall(self) -> list[Any]: ...
    def close(self) -> object: ...


class DatabaseConnection(Protocol):
    """A DB-API connection."""

    def cursor(self) -> Any: ...
    def commit(self) -> object: ...
    def rollback(self) -> object: ...
    def close(self) -> object: ...


class _Dialect(msgspec.Struct, frozen=True):
    mark: str
    create: str


_SQLITE = _Dialect(
    "?",
    "CREATE TABLE IF NOT EXISTS {table} (id INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT NOT NULL,"
    " message BLOB NOT NULL, created_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP)",
)
_POSTGRES = _Dialect(
    "%s",
    "CREATE TABLE IF NOT EXISTS {table} (id BIGSERIAL PRIMARY KEY, target TEXT NOT NULL,"
    " message BYTEA NOT NULL, created_at TIMESTAMPTZ NOT NULL DEFAULT now())",
)


def _dialect(connection: DatabaseConnection) -> _Dialect:
    """By its cursor's class: a connection is often wrapped (pools, tracing), a cursor seldom."""
    cursor = connection.cursor()
    cursor.close()
    return _SQLITE if type(cursor).__module__.startswith("sqlite3") else _POSTGRES


class Outbox:
    """A table of messages to be published. `name` is its name at the broker, where one relay at a time publishes it."""

    def __init__(self, name: str, *, table: str = "waystation_outbox") -> None:
        if not all(part.isidentifier() for part in table.split(".")):
            raise Invalid(f"table: {table!r} is not a table's name")
        self.name = name
        self.table = table

    def create_table(self, connection: DatabaseConnection) -> None:
        """Creates the table if it does not exist; you commit."""
        self._execute(connection, _dialect(connection).create.format(table=self.table))

    def publish(
        self, connection: DatabaseConnection, topic: str, value: Value, **options: Unpack[MessageOptions]
    ) -> None:
        """A message for a topic, as `Client.publish` takes it, in the connection's present transaction."""
        self._add(connection, TOPIC + topic, make_message(value, options))

    def put(self, connection: DatabaseConnection, queue: str, value: Value, **options: Unpack[MessageOptions]) -> None:
        """A message for a queue, as `Queue.put` takes it, in the connection's present transaction."""
        self._add(connection, QUEUE + queue, make_message(value, options))

    def waiting(self, connection: DatabaseConnection) -> int:
        """The number of rows that wait for the relay, as this connection sees it."""
        return int(self._select(connection, f"SELECT count(*) FROM {self.table}")[0][0])

    def _add(self, connection: DatabaseConnection, target: str, message: Message) -> None:
        mark = _dialect(connection).mark
        self._execute(
            connection,
            f"INSERT INTO {self.table} (target, message) VALUES ({mark}, {mark})",
            (target, msgspec.msgpack.encode(message)),
        )

    def next_rows(self, connection: DatabaseConnection, limit: int) -> list[tuple[int, str, Message]]:
        """The oldest rows: number, target, message. For the relay."""
        mark = _dialect(connection).mark
        rows = self._select(
            connection, f"SELECT id, target, message FROM {self.table} ORDER BY id LIMIT {mark}", (limit,)
        )
        return [(int(number), target, _decode(bytes(content))) for number, target, content in rows]

    def delete(self, connection: DatabaseConnection, numbers: Sequence[int]) -> None:
        """Rows that were published. For the relay."""
        mark = _dialect(connection).mark
        for start in range(0, len(numbers), BATCH):
            part = numbers[start : start + BATCH]
            marks = ", ".join([mark] * len(part))
            self._execute(connection, f"DELETE FROM {self.table} WHERE id IN ({marks})", part)

    @staticmethod
    def _execute(connection: DatabaseConnection, statement: str, parameters: Sequence[Any] = ()) -> None:
        cursor: Cursor = connection.cursor()
        try:
            cursor.execute(statement, tuple(parameters))
        finally:
            cursor.close()

    @staticmethod
    def _select(connection: DatabaseConnection, statement: str, parameters: Sequence[Any] = ()) -> list[Any]:
        cursor: Cursor = connection.cursor()
        try:
            cursor.execute(statement, tuple(parameters))
            return cursor.fetchall()
        finally:
            cursor.close()


_decode = msgspec.msgpack.Decoder(Message).decode


class Relay:
    """Publishes an outbox's rows to the broker, in their order. As a context manager it works on a thread of its own.

    `connect` opens a connection to the database; the relay has its own. `every` is how often it looks for rows when
    there were none; `wake()` makes it look at once. Errors are reported to `on_error`, and retried with backoff.
    Queues that do not exist are created; topics, if the broker's settings allow it.
    """

    def __init__(
        self,
        outbox: Outbox,
        connect: Callable[[], DatabaseConnection],
        client: Client,
        *,
        every: float = 0.2,
        batch: int = BATCH,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        self.outbox = outbox
        self._connect = connect
        self._client = client
        self._every = every
        self._batch = batch
        self._on_error = on_error
        self._transactional_id = f"outbox-{outbox.name}"
        self._notes = f"outbox.{outbox.name}.notes"
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Relay:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Runs in the background until `stop`."""
        if self._thread is None:
            self._stopping = False
            self._thread = threading.Thread(target=self._run, name=f"outbox {self.outbox.name}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stops after the current batch."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stopping = True
            self._wake.set()
            thread.join()

    def wake(self) -> None:
        """Makes it look for rows at once."""
        self._wake.set()

    def run_once(self) -> int:
        """Publishes everything that is committed now; returns how many messages that was."""
        connection = self._connect()
        try:
            return self._drain(connection)
        finally:
            connection.close()

    # -- parts --------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        connection: DatabaseConnection | None = None
        pause = self._every
        while not self._stopping:
            try:
                connection = connection or self._connect()
                self._drain(connection)
                pause = self._every
            except Exception as error:  # the database's errors have no common base
                if connection is not None:
                    _quietly(connection.close)
                    connection = None
                pause = min(_MAX_BACKOFF_S, pause * 2)
                if self._on_error is not None:
                    self._on_error(error)
            self._wake.wait(pause)
            self._wake.clear()
        if connection is not None:
            _quietly(connection.close)

    def _drain(self, connection: DatabaseConnection) -> int:
        count = 0
        while not self._stopping and self._rows(connection, 1):
            count += self._carry(connection)
        return count

    def _rows(self, connection: DatabaseConnection, limit: int) -> list[tuple[int, str, Message]]:
        rows = self.outbox.next_rows(connection, limit)
        connection.rollback()  # ends the reading transaction: rows are looked at, not locked
        return rows

    def _carry(self, connection: DatabaseConnection) -> int:
        """Publishes one batch. Rows are read after the transaction has begun: whoever else was at work is fenced off by
        then, and what it has published is known by its notes."""
        notes = self._client.queue(self._notes)
        with self._client.transaction(self._transactional_id) as tx:
            self._finish_others(connection, notes)
            rows = _portion(self._rows(connection, self._batch))
            if not rows:
                tx.abort()
                return 0
            numbers = [number for number, _, _ in rows]
            for target, messages in _by_target(rows):
                if target.startswith(QUEUE):
                    self._client.queue(target.removeprefix(QUEUE))
                    tx.put_many(target.removeprefix(QUEUE), messages)
                else:
                    tx.publish_many(target.removeprefix(TOPIC), messages)
            note_id = uuid4().hex
            tx.put(notes, numbers, id=note_id, type=NOTE_TYPE)
        self.outbox.delete(connection, numbers)
        connection.commit()
        notes.cancel(note_id)
        return len(rows)

    def _finish_others(self, connection: DatabaseConnection, notes: Queue) -> None:
        """Deletes the rows that were published by one that died, or was fenced off, before it could."""
        while left := notes.peek(100, state="ready"):
            for note in left:
                self.outbox.delete(connection, note.json())
                connection.commit()
                notes.cancel(note.id)


def _portion(rows: list[tuple[int, str, Message]]) -> list[tuple[int, str, Message]]:
    """The first of them, as many as are carried at once."""
    size = 0
    for i, (_, _, message) in enumerate(rows):
        size += size_of(message)
        if i and size > BATCH_BYTES:
            return rows[:i]
    return rows


def _by_target(rows: list[tuple[int, str, Message]]) -> list[tuple[str, list[Message]]]:
    """The rows by target; each target's in their order."""
    groups: dict[str, list[Message]] = {}
    for _, target, message in rows:
        groups.setdefault(target, []).append(message)
    return list(groups.items())


def _quietly(action: Callable[[], object]) -> None:
    """Closes what is broken already."""
    with contextlib.suppress(Exception):
        action()
