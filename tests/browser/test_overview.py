"""The overview: rates, history, who is connected, what is busy and whether all is well, from real traffic."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import pika
import pytest
from playwright.sync_api import expect

import waystation as ws
from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import Api, Visitor, desktop_only, row_of
from tests.support.names import unique
from tests.support.server import Server

BATCH = 20
EVERY_S = 0.1


class Traffic:
    """A Kafka producer, an AMQP worker and a queue with a backlog, until it is stopped."""

    def __init__(self, server: Server) -> None:
        self.topic, self.queue, self.backlog = unique("orders"), unique("jobs"), unique("backlog")
        self._server = server
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._produce, self._work)]
        with ws.connect(f"waystation://{server.bootstrap}") as mq:
            mq.queue(self.backlog).put_many([f"waits {i}" for i in range(30)])
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        producer = ck.Producer({"bootstrap.servers": self._server.bootstrap})
        while not self._stop.wait(EVERY_S):
            for i in range(BATCH):
                producer.produce(self.topic, b"x" * 200, key=str(i))
            producer.flush(30)

    def _work(self) -> None:
        host, port = self._server.addresses["amqp"].rsplit(":", 1)
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
        channel = connection.channel()
        channel.queue_declare(self.queue, durable=True)
        channel.basic_consume(self.queue, lambda _, method, *rest: channel.basic_ack(method.delivery_tag))
        while not self._stop.is_set():
            for _ in range(BATCH):
                channel.basic_publish("", self.queue, b"job")
            connection.process_data_events(EVERY_S)
        connection.close()


@pytest.fixture(scope="module")
def traffic(server: Server) -> Iterator[Traffic]:
    traffic = Traffic(server)
    yield traffic
    traffic.stop()


def stat(page: Any, label: str) -> Any:
    return page.locator(".stat").filter(has=page.get_by_text(label, exact=True)).locator(".value")


def test_the_overview_shows_what_happens(visitor: Visitor, traffic: Traffic) -> None:
    page = visitor.go()
    more_than_none = re.compile(r"^[1-9][\d.,\s]*( K)?/s$")
    for label in ("Published", "Delivered", "Acked"):
        expect(stat(page, label)).to_have_text(more_than_none)
    expect(stat(page, "Ready in queues")).not_to_have_text("0")
    expect(page.get_by_role("img", name=re.compile(r"Messages per second: published [1-9]"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile(r"Bytes per second: in [1-9]"))).to_be_visible()
    expect(page.get_by_role("region", name="Health")).to_be_visible()
    protocols = page.get_by_role("table", name="Connections by protocol")
    for protocol in ("Kafka", "AMQP", "HTTP"):
        row = protocols.get_by_role("row").filter(has=page.get_by_role("link", name=protocol))
        expect(row.get_by_role("cell").nth(1)).to_have_text(re.compile(r"^[1-9]"))
    expect(row_of(page, "Busiest topics", traffic.topic)).to_be_visible()
    expect(row_of(page, "Busiest queues", traffic.queue)).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("of the disk is used"))).to_be_visible()
    assert visitor.fits()
    assert_accessible(page)
    assert_axe(page)
    page.get_by_role("link", name=traffic.topic, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(traffic.topic)


@desktop_only
def test_figures_move_by_themselves_and_leave_the_reader_alone(visitor: Visitor, traffic: Traffic) -> None:
    page = visitor.go()
    expect(row_of(page, "Busiest topics", traffic.topic)).to_be_visible()
    link = page.get_by_role("link", name=traffic.topic, exact=True)
    link.focus()
    before = stat(page, "In topics").inner_text()
    there = link.evaluate("link => link.closest('table').getBoundingClientRect().top")
    expect(stat(page, "In topics")).not_to_have_text(before)
    expect(link).to_be_focused()
    # What is above may still grow. Then the browser scrolls along, so that what is being read stays where it is. Within
    # the table, the busiest comes first: a row may have come before this one.
    assert abs(link.evaluate("link => link.closest('table').getBoundingClientRect().top") - there) <= 1


@desktop_only
def test_a_chart_is_read_by_keyboard(visitor: Visitor, traffic: Traffic) -> None:
    page = visitor.go()
    picture = page.get_by_role("img", name=re.compile(r"Messages per second: published \d"))
    expect(picture).to_be_visible()
    picture.focus()
    page.keyboard.press("ArrowLeft")
    chart = page.get_by_role("region", name="Messages per second")
    expect(chart.locator(".cursor")).to_have_count(1)
    expect(chart.locator(".legend")).to_contain_text(re.compile(r"\d\d:\d\d:\d\d"))
    page.keyboard.press("Escape")
    expect(chart.locator(".cursor")).to_have_count(0)


def test_a_broker_that_is_not_well_says_why_and_what_to_do(chromium: Any, tmp_path: Path) -> None:
    with Server(tmp_path, settings={"waystation.disk.free.min.bytes": 2**60}) as server:
        address = f"http://{server.addresses['http']}"
        told = Api(address).get("/v1/overview")["health"]
        context = chromium.new_context()
        visitor = Visitor(context, address, "desktop")
        try:
            page = visitor.go()
            health = page.get_by_role("region", name="Health")
            expect(health).to_contain_text("The disk is full")
            expect(health).to_contain_text(told["reasons"][0]["advice"])
            expect(page.locator("#health")).to_have_text("failing")
            assert_accessible(page)
            visitor.check()
        finally:
            context.close()
