"""NATS JetStream's text protocol, for the load generator. See `benchmarks.wires`."""

import random
import re
from collections.abc import Sequence

import msgspec

from benchmarks.wires import GROUP, Refused, Taken


class NatsWire:
    """JetStream: a file stream per queue, published with a reply subject, a durable pull consumer, explicit acks."""

    hello_answers = 1  # the PONG

    _ITEM = re.compile(
        rb"MSG \S+ \S+ +(?:(\S+) +)?(\d+)\r\n|PING\r\n|PONG\r\n|\+OK\r\n"
        rb"|INFO [^\r]*\r\n|-ERR ([^\r]*)\r\n|HMSG ([^\r]*)\r\n"
    )
    _CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"lang":"py","version":"1","protocol":1,"headers":true}\r\n'

    def __init__(self) -> None:
        self._rest = b""
        self._inbox = f"_INBOX.{random.randbytes(8).hex()}"
        self._pong = False
        self._queue, self._fetch, self._pending = "", 0, 0

    def hello(self) -> bytes:
        return self._CONNECT + f"SUB {self._inbox}.* 1\r\nPING\r\n".encode()

    def _request(self, subject: str, token: str, body: bytes) -> bytes:
        return f"PUB {subject} {self._inbox}.{token} {len(body)}\r\n".encode() + body + b"\r\n"

    def declare(self, queue: str) -> bytes:
        stream = {"name": queue, "subjects": [queue], "retention": "limits", "storage": "file", "num_replicas": 1}
        return self._request(f"$JS.API.STREAM.CREATE.{queue}", "api", msgspec.json.encode(stream))

    def put(self, number: int, queue: str, payloads: Sequence[bytes], delays_ms: Sequence[int] = ()) -> bytes:
        if delays_ms:
            raise Refused("JetStream has no delayed messages")
        return b"".join(self._request(queue, f"{number:x}-{i:x}", p) for i, p in enumerate(payloads))

    def answers_to(self, batch: int) -> int:
        return batch

    def _items(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """(reply subject, body) of every message that is there in full."""
        data, at, found = self._rest + data, 0, []
        match = self._ITEM.match
        while item := match(data, at):
            end = item.end()
            if item[2] is not None:
                body_end = end + int(item[2])
                if body_end + 2 > len(data):
                    break
                found.append((item[1] or b"", data[end:body_end]))
                end = body_end + 2
            elif item[3] is not None or item[4] is not None:
                raise Refused((item[3] or item[4]).decode(errors="replace"))
            elif data.startswith(b"PONG", at):
                self._pong = True
            at = end
        self._rest = data[at:]
        return found

    def answers(self, data: bytes) -> int:
        bodies = [body for _, body in self._items(data)]
        for body in bodies:
            if b'"error"' in body:
                raise Refused(body.decode(errors="replace"))
        greeted, self._pong = self._pong, False
        return len(bodies) + greeted

    def ask_count(self, queue: str) -> bytes:
        return self._request(f"$JS.API.STREAM.INFO.{queue}", "api", b"")

    def read_count(self, data: bytes) -> int | None:
        for _, body in self._items(data):
            found = re.search(rb'"messages":(\d+)', body)
            if found is None:
                raise Refused(body.decode(errors="replace"))
            return int(found[1])
        return None

    def subscribe(self, queue: str, batch: int, in_flight: int) -> bytes:
        config = {"durable_name": GROUP, "ack_policy": "explicit", "deliver_policy": "all",
                  "max_ack_pending": 4 * in_flight}  # fmt: skip
        body = msgspec.json.encode({"stream_name": queue, "config": config})
        self._queue, self._in_flight = queue, in_flight
        return self._request(f"$JS.API.CONSUMER.DURABLE.CREATE.{queue}.{GROUP}", "api", body) + self._more()

    def _more(self) -> bytes:
        self._fetch += 1
        self._pending += self._in_flight
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._queue}.{GROUP}"
        return self._request(subject, f"f{self._fetch}", b'{"batch":%d}' % self._in_flight)

    def take(self, data: bytes) -> Taken:
        payloads, out = [], []
        for reply, body in self._items(data):
            if reply:
                payloads.append(body)
                out.append(b"PUB " + reply + b" 4\r\n+ACK\r\n")
            elif b'"error"' in body:
                raise Refused(body.decode(errors="replace"))
        self._pending -= len(payloads)
        if self._pending <= self._in_flight // 2:
            out.append(self._more())
        return Taken(payloads, b"".join(out))

    def leave(self) -> bytes:
        self._pong = False
        return b"PING\r\n"

    def left(self, data: bytes) -> bool:
        self._items(data)
        return self._pong
