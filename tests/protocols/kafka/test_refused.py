"""A client that may do nothing gets an answer to everything that it asks: none of it costs it its connection. The code
says for which kind of thing it has no permission."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.broker.kit import broker_on, run, send
from tests.protocols.kafka import frames
from tests.protocols.kafka.admin_kit import Desk
from tests.protocols.kafka.frames import TOPIC
from tests.protocols.kafka.pipeline import Pipeline
from tests.protocols.kafka.test_fetch_steps import Client
from tests.support.entrances import entrance_of
from tests.support.permissions import RefusesEverything
from tests.support.server import Server
from waystation.broker.access.types import ShareBeat
from waystation.log.batches import batch as batches
from waystation.protocols.budget import Budgets
from waystation.protocols.kafka.server import KafkaListener

ASK_NOTHING = {
    *("api_versions", "describe_cluster", "sasl_handshake", "sasl_authenticate"),
    *(f"{verb}_delegation_token" for verb in ("create", "renew", "expire", "describe")),
}
"""What every client may know; and delegation tokens, which are off here, and else for those who have logged in."""

REFUSED_LOGINS = 5
"""SaslHandshake in two versions, SaslAuthenticate in three: on a broker without users both end the connection."""

TOPIC_TYPE = 2
"""Of resources with settings."""
ASSIGNED = {"num_partitions": -1, "replication_factor": -1, "broker_ids": 1}
"""A new topic whose partitions are assigned to this broker."""

TRANSACTIONAL = 0x10
"""Of a batch's attributes."""

TURNS = 5_000
"""Of the loop that an answer is waited for: five seconds or more."""


async def answered(client: Client) -> bool:
    """Whether there is an answer; not when the connection was closed instead."""
    for _ in range(TURNS):
        if client.wire.sent:
            return True
        await asyncio.sleep(0.001)
    return False


def test_every_request_is_asked_about_and_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with broker_on(tmp_path, waystation_flush="os", offsets_topic_num_partitions="1") as broker:
            topic = await broker.topics.create(TOPIC, 1)
            monkeypatch.setitem(frames.BY_TYPE, "uuid", topic.id)
            send(broker, TOPIC, b"x")
            await broker.shared.heartbeat(ShareBeat(group_id=TOPIC, member_id=TOPIC, member_epoch=0, topics=(TOPIC,)))
            producer = await broker.transactions.init_producer_id(TOPIC, 60_000)
            meant = {"state_filters": "Empty", "producer_id_filters": producer.producer_id, "resource_type": TOPIC_TYPE}
            for field, value in {**meant, **ASSIGNED}.items():
                monkeypatch.setitem(frames.SPECIAL, field, value)
            refusing = broker.permissions = RefusesEverything()
            listener = KafkaListener(broker, Budgets(broker.settings, broker.world.clock), entrance_of(broker))
            wrong = []
            for api in frames.apis():
                refusing.asked.clear()
                for version in range(api.min_version, api.max_version + 1):
                    client = Client(listener, reads=True)
                    client.send(frames.frame(api, version))
                    if not await answered(client):
                        wrong.append(f"{api.name} {version} was not answered")
                    client.connection.connection_lost(None)
                if bool(refusing.asked) == (api.name in ASK_NOTHING):
                    wrong.append(f"{api.name} asks {refusing.asked or 'nothing'}")
            assert wrong == []
            assert broker.meters.kafka.errors["connection_closed"] == REFUSED_LOGINS
            assert [one.name for one in broker.topics if not one.internal] == [TOPIC]
            assert topic.partition(0).end_offset == 1

    run(story())


NEW_TOPIC = {"name": "new", "num_partitions": 1, "replication_factor": 1}
CODES: dict[str, tuple[int, dict[str, Any], ErrorCode]] = {
    "create_topics": (5, {"topics": [NEW_TOPIC]}, ErrorCode.topic_authorization_failed),
    "delete_groups": (2, {"groups_names": ["readers"]}, ErrorCode.group_authorization_failed),
    "init_producer_id": (4, {"transactional_id": "shop"}, ErrorCode.transactional_id_authorization_failed),
    "describe_log_dirs": (4, {}, ErrorCode.cluster_authorization_failed),
}


@pytest.mark.parametrize("api", CODES)
def test_the_code_says_what_there_is_no_permission_for(desk: Desk, api: str) -> None:
    version, fields, code = CODES[api]
    desk.broker.permissions = RefusesEverything()
    answer = desk.ask(api, version, **fields)
    (told,) = getattr(answer, "topics", None) or getattr(answer, "results", None) or [answer]
    assert told.error_code == code


def test_a_transactional_batch_of_nobody_is_refused_as_kafka_does(tmp_path: Path) -> None:
    """No request is asked about under an empty name."""
    with Server(tmp_path) as server, Pipeline(server.bootstrap) as line:
        line.ask("create_topics", 5, topics=[{**NEW_TOPIC, "configs": []}])
        producer = line.ask("init_producer_id", 4, transactional_id="shop", transaction_timeout=timedelta(minutes=1))
        batch = batches.build(
            [(None, b"v", ())],
            int(time.time() * 1000),
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            attributes=TRANSACTIONAL,
        )
        data = [{"name": "new", "partition_data": [{"index": 0, "records": bytes(batch)}]}]
        answer = line.ask("produce", 11, acks=-1, topic_data=data).responses[0].partition_responses[0]
        assert answer.error_code == ErrorCode.transactional_id_authorization_failed
        assert "name it in the request" in answer.error_message
