"""`delete.topic.enable=false` protects topics from deletion through every protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pika
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from pika.exceptions import ChannelClosedByBroker

import waystation
from tests.protocols.http.kit import Http
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S
from waystation.errors import NotAllowed

STREAM = {"x-queue-type": "stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = {"delete.topic.enable": "false"}
    with Server(tmp_path_factory.mktemp("protected"), settings=settings) as started:
        with waystation.connect(started.bootstrap) as client:
            client.create_topic("orders")
        yield started


@pytest.fixture
def http(server: Server) -> Http:
    return Http(server.addresses["http"])


@pytest.fixture(autouse=True)
def _there_afterwards(http: Http) -> Iterator[None]:
    yield
    assert http("GET", "/v1/topics/orders").status == 200


def test_kafka(server: Server) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    with pytest.raises(KafkaException) as refused:
        admin.delete_topics(["orders"], request_timeout=DEADLINE_S)["orders"].result()
    assert refused.value.args[0].code() == KafkaError.TOPIC_DELETION_DISABLED


def test_http(http: Http) -> None:
    assert http.refused("DELETE", "/v1/topics/orders") == (403, "DeletionDisabled")


def test_native(server: Server) -> None:
    with waystation.connect(server.bootstrap) as client, pytest.raises(NotAllowed, match=r"delete\.topic\.enable"):
        client.delete_topic("orders")


@pytest.fixture
def in_shop(server: Server, http: Http) -> Iterator[pika.BlockingConnection]:
    """A connection to a virtual host that is there already."""
    http("PUT", "/api/vhosts/shop", {})
    host, port = split_address(server.addresses["amqp"])
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port, virtual_host="shop"))
    yield connection
    if connection.is_open:
        connection.close()


def test_amqp(in_shop: pika.BlockingConnection) -> None:
    channel = in_shop.channel()
    channel.queue_declare("events", durable=True, arguments=STREAM)
    with pytest.raises(ChannelClosedByBroker) as refused:
        channel.queue_delete("events")
    assert refused.value.reply_code == 403
    in_shop.channel().queue_declare("events", passive=True)


def test_a_virtual_host_with_a_stream(http: Http, in_shop: pika.BlockingConnection) -> None:
    in_shop.channel().queue_declare("events", durable=True, arguments=STREAM)
    assert http("DELETE", "/api/vhosts/shop", ok=False).status == 401, "the management API's word for NotAllowed"
    assert http.refused("DELETE", "/v1/namespaces/shop") == (403, "DeletionDisabled")
    in_shop.channel().queue_declare("events", passive=True)
    http("PUT", "/api/vhosts/empty", {})
    assert http("DELETE", "/api/vhosts/empty").status == 204, "one without streams has no topics to protect"
