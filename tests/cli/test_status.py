"""`waystation status`: one page for a person, an exit code for a script."""

from __future__ import annotations

import re
from pathlib import Path

import waystation
from tests.cli.kit import Cli, QuickCli
from tests.support.server import Server


def test_a_healthy_broker_is_told_with_what_it_holds(quick: QuickCli, topic: str, queue: str) -> None:
    with waystation.connect(quick.server) as mq:
        mq.publish(topic, b"x")
        mq.queue(queue).put(b"y")
        shown = dict(re.findall(r"^(\w+) +(.+)$", quick("status").text, re.MULTILINE))
        assert {"health", "version", "address", "uptime", "stores", "connections", "rates", "disk"} <= shown.keys()
        assert shown["version"] == waystation.__version__
        assert shown["address"] == f"{quick.server} (by $WAYSTATION_SERVER)"
        assert re.search(r"\d+ topics? with \d+ offsets?, \d+ queues? with \d+ messages?, \d+ groups?", shown["stores"])
        assert re.search(r"^\d+ \(.*native [1-9]", shown["connections"])
        assert re.search(r"free \(\d+%\)", shown["disk"])
        told = quick("status", "--json").json
        assert told["status"] in ("ok", "warning")
        assert (told["server"], told["source"], told["context"]) == (quick.server, "$WAYSTATION_SERVER", None)
        assert told["totals"]["topics"] >= 1
        assert {"uptime_ms", "version", "data"} <= told["broker"].keys()
        assert told["resources"]["disk_free_bytes"] > 0
        assert isinstance(told["reasons"], list)


def test_a_failing_broker_is_told_with_its_reasons_and_exit_code_1(tmp_path: Path) -> None:
    with Server(tmp_path, settings={"waystation.disk.free.min.bytes": 2**60}) as server:
        cli = Cli(server.bootstrap)
        shown = cli("status", code=1).lines
        assert shown[0].split() == ["health", "failing"]
        assert any("failing: " in line and "disk" in line for line in shown[1:])
        told = cli("status", "--json", code=1).json
        assert told["status"] == "failing"
        assert "disk" in told["reasons"][0]["what"]


def test_a_broker_that_is_not_there_is_told_with_exit_code_1() -> None:
    nobody = Cli("127.0.0.1:1")
    done = nobody("status", code=1)
    assert done.lines[0].split() == ["health", "unreachable"]
    assert "waystation serve" in done.err
    told = nobody("status", "--json", "--server", "127.0.0.1:1", code=1)
    assert told.json == {
        "status": "unreachable",
        "server": "127.0.0.1:1",
        "source": "--server",
        "context": None,
        "error": told.json["error"],
    }
    assert told.err == ""
