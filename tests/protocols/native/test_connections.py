"""Connections: told apart by their first byte, counted together, bounded in what they can make the broker keep."""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import msgspec
import psutil
import pytest
from confluent_kafka.admin import AdminClient

from tests.protocols.native.kit import Frames, JsonLines, frame_of
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.message import Message
from waystation.protocol import (
    MAGIC,
    Answer,
    Begin,
    Consume,
    Credit,
    DeclareQueue,
    Deliver,
    DescribeQueue,
    End,
    Failure,
    Get,
    Hello,
    Outgoing,
    Peek,
    Ping,
    Put,
    Settle,
    Stats,
)

MIB = 1024 * 1024


def test_three_protocols_share_a_port(server: Server, lines: JsonLines, frames: Frames) -> None:
    assert lines.ask("ping") is None
    assert frames.ask(Hello(client="test"))["version"] == 1
    assert AdminClient({"bootstrap.servers": server.bootstrap}).list_topics(timeout=20).brokers


def test_the_first_bytes_may_come_slowly(server: Server) -> None:
    with socket.create_connection(split_address(server.bootstrap), 30) as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in b'{"action": "ping"}\n':
            slow.sendall(bytes([byte]))
        assert slow.makefile("rb").readline() == b'{"status":"success"}\n'
    with socket.create_connection(split_address(server.bootstrap), 30) as slow:
        slow.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in MAGIC + frame_of(Ping(id=5)):
            slow.sendall(bytes([byte]))
        head = slow.recv(4, socket.MSG_WAITALL)
        body = slow.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        assert msgspec.msgpack.decode(body, type=Outgoing) == Answer(5)


def test_a_first_read_larger_than_any_buffer(server: Server) -> None:
    """Everything at once, before the broker has said a word."""
    queue = unique("big")
    put = Put(id=2, queue=queue, messages=[Message(b"x" * 100_000)] * 20)
    data = MAGIC + frame_of(DeclareQueue(id=1, queue=queue)) + frame_of(put)
    with Frames(server.bootstrap, greet=False) as frames:
        frames.socket.sendall(data)
        received = [frames.receive(), frames.receive()]
        assert {answer.id for answer in received if isinstance(answer, Answer)} == {1, 2}


def test_connections_of_all_kinds_are_counted_together(tmp_path: Path) -> None:
    with (
        Server(tmp_path, settings={"max.connections": 3}) as server,
        contextlib.ExitStack() as stack,
    ):
        lines = stack.enter_context(JsonLines(server.bootstrap))
        frames = stack.enter_context(Frames(server.bootstrap))
        silent = stack.enter_context(socket.create_connection(split_address(server.bootstrap), 30))
        lines.ask("ping")
        frames.ask(Ping())

        def refused() -> bool:
            with socket.create_connection(split_address(server.bootstrap), 30) as fourth:
                fourth.sendall(b'{"action": "ping"}\n')
                try:
                    return fourth.recv(100) == b""
                except ConnectionError:
                    return True

        wait_for(refused, "a fourth is refused")
        silent.close()
        wait_for(lambda: not refused(), "there is room again")


@pytest.mark.parametrize(
    "data", [b"", b"\xd7", MAGIC, MAGIC + b"\x00\x00", b"{", b'{"action": "ping"', MAGIC + b"\x03\xff\xff\xffabc"]
)
def test_a_client_that_says_half_a_word_and_goes(server: Server, lines: JsonLines, data: bytes) -> None:
    with socket.create_connection(split_address(server.bootstrap), 30) as rude:
        rude.sendall(data)
    assert lines.ask("ping") is None


