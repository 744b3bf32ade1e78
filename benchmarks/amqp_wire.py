"""AMQP 0-9-1 frames, for the load generator. See `benchmarks.wires`.

One channel, confirms on, every publish persistent. The whole handshake is sent in one piece, which brokers read as if
it had come bit by bit, so ten thousand connections are opened without ten thousand conversations. Bodies fit one frame.
"""

from collections.abc import Sequence
from struct import Struct

from benchmarks.wires import GROUP, Refused, Taken

METHOD, HEADER, BODY, HEARTBEAT, END = 1, 2, 3, 8, 0xCE
FRAME_MAX = 131_072
MULTIPLE = 1

HEAD = Struct(">BHI")  # kind, channel, size
LONG, LONG_LONG = Struct(">I"), Struct(">Q")
ACK = Struct(">BHIHHQBB")  # a whole frame
ACK_HEAD = HEAD.pack(METHOD, 1, 13) + Struct(">HH").pack(60, 80)
CONFIRMED = Struct(">QB")

DELIVER = Struct(">HH").pack(60, 60)
DECLARED = Struct(">HH").pack(50, 11)
# Whatever of these comes, the job has failed: connection.close, channel.close, basic.cancel, basic.return, basic.nack.
REFUSALS = {Struct(">HH").pack(*method): name for method, name in {
    (10, 50): "connection.close", (20, 40): "channel.close", (60, 30): "basic.cancel", (60, 50): "basic.return",
    (60, 120): "basic.nack",
}.items()}  # fmt: skip


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return HEAD.pack(kind, channel, len(payload)) + payload + bytes((END,))


def method(class_id: int, method_id: int, arguments: bytes, channel: int = 1) -> bytes:
    return frame(METHOD, channel, Struct(">HH").pack(class_id, method_id) + arguments)


