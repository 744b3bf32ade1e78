"""Celery: calls, results, canvas, remote control and events, with two real worker processes that all tests share."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import TaskRevokedError

from tests.clients.amqp_kit import AmqpTarget
from tests.clients.celery_kit import Play, QueueSpec, Worker, build
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

WAIT: dict[str, Any] = {"timeout": DEADLINE_S}


class Troupe:
    """The shared application and its workers: `first` has two pool processes, `second` has one task at a time."""

    def __init__(self, play: Play, first: Worker, second: Worker, names: dict[str, str]) -> None:
        self.play = play
        self.stage = play.stage
        self.app = play.app
        self.task = play.task
        self.first = first
        self.second = second
        self.names = names

    @property
    def inspect(self) -> Any:
        """Questions to the first worker; answered by one, so that nobody waits for others."""
        return self.app.control.inspect(destination=[self.first.name], timeout=DEADLINE_S, limit=1)


@pytest.fixture(scope="module")
def troupe(amqp: AmqpTarget, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Troupe]:
    names = {name: unique(name) for name in ("plain", "media", "images", "films", "all")}
    queues = (
        QueueSpec(names["plain"], names["plain"]),
        QueueSpec(names["images"], names["media"], "topic", "media.image.#"),
        QueueSpec(names["films"], names["media"], "topic", "media.*.film"),
        QueueSpec(names["all"], names["all"], broadcast=True),
    )
    options = {
        "task_default_queue": names["plain"],
        "task_default_exchange": names["plain"],
        "task_default_routing_key": names["plain"],
        "task_track_started": True,
        "task_send_sent_event": True,
    }
    with Play(amqp, tmp_path_factory.mktemp("celery"), queues=queues, **options) as play:
        common = names["all"]
        first = play.start("-E", concurrency=2, queues=(names["plain"], names["images"], common), quick=False)
        second = play.start(queues=(names["films"], common))
        yield Troupe(play, first.ready(), second.ready(), names)


def test_a_task_is_run_and_its_result_comes_back(troupe: Troupe) -> None:
    result = troupe.task("add").delay(2, 3)
    assert result.get(**WAIT) == 5
    assert result.successful()
    assert [line.worker for line in troupe.stage.wait(1, id=result.id)] == [troupe.first.name]


def test_states_are_polled_without_waiting_for_them(troupe: Troupe) -> None:
    """Polling takes messages from the result queue by basic.get, and puts back the one that is not final."""
    gate = unique("gate")
    result = build(troupe.stage).tasks["hold"].delay("polled", gate)  # Another one's result queue has a consumer.
    wait_for(lambda: result.state == "STARTED", "the task is known to have started")
    assert result.state == "STARTED"
    troupe.stage.open_gate(gate)
    wait_for(lambda: result.state == "SUCCESS", "the task is known to have ended")
    assert result.result == "polled"


def test_the_error_of_a_task_comes_back_with_its_traceback(troupe: Troupe) -> None:
    result = troupe.task("broken").delay("no such parcel")
    with pytest.raises(ValueError, match="no such parcel"):
        result.get(**WAIT)
    assert result.state == "FAILURE"
    assert "in broken" in result.traceback


def test_many_tasks_each_once(troupe: Troupe) -> None:
    texts = [unique("many") for _ in range(200)]
    results = group(troupe.task("note").s(text) for text in texts).apply_async()
    assert results.get(**WAIT) == texts
    ran = [line.text for line in troupe.stage.lines(task="note") if line.text in set(texts)]
    assert sorted(ran) == sorted(texts)


def test_a_task_that_fails_is_tried_again_after_its_countdown(troupe: Troupe) -> None:
    result = troupe.task("flaky").delay(2, 0.2)
    assert result.get(**WAIT) == 2
    lines = troupe.stage.lines(id=result.id)
    assert [line.retries for line in lines] == [0, 1, 2]
    assert all(later.at - earlier.at >= 0.2 for earlier, later in pairwise(lines))


def test_a_task_that_keeps_failing_gives_up(troupe: Troupe) -> None:
    result = troupe.task("stubborn").delay()
    with pytest.raises(OSError, match="never"):
        result.get(**WAIT)
    assert [line.retries for line in troupe.stage.lines(id=result.id)] == [0, 1, 2]


def test_countdown_and_eta(troupe: Troupe) -> None:
    eta = datetime.now(UTC) + timedelta(seconds=0.6)
    called = time.time()
    results = [
        troupe.task("note").apply_async(("later",), countdown=0.6),
        troupe.task("note").apply_async(("later",), eta=eta),
        troupe.task("note").apply_async(("now",)),
    ]
    assert [result.get(**WAIT) for result in results] == ["later", "later", "now"]
    by_countdown, by_eta, _ = (troupe.stage.lines(id=result.id)[0].at for result in results)
    assert by_countdown >= called + 0.6
    assert by_eta >= eta.timestamp()


def test_a_task_that_expired_before_its_turn_is_not_run(troupe: Troupe) -> None:
    gate = unique("gate")
    holding = [troupe.task("hold").delay(f"{gate}-{n}", gate) for n in range(2)]
    wait_for(lambda: sum(gate in text for text in troupe.stage.texts()) == 2, "both processes are busy")
    late = troupe.task("note").apply_async(("too late",), expires=1.5)
    wait_for(lambda: late.id in ids(troupe.inspect.reserved()), "the worker has it")
    assert late.id not in {line.id for line in troupe.stage.lines()}
    until = time.monotonic() + 1.6
    wait_for(lambda: time.monotonic() > until, "it has expired")
    troupe.stage.open_gate(gate)
    with pytest.raises(TaskRevokedError):
        late.get(**WAIT)
    assert [result.get(**WAIT) for result in holding] == [f"{gate}-0", f"{gate}-1"]
    assert troupe.stage.lines(id=late.id) == []


def test_chain_hands_on(troupe: Troupe) -> None:
    add = troupe.task("add")
    assert chain(add.s(1, 2), add.s(3), add.s(4))().get(**WAIT) == 10


def test_group_of_chains(troupe: Troupe) -> None:
    add = troupe.task("add")
    assert group(chain(add.s(n, 1), add.s(10)) for n in range(5))().get(**WAIT) == [11, 12, 13, 14, 15]


def test_chunks_and_starmap(troupe: Troupe) -> None:
    add = troupe.task("add")
    pairs = [(n, n) for n in range(10)]
    assert add.chunks(pairs, 4)().get(**WAIT) == [[0, 2, 4, 6], [8, 10, 12, 14], [16, 18]]
    assert add.starmap(pairs[:3]).apply_async().get(**WAIT) == [0, 2, 4]


def test_callbacks_of_success_and_of_failure(troupe: Troupe) -> None:
    note = troupe.task("note")
    text = unique("linked")
    good = note.apply_async((text,), link=note.s())
    bad = troupe.task("broken").apply_async((text,), link_error=note.s())
    first, second = troupe.stage.wait(2, task="note", text=text)
    assert (first.id, second.id == good.id) == (good.id, False)
    troupe.stage.wait(1, task="note", text=bad.id)  # It is given the id of the task that failed.


def test_the_rpc_backend_refuses_chords_by_itself(troupe: Troupe) -> None:
    """It is Celery that says so, before anything is sent: with any broker."""
    add = troupe.task("add")
    with pytest.raises(NotImplementedError, match=r"rpc.*does not support chords"):
        chord([add.s(1, 1), add.s(2, 2)])(troupe.task("total").s())


def test_revoked_before_it_began(troupe: Troupe) -> None:
    gate = unique("gate")
    holding = [troupe.task("hold").delay(f"{gate}-{n}", gate) for n in range(2)]
    revoked = troupe.task("note").delay("revoked")
    kept = troupe.task("note").delay("kept")
    troupe.app.control.revoke(revoked.id, reply=True, destination=[troupe.first.name], timeout=DEADLINE_S, limit=1)
    troupe.stage.open_gate(gate)
    with pytest.raises(TaskRevokedError):
        revoked.get(**WAIT)
    assert kept.get(**WAIT) == "kept"
    assert [result.get(**WAIT) for result in holding] == [f"{gate}-0", f"{gate}-1"]
    assert troupe.stage.lines(id=revoked.id) == []


def test_revoked_while_it_runs_and_terminated(troupe: Troupe) -> None:
    result = troupe.task("hold").delay("terminated", unique("never"))
    troupe.stage.wait(1, id=result.id)
    result.revoke(terminate=True)
    with pytest.raises(TaskRevokedError):
        result.get(**WAIT)
    assert troupe.stage.lines("end", id=result.id) == []
    assert troupe.task("add").delay(1, 1).get(**WAIT) == 2


def test_workers_answer_questions(troupe: Troupe) -> None:
    answers = troupe.app.control.ping(timeout=DEADLINE_S, limit=2)
    assert {name for answer in answers for name in answer} == {troupe.first.name, troupe.second.name}
    assert "add" in troupe.inspect.registered()[troupe.first.name]
    stats = troupe.inspect.stats()[troupe.first.name]
    assert stats["broker"]["transport"] == "amqp"
    assert stats["prefetch_count"] == 8
    queues = {queue["name"] for queue in troupe.inspect.active_queues()[troupe.first.name]}
    assert {troupe.names["plain"], troupe.names["images"]} <= queues
    gate = unique("gate")
    result = troupe.task("hold").delay("active", gate)
    wait_for(lambda: result.id in ids(troupe.inspect.active()), "the task is told to be active")
    troupe.stage.open_gate(gate)
    result.get(**WAIT)


def test_a_task_with_an_eta_is_told_as_scheduled(troupe: Troupe) -> None:
    result = troupe.task("note").apply_async(("far away",), countdown=3600)

    def scheduled() -> set[str]:
        return {entry["request"]["id"] for entry in troupe.inspect.scheduled()[troupe.first.name]}

    wait_for(lambda: result.id in scheduled(), "the task is told to be scheduled")
    result.revoke()


def test_consumers_are_added_and_cancelled_by_remote_control(troupe: Troupe) -> None:
    queue = unique("more")
    where = {"destination": [troupe.second.name], "reply": True, "timeout": DEADLINE_S, "limit": 1}
    troupe.app.control.add_consumer(queue, **where)
    result = troupe.task("note").apply_async(("added",), queue=queue)
    assert result.get(**WAIT) == "added"
    assert troupe.stage.lines(id=result.id)[0].worker == troupe.second.name
    troupe.app.control.cancel_consumer(queue, **where)
    wait_for(lambda: troupe.play.counts(queue) == (0, 0), "the worker has left the queue (it answers before it does)")
    troupe.task("note").apply_async(("waits",), queue=queue, ignore_result=True)
    assert troupe.play.counts(queue) == (1, 0)


def test_a_broadcast_task_is_run_by_every_worker(troupe: Troupe) -> None:
    text = unique("to all")
    troupe.task("note").apply_async((text,), queue=troupe.names["all"], ignore_result=True)
    lines = troupe.stage.wait(2, text=text)
    assert {line.worker for line in lines} == {troupe.first.name, troupe.second.name}


def test_topic_exchange_routes_tasks_to_their_workers(troupe: Troupe) -> None:
    keys = {
        "media.image.thumb": {troupe.first.name},
        "media.video.film": {troupe.second.name},
        "media.image.film": {troupe.first.name, troupe.second.name},
    }
    media = {"exchange": troupe.names["media"], "ignore_result": True}
    for key in keys:
        troupe.task("note").apply_async((key,), routing_key=key, **media)
    for key, workers in keys.items():
        lines = troupe.stage.wait(len(workers), text=key)
        assert {(line.worker, line.key) for line in lines} == {(worker, key) for worker in workers}


def test_events_tell_the_life_of_a_task(troupe: Troupe) -> None:
    seen: list[dict[str, Any]] = []

    def known(task_id: str) -> list[str]:
        return [event["type"] for event in seen if event.get("uuid") == task_id]

    with troupe.app.connection_for_read() as connection:
        receiver = troupe.app.events.Receiver(connection, handlers={"*": seen.append})
        capture = receiver.itercapture(timeout=DEADLINE_S, wakeup=True)
        while not any(event["hostname"] == troupe.first.name for event in seen):
            next(capture)  # The receiver asks all workers for a sign of life: after it, its queue is bound.
        ran = troupe.task("note").delay("told")
        failed = troupe.task("broken").delay("told")
        while "task-succeeded" not in known(ran.id) or "task-failed" not in known(failed.id):
            next(capture)
        capture.close()
    assert set(known(ran.id)) == {"task-sent", "task-received", "task-started", "task-succeeded"}
    assert set(known(failed.id)) >= {"task-received", "task-started", "task-failed"}


def test_a_worker_shuts_down_by_remote_control(troupe: Troupe) -> None:
    worker = troupe.play.worker(queues=(unique("unused"),))
    troupe.app.control.shutdown(destination=[worker.name])
    assert worker.process.wait(DEADLINE_S) == 0
    assert "shutdown" in worker.tail()


def test_threads_of_one_application_have_result_queues_of_their_own(troupe: Troupe) -> None:
    got: dict[int, float] = {}

    def call(n: int) -> None:
        got[n] = troupe.task("add").delay(n, n).get(**WAIT)

    threads = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {n: 2 * n for n in range(4)}


def ids(answer: Any) -> set[str]:
    """Of the tasks in an answer of `inspect`."""
    return {task["id"] for tasks in (answer or {}).values() for task in tasks}
