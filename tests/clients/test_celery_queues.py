"""Celery: what its queues promise. Priorities, prefetch, expiry, delays held by the broker; and chords."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from kombu.transport.native_delayed_delivery import level_name

from tests.clients.amqp_kit import QUORUM, AmqpTarget, ours_only
from tests.clients.celery_kit import Play, QueueSpec
from tests.clients.pika_kit import Pikas, gone
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

WAIT: dict[str, Any] = {"timeout": DEADLINE_S}
FAR_S = 3600
"""A delay that no test waits for."""


def test_high_priorities_overtake_low_ones(amqp: AmqpTarget, tmp_path: Path) -> None:
    """One slot, one message at a time: whatever is more urgent when the slot is free goes first."""
    queue = unique("urgent")
    specs = [QueueSpec(queue, queue, arguments={"x-max-priority": 9})]
    options = {"task_acks_late": True, "worker_prefetch_multiplier": 1}
    with Play(amqp, tmp_path, queues=specs, task_default_queue=queue, **options) as play:
        play.worker()
        play.task("hold_late").apply_async(("first", "gate"), ignore_result=True)
        play.stage.wait(1, text="first")
        for priority in (0, 5, 9, None, 1, 5, 200):
            text = f"priority {priority}"
            play.task("note_late").apply_async((text,), priority=priority, ignore_result=True)
        assert play.counts(queue)[0] == 7
        play.stage.open_gate("gate")
        play.stage.wait(8)
        # Equal ones stay in their order, none is the lowest, and more than the highest is the highest.
        expected = [9, 200, 5, 5, 1, 0, None]
        assert play.stage.texts() == ["first", *(f"priority {priority}" for priority in expected)]


@pytest.mark.parametrize(("multiplier", "late", "taken"), [(1, True, 1), (4, False, 5)])
def test_a_worker_takes_no_more_than_its_prefetch(
    amqp: AmqpTarget, tmp_path: Path, multiplier: int, late: bool, taken: int
) -> None:
    """A task that is acknowledged early makes room for one more when it begins."""
    with Play(amqp, tmp_path, worker_prefetch_multiplier=multiplier, task_acks_late=late) as play:
        for n in range(8):
            play.app.send_task("hold_late" if late else "hold", (f"{n}", "gate"), ignore_result=True)
        play.worker()
        play.stage.wait(1)
        wait_for(lambda: play.counts()[0] == 8 - taken, f"{taken} of 8 tasks are with the worker")
        play.stage.open_gate("gate")
        assert [line.text for line in play.stage.wait(8, "end")] == [str(n) for n in range(8)]


def test_tasks_with_an_eta_take_nobodys_place_and_are_not_lost(amqp: AmqpTarget, tmp_path: Path) -> None:
    """The worker holds them unacknowledged and asks for a greater prefetch for each; they go back when it is killed."""
    with Play(amqp, tmp_path, worker_prefetch_multiplier=1) as play:
        worker = play.worker()
        for n in range(6):
            play.task("note").apply_async((f"later {n}",), countdown=FAR_S, ignore_result=True)
        # Celery may forget to ask for more until something wakes it, with any broker. A question does.
        wait_for(lambda: play.ping(worker) and play.counts() == (0, 1), "the worker holds them all")
        assert play.ping(worker)
        assert play.task("note").delay("now").get(**WAIT) == "now"
        assert play.counts()[0] == 0
        worker.kill()
        wait_for(lambda: play.counts() == (6, 0), "the delayed tasks are back in their queue")
        assert play.stage.texts() == ["now"]


def test_a_task_expires_in_its_queue(amqp: AmqpTarget, tmp_path: Path) -> None:
    """Nobody takes it: Celery has told the broker when it is too late."""
    with Play(amqp, tmp_path) as play:
        play.task("note").apply_async(("too late",), expires=0.2, ignore_result=True)
        play.task("note").apply_async(("in time",), expires=FAR_S, ignore_result=True)
        wait_for(lambda: play.counts()[0] == 1, "one task has expired")
        play.worker()
        play.stage.wait(1, text="in time")
        assert play.stage.texts() == ["in time"]


def test_a_result_queue_that_nobody_reads_goes_away(amqp: AmqpTarget, tmp_path: Path, pikas: Pikas) -> None:
    with Play(amqp, tmp_path, result_expires=1) as play:
        play.task("note").delay("asked")
        queue = play.app.thread_oid
        assert not gone(pikas, queue)
        # A queue that is asked for counts as used: leave it alone for longer than it lasts.
        wait_for(lambda: gone(pikas, queue), "the result queue has expired", every_s=1.5)


def test_a_result_is_there_for_who_comes_later(amqp: AmqpTarget, tmp_path: Path) -> None:
    with Play(amqp, tmp_path) as play:
        results = [play.task("add").delay(n, n) for n in range(3)]
        play.worker()
        queue = play.app.thread_oid
        wait_for(lambda: play.counts(queue)[0] == 3, "the results wait in their queue")
        assert [result.get(**WAIT) for result in results] == [0, 2, 4]


def test_chord_with_a_backend_that_knows_chords(amqp: AmqpTarget, tmp_path: Path) -> None:
    """Results lie in files; every task goes through the broker, also the one that waits for the others."""
    (tmp_path / "results").mkdir()
    with Play(amqp, tmp_path, result_backend=f"file://{tmp_path / 'results'}") as play:
        play.worker(concurrency=2)
        add, total = play.task("add"), play.task("total")
        assert chord([add.s(n, n) for n in range(10)])(total.s()).get(**WAIT) == 90
        nested = chord([add.s(1, 1), chord([add.s(2, 2), add.s(3, 3)], total.s())], total.s())
        assert nested.delay().get(**WAIT) == 12
        with pytest.raises(Exception, match="odd one"):
            chord([add.s(1, 1), play.task("broken").s("odd one")])(total.s()).get(**WAIT)


def test_quorum_queues_delay_in_the_broker(amqp: AmqpTarget, tmp_path: Path, pikas: Pikas) -> None:
    """Celery sees quorum queues and leaves delays to a ladder of queues with time to live and dead letters."""
    queue = unique("quorum")
    specs = [QueueSpec(queue, unique("tasks"), "topic", queue, QUORUM)]
    options = {"task_default_queue": queue, "task_default_exchange_type": "topic", "task_default_routing_key": queue}
    with Play(amqp, tmp_path, queues=specs, task_default_exchange=specs[0].exchange, **options) as play:
        worker = play.worker()
        assert "Global QoS is disabled" in worker.log.read_text()
        assert play.task("add").delay(1, 2).get(**WAIT) == 3
        far = play.task("note").apply_async(("far",), countdown=2**20, ignore_result=True)
        wait_for(lambda: play.counts(level_name(20))[0] == 1, "the far one waits in the broker")
        results = {s: play.task("note").apply_async((f"{s} s",), countdown=s + 0.5) for s in (1, 3)}
        for s, result in results.items():
            assert result.get(**WAIT) == f"{s} s"
            (line,) = play.stage.lines(id=result.id)
            assert line.key.endswith(f".{queue}")
        assert play.task("flaky").delay(1, 1.5).get(**WAIT) == 1
        assert play.stage.lines(id=far.id) == []
        channel = pikas.channel()
        channel.queue_purge(level_name(20))


@ours_only
def test_a_delay_in_a_header_is_held_by_the_broker(amqp: AmqpTarget, tmp_path: Path) -> None:
    """On any queue, by any exchange: no worker holds the task, and no worker is needed until it is due."""
    with Play(amqp, tmp_path) as play:
        worker = play.worker()
        sent = time.time()
        play.task("note").apply_async(("far",), headers={"x-delay": FAR_S * 1000}, ignore_result=True)
        near = play.task("note").apply_async(("near",), headers={"x-delay": 500})
        assert near.get(**WAIT) == "near"
        (line,) = play.stage.lines()
        assert line.at >= sent + 0.5
        again = play.task("flaky_by_header").delay(2, 300)
        assert again.get(**WAIT) == 2
        lines = play.stage.lines(id=again.id)
        assert [later.at - earlier.at >= 0.3 for earlier, later in pairwise(lines)] == [True, True]
        worker.stop()
        wait_for(lambda: play.counts()[1] == 0, "the worker is gone")
        assert play.counts()[0] == 0  # The one that is far off has never left the queue, and is not ready.


def test_quorum_queues_limit_redeliveries(amqp: AmqpTarget, tmp_path: Path, pikas: Pikas) -> None:
    """A task that kills its worker is not given out for ever."""
    queue, dead = unique("limited"), unique("dead")
    channel = pikas.channel()
    channel.queue_declare(dead, durable=True)
    arguments = {**QUORUM, "x-delivery-limit": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
    specs = [QueueSpec(queue, unique("tasks"), "topic", queue, arguments)]
    with Play(amqp, tmp_path, queues=specs, task_default_queue=queue) as play:
        play.app.send_task("hold_late", ("deadly", "never"), ignore_result=True)
        for attempt in range(2):
            worker = play.worker()
            play.stage.wait(attempt + 1, text="deadly")
            worker.kill()
        wait_for(lambda: play.counts(dead)[0] == 1, "the task is a dead letter")
        assert [line.redelivered for line in play.stage.lines()] == [False, True]
