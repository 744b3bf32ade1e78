"""A Dramatiq application for tests, and its real worker processes.

A `Stage` is everything that an application needs to be the same in the test, which sends messages, and in `dramatiq`,
which runs them (dramatiq_app.py builds it from the environment). Actors write what they do into the stage's journal.
The name of the queue is the stage's, so that stages share a broker. Only tests/clients calls this.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import dramatiq
import msgspec
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.middleware import CurrentMessage, Middleware

from tests.clients.amqp_kit import AmqpTarget
from tests.clients.task_journal import Journal, Line, environment
from tests.support.names import unique
from tests.support.waiting import wait_for

VARIABLE = "WAYSTATION_TEST_DRAMATIQ_STAGE"
STOP_S = 15.0


class Stage(Journal, frozen=True, kw_only=True):
    """One application: where its broker is, how it is set up, where its journal lies."""

    url: str
    queue: str
    max_priority: int | None = None
    confirm: bool = True


class Telling(Middleware):
    """Writes down when a worker is ready, and which messages it refused for good."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage

    def after_worker_boot(self, broker: Any, worker: Any) -> None:
        self.stage.write(Line("ready", worker=os.environ.get("WORKER", ""), pid=os.getpid()))

    def after_nack(self, broker: Any, message: Any) -> None:
        self.stage.write(Line("nack", task=message.actor_name, id=message.message_id))


def build(stage: Stage) -> tuple[RabbitmqBroker, dict[str, Any]]:
    """The broker's client and the actors by their names, the same wherever they are built."""
    broker = RabbitmqBroker(url=stage.url, confirm_delivery=stage.confirm, max_priority=stage.max_priority)
    broker.add_middleware(CurrentMessage())
    broker.add_middleware(Telling(stage))
    return broker, _actors(broker, stage)


def stage_of_environment() -> Stage:
    """In a worker process: the stage that its test set."""
    return msgspec.json.decode(os.environ[VARIABLE], type=Stage)


def _actors(broker: RabbitmqBroker, stage: Stage) -> dict[str, Any]:
    def tell(event: str, text: object) -> int:
        message = CurrentMessage.get_current_message()
        if message is None:
            raise RuntimeError("an actor was called by itself, not by a worker")
        retries = int(message.options.get("retries", 0))
        stage.write(
            Line(
                event,
                task=message.actor_name,
                id=message.message_id,
                text=str(text),
                worker=os.environ.get("WORKER", ""),
                pid=os.getpid(),
                retries=retries,
                at=time.time(),
            )
        )
        return retries

    def note(text: str) -> None:
        tell("start", text)

    def hold(text: str, gate: str) -> None:
        tell("start", text)
        stage.pass_gate(gate)
        tell("end", text)

    def flaky(failures: int) -> None:
        if tell("start", failures) < failures:
            raise ConnectionError("try again")

    def broken(text: str) -> None:
        tell("start", text)
        raise ValueError(text)

    def double(number: int) -> int:
        tell("start", number)
        return 2 * number

    quick = {"min_backoff": 50, "max_backoff": 200}
    plan: list[tuple[Callable[..., object], dict[str, Any]]] = [
        (note, {}),
        (hold, {}),
        (flaky, quick),
        (broken, {"max_retries": 2, **quick}),
        (double, {}),
    ]
    return {
        function.__name__: dramatiq.actor(broker=broker, queue_name=stage.queue, **options)(function)
        for function, options in plan
    }


class Worker:
    """One `dramatiq` process and its children."""

    def __init__(self, stage: Stage, *, threads: int, variables: dict[str, str]) -> None:
        self.stage = stage
        self.name = unique("worker")
        self.log = Path(stage.folder) / f"{self.name}.log"
        command = [sys.executable, "-m", "dramatiq", "tests.clients.dramatiq_app:broker"]
        command += ["--processes", "1", "--threads", str(threads), "--skip-logging"]
        # How often it looks whether delayed messages are due, and when it connects again, in milliseconds.
        pace = {"dramatiq_worker_timeout": "100", "dramatiq_restart_delay": "200"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=stage.folder,
                env={**environment(VARIABLE, stage), **pace, **variables, "WORKER": self.name},
                start_new_session=True,
            )

    def ready(self) -> Worker:
        """Once it works."""

        def told() -> bool:
            if (code := self.process.poll()) is not None:
                raise AssertionError(f"the worker ended with {code}:\n{self.tail()}")
            return bool(self.stage.lines("ready", worker=self.name))

        wait_for(told, f"{self.name} is ready")
        return self

    def kill(self) -> None:
        """As kill -9 of everything that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(STOP_S)

    def stop(self) -> int:
        """Ask it to end, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def tail(self, lines: int = 40) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Play:
    """A stage with the client that the test itself uses, and the workers that it starts."""

    def __init__(self, target: AmqpTarget, folder: Path, **options: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.stage = Stage(folder=str(folder), url=target.url(), queue=unique("dramatiq"), **options)
        self.broker, self.actors = build(self.stage)
        self.workers: list[Worker] = []

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        self.broker.close()

    def start(self, threads: int = 1, **variables: str) -> Worker:
        """A worker that may not work yet; the variables are those that Dramatiq reads."""
        worker = Worker(self.stage, threads=threads, variables=variables)
        self.workers.append(worker)
        return worker

    def worker(self, threads: int = 1, **variables: str) -> Worker:
        return self.start(threads, **variables).ready()

    def send(self, actor: str, *args: object, **options: Any) -> str:
        """The id of the message that was sent."""
        return str(self.actors[actor].send_with_options(args=args, **options).message_id)

    def counts(self) -> tuple[int, int, int]:
        """Messages that are ready: in the queue, in its queue for delays, and dead."""
        ready, delayed, dead = self.broker.get_queue_message_counts(self.stage.queue)
        return ready, delayed, dead
