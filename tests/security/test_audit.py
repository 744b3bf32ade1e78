"""The audit log: each kind of entry through a Kafka consumer, the command line and HTTP; floods are counted; no verb
waits for it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

import waystation
from tests.broker.kit import broker_on
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.server import ROOT, Server
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.broker.broker import Broker
from waystation.errors import NotAllowed, NotAuthenticated, StorageFailed, WaystationError
from waystation.security import audit
from waystation.security.principals import Principal
from waystation.security.rules import Rule
from waystation.security.users import User

ALICE = Principal("alice").at("10.0.0.1", "kafka")


def sasl(server: Server, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
    }


def address(server: Server, user: str) -> str:
    return f"waystation://{user}:{quote(PASSWORDS[user], safe='')}@{server.bootstrap}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    rules = [Rule("User:bob", "read", "topic", "__audit"), Rule("User:bob", "read", "group", "auditors")]
    add_users(tmp_path / "data", PASSWORDS, superusers=("admin",), rules=rules)
    with Server(tmp_path, settings={"connection.failed.authentication.delay.ms": 1}) as found:
        yield found


class Auditor:
    """Bob, who may read the audit log and nothing else."""

    def __init__(self, server: Server) -> None:
        self.entries: list[dict[str, Any]] = []
        self._consumer = Consumer(
            {**sasl(server, "bob"), "group.id": "auditors", "auto.offset.reset": "earliest",
             "topic.metadata.refresh.interval.ms": 200}
        )  # fmt: skip
        self._consumer.subscribe(["__audit"])

    def find(self, **wanted: str) -> dict[str, Any]:
        """The first entry with these fields; waits for it."""

        def found() -> dict[str, Any] | None:
            record = self._consumer.poll(0.2)
            if record is not None and record.error() is None:
                self.entries.append(json.loads(record.value() or b""))
            return next((one for one in self.entries if wanted.items() <= one.items()), None)

        return wait_for(found, f"an entry {wanted}")

    def close(self) -> None:
        self._consumer.close()


def test_each_kind_of_entry_comes_through_a_kafka_consumer(server: Server) -> None:
    auditor = Auditor(server)
    try:
        here = {"host": "127.0.0.1"}
        assert auditor.find(kind="login", user="User:bob", protocol="kafka", result="ok", **here)
        admin = AdminClient(sasl(server, "admin"))
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(DEADLINE_S)
        made = {"kind": "change", "user": "User:admin", "result": "ok", **here}
        assert auditor.find(operation="create", resource="topic", name="orders", protocol="kafka", **made)
        rule = AclBinding(
            ResourceType.TOPIC, "orders", ResourcePatternType.LITERAL, "User:alice", "*",
            AclOperation.DESCRIBE, AclPermissionType.ALLOW,
        )  # fmt: skip
        admin.create_acls([rule])[rule].result(DEADLINE_S)
        entry = auditor.find(operation="create", resource="rule", protocol="kafka", **made)
        assert "User:alice may describe topic orders" in entry["detail"]

        # A refusal, by another protocol.
        alice = address(server, "alice")
        with waystation.connect(alice) as mq, pytest.raises(NotAllowed):
            mq.publish("orders", "x")
        refused = {"kind": "refusal", "user": "User:alice", "result": "refused", "protocol": "native", **here}
        assert auditor.find(operation="write", resource="topic", name="orders", **refused)

        # Queues, users, settings and deletes.
        with waystation.connect(address(server, "admin")) as mq:
            mq.queue("jobs")
            mq.act("add-user", user="carol", password="a secret of carol's")
            mq.act("remove-user", user="carol")
            mq.alter_settings({"log.cleaner.backoff.ms": 20_000})
            mq.queue("jobs").delete()
        native = {**made, "protocol": "native"}
        assert auditor.find(operation="create", resource="queue", name="jobs", **native)
        assert auditor.find(operation="add-user", name="carol", **native)
        assert auditor.find(operation="remove-user", name="carol", **native)
        assert "log.cleaner.backoff.ms=20000" in auditor.find(operation="alter-configs", **native)["detail"]
        assert auditor.find(operation="delete", resource="queue", name="jobs", **native)
        admin.delete_topics(["orders"])["orders"].result(DEADLINE_S)
        assert auditor.find(operation="delete", resource="topic", name="orders", protocol="kafka", **made)

        # A change that failed, and a login that did.
        with pytest.raises(KafkaException):
            admin.delete_topics(["nothing"])["nothing"].result(DEADLINE_S)
        with pytest.raises(NotAuthenticated):
            waystation.connect(f"waystation://alice:wrong@{server.bootstrap}")
        entry = auditor.find(kind="login", user="User:alice", result="refused: wrong password, or no such user")
        assert entry["protocol"] == "native"
        told = json.dumps(auditor.entries)
        assert "secret of carol" not in told
        assert "SCRAM-SHA-256$" not in told
    finally:
        auditor.close()


def test_it_is_shown_by_the_command_line_and_http_to_who_may_read_it(server: Server) -> None:
    admin = address(server, "admin")
    with waystation.connect(admin) as mq:
        mq.queue("jobs")

        def entries() -> list[dict[str, Any]]:
            return list(mq.view("audit", kind="change", user="User:admin")["entries"])

        (entry,) = wait_for(entries, "the entry")
        assert (entry["operation"], entry["resource"], entry["name"], entry["result"]) == (
            "create",
            "queue",
            "jobs",
            "ok",
        )
        assert mq.view("audit", search="jobs", limit=1)["entries"]
        assert not mq.view("audit", search="nowhere")["entries"]

    def command(user: str) -> subprocess.CompletedProcess[str]:
        line = [
            sys.executable,
            "-m",
            "waystation.cli.main",
            "audit",
            "--kind",
            "change",
            "--server",
            address(server, user),
        ]
        return subprocess.run(line, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)

    shown = command("bob").stdout
    assert "create queue jobs" in shown, shown
    assert "User:admin" in shown
    alice = address(server, "alice")
    with waystation.connect(alice) as mq, pytest.raises(NotAllowed):
        mq.view("audit")


def test_nobody_writes_to_it(server: Server) -> None:
    with waystation.connect(address(server, "admin")) as mq:
        wait_for(lambda: mq.view("audit")["entries"], "an entry")
        with pytest.raises(WaystationError):
            mq.publish("__audit", "x")
        with pytest.raises(WaystationError):
            mq.act("delete-records", topic="__audit", before_offset=-1)
        with pytest.raises(WaystationError):
            mq.delete_topic("__audit")


# -- a flood -----------------------------------------------------------------------------------------------------------


def entries_of(broker: Broker) -> list[audit.AuditEntry]:
    latest = broker.messages.history(audit.TOPIC, 10_000)
    return [msgspec.json.decode(one.message.payload, type=audit.AuditEntry) for one in latest]


async def closed(broker: Broker) -> None:
    await broker.users.add("admin", User(superuser=True))
    await broker.users.add("alice", User())


def test_a_flood_of_refusals_is_counted_and_others_are_recorded(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await closed(broker)
            other = Principal("bob").at("10.0.0.2", "amqp")
            for number in range(5_000):
                with pytest.raises(NotAllowed):
                    broker.permissions.check(ALICE, "read", "topic", f"topic-{number}")
            with pytest.raises(NotAllowed):
                broker.permissions.check(other, "read", "topic", "orders")
            await broker.audit.stop()
            found = entries_of(broker)
            of_alice = [one for one in found if one.user == "User:alice"]
            recorded = [one for one in of_alice if one.kind == "refusal"]
            assert audit.MOST_OF_ONE <= len(recorded) < 5_000
            left_out = sum(one.count for one in of_alice if one.kind == "left-out")
            assert len(recorded) + left_out == 5_000
            assert [one.name for one in found if one.user == "User:bob"] == ["orders"]

    asyncio.run(asyncio.wait_for(story(), 60))


def test_many_who_flood_are_counted_together_and_changes_are_recorded_all_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await closed(broker)
            for number in range(2_000):
                broker.audit.login(f"User:{number}", "10.0.0.3", "http", "PLAIN", failure="wrong")
            admin = broker.access(Principal("admin").at("10.0.0.4", "http"), "/", broker.meters.http)
            await admin.create_topic("orders", 1)
            await broker.audit.stop()
            found = entries_of(broker)
            logins = [one for one in found if one.kind == "login"]
            counts = [one for one in found if one.kind == "left-out"]
            assert len(logins) + sum(one.count for one in counts) == 2_000
            windows = 1 + len(logins) // audit.MOST
            assert len(counts) <= windows * (audit.MOST_COUNTED + 1)
            assert [one.name for one in found if one.kind == "change"] == ["orders"]

    asyncio.run(asyncio.wait_for(story(), 60))


def test_while_it_cannot_be_written_verbs_go_on_and_what_waits_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await closed(broker)
            monkeypatch.setattr(audit, "MAX_WAITING", 500)
            real = broker.messages.publish

            def broken(*about: Any, **more: Any) -> Any:
                raise StorageFailed("the disk is full")

            monkeypatch.setattr(broker.messages, "publish", broken)
            admin = Principal("admin").at("10.0.0.4", "http")
            await broker.access(admin, "/", broker.meters.http).create_topic("orders", 1)
            for number in range(audit.MAX_WAITING + 100):
                broker.audit.changed(admin, "alter", "topic", f"topic-{number}")
            assert len(broker.audit._waiting) == audit.MAX_WAITING
            await asyncio.sleep(2 * audit.WRITE_EVERY_S)  # it has tried
            assert len(broker.audit._waiting) == audit.MAX_WAITING
            monkeypatch.setattr(broker.messages, "publish", real)
            await broker.audit.stop()
            found = entries_of(broker)
            assert found[0].name == "orders"
            assert sum(one.count for one in found) == 101

    asyncio.run(asyncio.wait_for(story(), 60))


def test_what_waits_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await closed(broker)
            monkeypatch.setattr(audit, "MAX_WAITING_BYTES", 200_000)
            admin, wide = Principal("admin").at("10.0.0.4", "http"), chr(0x1F600)
            begun, taken = len(broker.audit._waiting), 0
            tracemalloc.start()
            for _ in range(100):
                broker.audit.changed(admin, "alter", "topic", wide * audit.MAX_TEXT, wide * audit.MAX_DETAIL)
            taken = tracemalloc.get_traced_memory()[0]
            tracemalloc.stop()
            assert 10 < len(broker.audit._waiting) - begun < 30
            assert taken < 2 * audit.MAX_WAITING_BYTES  # the allocator rounds up
            await broker.audit.stop()
            assert broker.audit._waiting_bytes == 0
            assert sum(one.count for one in entries_of(broker)) > 70

    asyncio.run(asyncio.wait_for(story(), 60))


def test_nothing_is_recorded_while_nobody_has_to_log_in_unless_it_is_wanted(tmp_path: Path) -> None:
    async def story(said: str) -> bool:
        async with broker_on(tmp_path / said, waystation_audit=said) as broker:
            nobody = Principal("ANONYMOUS")
            await broker.access(nobody, "/", broker.meters.http).create_topic("orders", 1)
            await broker.audit.stop()
            return broker.topics.find(audit.TOPIC) is not None

    assert [asyncio.run(story(said)) for said in ("auto", "on", "off")] == [False, True, False]


def test_it_is_bounded_by_its_retention(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path, waystation_audit="on", waystation_audit_retention_bytes="1048576") as broker:
            broker.audit.changed(ALICE, "alter", "topic", "orders")
            await broker.audit.stop()
            settings = broker.topics.get(audit.TOPIC).settings
            assert (settings.retention_bytes, settings.retention_ms) == (1_048_576, 90 * 24 * 3_600_000)

    asyncio.run(asyncio.wait_for(story(), 60))
