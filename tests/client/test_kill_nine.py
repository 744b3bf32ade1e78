"""Competing consumers that die (kill -9) holding messages: every message is processed, redeliveries are marked."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import waystation
from tests.support.names import unique
from tests.support.server import ROOT
from tests.support.waiting import wait_for

MESSAGES = 500
WORKER = Path(__file__).with_name("worker.py")


def start(url: str, queue: str, out: Path, how: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, str(WORKER), url, queue, str(out), how]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE)


def seen(out: Path) -> list[tuple[str, int]]:
    lines = out.read_text().splitlines() if out.exists() else []
    return [(text, int(deliveries)) for text, _, deliveries in (line.partition(" ") for line in lines) if deliveries]


def test_every_message_is_processed_when_consumers_are_killed(url: str, tmp_path: Path) -> None:
    with waystation.connect(url) as mq:
        jobs = mq.queue(unique("competing"))
        jobs.put_many(str(number) for number in range(MESSAGES))
        victims = [start(url, jobs.name, tmp_path / f"victim-{number}", "hold") for number in range(3)]
        try:
            wait_for(
                lambda: all(seen(tmp_path / f"victim-{number}") for number in range(3)), "each victim holds messages"
            )
            held = jobs.describe().held
            assert held >= 3
            taken = {text for number in range(3) for text, _ in seen(tmp_path / f"victim-{number}")}
        finally:
            for victim in victims:
                victim.kill()
                victim.wait()
        workers = [start(url, jobs.name, tmp_path / f"worker-{number}", "work") for number in range(2)]
        try:
            wait_for(lambda: jobs.describe().acked >= MESSAGES - 2, "all but what the workers hold is done")
            done = [entry for number in range(2) for entry in seen(tmp_path / f"worker-{number}")]
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        counts = Counter(text for text, _ in done)
        assert set(counts) == {str(number) for number in range(MESSAGES)}
        assert max(counts.values()) == 1, "nobody else was killed, so each was processed once"
        again = {text for text, deliveries in done if deliveries > 1}
        assert taken <= again, "what the victims had in hand is marked as redelivered"
        assert len(again) == held, "and what waited in their buffers too, but nothing else"
        assert {deliveries for text, deliveries in done if text in again} == {2}
