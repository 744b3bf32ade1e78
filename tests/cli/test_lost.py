"""`waystation lost`: topics that an older catalog does not know, through the command line and back."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.cli.kit import Cli
from waystation.cli.main import main


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """With two topics that its catalog, put back from an older backup, does not know."""
    folder = tmp_path / "data"
    with waystation.open(folder):
        pass
    shutil.copy(folder / "catalog.sqlite", tmp_path / "backup")
    with waystation.open(folder) as broker:
        cli = Cli(broker.kafka)
        cli("topics", "create", "orders", "--partitions", "2", "--set", "retention.ms=-1")
        for topic in ("orders", "events"):
            cli("publish", topic, f"of {topic}")
    shutil.copy(tmp_path / "backup", folder / "catalog.sqlite")
    return folder


def asked(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main(["lost", *words]) == code
    told = capsys.readouterr()
    return told.err if code else told.out


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_lost_topics_are_shown_restored_and_deleted(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(data)
    with waystation.open(data) as broker:
        warned = Cli(broker.kafka)("topics", "list").lines
        assert not any("orders" in line for line in warned)
        shown = objects(asked(capsys, "list", where, "--json"))
        assert [(one["topic"], one["settings_known"]) for one in shown] == [("events", True), ("orders", True)]
        assert "in use" in asked(capsys, "restore", where, "--all", code=1)
        assert "in use" in asked(capsys, "delete", where, shown[0]["folder"], "--yes", code=1)
    events, orders = (one["folder"] for one in shown)
    assert "orders" in asked(capsys, "list", where)
    assert "name the folders" in asked(capsys, "restore", where, code=1)
    assert "no lost folder" in asked(capsys, "restore", where, "orders.00000000", code=1)
    assert "one folder" in asked(capsys, "restore", where, events, orders, "--as", "x", code=1)
    assert "restored topic orders with 2 partitions" in asked(capsys, "restore", where, orders)
    assert objects(asked(capsys, "restore", where, "--all", "--json")) == [
        {"folder": events, "topic": "events", "partitions": 1}
    ]
    assert "there are no lost topics" in asked(capsys, "list", where)
    assert "there are no lost topics" in asked(capsys, "restore", where, "--all")
    with waystation.open(data) as broker:
        cli = Cli(broker.kafka)
        assert cli("consume", "orders").lines == ["of orders"]
        assert cli("consume", "events").lines == ["of events"]
        assert cli("topics", "describe", "orders", "--json").objects[0]["settings"]["retention.ms"]["value"] == "-1"


def test_a_lost_topic_is_deleted_only_when_told(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = str(data)
    with waystation.open(data):
        pass
    events, orders = (one["folder"] for one in objects(asked(capsys, "list", where, "--json")))
    assert "--yes" in asked(capsys, "delete", where, events, code=1)
    assert "no lost folder" in asked(capsys, "delete", where, events, "misspelt", "--yes", code=1)
    assert (data / "lost+found" / events).exists()
    assert f"deleted {events}" in asked(capsys, "delete", where, events, "--yes")
    assert [path.name for path in (data / "lost+found").iterdir()] == [orders]


def test_what_is_no_data_folder_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["list"], ["restore", "--all"]):
        assert "not the data folder" in asked(capsys, verb[0], str(tmp_path / "gone"), *verb[1:], code=1)
    assert not (tmp_path / "gone").exists()
