"""amqplib, the usual AMQP client for Node: an extra that runs where Node and the npm registry are at hand."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.amqp_kit import AmqpTarget
from tests.support.names import unique
from tests.support.npm import node_modules
from tests.support.waiting import DEADLINE_S

VERSIONS = ("0.10.9", "2.3.1")
"""The line that most programs have, and the newest one."""
SMOKE = Path(__file__).with_name("amqplib_smoke.js")
CLOSE = Path(__file__).with_name("amqplib_close.js")


@pytest.fixture(scope="module", params=VERSIONS)
def modules(request: pytest.FixtureRequest) -> Path:
    """A folder that has amqplib in it, kept between runs."""
    return node_modules("amqplib", str(request.param))


def run(script: Path, amqp: AmqpTarget, modules: Path) -> Any:
    """What the program printed last."""
    done = subprocess.run(
        ["node", str(script), amqp.url(), unique("js")],
        capture_output=True,
        timeout=2 * DEADLINE_S,
        check=False,
        env={**os.environ, "NODE_PATH": str(modules)},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout.decode().splitlines()[-1])


def test_amqplib_program_runs_from_declaration_to_deletion(amqp: AmqpTarget, modules: Path) -> None:
    assert run(SMOKE, amqp, modules) == {
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


def test_closing_while_publishes_are_on_their_way_is_no_error(amqp: AmqpTarget, modules: Path) -> None:
    assert run(CLOSE, amqp, modules) == {"closed": True, "errors": []}
