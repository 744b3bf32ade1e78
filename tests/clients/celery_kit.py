"""A Celery application for tests, and its real worker processes.

A `Stage` is everything that an application of one test needs to be the same on both sides: in the test, which sends
tasks, and in `celery worker`, which runs them (celery_app.py builds it from the environment). Tasks write what they do
into the stage's journal. Names of queues and of Celery's own exchanges are the stage's, so that stages share a broker.
Only tests/clients calls this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from celery import Celery
from celery.signals import worker_ready
from kombu.common import Broadcast
from kombu.entity import Exchange, Queue

from tests.clients.amqp_kit import AmqpTarget
from tests.clients.task_journal import Journal, Line, environment
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

VARIABLE = "WAYSTATION_TEST_CELERY_STAGE"
STOP_S = 15.0


class QueueSpec(msgspec.Struct, frozen=True):
    """A queue of an application, in words that fit into JSON."""

    name: str
    exchange: str
    kind: str = "direct"
    key: str = ""
    arguments: dict[str, Any] = {}
    broadcast: bool = False

    def build(self) -> Any:
        """As Celery wants it."""
        if self.broadcast:
            return Broadcast(self.name)
        exchange = Exchange(self.exchange, type=self.kind)
        return Queue(self.name, exchange, routing_key=self.key or self.name, queue_arguments=dict(self.arguments))


class Stage(Journal, frozen=True, kw_only=True):
    """One application: where its broker is, how it is set up, where its journal lies."""

    broker: str
    queue: str
    options: dict[str, Any]
    queues: tuple[QueueSpec, ...]


def new_stage(target: AmqpTarget, folder: Path, *, queues: Iterable[QueueSpec] = (), **options: Any) -> Stage:
    """A stage of its own names at a broker."""
    folder.mkdir(parents=True, exist_ok=True)
    return Stage(
        folder=str(folder), broker=target.url("/"), queue=unique("celery"), options=options, queues=tuple(queues)
    )


def build(stage: Stage) -> Any:
    """The application, the same wherever it is built."""
    app = Celery(stage.queue, set_as_current=False)
    app.conf.update(
        {
            "broker_url": stage.broker,
            "result_backend": "rpc://",
            "broker_transport_options": {"confirm_publish": True},
            "broker_connection_retry_on_startup": True,
            "control_exchange": f"{stage.queue}.control",
            "event_exchange": f"{stage.queue}.events",
            "event_queue_prefix": f"{stage.queue}.events",
            "task_default_queue": stage.queue,
            "result_chord_retry_interval": 0.1,
            **stage.options,
        }
    )
    if stage.queues:
        app.conf.task_queues = [queue.build() for queue in stage.queues]
    _add_tasks(app, stage)
    return app


def stage_of_environment() -> Stage:
    """In a worker process: the stage that its test set."""
    return msgspec.json.decode(os.environ[VARIABLE], type=Stage)


def tell_when_ready(stage: Stage) -> None:
    """In a worker process: write a line when it consumes."""

    def ready(sender: Any, **_: Any) -> None:
        stage.write(Line("ready", worker=sender.hostname, pid=os.getpid()))

    worker_ready.connect(ready, weak=False)


def _add_tasks(app: Any, stage: Stage) -> None:
    def tell(task: Any, event: str, text: object) -> None:
        request = task.request
        info = request.delivery_info or {}
        stage.write(
            Line(
                event,
                task=task.name,
                id=request.id or "",
                text=str(text),
                worker=str(request.hostname),
                pid=os.getpid(),
                retries=request.retries or 0,
                redelivered=bool(info.get("redelivered")),
                key=str(info.get("routing_key") or ""),
                at=time.time(),
            )
        )

    def add(task: Any, x: float, y: float) -> float:
        tell(task, "start", f"{x}+{y}")
        return x + y

    def total(task: Any, numbers: list[float]) -> float:
        tell(task, "start", numbers)
        return sum(numbers)

    def note(task: Any, text: str) -> str:
        tell(task, "start", text)
        return text

    def hold(task: Any, text: str, gate: str) -> str:
        tell(task, "start", text)
        stage.pass_gate(gate)
        tell(task, "end", text)
        return text

    def flaky(task: Any, failures: int, countdown: float) -> int:
        tell(task, "start", failures)
        if task.request.retries < failures:
            raise task.retry(countdown=countdown, max_retries=failures)
        return int(task.request.retries)

    def flaky_by_header(task: Any, failures: int, delay_ms: int) -> int:
        tell(task, "start", failures)
        if task.request.retries < failures:
            raise task.retry(headers={"x-delay": delay_ms}, countdown=0, max_retries=failures)
        return int(task.request.retries)

    def broken(task: Any, text: str) -> None:
        tell(task, "start", text)
        raise ValueError(text)

    def stubborn(task: Any) -> None:
        tell(task, "start", "")
        raise task.retry(exc=OSError("never"), countdown=0.05, max_retries=2)

    late = {"bind": True, "shared": False, "acks_late": True}
    plain: list[Callable[..., object]] = [add, total, note, hold, flaky, flaky_by_header, stubborn, broken]
    for function in plain:
        app.task(name=function.__name__, bind=True, shared=False)(function)
    app.task(name="note_late", **late)(note)
    app.task(name="hold_late", **late)(hold)
    app.task(name="hold_lost", reject_on_worker_lost=True, **late)(hold)


class Worker:
    """One `celery worker` process, and the processes of its pool."""

    def __init__(
        self,
        stage: Stage,
        *options: str,
        pool: str = "prefork",
        concurrency: int = 1,
        queues: Iterable[str] = (),
        quick: bool = True,
    ) -> None:
        self.stage = stage
        self.name = f"{unique('w')}@test"
        self.log = Path(stage.folder) / f"{self.name}.log"
        command = [sys.executable, "-m", "celery", "-A", "tests.clients.celery_app:app", "worker"]
        command += ["-n", self.name, "-P", pool, "-c", str(concurrency), "-l", "INFO", *options]
        if quick:  # A worker that asks nobody who else is there starts a second earlier.
            command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        if names := ",".join(queues):
            command += ["-Q", names]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=stage.folder,
                env=environment(VARIABLE, stage),
                start_new_session=True,
            )

    def ready(self) -> Worker:
        """Once it consumes."""

        def told() -> bool:
            if (code := self.process.poll()) is not None:
                raise AssertionError(f"the worker ended with {code}:\n{self.tail()}")
            return bool(self.stage.lines("ready", worker=self.name))

        wait_for(told, f"{self.name} is ready")
        return self

    def stop(self) -> None:
        """It ends by itself, and has acknowledged what it has done."""
        self.process.terminate()
        self.process.wait(STOP_S)

    def kill(self) -> None:
        """As kill -9 of everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Play:
    """A stage with the application that the test itself uses, and the workers that it starts."""

    def __init__(self, target: AmqpTarget, folder: Path, *, queues: Iterable[QueueSpec] = (), **options: Any) -> None:
        self.stage = new_stage(target, folder, queues=queues, **options)
        self.app = build(self.stage)
        self.workers: list[Worker] = []

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        """Workers are killed: a warm shutdown takes seconds, and a test that wants one asks for it."""
        for worker in self.workers:
            worker.kill()
        self.app.close()

    def task(self, name: str) -> Any:
        return self.app.tasks[name]

    def start(self, *options: str, **more: Any) -> Worker:
        """A worker that may not consume yet."""
        worker = Worker(self.stage, *options, **more)
        self.workers.append(worker)
        return worker

    def worker(self, *options: str, **more: Any) -> Worker:
        """A worker that consumes."""
        return self.start(*options, **more).ready()

    def ping(self, worker: Worker) -> bool:
        """Whether a worker answers."""
        return bool(self.app.control.ping(destination=[worker.name], timeout=DEADLINE_S, limit=1))

    def counts(self, queue: str = "") -> tuple[int, int]:
        """Messages that are ready, and consumers, as a passive declaration tells it."""
        with self.app.connection_for_read() as connection:
            found = connection.default_channel.queue_declare(queue or self.stage.queue, passive=True)
            return int(found.message_count), int(found.consumer_count)
