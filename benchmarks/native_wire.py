"""Our own protocol's msgpack frames, for the load generator. See `benchmarks.wires`."""

from collections.abc import Sequence
from struct import Struct

import msgspec

from benchmarks.wires import Refused, Taken
from waystation import protocol
from waystation.message import Message

LENGTH = Struct(">I")
CONSUMER = 1


class NativeWire:
    """msgpack frames. Messages are whole arrays, as the Python client sends them."""

    hello_answers = 1

    def __init__(self, user: str = "", password: str = "") -> None:
        """The login is by PLAIN, in the hello; for another one there is `log_in`."""
        self._hello = protocol.Hello(id=1, client="bench", user=user, password=password)
        self._rest = b""
        self._decoder = msgspec.msgpack.Decoder(protocol.Answer | protocol.Failure | protocol.Deliver | protocol.Ceased)
        self._batch, self._unsettled, self._uncredited = 1, 0, 0
        self._next_id = 1

    def hello(self) -> bytes:
        return protocol.MAGIC + _frame(self._hello)

    def log_in(self, mechanism: str, first: bytes) -> bytes:
        """In place of `hello`: the first message of a login, which is answered with a challenge."""
        return protocol.MAGIC + _frame(protocol.Hello(id=1, client="bench", mechanism=mechanism, data=first))

    def read_challenge(self, data: bytes) -> bytes | None:
        for frame in self._frames(data):
            self._refuse(frame)
            answer = self._decoder.decode(frame)
            if isinstance(answer, protocol.Answer):
                return msgspec.convert(answer.value, protocol.HelloAnswer).challenge
        return None

    def authenticate(self, data: bytes) -> bytes:
        return _frame(protocol.Authenticate(id=1, data=data))

    def declare(self, queue: str) -> bytes:
        return _frame(protocol.DeclareQueue(id=1, queue=queue))

    def put(self, number: int, queue: str, payloads: Sequence[bytes], delays_ms: Sequence[int] = ()) -> bytes:
        if delays_ms:
            messages = [Message(p, delay_ms=delay) for p, delay in zip(payloads, delays_ms, strict=True)]
        else:
            messages = [Message(payload) for payload in payloads]
        return _frame(protocol.Put(id=number + 1, queue=queue, messages=messages))

    def answers_to(self, batch: int) -> int:
        return 1

    def _frames(self, data: bytes) -> list[bytes]:
        data, at, found = self._rest + data, 0, []
        while len(data) - at >= 4:
            end = at + 4 + LENGTH.unpack_from(data, at)[0]
            if end > len(data):
                break
            found.append(data[at + 4 : end])
            at = end
        self._rest = data[at:]
        return found

    def answers(self, data: bytes) -> int:
        frames = self._frames(data)
        for frame in frames:
            if b"failure" in frame:  # decoding every answer would cost the generator more than the broker
                self._refuse(frame)
        return len(frames)

    def _refuse(self, frame: bytes) -> None:
        answer = self._decoder.decode(frame)
        if isinstance(answer, protocol.Failure | protocol.Ceased):
            raise Refused(f"{answer.error}: {answer.text}")

    def ask_count(self, queue: str) -> bytes:
        return _frame(protocol.DescribeQueue(id=1, queue=queue))

    def read_count(self, data: bytes) -> int | None:
        for frame in self._frames(data):
            self._refuse(frame)
            answer = self._decoder.decode(frame)
            if isinstance(answer, protocol.Answer):
                info = msgspec.convert(answer.value, protocol.QueueInfo)
                return info.ready + info.parked + info.held
        return None

    def subscribe(self, queue: str, batch: int, in_flight: int) -> bytes:
        self._batch, self._unsettled = batch, 1  # the answer to Consume itself
        return _frame(protocol.Consume(id=1, consumer=CONSUMER, queue=queue, credit=in_flight))

    def take(self, data: bytes) -> Taken:
        payloads: list[bytes] = []
        tags: list[int] = []
        for frame in self._frames(data):
            push = self._decoder.decode(frame)
            if isinstance(push, protocol.Deliver):
                for delivered in push.messages:
                    payloads.append(delivered.message.payload)
                    tags.append(delivered.tag)
            elif isinstance(push, protocol.Answer):
                self._unsettled -= 1
            else:
                raise Refused(f"{push.error}: {push.text}")
        return Taken(payloads, self._settle(tags))

    def _settle(self, tags: list[int]) -> bytes:
        if not tags:
            return b""
        out = []
        for at in range(0, len(tags), self._batch):
            self._next_id += 1
            self._unsettled += 1
            runs = _runs(tags[at : at + self._batch])
            out.append(_frame(protocol.Settle(id=self._next_id, consumer=CONSUMER, runs=runs)))
        out.append(_frame(protocol.Credit(consumer=CONSUMER, count=len(tags))))
        return b"".join(out)

    def leave(self) -> bytes:
        return b""

    def left(self, data: bytes) -> bool:
        self.take(data)
        return self._unsettled == 0


def _frame(command: protocol.Command) -> bytes:
    body = msgspec.msgpack.encode(command)
    return LENGTH.pack(len(body)) + body


def _runs(tags: list[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for tag in tags:
        if runs and runs[-1][0] + runs[-1][1] == tag:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((tag, 1))
    return runs