@pytest.mark.parametrize(
    "data",
    [
        MAGIC + b"\x00\x00\x00\x00",
        MAGIC + b"\xff\xff\xff\xff",
        MAGIC + b"\x00\x00\x00\x03\xc1\xc1\xc1",
        b"\xd7XXX" + frame_of(Ping(id=1)),
    ],
)
def test_a_broken_frame_ends_its_connection_with_a_word(server: Server, lines: JsonLines, data: bytes) -> None:
    with Frames(server.bootstrap, greet=False) as frames:
        frames.socket.sendall(data)
        failure = frames.receive()
        assert isinstance(failure, Failure)
        assert (failure.id, failure.error) == (0, "Invalid")
        assert "closed" in failure.text
        assert frames.receive() is None
    assert lines.ask("ping") is None


def test_a_senseless_command_does_not_end_it(frames: Frames) -> None:
    frames.socket.sendall(frame_of({"action": "put", "id": 9, "queue": 5}))
    failure = frames.receive()
    assert isinstance(failure, Failure)
    assert (failure.id, failure.error) == (9, "Invalid")
    assert frames.ask(Ping()) is None


def test_bad_lines_do_not_end_it(lines: JsonLines) -> None:
    lines.ask("ping")  # the first byte says that it is JSON
    for bad in (b"nonsense\n", b'{"action": \n', b"[]\n", b'"text"\n', b"\x00\xff\n", b"{" * 5000 + b"\n"):
        lines.send_raw(bad)
        answer = lines.answer()
        assert (answer["status"], "Invalid JSON" in answer["error"]) == ("error", True)
    lines.send_raw(b'{"action": "put", "queue": "' + b"x" * (9 * MIB) + b'"}\n')
    assert "bytes" in lines.answer()["error"]
    assert lines.ask("ping") is None


def test_requests_with_ids_overtake_those_that_wait(lines: JsonLines) -> None:
    queue = lines.queue(unique("q"))
    lines.send("get", queue=queue, wait_ms=60_000, id=1)
    lines.send("ping", id=2)
    assert lines.answer() == {"id": 2, "status": "success"}
    lines.send("put", queue=queue, message={"payload": "x"}, id=3)
    answers = {answer["id"]: answer for answer in (lines.answer(), lines.answer())}
    assert len(answers[1]["value"]["messages"]) == 1
    assert answers[3]["value"]["count"] == 1
    lines.send("ping", id="text")
    assert lines.answer()["status"] == "error"


# -- memory ------------------------------------------------------------------------------------------------------------


def _memory(server: Server) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


def test_a_consumer_that_does_not_read_is_not_fed(server: Server, lines: JsonLines) -> None:
    queue = lines.queue(unique("deaf"))
    for _ in range(60):
        lines.put(queue, *["x" * 100_000] * 10)
    before = _memory(server)
    with Frames(server.bootstrap) as deaf, Frames(server.bootstrap) as inbox:
        deaf.send(Consume(id=1, consumer=1, queue=queue, credit=1_000_000))
        inbox.ask(Ping())
        held = wait_for(lambda: lines.counts(queue)[2], "some messages are held")
        assert held < 300
        lines.put(queue, *["x" * 100_000] * 10)
        assert lines.counts(queue)[2] < 300
        assert _memory(server) - before < 64 * MIB
        received = 0
        while received < 610:  # and when it reads, all of it comes
            push = deaf.receive()
            if isinstance(push, Deliver):
                received += len(push.messages)
    wait_for(lambda: lines.counts(queue) == (610, 0, 0), "all are given back")


def test_a_client_that_does_not_read_its_answers_is_not_read(server: Server, lines: JsonLines) -> None:
    queue = lines.queue(unique("deaf"))
    lines.put(queue, *["x" * 500_000] * 10)
    before = _memory(server)
    with Frames(server.bootstrap) as deaf:
        asking = b"".join(frame_of(Peek(id=i + 1, queue=queue, count=10)) for i in range(2_000))
        threading.Thread(target=_send_quietly, args=(deaf.socket, asking), daemon=True).start()
        for _ in range(20):
            assert lines.ask("ping") is None
        assert _memory(server) - before < 128 * MIB
        for expected in range(1, 51):
            answer = deaf.receive()
            assert isinstance(answer, Answer)
            assert answer.id == expected


def _send_quietly(to: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):
        to.sendall(data)


