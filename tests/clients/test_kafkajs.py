"""kafkajs, the usual client for Node: an extra that runs where Node and the npm registry are at hand."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.names import unique
from tests.support.npm import node_modules
from tests.support.waiting import DEADLINE_S

VERSION = "2.2.4"
SCRIPT = Path(__file__).with_name("kafkajs_smoke.js")


@pytest.fixture(scope="module")
def modules() -> Path:
    """A folder that has kafkajs in it, kept between runs."""
    return node_modules("kafkajs", VERSION)


def test_kafkajs_program_runs_from_topic_creation_to_deletion(bootstrap: str, modules: Path) -> None:
    topic, group = unique("js"), unique("js")
    done = subprocess.run(
        ["node", str(SCRIPT), bootstrap, topic, group, unique("js-tx")],
        capture_output=True,
        timeout=2 * DEADLINE_S,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout.decode().splitlines()[-1])
    assert seen["again"] is False
    assert seen["controller"] is True
    in_first = [line for line in seen["messages"] if line.startswith("0 ")]
    in_second = [line for line in seen["messages"] if line.startswith("1 ")]
    assert in_first == ["0 plain-0 0", "0 plain-2 2", "0 kept"]
    assert in_second == ["1 plain-1 1", "1 plain-3 3"]
    assert seen["offsets"] == ["3"]
    assert seen["ends"] == [[0, "0"], [1, "0"]]
