"""Every API of Kafka in every version, as nobody, as a user without a right, with exactly its rights, as a superuser.

Generated from the table of APIs. `RIGHTS` says what each of them needs; an API without a row fails, and so does one
that asks for nothing, or for more than its row. What is looked at is what permissions are asked and how they answer;
that a refusal has no effect is shown by `tests/protocols/kafka/test_refused.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Literal

import pytest

from tests.broker.kit import broker_on, send
from tests.protocols.kafka import frames
from tests.protocols.kafka.frames import TOPIC
from tests.protocols.kafka.test_fetch_steps import Client
from tests.protocols.kafka.test_refused import ASSIGNED, TOPIC_TYPE
from tests.support.entrances import entrance_of
from waystation.broker.access.types import Principal, ShareBeat
from waystation.broker.broker import Broker
from waystation.protocols.budget import Budgets
from waystation.protocols.kafka.apis import APIS
from waystation.protocols.kafka.requests.registry import Api
from waystation.protocols.kafka.server import KafkaListener
from waystation.security.permissions import Permissions
from waystation.security.rules import CLUSTER, Operation, Resource, Rule
from waystation.security.users import User

Right = tuple[Operation, Resource]
T: Literal["topic"] = "topic"
G: Literal["group"] = "group"
X: Literal["transactional-id"] = "transactional-id"
C: Literal["cluster"] = "cluster"
NAMES: dict[str, tuple[str, ...]] = {T: (TOPIC,), G: (TOPIC,), X: (TOPIC, "fuzz-tx"), C: (CLUSTER,)}
"""Of what the requests name."""

FOR_ANYBODY = {"api_versions", "sasl_handshake", "sasl_authenticate"}
"""Answered before a login."""
FOR_USERS = {
    "describe_cluster", "list_groups", "list_transactions", "list_config_resources", "create_delegation_token",
    "renew_delegation_token", "expire_delegation_token", "describe_delegation_token",
}  # fmt: skip
"""They have what the user may see. Delegation tokens are its own; those of others: `test_delegation_tokens.py`."""
RIGHTS: Mapping[str, tuple[Right, ...]] = {
    "unregister_broker": (("alter", C),),
    "produce": (("write", T),),
    "fetch": (("read", T),),
    "list_offsets": (("describe", T),),
    "metadata": (("describe", T),),
    "offset_commit": (("read", G), ("read", T)),
    "offset_fetch": (("describe", G), ("describe", T)),
    "find_coordinator": (("describe", G), ("describe", X)),
    "join_group": (("read", G),),
    "heartbeat": (("read", G),),
    "leave_group": (("read", G),),
    "sync_group": (("read", G),),
    "describe_groups": (("describe", G),),
    "create_topics": (("create", T),),
    "delete_topics": (("delete", T),),
    "delete_records": (("delete", T),),
    "init_producer_id": (("write", X),),
    "offset_for_leader_epoch": (("describe", T),),
    "add_partitions_to_txn": (("write", X), ("write", T)),
    "add_offsets_to_txn": (("write", X), ("read", G)),
    "end_txn": (("write", X),),
    "write_txn_markers": (("cluster-action", C),),
    "txn_offset_commit": (("write", X), ("read", G), ("read", T)),
    "describe_acls": (("describe", C),),
    "create_acls": (("alter", C),),
    "delete_acls": (("alter", C),),
    "describe_configs": (("describe-configs", T),),
    "alter_configs": (("alter-configs", T),),
    "incremental_alter_configs": (("alter-configs", T),),
    "alter_replica_log_dirs": (("alter", C), ("describe", T)),
    "describe_log_dirs": (("describe", C), ("describe", T)),
    "create_partitions": (("alter", T),),
    "delete_groups": (("delete", G),),
    "elect_leaders": (("alter", C), ("describe", T)),
    "alter_partition_reassignments": (("alter", C), ("describe", T)),
    "list_partition_reassignments": (("describe", C),),
    "offset_delete": (("delete", G), ("read", T)),
    "describe_client_quotas": (("describe-configs", C),),
    "alter_client_quotas": (("alter-configs", C),),
    "describe_user_scram_credentials": (("describe", C),),
    "alter_user_scram_credentials": (("alter", C),),
    "describe_quorum": (("describe", C),),
    "update_features": (("alter", C),),
    "describe_producers": (("read", T),),
    "describe_transactions": (("describe", X),),
    "consumer_group_heartbeat": (("read", G),),
    "consumer_group_describe": (("describe", G),),
    "describe_topic_partitions": (("describe", T),),
    "share_group_heartbeat": (("read", G),),
    "share_group_describe": (("describe", G), ("describe", T)),
    "share_fetch": (("read", G),),
    "share_acknowledge": (("read", G),),
    "describe_share_group_offsets": (("describe", G), ("describe", T)),
    "alter_share_group_offsets": (("read", G), ("read", T)),
    "delete_share_group_offsets": (("delete", G), ("read", T)),
}  # fmt: skip
"""As in Kafka's table of APIs and the rights that they need."""

SENSELESS = {("metadata", 10), ("metadata", 11), ("delete_topics", 6)}
"""The request names a topic by its id, which these versions cannot, or by both; it is refused for that."""

ALICE, ADMIN = Principal("alice"), Principal("admin")
TURNS = 40
"""Of the loop, a millisecond each, for an answer that nobody waits for."""


