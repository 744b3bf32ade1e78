"""The generator's AMQP: confirms and deliveries are counted right however the bytes are cut up."""

from struct import pack

import pytest

from benchmarks.amqp_wire import AmqpWire, ack, frame, method, short
from benchmarks.wires import GROUP, Refused

PAYLOADS = [b"one\r\n", b"\xce\x01\x02\x03", b"three"]


def delivery(tag: int, payload: bytes) -> bytes:
    deliver = method(60, 60, short(GROUP) + pack(">QB", tag, 0) + short("") + short("jobs"))
    return deliver + frame(2, 1, pack(">HHQHB", 60, 0, len(payload), 0x1000, 2)) + frame(3, 1, payload)


def acks_in(reply: bytes) -> list[tuple[int, bool]]:
    found = []
    for at in range(0, len(reply), 21):
        tag, multiple = int.from_bytes(reply[at + 11 : at + 19], "big"), bool(reply[at + 19])
        assert reply[at : at + 21] == ack(tag, multiple=multiple)
        found.append((tag, multiple))
    return found


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_torn_confirms_are_counted_once_in_any_order(step: int) -> None:
    wire = AmqpWire()
    confirms = [(2, False), (1, False), (5, False), (4, True), (7, True), (8, False)]
    data = b"".join(ack(tag, multiple=multiple) for tag, multiple in confirms)
    assert sum(wire.answers(data[at : at + step]) for at in range(0, len(data), step)) == 8


@pytest.mark.parametrize("confirms", [[(1, False), (1, False)], [(3, True), (2, False)], [(2, False), (2, True)]])
def test_a_second_confirm_of_a_publish_is_a_fault(confirms: list[tuple[int, bool]]) -> None:
    wire = AmqpWire()
    with pytest.raises(Refused, match="confirmed twice"):
        wire.answers(b"".join(ack(tag, multiple=multiple) for tag, multiple in confirms))


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_torn_deliveries_are_taken_whole_and_once(step: int) -> None:
    wire = AmqpWire()
    wire.subscribe("jobs", 1, 250)
    data = method(60, 11, b"") + method(60, 21, short(GROUP)) + frame(8, 0, b"")
    data += b"".join(delivery(tag, payload) for tag, payload in enumerate(PAYLOADS, 1))
    got: list[bytes] = []
    for at in range(0, len(data), step):
        got += wire.take(data[at : at + step]).payloads
    assert got == PAYLOADS


@pytest.mark.parametrize(("batch", "acks"), [(1, [(n, False) for n in range(1, 8)]), (3, [(3, True), (6, True)])])
def test_acks_are_single_or_of_as_many_as_the_batch_says(batch: int, acks: list[tuple[int, bool]]) -> None:
    wire = AmqpWire()
    wire.subscribe("jobs", batch, 250)
    reply = wire.take(b"".join(delivery(tag, b"x") for tag in range(1, 8))).reply
    assert acks_in(reply) == acks
    assert wire.leave().startswith(ack(7, multiple=True)) == (batch == 3)


def test_a_consumer_leaves_only_when_its_last_question_was_answered() -> None:
    wire = AmqpWire()
    wire.subscribe("jobs", 50, 250)
    wire.take(delivery(1, b"x"))
    wire.leave()
    assert not wire.left(method(60, 21, short(GROUP)))
    assert wire.left(method(50, 11, short("jobs") + pack(">II", 0, 1)))


def test_a_count_is_that_of_the_declare_ok() -> None:
    wire, answer = AmqpWire(), method(50, 11, short("jobs") + pack(">II", 7, 1))
    assert wire.read_count(answer[:9]) is None
    assert wire.read_count(answer[9:]) == 7


@pytest.mark.parametrize("answer", [
    method(10, 50, pack(">H", 530) + short("NOT_ALLOWED") + bytes(4), 0),
    method(20, 40, pack(">H", 404) + short("NOT_FOUND") + bytes(4)),
    method(60, 120, pack(">QB", 1, 0)),
    method(60, 50, pack(">H", 312) + short("NO_ROUTE") + short("") + short("jobs")),
    method(60, 30, short(GROUP) + b"\x00"),
])  # fmt: skip
def test_a_refusal_is_never_counted_as_an_answer(answer: bytes) -> None:
    with pytest.raises(Refused):
        AmqpWire().answers(answer)
    with pytest.raises(Refused):
        AmqpWire().take(answer)
