"""A real broker on a real ext4 whose power is cut after an answer: what was answered is there after the reboot."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.kit import QuickCli
from tests.support.loop_disk import LoopDisk, why_not
from tests.support.server import Server

FEW = {"offsets.topic.num.partitions": 1, "transaction.state.log.num.partitions": 1, "waystation.queue.shards": 1}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[LoopDisk]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with LoopDisk(tmp_path) as mounted:
        yield mounted


def test_names_settings_and_messages_that_were_answered_survive_a_power_cut(tmp_path: Path, disk: LoopDisk) -> None:
    server = Server(tmp_path / "server", settings={**FEW, "waystation.disk.free.min.bytes": 0})
    server.data = disk.path / "data"
    with server:
        first = QuickCli(server.bootstrap)
        for name in ("doomed", "grown"):
            first("topics", "create", name)
        last_words = (
            ("topics", "create", "orders", "--partitions", "2", "--set", "retention.ms=-1"),
            ("publish", "orders", "kept", "--partition", "0"),
            ("topics", "alter", "grown", "--partitions", "3"),
            ("exchanges", "create", "events", "--kind", "topic"),
            ("config", "set", "num.partitions=4"),
            ("topics", "delete", "doomed", "--yes"),
        )
        for number, words in enumerate(last_words):
            first(*words)
            disk.power_cut()
            server.kill()
            disk.reboot()
            server.restart()
            first = QuickCli(server.bootstrap)
            _check(server, last_words[: number + 1])
        assert not (server.data / "lost+found").exists()


def _check(server: Server, answered: tuple[tuple[str, ...], ...]) -> None:
    """Everything that was answered so far."""
    cli = QuickCli(server.bootstrap)
    topics = {topic["topic"]: topic["partitions"] for topic in cli("topics", "list", "--json").objects}
    said = [words[:3] for words in answered]
    expected = {"orders": 2, "grown": 3 if ("topics", "alter", "grown") in said else 1}
    if ("topics", "delete", "doomed") not in said:
        expected["doomed"] = 1
    assert topics == expected
    if ("publish", "orders", "kept") in said:
        assert cli("consume", "orders").lines == ["kept"]
    if ("exchanges", "create", "events") in said:
        assert "events" in cli("exchanges", "list").text
    if ("config", "set", "num.partitions=4") in said:
        assert "num.partitions" in cli("config", "show", "--changed", "--server", server.bootstrap).text
