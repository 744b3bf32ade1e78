"""amqplib, the usual AMQP client for Node: an extra that runs where Node and the npm registry are at hand."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.clients.amqp_kit import AmqpTarget
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S

VERSIONS = ("0.10.9", "2.3.1")
"""The line that most programs have, and the newest one."""
SCRIPT = Path(__file__).with_name("amqplib_smoke.js")


@pytest.fixture(scope="module", params=VERSIONS)
def modules(request: pytest.FixtureRequest) -> Path:
    """A folder that has amqplib in it, kept between runs."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node or npm is not installed")
    version = str(request.param)
    folder = Path(tempfile.gettempdir()) / f"waystation-amqplib-{version}-{os.getuid()}"
    if not (folder / "node_modules" / "amqplib").exists():
        folder.mkdir(exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"amqplib@{version}"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            pytest.skip("the npm registry did not answer in time")
        if done.returncode != 0:
            pytest.skip(f"amqplib cannot be installed here: {done.stderr.decode()[-200:]}")
    return folder / "node_modules"


def test_amqplib_program_runs_from_declaration_to_deletion(amqp: AmqpTarget, modules: Path) -> None:
    done = subprocess.run(
        ["node", str(SCRIPT), amqp.url(), unique("js")],
        capture_output=True,
        timeout=2 * DEADLINE_S,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr.decode()
    seen = json.loads(done.stdout.decode().splitlines()[-1])
    assert seen == {
        "serverNamed": True,
        "bodies": list(range(100)),
        "redelivered": [False, True],
        "properties": ["m", "c", "t", 1_700_000_000],
        "purged": 0,
        "empty": False,
        "returned": 312,
        "large": True,
        "overflow": ["ack", "nack"],
        "death": ["rejected", 1, True, True, "object"],
        "cancelled": True,
        "reply": "HELLO",
        "errors": ["404: NOT_FOUND", "403: ACCESS_REFUSED", "405: RESOURCE_LOCKED", "406: PRECONDITION_FAILED"],
        "wrongPassword": True,
    }
