"""Rules as Kafka's own tools set them, with a real client: what is not allowed is refused, at once and in its words."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.security.users_kit import PASSWORDS, add_users
from tests.support.server import Server

PATIENCE_S = 30


def config(server: Server, user: str, password: str = "") -> dict[str, str | int]:
    return {
        "bootstrap.servers": server.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": password or PASSWORDS[user],
    }


def acl(kind: ResourceType, name: str, operation: AclOperation, user: str = "alice") -> AclBinding:
    pattern = ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)


def produce(client: dict[str, str | int], topic: str) -> KafkaError | None:
    """The error that a message was refused with."""
    found: list[KafkaError | None] = []
    producer = Producer({**client, "message.timeout.ms": PATIENCE_S * 1000})
    producer.produce(topic, b"x", on_delivery=lambda error, _: found.append(error))
    assert producer.flush(PATIENCE_S) == 0
    return found[0]


def test_what_an_administrator_allows_with_kafkas_tools_holds_at_once(tmp_path: Path) -> None:
    add_users(tmp_path / "data", PASSWORDS, superusers=("admin",), rules=())
    with Server(tmp_path, settings={"connection.failed.authentication.delay.ms": 1}) as server:
        admin = AdminClient({**config(server, "admin")})
        alice = config(server, "alice")
        (made,) = admin.create_topics([NewTopic("orders", 1)]).values()
        made.result(PATIENCE_S)
        refused = produce(alice, "orders")
        assert refused is not None
        assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED

        topic, group = ResourceType.TOPIC, ResourceType.GROUP
        bindings = [acl(topic, "orders", AclOperation.WRITE), acl(topic, "orders", AclOperation.READ)]
        for done in admin.create_acls(bindings).values():
            done.result(PATIENCE_S)
        assert produce(alice, "orders") is None

        consumer = Consumer({**alice, "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        message = None
        while message is None:
            message = consumer.poll(PATIENCE_S)
        error = message.error()
        assert error is not None
        assert error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED
        consumer.close()
        for done in admin.create_acls([acl(group, "readers", AclOperation.READ)]).values():
            done.result(PATIENCE_S)
        consumer = Consumer({**alice, "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None, message.error()

        everything = AclBindingFilter(
            ResourceType.ANY,
            None,  # type: ignore[arg-type]
            ResourcePatternType.ANY,
            None,  # type: ignore[arg-type]
            None,  # type: ignore[arg-type]
            AclOperation.ANY,
            AclPermissionType.ANY,
        )
        assert set(admin.describe_acls(everything).result(PATIENCE_S)) == {
            *bindings,
            acl(group, "readers", AclOperation.READ),
        }
        reading = AclBindingFilter(
            topic, "orders", ResourcePatternType.MATCH, "User:alice", "*", AclOperation.READ, AclPermissionType.ALLOW
        )
        (deleted,) = admin.delete_acls([reading]).values()
        assert deleted.result(PATIENCE_S) == [bindings[1]]
        error = None
        while error is None:
            message = consumer.poll(PATIENCE_S)  # an open consumer learns it with its next fetch
            error = None if message is None else message.error()
        assert error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        consumer.close()

        hers = AdminClient({**alice})
        (refused_too,) = hers.create_acls([acl(topic, "orders", AclOperation.ALL)]).values()
        with pytest.raises(KafkaException) as caught:
            refused_too.result(PATIENCE_S)
        assert caught.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        described = hers.describe_topics(TopicCollection(["orders"]), include_authorized_operations=True)
        (one,) = described.values()
        assert {operation.name for operation in one.result(PATIENCE_S).authorized_operations} == {"WRITE", "DESCRIBE"}


def test_a_user_that_is_added_with_kafkas_tools_logs_in(tmp_path: Path) -> None:
    add_users(tmp_path / "data", {"admin": PASSWORDS["admin"]}, superusers=("admin",), rules=())
    with Server(tmp_path, settings={"connection.failed.authentication.delay.ms": 1}) as server:
        admin = AdminClient({**config(server, "admin")})
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8192)
        (done,) = admin.alter_user_scram_credentials(
            [UserScramCredentialUpsertion("carol", credential, b"carols-secret")]
        ).values()
        done.result(PATIENCE_S)
        (made,) = admin.create_acls([acl(ResourceType.TOPIC, "mail", AclOperation.ALL, "carol")]).values()
        made.result(PATIENCE_S)
        assert produce(config(server, "carol", "carols-secret"), "mail") is None
        described = admin.describe_user_scram_credentials(["carol"])
        assert isinstance(described, dict)
        (info,) = described["carol"].result(PATIENCE_S).scram_credential_infos
        assert (info.mechanism, info.iterations) == (ScramMechanism.SCRAM_SHA_256, 8192)
