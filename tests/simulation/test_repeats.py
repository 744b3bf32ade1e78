"""A seed is a life that can be lived again: neither the hashes of strings nor the addresses of objects are in it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SEEDS = {"log": 10, "broker": 6, "queues": 20, "amqp": 8, "follower": 10, "bounded": 10, "cluster": 5}


@pytest.mark.parametrize("kind", SEEDS)
def test_a_seed_does_the_same_in_every_process(kind: str) -> None:
    running = [_start(kind, hash_seed) for hash_seed in ("1", "2")]
    first, second = (process.communicate()[0] for process in running)
    assert [process.returncode for process in running] == [0, 0]
    assert len(first.splitlines()) == SEEDS[kind]
    assert first == second


def _start(kind: str, hash_seed: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-m", "tests.simulation.operations", kind, str(SEEDS[kind])]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
