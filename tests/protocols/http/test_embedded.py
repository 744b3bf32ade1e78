"""HTTP of a broker in the same process, and what it costs when nobody uses it."""

from __future__ import annotations

import subprocess
import sys

import pytest

import waystation
from tests.protocols.http.kit import Http
from tests.support.server import ROOT
from waystation.errors import Invalid


def test_a_broker_in_this_process_has_the_listener_if_it_is_asked_for() -> None:
    with waystation.open(":memory:", http="127.0.0.1:0") as broker:
        http = Http(broker.http)
        http("POST", "/queue/enqueue", {"queue": "jobs", "message": {"a": 1}})
        message = broker.queue("jobs").get(timeout=10)
        assert message is not None
        assert message.json() == {"a": 1}
    with pytest.raises(OSError):
        http("GET", "/healthz")


def test_it_is_off_by_default_and_never_for_other_machines() -> None:
    with waystation.open(":memory:") as broker:
        assert broker.http == ""
    with pytest.raises(Invalid, match="this machine only"):
        waystation.open(":memory:", http="0.0.0.0:0")


def test_nothing_of_it_is_loaded_before_the_first_client_comes() -> None:
    code = """
import sys, waystation, urllib.request
with waystation.open(":memory:", http="127.0.0.1:0") as broker:
    unused = ("httptools", "websockets", "waystation.protocols.http.request_dispatcher")
    before = [name for name in unused if name in sys.modules]
    urllib.request.urlopen(f"http://{broker.http}/healthz").read()
    assert "httptools" in sys.modules
    sys.exit(repr(before) if before else 0)
"""
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