def test_too_many_waiting_requests_only_stop_their_own_connection(server: Server, lines: JsonLines) -> None:
    queue = lines.queue(unique("many"))
    with Frames(server.bootstrap) as greedy:
        asking = b"".join(frame_of(Get(id=i + 1, queue=queue, wait_ms=3_600_000)) for i in range(12_000))
        threading.Thread(target=_send_quietly, args=(greedy.socket, asking), daemon=True).start()
        for _ in range(5):
            assert lines.ask("ping") is None
        lines.put(queue, *["x"] * 12_000)
        answered = {answer.id for answer in (greedy.receive() for _ in range(12_000)) if isinstance(answer, Answer)}
        assert len(answered) == 12_000


def test_a_lost_connection_leaves_nothing_behind(server: Server, frames: Frames) -> None:
    queue = unique("left")
    frames.ask(DeclareQueue(queue=queue))
    with Frames(server.bootstrap) as doomed:
        number = doomed.ask(Begin(transactional_id=unique("tx")))
        doomed.ask(Put(queue=queue, messages=[Message(b"undone")], tx=number))
        doomed.send(Get(id=5, queue=queue, wait_ms=3_600_000), Consume(id=6, consumer=1, queue=queue, credit=5))
        doomed.ask(Ping())
        assert frames.ask(DescribeQueue(queue=queue))["consumers"] == 2
    wait_for(lambda: frames.ask(DescribeQueue(queue=queue)).get("consumers", 0) == 0, "its consumers are gone")
    frames.ask(Put(queue=queue, messages=[Message(b"kept")]))
    got = frames.ask(Get(queue=queue, count=5, wait_ms=20_000))
    assert [delivered[3][0] for delivered in got["messages"]] == [b"kept"]


# -- transactions ------------------------------------------------------------------------------------------------------


def test_a_transaction_is_all_or_nothing(frames: Frames, lines: JsonLines) -> None:
    work, done, topic = unique("work"), unique("done"), unique("topic")
    for queue in (work, done):
        frames.ask(DeclareQueue(queue=queue))
    frames.ask(Put(queue=work, messages=[Message(b"job")]))
    for commit in (False, True):
        got = frames.ask(Get(queue=work, wait_ms=20_000))
        number = frames.ask(Begin(transactional_id="t-" + topic))
        run = [(got["messages"][0][0], 1)]
        frames.ask(Put(queue=done, messages=[Message(b"result")], tx=number))
        answer = lines.try_ask("create_topic", topic=topic)
        assert answer["status"] == ("success" if not commit else "error")
        frames.ask(Settle(consumer=got["consumer"], runs=run, tx=number))
        assert lines.counts(done) == (0, 0, 0)
        assert frames.ask(End(tx=number, commit=commit)) is None
        assert isinstance(frames.ask(End(tx=number)), Failure)
    wait_for(lambda: lines.counts(done) == (1, 0, 0), "the result is there once")
    assert lines.counts(work) == (0, 0, 0)


def test_what_cannot_be_in_a_transaction_is_said(frames: Frames) -> None:
    queue = unique("q")
    frames.ask(DeclareQueue(queue=queue))
    failure = frames.ask(Put(queue=queue, messages=[Message(b"")], tx=77))
    assert (failure.error, "77" in failure.text) == ("NotFound", True)
    number = frames.ask(Begin(transactional_id=unique("t")))
    assert frames.ask(Settle(consumer=1, runs=[(0, 1)], verdict="reject", tx=number)).error == "Invalid"
    assert frames.ask(Settle(consumer=1, runs=[(0, 1)], tx=number)).error == "NotFound"
    assert frames.ask(End(tx=number, commit=False)) is None


def test_credit_for_nobody_and_negative_credit(frames: Frames) -> None:
    frames.send(Credit(consumer=99, count=5))
    assert isinstance(frames.ask(Credit(consumer=99, count=-5)), Failure)
    assert isinstance(frames.ask(Stats()), dict)
