"""Topics that keep the newest N messages: made by each client and by Kafka's admin, exact, also after a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

import waystation
from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.server import Server
from waystation.errors import Invalid

Client = Any
NAME = "waystation.retention.messages"


def bounds(mq: Client, topic: str) -> list[tuple[int, int]]:
    return [(start, end) for start, end, _ in mq.describe_topic(topic).partitions]


def test_a_topic_keeps_the_newest_n_messages(mq: Client) -> None:
    topic = unique("bounded")
    mq.create_topic(topic, 1, max_size=5)
    mq.publish_many(topic, [b"%d" % number for number in range(3)])
    assert bounds(mq, topic) == [(0, 3)]
    mq.publish_many(topic, [b"%d" % number for number in range(3, 12)])
    assert bounds(mq, topic) == [(7, 12)]
    got: list[bytes] = []
    with mq.subscribe(topic, history=100) as subscription:
        while len(got) < 5:
            got += [message.payload for message in subscription.poll(timeout=5, max=5)]
    assert got == [b"7", b"8", b"9", b"10", b"11"]
    mq.publish(topic, b"12")
    assert bounds(mq, topic) == [(8, 13)]
    assert mq.view("topic", topic=topic)["retention_messages"] == 5


def test_each_partition_keeps_so_many(mq: Client) -> None:
    topic = unique("bounded")
    mq.create_topic(topic, 3, max_size=2)
    for partition in range(3):
        for number in range(partition + 1):
            mq.publish(topic, b"%d" % number, partition=partition)
    assert bounds(mq, topic) == [(0, 1), (0, 2), (1, 3)]


def test_a_size_that_makes_no_sense_is_refused(mq: Client) -> None:
    for size in (0, -1, True, 1.5, "7"):
        with pytest.raises(Invalid, match="max_size"):
            mq.create_topic(unique("no"), max_size=size)
    with pytest.raises(Invalid, match=NAME):
        mq.create_topic(unique("no"), settings={NAME: 5}, max_size=5)


@pytest.mark.clients
def test_kafkas_admin_sets_it_and_it_survives_restarts(tmp_path: Path) -> None:
    topic = unique("bounded")
    with Server(tmp_path) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic(topic, 1, config={NAME: "100"})])[topic].result(30)
        with waystation.connect(f"waystation://{server.bootstrap}") as mq:
            mq.publish_many(topic, [b"%d" % number for number in range(250)])
            assert bounds(mq, topic) == [(150, 250)]
        entry = ConfigEntry(NAME, "10", incremental_operation=AlterConfigOpType.SET)
        changed = ConfigResource("topic", topic, incremental_configs=[entry])
        admin.incremental_alter_configs([changed])[changed].result(30)
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g"})
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30) == (240, 250)
        consumer.close()
    with Server(tmp_path) as server:
        http = Http(server.addresses["http"])
        with waystation.connect(f"waystation://{server.bootstrap}") as mq:
            assert bounds(mq, topic) == [(240, 250)]
            http("PATCH", f"/v1/topics/{topic}", {"settings": {NAME: "1000"}})
            server.kill()
    with Server(tmp_path) as server, waystation.connect(f"waystation://{server.bootstrap}") as mq:
        assert bounds(mq, topic) == [(240, 250)], "what was removed does not come back"
        mq.publish_many(topic, [b"x"] * 100)
        assert bounds(mq, topic) == [(240, 350)]


def test_http_makes_one(server: Server) -> None:
    http, topic = Http(server.addresses["http"]), unique("bounded")
    made = http("PUT", f"/v1/topics/{topic}", {"max_size": 3}).json
    assert (made["settings"], made["retention_messages"]) == ({NAME: "3"}, 3)
    assert http("PUT", f"/v1/topics/{topic}", {"max_size": 3}).status == 200
    assert http.refused("PUT", f"/v1/topics/{topic}", {"max_size": 4}) == (409, "Conflict")
    assert http.refused("PUT", f"/v1/topics/{unique('no')}", {"max_size": 0}) == (400, "Invalid")
    http("POST", f"/v1/topics/{topic}/messages", [{"payload": str(number)} for number in range(9)])
    (partition,) = http("GET", f"/v1/topics/{topic}").json["partitions"]
    assert (partition["start_offset"], partition["end_offset"]) == (6, 9)
