"""The pages of connections: real clients of every protocol are there, with what they do, and one can be closed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import confluent_kafka as ck
import pika
import pytest
from playwright.sync_api import expect

import waystation as ws
from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import Visitor, desktop_only, row_of
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for


@pytest.fixture
def rabbit(server: Server) -> Iterator[pika.BlockingConnection]:
    host, port = server.addresses["amqp"].rsplit(":", 1)
    said = {"connection_name": unique("billing")}
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), client_properties=said))
    yield connection
    if connection.is_open:
        connection.close()


def name_of(visitor: Visitor, text: str) -> str:
    found: list[dict[str, Any]] = visitor.api.get(f"/v1/connections?search={text}")["connections"]
    return str(found[0]["name"]) if found else ""


def test_clients_of_every_protocol_are_shown(visitor: Visitor, server: Server, rabbit: pika.BlockingConnection) -> None:
    queue, topic, client_id = unique("jobs"), unique("orders"), unique("shop")
    channel = rabbit.channel()
    channel.queue_declare(queue, durable=True)
    channel.basic_consume(queue, lambda *_: None, consumer_tag="worker-1")
    producer = ck.Producer({"bootstrap.servers": server.bootstrap, "client.id": client_id})
    producer.produce(topic, b"1")
    assert producer.flush(30) == 0
    with ws.connect(f"waystation://{server.bootstrap}") as mq:
        mq.queue(unique("native")).put("1")
        page = visitor.go("/connections")
        table = page.get_by_role("table", name="Connections")
        for protocol in ("Kafka", "Native", "AMQP", "HTTP"):
            expect(table.get_by_text(protocol, exact=True).first).to_be_visible()
        assert visitor.fits()
        assert_accessible(page)
        page.get_by_label("Protocol").select_option("AMQP")
        expect(table.get_by_text("Kafka", exact=True)).to_have_count(0)
        expect(table.get_by_text(f"consumes {queue}")).to_be_visible()
        page.get_by_label("Protocol").select_option("all")
        page.get_by_label("Search connections").fill(client_id)
        expect(row_of(page, "Connections", client_id).get_by_text("Kafka", exact=True)).to_be_visible()


def test_one_connection_in_detail(visitor: Visitor, rabbit: pika.BlockingConnection) -> None:
    queue = unique("jobs")
    channel = rabbit.channel()
    channel.queue_declare(queue, durable=True)
    channel.basic_qos(prefetch_count=7)
    channel.basic_consume(queue, lambda *_: None, consumer_tag="worker-1")
    name = wait_for(lambda: name_of(visitor, queue), "the consumer is known")
    page = visitor.go(f"/connections?search={queue}")
    page.get_by_role("table", name="Connections").get_by_role("link").click()
    expect(row_of(page, "Consumers", "worker-1")).to_contain_text(queue)
    expect(page.get_by_role("table", name="Channels").get_by_role("cell", name="7", exact=True)).to_be_visible()
    expect(page.get_by_text(name, exact=True).first).to_be_visible()
    assert visitor.fits()
    assert_accessible(page)
    assert_axe(page)
    visitor.go("/")  # before the connection is closed, and cannot be asked about


def test_a_connection_is_closed_when_asked_twice(visitor: Visitor, rabbit: pika.BlockingConnection) -> None:
    queue = unique("jobs")
    channel = rabbit.channel()
    channel.queue_declare(queue, durable=True)
    channel.basic_consume(queue, lambda *_: None)
    name = wait_for(lambda: name_of(visitor, queue), "the consumer is known")
    page = visitor.go(f"/connections?search={queue}")
    page.get_by_role("button", name=f"Close {name}").press("Enter")
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel").press("Enter")
    expect(dialog).to_have_count(0)
    rabbit.process_data_events(0.1)
    assert rabbit.is_open
    page.get_by_role("button", name=f"Close {name}").click()
    assert_accessible(page)
    dialog.get_by_role("button", name="Close connection").click()
    expect(page.get_by_text("No connection matches.")).to_be_visible()
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="closed from the dashboard"):
        rabbit.process_data_events(10)


@desktop_only
def test_a_connection_that_has_gone_is_said_in_a_sentence(visitor: Visitor) -> None:
    page = visitor.go("/connections/kafka:127.0.0.1:1")
    expect(page.get_by_role("alert")).to_contain_text("there is no connection")
    visitor.forgive("404")
