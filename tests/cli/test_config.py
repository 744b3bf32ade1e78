"""`waystation config`: what is told by whom, what is wrong in a file, and changes while a broker runs."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.cli.kit import QuickCli
from tests.support.server import ROOT
from waystation.cli.server.config_file import check_config
from waystation.cli.server.options import OPTIONS
from waystation.config import BROKER_SETTINGS, render

offline = QuickCli("127.0.0.1:1")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "w.toml"
    path.write_text('data = "/var/lib/w"\n[broker]\nnum.partitions = 3\nwaystation.http.token = "s3cret"\n')
    return path


def test_show_says_where_every_value_comes_from(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYSTATION_KAFKA", "127.0.0.1:7")
    monkeypatch.setenv("WAYSTATION_SET_LOG_RETENTION_MS", "5")
    shown = offline("config", "show", "--config", str(file), "--json").json
    values = {one["name"]: (one["value"], one["source"], one["where"]) for one in shown["options"] + shown["settings"]}
    assert values.keys() == {*OPTIONS, *BROKER_SETTINGS}
    assert values["data"] == ("/var/lib/w", "file", f"{file}:1")
    assert values["kafka"] == ("127.0.0.1:7", "environment", "WAYSTATION_KAFKA")
    assert values["num.partitions"] == ("3", "file", f"{file}:3")
    assert values["log.retention.ms"] == ("5", "environment", "WAYSTATION_SET_LOG_RETENTION_MS")
    assert values["http"] == ("127.0.0.1:8080", "default", None)
    text = offline("config", "show", "--config", str(file)).text
    assert re.search(rf"^num\.partitions +3 +{re.escape(str(file))}:3$", text, re.MULTILINE)
    assert re.search(r"^log\.retention\.bytes +-1 +default$", text, re.MULTILINE)


def test_show_changed_leaves_out_the_defaults_and_hides_secrets(file: Path) -> None:
    shown = offline("config", "show", "--config", str(file), "--changed")
    assert [line.split()[0] for line in shown.lines[1:]] == ["data", "num.partitions", "waystation.http.token"]
    assert "s3cret" not in shown.text
    assert "s3cret" not in offline("config", "show", "--config", str(file), "--json").text
    assert "default" in offline("config", "show", "--changed").text


def test_check_prints_all_mistakes_with_their_places(tmp_path: Path, file: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("kafak = '127.0.0.1:1'\n[broker]\nnum.partitions = 'many'\n")
    done = offline("config", "check", str(wrong), str(file), code=1)
    assert done.lines[0].startswith(f"{wrong}:1:1: there is no setting 'kafak'; did you mean 'kafka'?")
    assert done.lines[1].startswith(f"{wrong}:3:1: num.partitions='many': expected")
    assert done.lines[2] == f"{file}: valid (3 values given)"
    found = offline("config", "check", str(wrong), "--json", code=1).objects
    assert [(one["file"], one["line"], one["column"]) for one in found] == [(str(wrong), 1, 1), (str(wrong), 3, 1)]
    assert offline("config", "check", str(file), "--json").objects == []
    assert "gone.toml" in offline("config", "check", str(tmp_path / "gone.toml"), code=1).err


def test_the_example_says_nothing_as_it_stands_and_the_defaults_without_its_hashes(tmp_path: Path) -> None:
    text = offline("config", "example").text
    assert tomllib.loads(text) == {"broker": {}}
    path = tmp_path / "all.toml"
    path.write_text(re.sub(r'^#(?=[a-z"])', "", text, flags=re.MULTILINE))
    found = check_config(str(path))
    assert found.mistakes == []
    assert found.options.keys() == OPTIONS.keys()
    assert {name: given.text for name, given in found.settings.items()} == {
        name: render(setting.default) for name, setting in BROKER_SETTINGS.items()
    }


def test_the_example_as_json_has_every_variable() -> None:
    told = offline("config", "example", "--json").json
    variables = {one["variable"] for one in told["options"] + told["settings"]}
    assert {"WAYSTATION_LOG_FORMAT", "WAYSTATION_SET_WAYSTATION_FLUSH"} <= variables
    assert len(told["settings"]) == len(BROKER_SETTINGS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("num.partition=1",), "num.partitions"),
        (("num.partitions=none",), "num.partitions"),
        (("waystation.queue.shards=1",), "before the broker starts"),
        (("num.partitions=1", "--unset", "num.partitions"), "leave one out"),
        ((), "nothing to change"),
        (("num.partitions",), "NAME=VALUE"),
    ],
)
def test_a_wrong_change_is_refused_before_anything_is_asked(words: tuple[str, ...], said: str) -> None:
    assert said in offline("config", "set", *words, code=1).err


def test_a_running_broker_is_changed_and_shown(quick: QuickCli) -> None:
    done = quick("config", "set", "log.cleaner.backoff.ms=5000", "log.retention.check.interval.ms=800000")
    assert done.lines == [
        "log.cleaner.backoff.ms is 5000 (5s) now (changed)",
        "log.retention.check.interval.ms is 800000 (13m20s) now (changed)",
    ]
    shown = quick("config", "show", "--server", quick.server, "--changed", "--json").json["settings"]
    sources = {one["name"]: one["source"] for one in shown}
    assert sources["log.cleaner.backoff.ms"] == "changed"
    assert sources["group.consumer.heartbeat.interval.ms"] == "flag"
    names = ("log.cleaner.backoff.ms", "log.retention.check.interval.ms")
    after = quick("config", "set", "--unset", names[0], "--unset", names[1], "--json").json
    assert [one["source"] for one in after["settings"]] == ["default", "default"]
    assert "log.cleaner.backoff.ms" in quick("config", "show", "--server", quick.server).text


def test_the_page_has_every_option() -> None:
    page = (ROOT / "docs" / "operations" / "configuration.md").read_text()
    rows = re.findall(r"^\| `([a-z-]+)` \| `([A-Z_]+)` \| `--([a-z-]+)` \| (?:`([^`]+)`|none) \|", page, re.MULTILINE)
    assert rows == [(name, option.variable, name, option.default) for name, option in OPTIONS.items()]


def test_the_file_of_the_page_is_right(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "operations" / "configuration.md").read_text()
    path = tmp_path / "w.toml"
    path.write_text(re.findall(r"^```toml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)[0])
    assert check_config(str(path)).mistakes == []
