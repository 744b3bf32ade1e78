"""What a real RabbitMQ exports is imported: users log in with their old passwords, and may what they might there.

`data/rabbitmq-export.json` is what Debian's RabbitMQ 3.10.8 exported (`rabbitmq_export.py` says how). Where RabbitMQ is
installed, the same is done with one that runs, and both brokers are asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.protocols.amqp.same_rabbit import SERVER
from tests.security.rabbitmq_export import EXPORT, OUTCOMES, attempt, real_rabbitmq
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.server import Server

ADMIN = ("admin", PASSWORDS["admin"])
NAMES = [f"{user}: {what}" for user, what in OUTCOMES]


def take_in(server: Server, definitions: dict[str, Any]) -> None:
    url = f"http://{server.addresses['http']}/api/definitions"
    answer = requests.post(url, json=definitions, auth=ADMIN, timeout=60)
    assert answer.status_code == 204, answer.text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("exported")
    add_users(folder / "data", {"admin": PASSWORDS["admin"]}, superusers=("admin",), rules=())
    with Server(folder, settings={"connection.failed.authentication.delay.ms": 1}) as started:
        take_in(started, json.loads(EXPORT.read_bytes()))
        yield started


def test_the_export_is_rabbitmqs_own_and_has_no_password_in_it() -> None:
    found = json.loads(EXPORT.read_bytes())
    assert found["product_name"] == "RabbitMQ"
    assert {one["name"] for one in found["users"]} >= {user for user, _ in OUTCOMES}
    assert {one["hashing_algorithm"] for one in found["users"]} == {
        "rabbit_password_hashing_sha256",
        "rabbit_password_hashing_sha512",
    }


@pytest.mark.parametrize(("who", "outcome"), OUTCOMES.items(), ids=NAMES)
def test_imported_users_may_what_they_might(server: Server, who: tuple[str, str], outcome: str) -> None:
    assert attempt(server.addresses["amqp"], *who) == outcome


def test_an_import_keeps_tags_limits_and_policies(server: Server) -> None:
    def get(path: str) -> Any:
        return requests.get(f"http://{server.addresses['http']}/api{path}", auth=ADMIN, timeout=20).json()

    assert get("/users/exported-admin")["tags"] == ["administrator"]
    assert set(get("/users/exported-monitor")["tags"]) == {"monitoring", "management"}
    assert get("/user-limits/exported-app") == [{"user": "exported-app", "value": {"max-channels": 20}}]
    assert get("/vhost-limits/exported") == [{"vhost": "exported", "value": {"max-queues": 50}}]
    assert get("/policies/exported/short")["definition"] == {"max-length": 100}
    assert get("/queues/exported/app-jobs")["policy"] == "short"


@pytest.mark.skipif(not SERVER.exists(), reason="rabbitmq-server is not installed; it is what is imported from")
def test_what_a_running_rabbitmq_exports_works_here_as_it_does_there(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    add_users(here / "data", {"admin": PASSWORDS["admin"]}, superusers=("admin",), rules=())
    with (
        real_rabbitmq(there) as (address, api),
        Server(here, settings={"connection.failed.authentication.delay.ms": 1}) as server,
    ):
        take_in(server, api.export())
        for who, outcome in OUTCOMES.items():
            found = (attempt(address, *who), attempt(server.addresses["amqp"], *who))
            assert found == (outcome, outcome), who
