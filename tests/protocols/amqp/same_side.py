"""One broker as its clients see it: steps in, and what came back in a form by which two brokers can be compared.

A side has up to a few connections with a few channels each, opened when a step needs them, and again when a broker has
closed them. Names have a prefix of their own on the wire, so that one broker can run many sequences, and none in what
is compared. Deliveries to several consumers have no order among each other, those to one consumer have.
"""

from __future__ import annotations

import socket
import time
from datetime import datetime
from typing import Any, NamedTuple

from pamqp import body, commands, header, heartbeat
from pamqp import frame as frames

from tests.protocols.amqp.kit import CAPABILITIES, HEADER
from tests.support.ports import split_address
from tests.support.waiting import DEADLINE_S

QUEUES = ("q0", "q1", "q2", "q3", "q4")
EXCHANGES = ("e0", "e1", "e2", "e3")
NO_ANSWER = ("sleep", "drop_connection", "publish", "ack", "nack", "reject")
NEWER_HEADERS = ("x-last-death-queue", "x-last-death-reason", "x-last-death-exchange")  # of RabbitMQ 4, and ours
NOT_COMPARED = ("time", "deliveries")  # in a death; the second is ours
PROPERTIES = (
    "content_type", "content_encoding", "headers", "delivery_mode", "priority", "correlation_id", "reply_to",
    "expiration", "message_id", "timestamp", "message_type", "user_id", "app_id",
)  # fmt: skip


class Step(NamedTuple):
    """What a client does, on which of its connections and channels."""

    op: str
    connection: int
    channel: int
    arguments: dict[str, Any]