class Asked:
    """What permissions were asked since it was cleared, and how they answered."""

    def __init__(self, permissions: Permissions, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refused: list[tuple[str, str, str]] = []
        self.count = 0
        self.hidden = 0  # things that were left out, or are not there for this client
        real, real_allows = permissions.check, permissions.allows

        def check(principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
            self.count += 1
            self.refused.append((operation, resource, name))
            real(principal, operation, resource, name)
            self.refused.pop()

        def allows(principal: Principal, operation: Operation, resource: Resource, name: str) -> bool:
            answer = real_allows(principal, operation, resource, name)
            self.hidden += not answer
            return answer

        monkeypatch.setattr(permissions, "check", check)
        monkeypatch.setattr(permissions, "allows", allows)

    def clear(self) -> None:
        self.refused.clear()
        self.count = self.hidden = 0


def rules_of(rights: tuple[Right, ...]) -> list[Rule]:
    return [
        Rule(f"User:{ALICE.name}", operation, resource, name)
        for operation, resource in rights
        for name in NAMES[resource]
    ]


class Stage:
    """A broker with users, and the way in."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.broker = broker
        self.monkeypatch = monkeypatch
        self.closed = False  # whether the broker has closed the connection
        self.asked = Asked(broker.permissions, monkeypatch)
        self.listener = KafkaListener(broker, Budgets(broker.settings, broker.world.clock), entrance_of(broker))

    async def ask(self, api: Api, version: int, who: Principal | None) -> bool:
        """Whether there was an answer."""
        with suppress(Exception):
            await self.broker.topics.create(TOPIC, 1)
        self.monkeypatch.setitem(frames.BY_TYPE, "uuid", self.broker.topics.get(TOPIC).id)
        self.monkeypatch.setattr(self.broker.authenticator, "certificate", lambda *_: who)
        self.asked.clear()
        client = Client(self.listener, reads=True)
        client.send(frames.frame(api, version))
        for _ in range(TURNS if who is None else 100 * TURNS):
            if client.wire.sent or client.connection._transport is None:
                break
            await asyncio.sleep(0.001)
        self.closed = client.connection._transport is None
        client.connection.connection_lost(None)
        return bool(client.wire.sent)

    async def allow(self, rights: tuple[Right, ...]) -> None:
        await self.broker.permissions.replace(self.broker.permissions.rules(), rules_of(rights))


def walk(folder: Path, monkeypatch: pytest.MonkeyPatch, apis: list[Api]) -> tuple[list[str], int]:
    """What is wrong, and how many cases there were."""
    wrong: list[str] = []
    cases = 0

    async def story() -> None:
        nonlocal cases
        async with broker_on(folder, waystation_flush="os", offsets_topic_num_partitions="1") as broker:
            await broker.topics.create(TOPIC, 1)
            send(broker, TOPIC, b"x")
            beat = ShareBeat(group_id=TOPIC, member_id=TOPIC, member_epoch=0, topics=(TOPIC,))
            await broker.shared.heartbeat(beat)
            await broker.users.add("alice", User())
            await broker.users.add("admin", User(superuser=True))
            stage = Stage(broker, monkeypatch)
            for api in apis:
                if api.name not in {*RIGHTS, *FOR_ANYBODY, *FOR_USERS}:
                    wrong.append(f"{api.name}: say in RIGHTS what it needs")
                    continue
                rights = RIGHTS.get(api.name, ())
                for version in range(api.min_version, api.max_version + 1):
                    cases += await _cases(stage, api, version, rights, wrong)

    asyncio.run(asyncio.wait_for(story(), 500))
    return wrong, cases


async def _cases(stage: Stage, api: Api, version: int, rights: tuple[Right, ...], wrong: list[str]) -> int:
    which = f"{api.name} v{version}"
    answered = await stage.ask(api, version, None)
    if stage.asked.count or (answered and not stage.closed and api.name not in FOR_ANYBODY):
        wrong.append(f"{which}, nobody: it was dealt with")
    if api.name.startswith("sasl_"):
        return 1  # the login itself
    await stage.allow(())
    await stage.ask(api, version, ALICE)
    refused = bool(stage.asked.refused) or (bool(rights) and stage.asked.hidden > 0)
    if refused != bool(rights) and (api.name, version) not in SENSELESS:
        wrong.append(f"{which}, without a right: refused {stage.asked.refused}")
    await stage.allow(rights)
    if not await stage.ask(api, version, ALICE) or stage.asked.refused:
        wrong.append(f"{which}, with its rights: refused {stage.asked.refused}")
    await stage.allow(())
    if not await stage.ask(api, version, ADMIN) or stage.asked.refused:
        wrong.append(f"{which}, superuser: refused {stage.asked.refused}")
    return 4


@pytest.fixture
def plausible(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for field, value in {"state_filters": "Empty", "resource_type": TOPIC_TYPE, **ASSIGNED}.items():
        monkeypatch.setitem(frames.SPECIAL, field, value)
    return monkeypatch


def test_every_api_in_every_version(tmp_path: Path, plausible: pytest.MonkeyPatch) -> None:
    apis = frames.apis()
    wrong, cases = walk(tmp_path, plausible, apis)
    print(f"{len(apis)} APIs, {cases} cases")
    assert not wrong, "\n".join(wrong)
    assert cases > 900


def test_a_new_api_without_a_row_fails(tmp_path: Path, plausible: pytest.MonkeyPatch) -> None:
    new = Api(999, "format_disk", 0, 0, APIS[3].handler)
    wrong, _ = walk(tmp_path, plausible, [new])
    assert wrong == ["format_disk: say in RIGHTS what it needs"]


def test_the_rows_are_of_apis_that_there_are() -> None:
    assert {*RIGHTS, *FOR_ANYBODY, *FOR_USERS} == {api.name for api in frames.apis()}
