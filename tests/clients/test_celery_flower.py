"""Flower, Celery's monitor: workers and tasks by events, queues by RabbitMQ's management API on the HTTP port."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError

import pytest

from tests.clients.amqp_kit import ours_only, target_of
from tests.clients.celery_kit import VARIABLE, Play
from tests.clients.task_journal import environment
from tests.support.ports import free_port
from tests.support.server import Server
from tests.support.waiting import wait_for

pytest.importorskip("flower", reason="Flower is not installed (pip install flower)")

ROW = re.compile(r'<tr id="(?P<queue>[^"]+)">(?P<cells>.*?)</tr>', re.DOTALL)
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)


@contextmanager
def flower(play: Play, api: str) -> Iterator[str]:
    """The address of a Flower that watches a play and asks a broker by HTTP."""
    port = free_port()
    log = Path(play.stage.folder) / "flower.log"
    command = [sys.executable, "-m", "celery", "-A", "tests.clients.celery_app:app", "flower"]
    command += ["--address=127.0.0.1", f"--port={port}", f"--broker_api={api}", "--enable_events=False"]
    variables = {**environment(VARIABLE, play.stage), "FLOWER_UNAUTHENTICATED_API": "true"}
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, cwd=play.stage.folder, env=variables)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(lambda: get(f"{address}/healthcheck"), "Flower answers", retry_on=(URLError,))
        yield address
    finally:
        process.kill()
        process.wait()


def get(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as response:
        return str(response.read().decode())


def rows(page: str) -> dict[str, list[str]]:
    """Messages, unacknowledged, ready and consumers of each queue on the broker's page."""
    return {row["queue"]: [cell.strip() for cell in CELL.findall(row["cells"])][1:5] for row in ROW.finditer(page)}


@ours_only
def test_flower_shows_true_queues_workers_and_tasks(tmp_path: Path) -> None:
    options: dict[str, Any] = {"worker_prefetch_multiplier": 1, "worker_send_task_events": True}
    with Server(tmp_path / "broker") as server, Play(target_of(server), tmp_path / "celery", **options) as play:
        worker = play.worker(quick=False)
        held = [play.task("hold_late").apply_async((f"{n}", "gate"), ignore_result=True) for n in range(5)]
        play.stage.wait(1)
        with flower(play, f"http://guest:guest@{server.addresses['http']}/api/") as address:
            queue = play.stage.queue
            known = wait_for(lambda: json.loads(get(f"{address}/api/workers?refresh=1")), "Flower knows the worker")
            assert [entry["name"] for entry in known[worker.name]["active_queues"]] == [queue]
            assert rows(get(f"{address}/broker")) == {queue: ["5", "1", "4", "1"]}
            lengths = json.loads(get(f"{address}/api/queues/length"))["active_queues"]
            assert [(entry["name"], entry["messages"]) for entry in lengths] == [(queue, 5)]
            play.stage.open_gate("gate")
            play.stage.wait(len(held), "end")
            wait_for(lambda: rows(get(f"{address}/broker"))[queue] == ["0", "0", "0", "1"], "the queue is shown empty")

            def states() -> set[str]:
                told = json.loads(get(f"{address}/api/tasks"))
                return {told.get(task.id, {}).get("state", "") for task in held[1:]}

            wait_for(lambda: states() == {"SUCCESS"}, "the tasks are shown as done")
