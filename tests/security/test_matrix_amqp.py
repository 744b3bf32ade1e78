"""Every method of AMQP in the matrix of permissions (`matrix_kit.py`), as frames to the listener. The table of methods
says which there are: one without a row fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pamqp import commands, exceptions
from pamqp import frame as frames
from pamqp.base import Frame

from tests.protocols.amqp.kit import HEADER, method, publish
from tests.security.matrix_kit import PASSWORD, SECRET, Row, Stage, Told, Walk, run
from tests.support.ports import split_address
from waystation.protocols.amqp import methods

ENTER = "read namespace /"
READ_Q, DESCRIBE_Q = "read queue jobs", "describe queue jobs"
Q, E = commands.Queue, commands.Exchange
B, C, T = commands.Basic, commands.Channel, commands.Tx
STREAM: Any = {"x-queue-type": "stream"}


def rows() -> dict[str, Row]:
    own = Row("", None)
    return {
        "Connection.Open": Row(ENTER),
        "Channel.Open": own,
        "Channel.Flow": Row("", C.Flow(True)),
        "Channel.FlowOk": Row("", [C.FlowOk(True), B.Qos()]),
        "Channel.CloseOk": Row("", [C.CloseOk(), B.Qos()]),
        "Exchange.Declare": Row("describe exchange new; create exchange new", E.Declare(exchange="secret-new")),
        "Exchange.Declare #passive": Row("describe exchange events", E.Declare(exchange="secret-events", passive=True)),
        "Exchange.Delete": Row("delete exchange events", E.Delete(exchange="secret-events")),
        "Exchange.Bind": Row(
            "read exchange events; write exchange events", E.Bind(0, "secret-events", "secret-events", "k")
        ),
        "Exchange.Unbind": Row(
            "read exchange events; write exchange events", E.Unbind(0, "secret-events", "secret-events", "k")
        ),
        "Queue.Declare": Row("describe queue new; create queue new", Q.Declare(queue="secret-new", durable=True)),
        "Queue.Declare #passive": Row(DESCRIBE_Q, Q.Declare(queue="secret-jobs", passive=True)),
        "Queue.Declare #a stream": Row(
            "describe queue new; describe topic new; create topic new",
            Q.Declare(queue="secret-new", durable=True, arguments=STREAM),
        ),
        "Queue.Declare #on a topic": Row(
            "describe queue new; create queue new; read topic orders",
            Q.Declare(queue="secret-new", durable=True, arguments={"x-topic": "secret-orders"}),
        ),
        "Queue.Declare #a topic, passive": Row("describe topic orders", Q.Declare(queue="secret-orders", passive=True)),
        "Queue.Bind": Row("read exchange events; write queue jobs", Q.Bind(0, "secret-jobs", "secret-events", "k")),
        "Queue.Bind #a stream": Row(
            "read exchange events; write topic orders", Q.Bind(0, "secret-orders", "secret-events", "k")
        ),
        "Queue.Unbind": Row("read exchange events; write queue jobs", Q.Unbind(0, "secret-jobs", "secret-events", "k")),
        "Queue.Purge": Row(READ_Q, Q.Purge(queue="secret-jobs")),
        "Queue.Delete": Row("delete queue jobs", Q.Delete(queue="secret-jobs")),
        "Basic.Qos": Row("", B.Qos(prefetch_count=1)),
        "Basic.Consume": Row(READ_Q, B.Consume(queue="secret-jobs")),
        "Basic.Consume #a topic": Row("read topic orders", [B.Qos(prefetch_count=1), B.Consume(queue="secret-orders")]),
        "Basic.Consume #direct replies": Row("", B.Consume(queue="amq.rabbitmq.reply-to", no_ack=True)),
        "Basic.Cancel": Row("", B.Cancel("nothing")),
        "Basic.CancelOk": Row("", [B.CancelOk("nothing"), B.Qos()]),
        "Basic.Get": Row(READ_Q, B.Get(queue="secret-jobs")),
        "Basic.Publish": Row("write exchange events", publish(1, b"x", "k", "secret-events")),
        "Basic.Publish #to the default exchange": Row(
            "write queue jobs", publish(1, b"x", "secret-jobs"), either="write exchange =amq.default"
        ),
        "Basic.Publish #to a topic": Row("write topic orders", publish(1, b"x", "secret-orders"), compare=False),
        # What was delivered on the channel is its own to settle.
        "Basic.Ack": Row("", [B.Ack(7), B.Qos()], fails=True),
        "Basic.Nack": Row("", [B.Nack(7), B.Qos()], fails=True),
        "Basic.Reject": Row("", [B.Reject(7), B.Qos()], fails=True),
        "Basic.Recover": Row("", B.Recover(True)),
        "Basic.RecoverAsync": Row("", [B.RecoverAsync(True), B.Qos()]),
        "Confirm.Select": Row("", commands.Confirm.Select()),
        "Tx.Select": Row("", T.Select()),
        "Tx.Commit": Row("", [T.Select(), T.Commit()]),
        "Tx.Commit #of a publish": Row("write queue jobs", [T.Select(), publish(1, b"x", "secret-jobs"), T.Commit()]),
        "Tx.Rollback": Row("", [T.Select(), T.Rollback()]),
    }  # fmt: skip


def verbs() -> set[str]:
    """Publish and ack are read by hand, and those of the connection belong to the session."""
    return {*methods.HANDLERS, "Basic.Publish", "Basic.Ack", "Channel.Open", "Connection.Open"}


class Line:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer
        self._buffer = b""

    async def next(self) -> Any:
        while True:
            try:
                size, _, value = frames.unmarshal(self._buffer)
            except (exceptions.UnmarshalingException, ValueError):
                more = await asyncio.wait_for(self._reader.read(65536), 20)
                if not more:
                    return None
                self._buffer += more
                continue
            self._buffer = self._buffer[size:]
            return value

    async def ask(self, value: Frame | bytes, channel: int = 1) -> Any:
        self.writer.write(value if isinstance(value, bytes) else method(value, channel))
        return await self.next()


def renamed(value: Frame | bytes, names: str) -> bytes:
    """Names of both kinds have the same length, so frames can be changed as bytes."""
    data = value if isinstance(value, bytes) else method(value, 1)
    return data.replace(SECRET.encode(), names.encode())


CLOSED = (commands.Channel.Close, commands.Connection.Close)
NO_RIGHT = {403, 530}
SILENT = ("Basic.Publish", "Basic.Ack", "Basic.Nack", "Basic.Reject", "Basic.RecoverAsync", "Basic.CancelOk",
          "Channel.FlowOk", "Channel.CloseOk")  # fmt: skip
"""Methods that have no answer."""


async def ask(stage: Stage, who: str | None, verb: str, row: Row, names: str) -> Told:
    line = Line(*await asyncio.open_connection(*split_address(stage.addresses["amqp"])))
    try:
        return await _asked(line, who, verb, row, names)
    finally:
        line.writer.close()


async def _asked(line: Line, who: str | None, verb: str, row: Row, names: str) -> Told:
    await line.ask(HEADER)
    if who is None:  # it sends its method all the same
        answer = await line.ask(method(commands.Connection.Open("/"), 0) + method(commands.Channel.Open(), 1))
        return Told("nobody" if answer is None or isinstance(answer, CLOSED) else "done", "")
    tune = await line.ask(commands.Connection.StartOk({}, "PLAIN", f"\0{who}\0{PASSWORD}", "en_US"), 0)
    if not isinstance(tune, commands.Connection.Tune):
        raise AssertionError(tune)
    line.writer.write(method(commands.Connection.TuneOk(0, 131_072, 0), 0))
    answer = await line.ask(commands.Connection.Open("/"), 0)
    if isinstance(answer, CLOSED) or verb == "Connection.Open":
        return told(answer)
    answer = await line.ask(commands.Channel.Open())
    if row.request is None:
        return told(answer)
    said: Sequence[Frame | bytes] = row.request if isinstance(row.request, list) else [row.request]
    if verb == "Basic.Publish":  # a publisher that waits for confirms is answered
        said = [commands.Confirm.Select(), *said]
    for each in said:
        kind = "Basic.Publish" if isinstance(each, bytes) else each.name
        transaction = verb.startswith("Tx.")
        if kind in SILENT and (transaction or kind != "Basic.Publish"):
            line.writer.write(renamed(each, names))
        else:
            answer = await line.ask(renamed(each, names))
    return told(answer)


def told(answer: Any) -> Told:
    if not isinstance(answer, CLOSED):
        return Told("done", f"{answer.name}")
    text = f"{answer.reply_code} {answer.reply_text}"
    return Told("refused" if answer.reply_code in NO_RIGHT else "failed", text)


def entering(rows: dict[str, Row]) -> dict[str, Row]:
    """Every method needs the right to enter the virtual host."""
    return {
        verb: Row(
            row.rights if verb == "Connection.Open" else "; ".join(filter(None, (ENTER, row.rights))),
            row.request, fails=row.fails, compare=row.compare,
            either=row.either and f"{ENTER}; {row.either}",
        )
        for verb, row in rows.items()
    }  # fmt: skip


def test_every_method() -> None:
    walk = Walk(ask, verbs(), entering(rows()))
    run(walk)
    print(f"{len(verbs())} methods, {walk.cases} cases")
    assert not walk.wrong, "\n".join(walk.wrong)
    assert walk.cases > 150


def test_a_method_without_a_row_fails_and_so_does_one_that_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unasked(session: Any, channel: Any, asked: Any) -> Frame:
        return commands.Queue.PurgeOk(await session.access._broker.queues.purge(asked.queue))

    monkeypatch.setitem(methods.HANDLERS, "Queue.Purge", unasked)
    monkeypatch.setitem(methods.HANDLERS, "Queue.Forget", unasked)
    walk = Walk(ask, {"Queue.Purge", "Queue.Forget"}, {"Queue.Purge": entering(rows())["Queue.Purge"]})
    run(walk)
    assert "Queue.Forget: there is no row that says what it needs" in walk.wrong
    assert "Queue.Purge, without read queue: it was done" in walk.wrong