class _Channel:
    """What a client knows of its channel."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[int, str, int]] = []  # (step, consumer, delivery tag), not settled
        self.confirmed: set[int] = set()
        self.content: list[Any] = []
        self.no_ack: set[str] = set()
        self.gets_no_ack = False


class Connection:
    """One connection, read without waiting."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(split_address(address), DEADLINE_S)
        self.channels: dict[int, _Channel] = {}
        self.events: dict[int, list[Any]] = {}
        self.confirms: dict[int, list[tuple[int, str]]] = {}
        self.closed = False
        self.step = 0
        self._buffer = b""
        self._shake_hands()

    def _shake_hands(self) -> None:
        self.send(HEADER)
        self._wait_for(commands.Connection.Start)
        login = commands.Connection.StartOk(dict(CAPABILITIES), "PLAIN", "\x00guest\x00guest", "en_US")
        self.say(0, login)
        self._wait_for(commands.Connection.Tune)
        self.say(0, commands.Connection.TuneOk(2047, 131_072, 0))
        self.say(0, commands.Connection.Open("/"))
        self._wait_for(commands.Connection.OpenOk)

    def _wait_for(self, kind: type) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            self._read()
            if any(isinstance(value, kind) for _, value in self._parsed()):
                return
            time.sleep(0.001)
        raise AssertionError(f"{kind.__name__} did not come")

    def send(self, data: bytes) -> None:
        if self.closed:
            return
        try:
            self.socket.settimeout(DEADLINE_S)
            self.socket.sendall(data)
        except OSError:
            self.closed = True

    def say(self, channel: int, method: Any) -> None:
        self.send(frames.marshal(method, channel))

    def pull(self) -> bool:
        """Takes in what has come; False if nothing has."""
        if self.closed:
            return False
        got, ended = self._read()
        for number, value in self._parsed():
            self._on(number, value)
        if ended and not self.closed:
            self.closed = True
            self._note(0, ("socket closed",))
        return got or ended

    def _read(self) -> tuple[bool, bool]:
        """(whether something came, whether that was the end)."""
        got = False
        try:
            self.socket.setblocking(False)
            while True:
                more = self.socket.recv(1 << 18)
                if not more:
                    return got, True
                self._buffer += more
                got = True
        except BlockingIOError:
            return got, False
        except OSError:
            return got, True

    def _parsed(self) -> list[tuple[int, Any]]:
        found: list[tuple[int, Any]] = []
        while len(self._buffer) >= 7:
            size = 8 + int.from_bytes(self._buffer[3:7], "big")
            if len(self._buffer) < size:
                break
            data, self._buffer = self._buffer[:size], self._buffer[size:]
            _, number, value = frames.unmarshal(data)
            if not isinstance(value, heartbeat.Heartbeat):
                found.append((number, value))
        return found

    def _note(self, channel: int, event: tuple[Any, ...]) -> None:
        self.events.setdefault(channel, []).append(event)

    def _on(self, number: int, value: Any) -> None:
        channel = self.channels.get(number)
        if isinstance(value, commands.Connection.Close):
            self._note(0, ("connection.close", value.reply_code, value.reply_text, value.class_id, value.method_id))
            self.say(0, commands.Connection.CloseOk())
            self._end()
        elif isinstance(value, commands.Connection.CloseOk):
            self._end()
        elif isinstance(value, commands.Channel.Close):
            self._note(number, ("channel.close", value.reply_code, value.reply_text, value.class_id, value.method_id))
            self.say(number, commands.Channel.CloseOk())
            self.channels.pop(number, None)
        elif isinstance(value, commands.Channel.OpenOk) or channel is None:
            pass
        elif isinstance(value, commands.Basic.Deliver | commands.Basic.GetOk | commands.Basic.Return):
            channel.content = [value]
        elif isinstance(value, header.ContentHeader | body.ContentBody):
            channel.content.append(value)
            self._content(number, channel)
        elif isinstance(value, commands.Basic.Ack | commands.Basic.Nack):
            self._confirmed(number, channel, value)
        else:
            said = sorted((name, one) for name, one in dict(value).items() if one is not None)
            self._note(number, (value.name, said))
            if isinstance(value, commands.Channel.CloseOk):
                self.channels.pop(number, None)

    def _end(self) -> None:
        self.closed = True
        self.socket.close()
        self.channels.clear()

    def _confirmed(self, number: int, channel: _Channel, value: commands.Basic.Ack | commands.Basic.Nack) -> None:
        tag = value.delivery_tag or 0
        known = channel.confirmed
        for one in [one for one in range(1, tag + 1) if one not in known] if value.multiple else [tag]:
            known.add(one)
            self.confirms.setdefault(number, []).append((one, value.name))

    def _content(self, number: int, channel: _Channel) -> None:
        """Notes a message when it is there as a whole."""
        method, head, *bodies = channel.content
        payload = b"".join(part.value for part in bodies)
        if len(payload) < head.body_size:
            return
        rest = [method.exchange, method.routing_key, plain_properties(head.properties), payload.decode()]
        if isinstance(method, commands.Basic.Deliver):
            self._note(number, ("deliver", method.consumer_tag, bool(method.redelivered), *rest))
            if method.consumer_tag not in channel.no_ack:
                channel.arrivals.append((self.step, method.consumer_tag or "", method.delivery_tag or 0))
        elif isinstance(method, commands.Basic.GetOk):
            self._note(number, ("get-ok", bool(method.redelivered), method.message_count, *rest))
            if not channel.gets_no_ack:
                channel.arrivals.append((self.step, "", method.delivery_tag or 0))
        else:
            self._note(number, ("return", method.reply_code, method.reply_text, *rest))


def plain_properties(properties: Any) -> dict[str, Any]:
    """Those that were said. A priority of 0 is as good as none; times are not compared."""
    found: dict[str, Any] = {}
    for name in PROPERTIES:
        value = getattr(properties, name, None)
        if name == "headers":
            value = {key: _header(key, one) for key, one in sorted((value or {}).items()) if key not in NEWER_HEADERS}
            if value.get("x-delivery-count") == 0:
                del value["x-delivery-count"]
        if value not in (None, "", {}, 0):
            found[name] = value.isoformat() if isinstance(value, datetime) else value
    return found


def _header(name: str, value: Any) -> Any:
    if name == "x-death" and isinstance(value, list):
        return [{key: one for key, one in sorted(death.items()) if key not in NOT_COMPARED} for death in value]
    return value


class Counts(NamedTuple):
    ready: int
    consumers: int


