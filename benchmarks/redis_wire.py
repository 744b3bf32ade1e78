"""Redis Streams in RESP, for the load generator. See `benchmarks.wires`."""

import re
from collections.abc import Sequence

from benchmarks.wires import GROUP, Refused, Taken

FIELD = b"p"


class RedisWire:
    """Streams: XADD, one consumer group, XREADGROUP and XACK. Acknowledged entries stay in the stream, as in NATS."""

    hello_answers = 1

    _ENTRY = re.compile(rb"\*2\r\n\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\np\r\n\$(\d+)\r\n")
    _READ = re.compile(rb"\*1\r\n\*2\r\n\$\d+\r\n[^\r]+\r\n\*(\d+)\r\n")
    _SIMPLE = re.compile(rb"(?:\+[^\r]*|:\d+|\$-1|\*-1)\r\n|\$\d+\r\n[^\r]*\r\n|-([^\r]*)\r\n")

    def __init__(self) -> None:
        self._rest = b""
        self._queue, self._batch, self._count = "", 1, 1
        self._expected, self._unanswered = 0, 0
        self._ids: list[bytes] = []

    def hello(self) -> bytes:
        return _resp(b"PING")

    def declare(self, queue: str) -> bytes:
        return _resp(b"XGROUP", b"CREATE", queue.encode(), GROUP.encode(), b"0", b"MKSTREAM")

    def put(self, number: int, queue: str, payloads: Sequence[bytes], delays_ms: Sequence[int] = ()) -> bytes:
        if delays_ms:
            raise Refused("Redis Streams have no delayed messages")
        name = queue.encode()
        return b"".join(_resp(b"XADD", name, b"*", FIELD, payload) for payload in payloads)

    def answers_to(self, batch: int) -> int:
        return batch

    def answers(self, data: bytes) -> int:
        data, at, count = self._rest + data, 0, 0
        while answer := self._SIMPLE.match(data, at):
            if answer[1] is not None and not answer[1].startswith(b"BUSYGROUP"):
                raise Refused(answer[1].decode(errors="replace"))
            at, count = answer.end(), count + 1
        self._rest = data[at:]
        return count

    def ask_count(self, queue: str) -> bytes:
        return _resp(b"XLEN", queue.encode())

    def read_count(self, data: bytes) -> int | None:
        self._rest += data
        if self._rest.startswith(b"-"):
            raise Refused(self._rest.decode(errors="replace"))
        if not self._rest.endswith(b"\r\n"):
            return None
        count, self._rest = int(self._rest[1:-2]), b""
        return count

    def subscribe(self, queue: str, batch: int, in_flight: int) -> bytes:
        self._queue, self._batch = queue, batch
        self._count = max(batch, in_flight) if batch == 1 else batch
        return self._read()

    def _read(self) -> bytes:
        words = (b"XREADGROUP", b"GROUP", GROUP.encode(), GROUP.encode(), b"COUNT", b"%d" % self._count)
        return _resp(*words, b"BLOCK", b"0", b"STREAMS", self._queue.encode(), b">")

    def take(self, data: bytes) -> Taken:
        data, at = self._rest + data, 0
        payloads: list[bytes] = []
        out: list[bytes] = []
        while True:
            if self._expected:
                entry = self._ENTRY.match(data, at)
                if entry is None or len(data) < entry.end() + int(entry[2]) + 2:
                    break
                at = entry.end() + int(entry[2])
                payloads.append(data[entry.end() : at])
                self._ids.append(entry[1])
                at, self._expected = at + 2, self._expected - 1
                if not self._expected:
                    out += [self._ack(), self._read()]
            elif read := self._READ.match(data, at):
                at, self._expected = read.end(), int(read[1])
            elif answer := self._SIMPLE.match(data, at):
                if answer[1] is not None:
                    raise Refused(answer[1].decode(errors="replace"))
                at, self._unanswered = answer.end(), self._unanswered - 1
            else:
                break
        self._rest = data[at:]
        return Taken(payloads, b"".join(out))

    def _ack(self) -> bytes:
        ids, self._ids = self._ids, []
        parts = [ids[at : at + self._batch] for at in range(0, len(ids), self._batch)]
        self._unanswered += len(parts)
        return b"".join(_resp(b"XACK", self._queue.encode(), GROUP.encode(), *part) for part in parts)

    def leave(self) -> bytes:
        return b""

    def left(self, data: bytes) -> bool:
        self.take(data)
        return self._unanswered == 0


def _resp(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words)
