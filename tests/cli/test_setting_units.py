"""Settings in ms and bytes are written as `7d` and `64MiB` wherever one can be given, and shown with both units."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.kit import Cli, QuickCli
from tests.cli.test_serve import Serving, serving
from waystation.cli.terminal.setting_units import plain, spelled
from waystation.config import BROKER_SETTINGS, TOPIC_SETTINGS, render
from waystation.errors import InvalidSetting

__all__ = ["serving"]

offline = QuickCli("127.0.0.1:1")


def own_settings(cli: Cli, topic: str) -> dict[str, str]:
    (described,) = cli("topics", "describe", topic, "--json").objects
    return {name: one["value"] for name, one in described["settings"].items() if one["source"] == "topic"}


def test_a_topic_takes_durations_and_sizes_and_shows_both_units(quick: QuickCli, topic: str) -> None:
    quick("topics", "create", topic, "--set", "retention.ms=7d", "--set", "segment.bytes=64MiB")
    assert own_settings(quick, topic) == {"retention.ms": "604800000", "segment.bytes": "67108864"}
    shown = quick("topics", "describe", topic).text
    assert re.search(r"^retention\.ms +604800000 \(7d\) +topic$", shown, re.MULTILINE)
    assert re.search(r"^segment\.bytes +67108864 \(64MiB\) +topic$", shown, re.MULTILINE)
    quick("topics", "alter", topic, "--set", "retention.ms=1h30m", "--set", "retention.bytes=1.5GiB")
    assert own_settings(quick, topic) == {
        "retention.ms": "5400000",
        "retention.bytes": "1610612736",
        "segment.bytes": "67108864",
    }
    said = quick("topics", "alter", topic, "--set", "retention.ms=soon", code=1).err
    assert "retention.ms='soon'" in said
    assert "7d" in said
    assert "64KiB" in quick("topics", "alter", topic, "--set", "segment.bytes=lots", code=1).err


def test_a_running_broker_takes_durations_and_shows_both_units(quick: QuickCli) -> None:
    try:
        assert quick("config", "set", "log.cleaner.backoff.ms=30s").lines == [
            "log.cleaner.backoff.ms is 30000 (30s) now (changed)"
        ]
        shown = quick("config", "show", "--server", quick.server, "--changed", "--json").json["settings"]
        assert {one["name"]: one["value"] for one in shown}["log.cleaner.backoff.ms"] == "30000"
        table = quick("config", "show", "--server", quick.server).text
        assert re.search(r"^log\.cleaner\.backoff\.ms +30000 \(30s\) +15000 \(15s\) +changed$", table, re.MULTILINE)
    finally:
        quick("config", "set", "--unset", "log.cleaner.backoff.ms")


def test_serve_takes_them_from_the_file_the_environment_and_the_command_line(
    serving: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = serving.folder / "w.toml"
    config.write_text('[broker]\nlog.retention.ms = "2d"\nlog.segment.bytes = "32MiB"\n')
    monkeypatch.setenv("WAYSTATION_SET_LOG_ROLL_MS", "12h")
    _, address = serving.started("--config", str(config), "--set", "log.retention.bytes=10GB")
    shown = Cli(address)("config", "show", "--server", address, "--changed", "--json").json["settings"]
    assert {one["name"]: (one["value"], one["source"]) for one in shown} == {
        "log.retention.ms": ("172800000", "file"),
        "log.segment.bytes": ("33554432", "file"),
        "log.roll.ms": ("43200000", "environment"),
        "log.retention.bytes": ("10000000000", "flag"),
    }


def test_a_file_with_units_is_checked_and_shown(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.toml", tmp_path / "bad.toml"
    good.write_text('log.retention.ms = "7d"\noffsets.retention.minutes = "2d"\n')
    bad.write_text('log.retention.ms = "7 fortnights"\noffsets.retention.minutes = "30s"\n')
    assert offline("config", "check", str(good)).code == 0
    wrong = offline("config", "check", str(bad), code=1).lines
    assert "log.retention.ms='7 fortnights'" in wrong[0]
    assert "no whole number of minutes" in wrong[1]
    shown = offline("config", "show", "--config", str(good), "--changed").text
    assert "604800000 (7d)" in shown
    assert "2880 (2d)" in shown
    values = offline("config", "show", "--config", str(good), "--changed", "--json").json["settings"]
    assert [one["value"] for one in values] == ["604800000", "2880"]


def test_a_queue_takes_durations_and_sizes_and_shows_both_units(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--ttl", "7d", "--max-bytes", "64MiB")
    info = quick("queues", "describe", queue, "--json").json
    assert (info["settings"]["ttl_ms"], info["settings"]["max_bytes"]) == (604_800_000, 67_108_864)
    shown = quick("queues", "describe", queue).text
    assert "7d (604800000 ms)" in shown
    assert "67108864 (64MiB)" in shown
    assert "1h (3600000 ms)" in quick("queues", "alter", queue, "--ttl", "1h").text


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        ("retention.ms", "-1", "-1"),
        ("retention.ms", "999", "999"),
        ("flush.ms", "9223372036854775807", "9223372036854775807 (no limit)"),
        ("max.message.bytes", "1048588", "1048588 (1.0 MiB)"),
        ("offsets.retention.minutes", "10080", "10080 (7d)"),
        ("num.partitions", "86400000", "86400000"),
        ("cleanup.policy", "delete", "delete"),
    ],
)
def test_what_a_value_means_is_shown_where_it_helps(name: str, text: str, shown: str) -> None:
    assert spelled(name, text) == shown
    assert plain(name, text) == text


@given(st.integers(min_value=1_000, max_value=2**50))
def test_a_duration_that_is_shown_can_be_written(ms: int) -> None:
    meaning = spelled("retention.ms", str(ms)).partition("(")[2].rstrip(")")
    assert plain("retention.ms", meaning) == str(ms)


def test_every_number_of_the_tables_stays_what_it_is() -> None:
    for name, setting in (TOPIC_SETTINGS | BROKER_SETTINGS).items():
        text = render(setting.default)
        assert plain(name, text) == text
        assert spelled(name, text).split(" (")[0] == text


def test_the_broker_itself_knows_numbers_alone() -> None:
    """Kafka's tools read these values, and none of them knows `7d`."""
    with pytest.raises(InvalidSetting):
        TOPIC_SETTINGS["retention.ms"].parse("7d")
