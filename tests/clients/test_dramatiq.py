"""Dramatiq with its RabbitmqBroker: delays, retries, dead letters, priorities, killed workers and a killed broker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import dramatiq
import pytest

from tests.clients.amqp_kit import AmqpTarget, death, ours_only, target_of
from tests.clients.dramatiq_kit import Play
from tests.clients.pika_kit import Pikas, get_one
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

FAR_MS = 3_600_000
"""A delay that no test waits for."""


@pytest.fixture(scope="module")
def play(amqp: AmqpTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """An application with one worker of two threads, for the tests that leave both as they are."""
    with Play(amqp, tmp_path_factory.mktemp("dramatiq")) as play:
        play.worker(threads=2)
        yield play


def test_messages_are_run_each_once(play: Play) -> None:
    texts = [unique("note") for _ in range(100)]
    ids = [play.send("note", text) for text in texts]
    wait_for(lambda: set(texts) <= set(play.stage.texts()), "all were run")
    assert sorted(line.id for line in play.stage.lines(task="note") if line.text in set(texts)) == sorted(ids)
    wait_for(lambda: play.counts()[0] == 0, "the queue is empty")


def test_a_delayed_message_is_run_when_it_is_due(play: Play) -> None:
    sent = time.time()
    later = play.send("note", "later", delay=500)
    now = play.send("note", "now")
    (line,) = play.stage.wait(1, id=later)
    assert line.at >= sent + 0.5
    assert play.stage.lines(id=now)[0].at < line.at


def test_a_message_that_fails_is_tried_again_with_growing_pauses(play: Play) -> None:
    sent = play.send("flaky", 3)
    lines = play.stage.wait(4, id=sent)
    assert [line.retries for line in lines] == [0, 1, 2, 3]
    assert all(later.at - earlier.at >= 0.02 for earlier, later in pairwise(lines))


def test_a_message_that_keeps_failing_is_a_dead_letter(play: Play, pikas: Pikas) -> None:
    sent = play.send("broken", "for ever")
    play.stage.wait(1, "nack", id=sent)
    assert [line.retries for line in play.stage.lines(id=sent)] == [0, 1, 2]
    dead = get_one(pikas.channel(), f"{play.stage.queue}.XQ")
    message = dramatiq.Message.decode(dead.body)
    assert (message.message_id, message.args) == (sent, ("for ever",))
    assert "ValueError: for ever" in message.options["traceback"]
    assert death(dead.headers) == {
        "count": 1,
        "exchange": "",
        "queue": play.stage.queue,
        "reason": "rejected",
        "routing-keys": [play.stage.queue],
    }


def test_a_pipeline_hands_results_on(play: Play) -> None:
    double = play.actors["double"]
    steps = [double.message(1), double.message(), double.message()]
    pipeline: Any = dramatiq.pipeline(steps, broker=play.broker)
    pipeline.run()
    wait_for(lambda: play.stage.texts(task="double") == ["1", "2", "4"], "the pipeline is done")


def test_queues_are_declared_again_with_the_arguments_they_have(play: Play, amqp: AmqpTarget) -> None:
    """Every process of an application declares them."""
    with Play(amqp, Path(play.stage.folder) / "again") as other:
        other.broker.declare_queue(play.stage.queue, ensure=True)


def test_dead_letters_go_when_their_time_is_over(
    amqp: AmqpTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dramatiq.brokers.rabbitmq.DEAD_MESSAGE_TTL", 300)
    with Play(amqp, tmp_path) as play:
        play.worker(dramatiq_dead_message_ttl="300")
        sent = play.send("broken", "short")
        play.stage.wait(1, "nack", id=sent)
        wait_for(lambda: play.counts() == (0, 0, 0), "the dead letter has expired")


def test_high_priorities_overtake_low_ones(amqp: AmqpTarget, tmp_path: Path) -> None:
    with Play(amqp, tmp_path, max_priority=5) as play:
        play.worker(dramatiq_queue_prefetch="1")
        play.send("hold", "first", "gate")
        play.stage.wait(1)
        for priority in (0, 3, 5, 1, 3):
            play.send("note", f"priority {priority}", broker_priority=priority)
        play.stage.open_gate("gate")
        play.stage.wait(6)
        assert play.stage.texts()[1:] == [f"priority {priority}" for priority in (5, 3, 3, 1, 0)]


def test_messages_of_a_killed_worker_are_run_by_another(amqp: AmqpTarget, tmp_path: Path) -> None:
    """Also those that it only had in store, and those that it held until they were due."""
    texts = [f"task {n}" for n in range(12)]
    with Play(amqp, tmp_path) as play:
        doomed = play.worker(dramatiq_queue_prefetch="4")
        for text in texts:
            play.send("hold", text, "gate")
        play.send("note", "delayed", delay=FAR_MS)
        play.stage.wait(1)
        wait_for(lambda: play.counts() == (8, 0, 0), "the worker has its prefetch, and the delayed one")
        doomed.kill()
        wait_for(lambda: play.counts() == (12, 1, 0), "everything is back in its queue")
        heirs = {play.start().name for _ in range(2)}
        wait_for(lambda: heirs <= {line.worker for line in play.stage.lines()}, "two others have begun")
        play.stage.open_gate("gate")
        ended = play.stage.wait(len(texts), "end")
        assert sorted(line.text for line in ended) == sorted(texts)
        assert {line.worker for line in ended} == heirs
        assert "delayed" not in play.stage.texts()


def test_a_worker_that_is_told_to_stop_ends_its_work_and_loses_nothing(amqp: AmqpTarget, tmp_path: Path) -> None:
    with Play(amqp, tmp_path) as play:
        worker = play.worker(dramatiq_queue_prefetch="4")
        play.send("hold", "begun", "gate")
        for n in range(3):
            play.send("note", f"waiting {n}")
        play.stage.wait(1)
        play.stage.open_gate("gate")
        assert worker.stop() == 0
        done = len(play.stage.texts("start", task="note"))
        assert play.stage.texts("end") == ["begun"]
        wait_for(lambda: play.counts() == (3 - done, 0, 0), "what was not begun is in the queue")


def test_confirmed_delivery_finds_a_queue_that_has_gone(amqp: AmqpTarget, tmp_path: Path, pikas: Pikas) -> None:
    """A message without a queue comes back; Dramatiq declares the queue again and sends it again."""
    with Play(amqp, tmp_path) as play:
        play.send("note", "first")
        pikas.channel().queue_delete(play.stage.queue)
        play.send("note", "second")
        assert play.counts() == (1, 0, 0)


def test_flush_empties_the_queue_its_delays_and_its_dead(amqp: AmqpTarget, tmp_path: Path) -> None:
    with Play(amqp, tmp_path, confirm=False) as play:
        for n in range(3):
            play.send("note", str(n))
        play.send("note", "delayed", delay=FAR_MS)
        wait_for(lambda: play.counts() == (3, 1, 0), "all are there")
        play.broker.flush(play.stage.queue)
        assert play.counts() == (0, 0, 0)


@ours_only
def test_confirmed_messages_survive_a_killed_broker(tmp_path: Path) -> None:
    """Worker and sender find the broker again by themselves; nothing that was confirmed is lost."""
    with Server(tmp_path / "broker") as server, Play(target_of(server), tmp_path / "dramatiq") as play:
        play.worker(threads=2)
        sent = [play.send("hold", f"task {n}", "late" if n % 2 else "early") for n in range(40)]
        sent.append(play.send("note", "delayed", delay=500))
        play.stage.open_gate("early")
        play.stage.wait(2)
        server.kill()
        server.restart()
        play.stage.open_gate("late")
        sent.append(play.send("note", "after"))
        done = {"hold": "end", "note": "start"}
        wait_for(
            lambda: (
                set(sent) <= {line.id for task, event in done.items() for line in play.stage.lines(event, task=task)}
            ),
            "every message was run",
        )
        wait_for(lambda: play.counts() == (0, 0, 0), "the queues are empty")
