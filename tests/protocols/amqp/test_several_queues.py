"""What is published to several queues in one turn is written together, and each message is answered by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pamqp import commands

from tests.protocols.amqp.kit import Amqp, connected, publish
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.log.batches import batch as batches


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("several")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with Server(folder) as server:
        yield server


def declared(amqp: Amqp, count: int, **arguments: Any) -> list[str]:
    names = [unique("several") for _ in range(count)]
    for name in names:
        answer = amqp.ask(commands.Queue.Declare(0, name, durable=True, arguments=arguments))
        assert isinstance(answer, commands.Queue.DeclareOk), dict(answer)
    return names


def confirming(amqp: Amqp) -> None:
    amqp.say(commands.Confirm.Select())
    amqp.expect(commands.Confirm.SelectOk)


def answers(amqp: Amqp, count: int) -> tuple[set[int], set[int]]:
    """(acked, nacked) of the first publishes on a channel that confirms."""
    acked: set[int] = set()
    nacked: set[int] = set()
    while len(acked | nacked) < count:
        answer = amqp.next()
        assert isinstance(answer, commands.Basic.Ack | commands.Basic.Nack), answer
        tags = range(1, answer.delivery_tag + 1) if answer.multiple else (answer.delivery_tag,)
        assert not nacked & {answer.delivery_tag}
        (acked if isinstance(answer, commands.Basic.Ack) else nacked).update(set(tags) - acked - nacked)
    return acked, nacked


def bodies(amqp: Amqp, queue: str) -> list[bytes]:
    """Everything that is ready in the queue, which is acked."""
    found: list[bytes] = []
    while True:
        amqp.say(commands.Basic.Get(0, queue, True))
        answer = amqp.next()
        if isinstance(answer, commands.Basic.GetEmpty):
            return found
        amqp.next()
        found.append(amqp.next().value)


def batch_count(folder: Path) -> int:
    """Batches in the logs of all shards."""
    segments = [path for path in folder.rglob("*.log") if "__queues" in str(path)]
    assert segments
    return sum(sum(1 for _ in batches.scan(path.read_bytes())) for path in segments)


def test_many_queues_are_a_few_batches_and_each_has_its_own_in_order(server: Server, folder: Path) -> None:
    with connected(server) as amqp:
        queues = declared(amqp, 60)
        confirming(amqp)
        before = batch_count(folder)
        amqp.send(b"".join(publish(1, b"%d" % number, queues[number % 60]) for number in range(180)))
        assert answers(amqp, 180) == (set(range(1, 181)), set())
        assert batch_count(folder) - before < 30
        for place, queue in enumerate(queues):
            assert bodies(amqp, queue) == [b"%d" % number for number in range(place, 180, 60)]


def test_a_full_queue_among_others_nacks_what_it_refuses_and_nothing_else(server: Server) -> None:
    with connected(server) as amqp:
        (dead,) = declared(amqp, 1)
        first, last = declared(amqp, 2)
        (full,) = declared(amqp, 1, **{"x-max-length": 2, "x-overflow": "reject-publish"})
        dying = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
        (proud,) = declared(amqp, 1, **dying, **{"x-max-length": 1, "x-overflow": "reject-publish-dlx"})
        (short,) = declared(amqp, 1, **{"x-max-length": 1, "x-overflow": "drop-head"})
        confirming(amqp)
        queues = [first, full, proud, short, last]
        amqp.send(b"".join(publish(1, b"%d" % number, queues[number % 5]) for number in range(20)))
        acked, nacked = answers(amqp, 20)
        assert nacked == {12, 17, 8, 13, 18}, "the third and fourth of one queue, all but the first of another"
        assert acked == set(range(1, 21)) - nacked
        wait_for(lambda: amqp.ask(commands.Queue.Declare(0, dead, True)).message_count == 3, "dead letters are there")
        assert [bodies(amqp, queue) for queue in queues] == [
            [b"0", b"5", b"10", b"15"],
            [b"1", b"6"],
            [b"2"],
            [b"18"],
            [b"4", b"9", b"14", b"19"],
        ]
        assert sorted(bodies(amqp, dead), key=int) == [b"7", b"12", b"17"], "once each"


def test_what_nobody_wants_is_returned_though_others_go_to_several_queues(server: Server) -> None:
    with connected(server) as amqp:
        first, second = declared(amqp, 2)
        confirming(amqp)
        amqp.send(
            publish(1, b"a", first)
            + publish(1, b"b", unique("nowhere"), mandatory=True)
            + publish(1, b"c", second)
            + publish(1, b"d", unique("nowhere"))
            + publish(1, b"e", first)
        )
        returned, _, payload = amqp.content()
        assert (dict(returned)["reply_text"], payload) == ("NO_ROUTE", b"b")
        assert answers(amqp, 5) == ({1, 2, 3, 4, 5}, set())
        assert (bodies(amqp, first), bodies(amqp, second)) == ([b"a", b"e"], [b"c"])


def test_what_is_published_in_a_transaction_is_there_with_its_commit(server: Server) -> None:
    with connected(server) as amqp:
        queues = declared(amqp, 3)
        amqp.say(commands.Tx.Select())
        amqp.expect(commands.Tx.SelectOk)
        amqp.send(b"".join(publish(1, b"undone", queue) for queue in queues))
        assert isinstance(amqp.ask(commands.Tx.Rollback()), commands.Tx.RollbackOk)
        amqp.send(b"".join(publish(1, b"%d" % number, queue) for number, queue in enumerate(queues)))
        assert [bodies(amqp, queue) for queue in queues] == [[]] * 3
        assert isinstance(amqp.ask(commands.Tx.Commit()), commands.Tx.CommitOk)
        assert [bodies(amqp, queue) for queue in queues] == [[b"0"], [b"1"], [b"2"]]
