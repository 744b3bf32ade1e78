"""Celery: what is left when a worker, a process of its pool, or the broker is killed in the middle of work."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import WorkerLostError
from kombu.exceptions import OperationalError

from tests.clients.amqp_kit import AmqpTarget, ours_only, target_of
from tests.clients.celery_kit import Play
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for

WAIT: dict[str, Any] = {"timeout": DEADLINE_S}


def test_tasks_of_a_killed_worker_are_run_by_another(amqp: AmqpTarget, tmp_path: Path) -> None:
    """With acks_late a task belongs to the broker until it is done, also the ones that the worker had in store."""
    texts = [f"task {n}" for n in range(12)]
    with Play(amqp, tmp_path, worker_prefetch_multiplier=4) as play:
        for text in texts:
            play.task("hold_late").apply_async((text, "gate"), ignore_result=True)
        doomed = play.worker()
        (begun,) = play.stage.wait(1)
        wait_for(lambda: play.counts() == (8, 1), "four tasks are with the worker")
        doomed.kill()
        play.stage.open_gate("gate")
        heir = play.worker()
        ended = play.stage.wait(len(texts), "end")
        assert sorted(line.text for line in ended) == sorted(texts)
        assert {line.worker for line in ended} == {heir.name}
        redelivered = {line.text for line in ended if line.redelivered}
        assert begun.text in redelivered
        assert redelivered == set(texts[:4])
        wait_for(lambda: play.counts() == (0, 1), "the queue is empty")


def test_a_task_acknowledged_early_dies_with_its_worker(amqp: AmqpTarget, tmp_path: Path) -> None:
    """That is what early means: at most once. What had not begun goes to the next worker."""
    with Play(amqp, tmp_path) as play:
        play.task("hold").apply_async(("begun", "never"), ignore_result=True)
        play.task("note").apply_async(("waiting",), ignore_result=True)
        doomed = play.worker()
        play.stage.wait(1, text="begun")
        wait_for(lambda: play.counts()[0] == 0, "the other is with the worker too")
        doomed.kill()
        play.worker()
        play.stage.wait(1, text="waiting")
        wait_for(lambda: play.counts() == (0, 1), "the queue is empty")
        assert play.stage.texts() == ["begun", "waiting"]


def test_a_task_whose_process_is_lost_is_run_again_if_it_wants_that(amqp: AmqpTarget, tmp_path: Path) -> None:
    """The worker lives on: it rejects the message (reject_on_worker_lost), or tells that the task has failed."""
    with Play(amqp, tmp_path) as play:
        play.worker(concurrency=2)
        again = play.task("hold_lost").delay("again", "gate")
        failed = play.task("hold_late").delay("failed", "never")
        first, only = (*play.stage.wait(1, text="again"), *play.stage.wait(1, text="failed"))
        os.kill(first.pid, signal.SIGKILL)
        os.kill(only.pid, signal.SIGKILL)
        _, second = play.stage.wait(2, text="again")
        assert (second.id, second.redelivered) == (first.id, True)
        play.stage.open_gate("gate")
        assert again.get(**WAIT) == "again"
        with pytest.raises(WorkerLostError):
            failed.get(**WAIT)
        assert len(play.stage.lines(id=failed.id)) == 1


@ours_only
def test_confirmed_tasks_survive_a_killed_broker(tmp_path: Path) -> None:
    """Workers that were there before come back by themselves; nothing that was confirmed is lost."""
    with (
        Server(tmp_path / "broker") as server,
        Play(target_of(server), tmp_path / "celery", worker_prefetch_multiplier=4) as play,
    ):
        for quick in (True, False):
            play.start(quick=quick)
        for worker in play.workers:
            worker.ready()
        sent = [play.task("hold_late").apply_async(("delayed", "late"), countdown=1, ignore_result=True).id]
        for n in range(60):
            gate = "late" if n % 2 else "early"
            sent.append(play.task("hold_late").apply_async((f"task {n}", gate), ignore_result=True).id)
        play.stage.open_gate("early")
        names = {worker.name for worker in play.workers}
        wait_for(lambda: {line.worker for line in play.stage.lines()} == names, "both workers have begun")
        server.kill()
        with pytest.raises(OperationalError):
            play.task("note_late").apply_async(("nobody listens",), ignore_result=True, retry=False)
        server.restart()
        play.stage.open_gate("late")
        wait_for(lambda: set(sent) <= {line.id for line in play.stage.lines("end")}, "every task was run")
        assert play.task("add").delay(1, 2).get(**WAIT) == 3
        assert {line.worker for line in play.stage.lines("end")} == names
        wait_for(lambda: play.counts() == (0, 2), "the queue is empty")
        assert all(worker.process.poll() is None for worker in play.workers)
