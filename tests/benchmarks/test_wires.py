"""The generator's side of each protocol: answers and deliveries are counted right however the bytes are cut up."""

from collections.abc import Callable, Sequence
from struct import pack

import msgspec
import pytest

from benchmarks.kafka_wire import KafkaAnswers
from benchmarks.native_wire import NativeWire
from benchmarks.nats_wire import NatsWire
from benchmarks.redis_wire import RedisWire
from benchmarks.wires import Refused, Wire
from waystation import protocol
from waystation.message import Delivered, Message

PAYLOADS = [b"one\r\n", b"two", b"three"]


def frame(thing: msgspec.Struct) -> bytes:
    body = msgspec.msgpack.encode(thing)
    return pack(">I", len(body)) + body


def frames_of(data: bytes) -> list[protocol.AnyCommand]:
    decoder: msgspec.msgpack.Decoder[protocol.AnyCommand] = msgspec.msgpack.Decoder(protocol.AnyCommand)
    found = []
    while data:
        size = int.from_bytes(data[:4], "big")
        found.append(decoder.decode(data[4 : 4 + size]))
        data = data[4 + size :]
    return found


def native_delivery(payloads: Sequence[bytes]) -> bytes:
    return frame(protocol.Deliver(1, [Delivered(i, 1, 0, Message(p)) for i, p in enumerate(payloads)]))


def nats_delivery(payloads: Sequence[bytes]) -> bytes:
    return b"".join(b"MSG jobs 1 $JS.ACK.%d %d\r\n%b\r\n" % (i, len(p), p) for i, p in enumerate(payloads))


def redis_delivery(payloads: Sequence[bytes]) -> bytes:
    entries = [b"*2\r\n$3\r\n1-%d\r\n*2\r\n$1\r\np\r\n$%d\r\n%b\r\n" % (i, len(p), p) for i, p in enumerate(payloads)]
    return b"*1\r\n*2\r\n$4\r\njobs\r\n*%d\r\n" % len(payloads) + b"".join(entries)


DELIVERIES: list[tuple[Callable[[], Wire], Callable[[Sequence[bytes]], bytes]]] = [
    (NativeWire, native_delivery),
    (NatsWire, nats_delivery),
    (RedisWire, redis_delivery),
]
ANSWERS: list[tuple[Callable[[], Wire], bytes]] = [
    (NativeWire, frame(protocol.Answer(2, protocol.PutAnswer(0, 1)))),
    (NatsWire, b'MSG _INBOX.x.1-0 1  27\r\n{"stream":"first", "seq":1}\r\n'),
    (RedisWire, b"$3\r\n1-0\r\n"),
]


@pytest.mark.parametrize(("make", "encode"), DELIVERIES)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_torn_deliveries_are_taken_whole_and_once(
    make: Callable[[], Wire], encode: Callable[[Sequence[bytes]], bytes], step: int
) -> None:
    wire, data = make(), encode(PAYLOADS)
    got: list[bytes] = []
    wire.subscribe("jobs", 500, 2000)
    for at in range(0, len(data), step):
        got += wire.take(data[at : at + step]).payloads
    assert got == PAYLOADS


@pytest.mark.parametrize(("make", "answer"), ANSWERS)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_torn_answers_are_counted_once(make: Callable[[], Wire], answer: bytes, step: int) -> None:
    wire, data = make(), answer * 5
    assert sum(wire.answers(data[at : at + step]) for at in range(0, len(data), step)) == 5


@pytest.mark.parametrize("step", [1, 3, 7, 20, 1000])
def test_torn_answers_of_kafka_are_counted_once(step: int) -> None:
    answers, data = KafkaAnswers(), (pack(">I", 11) + b"some answer" + pack(">I", 0)) * 5
    assert sum(answers.count(data[at : at + step]) for at in range(0, len(data), step)) == 10


def test_a_native_put_is_one_request_with_all_its_messages() -> None:
    [put] = frames_of(NativeWire().put(6, "jobs", PAYLOADS))
    assert isinstance(put, protocol.Put)
    assert (put.id, put.queue, [message.payload for message in put.messages]) == (7, "jobs", PAYLOADS)


@pytest.mark.parametrize(("batch", "settles"), [(1, [[(0, 1)], [(1, 1)], [(2, 1)]]), (500, [[(0, 3)]])])
def test_native_acks_are_as_many_requests_as_the_batch_says(batch: int, settles: list[list[tuple[int, int]]]) -> None:
    wire = NativeWire()
    wire.subscribe("jobs", batch, 500)
    *acks, credit = frames_of(wire.take(native_delivery(PAYLOADS)).reply)
    assert [ack.runs for ack in acks if isinstance(ack, protocol.Settle)] == settles
    assert isinstance(credit, protocol.Credit)
    assert credit.count == 3


def test_a_consumer_leaves_only_when_every_settle_was_answered() -> None:
    wire = NativeWire()
    wire.subscribe("jobs", 500, 500)
    wire.take(frame(protocol.Answer(1)) + native_delivery(PAYLOADS))
    assert not wire.left(b"")
    assert wire.left(frame(protocol.Answer(2, protocol.SettleAnswer())))


@pytest.mark.parametrize(
    ("make", "answer"),
    [
        (NativeWire, frame(protocol.Failure(1, "Full", "the queue is full"))),
        (NatsWire, b'MSG _INBOX.x.1 1 20\r\n{"error":{"code":1}}\r\n'),
        (NatsWire, b"-ERR 'Unknown Protocol Operation'\r\n"),
        (RedisWire, b"-LOADING Redis is loading the dataset in memory\r\n"),
    ],
)
def test_a_refusal_is_never_counted_as_an_answer(make: Callable[[], Wire], answer: bytes) -> None:
    with pytest.raises(Refused):
        make().answers(answer)
