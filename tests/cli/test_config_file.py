"""`serve --config` and the flags over it."""

from __future__ import annotations

from pathlib import Path

import pytest

from waystation.cli.config_file import read_config
from waystation.cli.main import build_parser
from waystation.cli.serve import Plan, make_plan
from waystation.client.address import Address
from waystation.errors import Invalid, InvalidSetting


def plan(*words: str) -> Plan:
    return make_plan(build_parser(["serve"]).parse_args(["serve", *words]))


def written(folder: Path, text: str) -> str:
    path = folder / "w.toml"
    path.write_text(text)
    return str(path)


def test_settings_may_be_quoted_dotted_or_under_a_heading(tmp_path: Path) -> None:
    config = read_config(
        written(
            tmp_path,
            """
            data = "/var/lib/w"
            kafka = "127.0.0.1:1"
            insecure = true
            "num.partitions" = 3
            log.retention.ms = 5
            [broker]
            waystation.flush = "os"
            log.cleanup.policy = ["delete", "compact"]
            "auto.create.topics.enable" = false
            """,
        )
    )
    assert config.texts == {"data": "/var/lib/w", "kafka": "127.0.0.1:1"}
    assert config.insecure
    assert config.settings == {
        "num.partitions": "3",
        "log.retention.ms": "5",
        "waystation.flush": "os",
        "log.cleanup.policy": "delete,compact",
        "auto.create.topics.enable": "false",
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("num.partition = 3", "num.partitions"),
        ("num.partitions = 'many'", "num.partitions"),
        ("num.partitions = 0", "num.partitions"),
        ("data = 3", "data"),
        ("insecure = 'yes'", "insecure"),
        ("num.partitions = [1]", "num.partitions"),
        ("num.partitions = 2026-01-01", "num.partitions"),
        ("x = \ny = 1", "line 1"),
    ],
)
def test_an_error_names_the_file_and_the_key(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(Invalid, match=named) as raised:
        read_config(written(tmp_path, text))
    assert "w.toml" in str(raised.value)


def test_a_config_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"gone\.toml"):
        read_config(str(tmp_path / "gone.toml"))


def test_the_defaults_are_loopback_and_a_folder_here() -> None:
    made = plan()
    assert made.kafka == Address("127.0.0.1", 9092)
    assert made.data == "./waystation-data"
    assert made.log_level == "info"


def test_flags_win_over_the_file(tmp_path: Path) -> None:
    text = 'kafka = "127.0.0.1:1"\nlog-level = "error"\n[broker]\nnum.partitions = 3\nlog.retention.ms = 4'
    path = written(tmp_path, text)
    made = plan("--config", path, "--kafka", "localhost:2", "--set", "num.partitions=5")
    assert made.kafka == Address("localhost", 2)
    assert made.settings.integer("num.partitions") == 5
    assert made.settings.integer("log.retention.ms") == 4
    assert made.log_level == "error"


def test_a_door_can_be_off() -> None:
    made = plan("--kafka", "off", "--amqp", "off", "--http", "off")
    assert (made.kafka, made.amqp, made.http) == (None, None, None)


def test_the_http_door_has_its_port_and_may_have_another(tmp_path: Path) -> None:
    assert plan().http == Address("127.0.0.1", 8080)
    path = written(tmp_path, 'http = "localhost:8081"')
    assert plan("--config", path).http == Address("localhost", 8081)
    assert plan("--config", path, "--http", "localhost").http == Address("localhost", 8080)


def test_the_amqp_door_has_its_port_and_may_have_another(tmp_path: Path) -> None:
    assert plan().amqp == Address("127.0.0.1", 5672)
    path = written(tmp_path, 'amqp = "localhost:5673"')
    assert plan("--config", path).amqp == Address("localhost", 5673)
    assert plan("--config", path, "--amqp", "localhost").amqp == Address("localhost", 5672)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.1.2.3", "example.org"])
def test_other_machines_are_kept_out_unless_told_otherwise(host: str) -> None:
    for door in ("kafka", "http"):
        with pytest.raises(Invalid, match=f"--{door} .*--insecure"):
            plan(f"--{door}", f"{host}:9092")
        assert getattr(plan(f"--{door}", f"{host}:9092", "--insecure"), door) is not None


def test_a_setting_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"did you mean 'num\.partitions'"):
        plan("--set", "num.partition=1")
    with pytest.raises(Invalid, match="NAME=VALUE"):
        plan("--set", "num.partitions")