class Side:
    """One broker, for one sequence."""

    def __init__(self, address: str, prefix: str) -> None:
        self._address = address
        self._prefix = prefix
        self._connections: dict[int, Connection] = {}
        self._step = 0
        self._queues: set[str] = set()  # that may be there
        self._probe = Connection(address)

    def begin(self, step: Step) -> None:
        """Says what the step says; the answer comes later."""
        from tests.protocols.amqp.same_doing import Doing  # which needs this module

        self._step += 1
        if step.op == "declare":
            self._queues.add(step.arguments["queue"])
        Doing(self, step).do()

    def connection(self, number: int) -> Connection:
        found = self._connections.get(number)
        if found is None or found.closed:
            found = self._connections[number] = Connection(self._address)
        found.step = self._step
        return found

    def channel(self, connection: int, number: int) -> _Channel:
        found = self.connection(connection)
        if number not in found.channels:
            found.channels[number] = _Channel()
            found.say(number, commands.Channel.Open())
        return found.channels[number]

    def drop(self, number: int) -> None:
        """The connection is gone, without a word."""
        self.connection(number).socket.close()
        del self._connections[number]

    def full(self, name: str) -> str:
        return self._prefix + name if name and not name.startswith("amq.") else name

    # -- looking ------------------------------------------------------------------------------------------------------

    def pull(self) -> bool:
        return [connection.pull() for connection in self._connections.values()].count(True) > 0  # all of them

    def answered(self, step: Step) -> bool:
        """Whether what the step asks for has been answered."""
        connection = self._connections.get(step.connection)
        if step.op in NO_ANSWER or connection is None or connection.closed:
            return True
        return bool(connection.events.get(step.channel) or connection.events.get(0))

    def seen(self) -> list[Any]:
        """What has come since the last `forget`."""
        found: list[Any] = []
        for number, connection in sorted(self._connections.items()):
            for channel, events in sorted(connection.events.items()):
                others = [event for event in events if event[0] != "deliver"]
                others.sort(key=lambda event: event[0] == "Basic.Cancel")  # by the broker: when, is not promised
                consumers = sorted({event[1] for event in events if event[0] == "deliver"})
                parts = [others] if others else []
                parts += [[event for event in events if event[:2] == ("deliver", tag)] for tag in consumers]
                found += [[number, channel, part] for part in parts]
            for channel, confirms in sorted(connection.confirms.items()):
                found.append([number, channel, "confirms", sorted(confirms)])
        return self._local(found)  # type: ignore[no-any-return]

    def forget(self) -> None:
        for connection in self._connections.values():
            connection.events, connection.confirms = {}, {}

    def _local(self, value: Any) -> Any:
        """Without the prefix, and of JSON's types."""
        if isinstance(value, str):
            return value.replace(self._prefix, "")
        if isinstance(value, dict):
            return {key: self._local(one) for key, one in value.items()}
        return [self._local(one) for one in value] if isinstance(value, list | tuple) else value

    def counts(self) -> dict[str, Counts | None]:
        """Of each queue; None: another connection's. To ask also waits until the queue has done what it had to do."""
        found: dict[str, Counts | None] = {}
        for queue in sorted(self._queues):
            answer = self._ask(commands.Queue.Declare(0, self.full(queue), True))
            if answer[0] == "Queue.DeclareOk":
                said = dict(answer[1])
                found[queue] = Counts(said["message_count"], said["consumer_count"])
            elif answer[1] == 405:
                found[queue] = None
            else:
                self._queues.discard(queue)
        return found

    def _ask(self, method: Any) -> tuple[Any, ...]:
        """On a connection of its own."""
        if self._probe.closed:
            self._probe = Connection(self._address)
        probe = self._probe
        if 1 not in probe.channels:
            probe.channels[1] = _Channel()
            probe.say(1, commands.Channel.Open())
        probe.events.clear()
        probe.say(1, method)
        deadline = time.monotonic() + DEADLINE_S
        while not any(probe.events.values()) and time.monotonic() < deadline:
            if not probe.pull():
                time.sleep(0.0005)
        return next((event for events in probe.events.values() for event in events), ("nothing", 0))

    def close(self) -> None:
        """Nothing of the sequence is left."""
        for connection in self._connections.values():
            connection.socket.close()
        for exchange in EXCHANGES:
            self._ask(commands.Exchange.Delete(0, self.full(exchange)))
        for queue in QUEUES:
            self._ask(commands.Queue.Delete(0, self.full(queue)))
        self._probe.socket.close()