def short(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def long(data: bytes) -> bytes:
    return LONG.pack(len(data)) + data


def ack(tag: int, *, multiple: bool) -> bytes:
    return ACK.pack(METHOD, 1, 13, 60, 80, tag, multiple, END)


class AmqpWire:
    """Durable queues on the default exchange; `queue_type` as RabbitMQ's `x-queue-type`, None: the broker's default."""

    hello_answers = 5  # start, tune, open-ok, channel open-ok, confirm select-ok

    def __init__(
        self, queue_type: str | None = None, user: str = "guest", password: str = "guest", vhost: str = "/"
    ) -> None:
        self._login, self._vhost = f"\0{user}\0{password}".encode(), vhost
        self._arguments = b"" if queue_type is None else short("x-queue-type") + b"S" + long(queue_type.encode())
        self._rest = b""
        self._confirmed, self._ahead = 0, set[int]()  # all up to here, and single ones above it
        self._queue, self._batch, self._unacked, self._tag = "", 1, 0, 0
        self._left = False

    def hello(self) -> bytes:
        return b"".join((
            b"AMQP\x00\x00\x09\x01",
            method(10, 11, long(b"") + short("PLAIN") + long(self._login) + short("en_US"), 0),
            method(10, 31, Struct(">HIH").pack(2047, FRAME_MAX, 0), 0),  # no heartbeats: an idle connection is idle
            method(10, 40, short(self._vhost) + b"\x00\x00", 0),
            method(20, 10, b"\x00"),
            method(85, 10, b"\x00"),
        ))  # fmt: skip

    def declare(self, queue: str) -> bytes:
        durable = b"\x02"
        return method(50, 10, b"\x00\x00" + short(queue) + durable + long(self._arguments))

    def put(self, number: int, queue: str, payloads: Sequence[bytes], delays_ms: Sequence[int] = ()) -> bytes:
        if delays_ms:
            raise Refused("delayed messages are not part of AMQP's figures")
        publish = method(60, 40, b"\x00\x00" + short("") + short(queue) + b"\x00")
        persistent = Struct(">HB").pack(0x1000, 2)
        made = []
        for payload in payloads:
            header = Struct(">HHQ").pack(60, 0, len(payload)) + persistent
            made += [publish, frame(HEADER, 1, header), frame(BODY, 1, payload)]
        return b"".join(made)

    def answers_to(self, batch: int) -> int:
        return batch

    def answers(self, data: bytes) -> int:
        """Confirms count as many messages as they newly confirm, other answers one each."""
        data, at, count = self._rest + data if self._rest else data, 0, 0
        end = len(data)
        while at + HEAD.size < end:
            if data.startswith(ACK_HEAD, at):
                if at + ACK.size > end:
                    break
                count += self._confirm(*CONFIRMED.unpack_from(data, at + 11))
                at += ACK.size
                continue
            kind, _, size = HEAD.unpack_from(data, at)
            if at + size + 8 > end:
                break
            if kind == METHOD:
                self._check(data[at + 7 : at + 7 + size])
                count += 1
            at += size + 8
        self._rest = data[at:]
        return count

    def _confirm(self, tag: int, bits: int) -> int:
        if tag <= self._confirmed or tag in self._ahead:
            raise Refused(f"publish {tag} was confirmed twice")
        if bits & MULTIPLE:
            passed = {single for single in self._ahead if single < tag} if self._ahead else self._ahead
            count = tag - self._confirmed - len(passed)
            self._confirmed, self._ahead = tag, self._ahead - passed
        else:
            count = 1
            self._ahead.add(tag)
        while self._confirmed + 1 in self._ahead:
            self._confirmed += 1
            self._ahead.remove(self._confirmed)
        return count

    def _check(self, payload: bytes) -> None:
        if refusal := REFUSALS.get(payload[:4]):
            code, words = int.from_bytes(payload[4:6], "big"), payload[7 : 7 + payload[6]].decode(errors="replace")
            raise Refused(f"{refusal} {code} {words}" if refusal.endswith("close") else refusal)

    def ask_count(self, queue: str) -> bytes:
        passive = b"\x01"
        return method(50, 10, b"\x00\x00" + short(queue) + passive + long(b""))

    def read_count(self, data: bytes) -> int | None:
        self._rest += data
        if len(self._rest) < HEAD.size:
            return None
        size = HEAD.unpack_from(self._rest)[2]
        if len(self._rest) < size + 8:
            return None
        payload, self._rest = self._rest[7 : 7 + size], self._rest[size + 8 :]
        self._check(payload)
        count: int = LONG.unpack_from(payload, 5 + payload[4])[0]
        return count

    def subscribe(self, queue: str, batch: int, in_flight: int) -> bytes:
        """`in_flight` is the prefetch."""
        self._queue, self._batch = queue, batch
        consume = b"\x00\x00" + short(queue) + short(GROUP) + b"\x00" + long(b"")
        return method(60, 10, Struct(">IHB").pack(0, in_flight, 0)) + method(60, 20, consume)

    def take(self, data: bytes) -> Taken:
        data, at = self._rest + data if self._rest else data, 0
        end, tag_at = len(data), HEAD.size + 5 + len(GROUP)
        payloads: list[bytes] = []
        out: list[bytes] = []
        while at + HEAD.size < end:
            kind, _, size = HEAD.unpack_from(data, at)
            header_at = at + size + 8
            if header_at > end:
                break
            if kind == METHOD and data.startswith(DELIVER, at + 7):
                if (body_at := self._body_at(data, header_at)) is None:
                    break
                stop = body_at + LONG.unpack_from(data, body_at - 4)[0]
                if stop >= end:
                    break
                payloads.append(data[body_at:stop])
                self._tag = LONG_LONG.unpack_from(data, at + tag_at)[0]
                self._unacked += 1
                if self._unacked == self._batch:
                    out.append(self._ack())
                at = stop + 1
                continue
            if kind == METHOD:
                self._check(data[at + 7 : header_at - 1])
                self._left |= data.startswith(DECLARED, at + 7)
            at = header_at
        self._rest = data[at:]
        return Taken(payloads, b"".join(out))

    def _body_at(self, data: bytes, header_at: int) -> int | None:
        """Where the content of the only body frame begins, behind a header frame; None: not there yet."""
        if header_at + 19 > len(data):
            return None
        body_at = header_at + 15 + int.from_bytes(data[header_at + 3 : header_at + 7], "big")
        if body_at > len(data):
            return None
        if data[header_at] != HEADER or data[body_at - 7] != BODY or data[body_at - 4 : body_at] != data[
            header_at + 15 : header_at + 19
        ]:  # fmt: skip
            raise Refused("a delivery is not one method, one header and one whole body")
        return body_at

    def _ack(self) -> bytes:
        self._unacked = 0
        return ack(self._tag, multiple=self._batch > 1)

    def leave(self) -> bytes:
        """What is not acknowledged yet, and a question that the broker answers after it has read all of it."""
        self._left = False
        return (self._ack() if self._unacked else b"") + self.ask_count(self._queue)

    def left(self, data: bytes) -> bool:
        self.take(data)
        return self._left
