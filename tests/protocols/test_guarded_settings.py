"""What no client can change while the broker runs: each setting that protects others, through each protocol."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

import waystation
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S
from waystation.catalog.sqlite import SqliteCatalog
from waystation.config import BROKER_SETTINGS, Setting, render
from waystation.errors import InvalidSetting
from waystation.world.random import SystemRandom

GUARDED = [name for name, row in BROKER_SETTINGS.items() if row.protects]
NAMED_BY_THE_PROMISE = {"waystation.flush", "waystation.flush.interval.ms", "waystation.http.hosts"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("guarded")) as server:
        yield server


def another(row: Setting) -> str:
    """A value that the setting could have, and has not."""
    if row.choices:
        return next(choice for choice in reversed(row.choices) if choice != row.default)
    if isinstance(row.default, bool):
        return render(not row.default)
    return str(row.default + 1) if isinstance(row.default, int) else "example.org"


def shown(server: Server) -> dict[str, dict[str, str]]:
    connection = http.client.HTTPConnection(server.addresses["http"], timeout=DEADLINE_S)
    connection.request("GET", "/v1/settings")
    return {row["name"]: row for row in json.loads(connection.getresponse().read())["settings"]}


def through_kafka(server: Server, name: str, value: str, *, incremental: bool) -> tuple[object, str]:
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    if incremental:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        future = admin.incremental_alter_configs([resource])[resource]
    else:
        resource = ConfigResource(ResourceType.BROKER, "1", set_config={name: value})
        future = admin.alter_configs([resource])[resource]
    with pytest.raises(KafkaException) as refused:
        future.result(DEADLINE_S)
    error = refused.value.args[0]
    return error.code(), error.str()


def through_http(server: Server, name: str, value: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.addresses["http"], timeout=DEADLINE_S)
    headers = {"content-type": "application/json"}
    connection.request("PATCH", "/v1/settings", json.dumps({name: value, "num.partitions": 7}), headers)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_list_has_what_promises_depend_on() -> None:
    assert set(GUARDED) >= NAMED_BY_THE_PROMISE
    assert not any(BROKER_SETTINGS[name].dynamic for name in GUARDED)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", GUARDED)
def test_no_protocol_changes_a_setting_that_protects_others(server: Server, name: str) -> None:
    value = another(BROKER_SETTINGS[name])
    before = shown(server)
    said = []
    for incremental in (True, False):
        code, text = through_kafka(server, name, value, incremental=incremental)
        assert code == KafkaError.INVALID_CONFIG
        said.append(text)
    status, text = through_http(server, name, value)
    assert status == 400
    said.append(text)
    with waystation.connect(server.bootstrap) as mq:
        with pytest.raises(InvalidSetting) as refused:
            mq.alter_settings({name: value})
        said.append(str(refused.value))
    for text in said:
        assert "before the broker starts" in text
        assert "config file" in text
    assert shown(server) == before


def test_what_a_client_of_an_earlier_version_changed_is_warned_of_and_not_honoured(tmp_path: Path) -> None:
    server = Server(tmp_path, settings={"waystation.flush.interval.ms": 777})
    with server:
        server.stop()
        catalog = SqliteCatalog(str(server.data), SystemRandom())
        catalog.save_settings({"waystation.flush": "os", "waystation.flush.interval.ms": "5", "num.partitions": "3"})
        catalog.close()
        server.restart()
        now = shown(server)
        assert [now[name]["value"] for name in ("waystation.flush", "num.partitions")] == ["commit", "3"]
        assert now["waystation.flush.interval.ms"]["value"] == "777"
        warned = [line for line in server.log.read_text().splitlines() if "not honoured" in line]
        named = ("waystation.flush ", "waystation.flush.interval.ms ")
        assert all(name in line for name, line in zip(named, warned, strict=True))
        with waystation.connect(server.bootstrap) as mq:
            mq.alter_settings({"waystation.flush": None, "num.partitions": 4})
        server.stop()
        server.log.unlink()
        server.restart()
        assert shown(server)["num.partitions"]["value"] == "4"
        (left,) = [line for line in server.log.read_text().splitlines() if "not honoured" in line]
        assert "waystation.flush.interval.ms" in left
