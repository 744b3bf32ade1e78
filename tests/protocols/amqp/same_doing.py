"""Each step of a sequence as the frames that a client sends."""

from __future__ import annotations

from typing import Any

from pamqp import body, commands, header
from pamqp import frame as frames

from tests.protocols.amqp.same_side import Side, Step

NAMES = ("x-dead-letter-exchange", "x-dead-letter-routing-key", "alternate-exchange")
UNKNOWN_TAG = 99_999


class Doing:
    """One step on one side."""

    def __init__(self, side: Side, step: Step) -> None:
        self._side = side
        self._step = step
        self._said = step.arguments

    def do(self) -> None:
        getattr(self, f"_{self._step.op}")()

    def _say(self, method: Any) -> None:
        _, connection, channel, _ = self._step
        self._side.channel(connection, channel)
        self._side.connection(connection).say(channel, method)

    def _name(self, argument: str) -> str:
        return self._side.full(self._said[argument])

    def _table(self) -> dict[str, Any]:
        """The step's arguments of a declaration or binding, with names as they are on the wire."""
        found = dict(self._said.get("arguments") or {})
        return {key: self._side.full(value) if key in NAMES else value for key, value in found.items()}

    def _flag(self, name: str) -> bool:
        return bool(self._said.get(name))

    # -- queues and exchanges -----------------------------------------------------------------------------------------

    def _declare(self) -> None:
        flags = {name: self._flag(name) for name in ("passive", "durable", "exclusive", "auto_delete")}
        self._say(commands.Queue.Declare(0, self._name("queue"), arguments=self._table(), **flags))

    def _delete(self) -> None:
        self._say(commands.Queue.Delete(0, self._name("queue"), self._flag("if_unused"), self._flag("if_empty")))

    def _purge(self) -> None:
        self._say(commands.Queue.Purge(0, self._name("queue")))

    def _exchange(self) -> None:
        flags = {name: self._flag(name) for name in ("passive", "durable", "auto_delete", "internal")}
        name, kind = self._name("exchange"), self._said["type"]
        self._say(commands.Exchange.Declare(0, name, kind, arguments=self._table(), **flags))

    def _exchange_delete(self) -> None:
        self._say(commands.Exchange.Delete(0, self._name("exchange"), self._flag("if_unused")))

    def _bind(self) -> None:
        key = self._said["key"]
        self._say(commands.Queue.Bind(0, self._name("queue"), self._name("exchange"), key, False, self._table()))

    def _unbind(self) -> None:
        key = self._said["key"]
        self._say(commands.Queue.Unbind(0, self._name("queue"), self._name("exchange"), key, self._table()))

    def _ebind(self) -> None:
        key = self._said["key"]
        self._say(commands.Exchange.Bind(0, self._name("to"), self._name("exchange"), key, False, self._table()))

    def _eunbind(self) -> None:
        key = self._said["key"]
        self._say(commands.Exchange.Unbind(0, self._name("to"), self._name("exchange"), key, False, self._table()))

    # -- messages in --------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        _, connection, channel, said = self._step
        self._side.channel(connection, channel)
        to_queue = not said["exchange"]
        key = self._name("key") if to_queue else said["key"]
        method = commands.Basic.Publish(0, self._name("exchange"), key, self._flag("mandatory"))
        known = dict(said.get("properties") or {})
        if to_queue and "headers" in known:
            known["headers"] = {
                name: [self._side.full(one) for one in value] if name in ("CC", "BCC") else value
                for name, value in known["headers"].items()
            }
        out = b""
        for number in range(said["count"]):
            payload = f"{said['body']}.{number}".encode()
            head = header.ContentHeader(0, len(payload), commands.Basic.Properties(**known))
            for part in (method, head, body.ContentBody(payload)):
                out += frames.marshal(part, channel)
        self._side.connection(connection).send(out)

    def _confirm(self) -> None:
        self._say(commands.Confirm.Select())

    def _tx_select(self) -> None:
        self._say(commands.Tx.Select())

    def _tx_commit(self) -> None:
        self._say(commands.Tx.Commit())

    def _tx_rollback(self) -> None:
        self._say(commands.Tx.Rollback())

    # -- messages out -------------------------------------------------------------------------------------------------

    def _qos(self) -> None:
        self._say(commands.Basic.Qos(0, self._said["count"], self._flag("global_")))

    def _consume(self) -> None:
        tag, no_ack = self._said["tag"], self._flag("no_ack")
        channel = self._side.channel(self._step.connection, self._step.channel)
        channel.no_ack.add(tag) if no_ack else channel.no_ack.discard(tag)
        exclusive = self._flag("exclusive")
        self._say(commands.Basic.Consume(0, self._name("queue"), tag, False, no_ack, exclusive, False, self._table()))

    def _cancel(self) -> None:
        self._say(commands.Basic.Cancel(self._said["tag"]))

    def _get(self) -> None:
        channel = self._side.channel(self._step.connection, self._step.channel)
        channel.gets_no_ack = self._flag("no_ack")
        self._say(commands.Basic.Get(0, self._name("queue"), channel.gets_no_ack))

    def _ack(self) -> None:
        picked = self._pick(self._said["which"])
        if picked is not None:
            self._say(commands.Basic.Ack(*picked))

    def _nack(self) -> None:
        picked = self._pick(self._said["which"])
        if picked is not None:
            self._say(commands.Basic.Nack(*picked, self._flag("requeue")))

    def _reject(self) -> None:
        picked = self._pick("bad" if self._said["which"] == "bad" else "one")
        if picked is not None:
            self._say(commands.Basic.Reject(picked[0], self._flag("requeue")))

    def _recover(self) -> None:
        self._side.channel(self._step.connection, self._step.channel).arrivals.clear()
        self._say(commands.Basic.Recover(True))

    def _pick(self, which: str) -> tuple[int, bool] | None:
        """(delivery tag, multiple) of the same deliveries on every side: by when they came and to whom."""
        channel = self._side.channel(self._step.connection, self._step.channel)
        if which == "all":
            channel.arrivals.clear()
            return 0, True
        if which == "bad":
            return UNKNOWN_TAG, False
        order = sorted(channel.arrivals)
        if not order:
            return None
        index = self._said["index"]
        if which == "one":
            channel.arrivals.remove(order[index % len(order)])
            return order[index % len(order)][2], False
        steps = sorted({step for step, _, _ in order})
        until = steps[index % len(steps)]
        last = max(tag for step, _, tag in order if step <= until)
        channel.arrivals = [one for one in channel.arrivals if one[2] > last]
        return last, True

    # -- the end ------------------------------------------------------------------------------------------------------

    def _close_channel(self) -> None:
        self._say(commands.Channel.Close(200, "bye", 0, 0))

    def _close_connection(self) -> None:
        self._side.connection(self._step.connection).say(0, commands.Connection.Close(200, "bye", 0, 0))

    def _drop_connection(self) -> None:
        self._side.drop(self._step.connection)

    def _sleep(self) -> None:
        """Whoever runs the steps waits."""
