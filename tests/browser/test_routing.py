"""The page of routing: the picture, the tables, and where a message would go."""

from __future__ import annotations

import re

import pika
from playwright.sync_api import expect

import waystation as ws
from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import Visitor, desktop_only, row_of
from tests.support.names import unique
from tests.support.server import Server


def test_exchanges_of_an_amqp_client_are_a_picture(visitor: Visitor, server: Server, mq: ws.Client) -> None:
    name = unique("shop")
    host, port = server.addresses["amqp"].split(":")
    with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as connection:
        channel = connection.channel()
        channel.exchange_declare(name, "topic", durable=True)
        for queue, key in (("billing", "order.*.paid"), ("parcels", "order.eu.#")):
            channel.queue_declare(f"{name}.{queue}", durable=True)
            channel.queue_bind(f"{name}.{queue}", name, key)
    mq.exchange(name, kind="topic").bind(f"topic:{name}-audit", "#")

    page = visitor.go("/routing")
    page.get_by_label("Search").fill(name)
    picture = page.get_by_role("img", name="1 exchanges with 3 bindings to 3 targets")
    expect(picture).to_be_visible()
    for text in (name, f"{name}.billing", f"{name}-audit", "order.*.paid", "order.eu.#", "#"):
        expect(picture.get_by_text(text, exact=True).first).to_be_attached()
    rows = page.get_by_role("table", name="Bindings").locator("tbody").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.filter(has_text=f"queue:{name}.billing")).to_contain_text("order.*.paid")
    expect(row_of(page, "Exchanges", name)).to_contain_text("topic")
    assert visitor.fits()
    assert_accessible(page)

    form = page.get_by_role("form", name="Test the routing")
    form.get_by_label("Exchange").fill(name)
    form.get_by_label("Routing key").fill("order.us.paid")
    form.get_by_role("button", name="Test", exact=True).click()
    expect(form.get_by_role("status").get_by_role("link")).to_have_count(2)
    expect(form.get_by_role("link", name=f"queue:{name}.billing")).to_be_visible()
    expect(picture.locator(".node.hit")).to_have_count(3)  # the exchange and two of three targets
    expect(picture.locator(".edge.hit")).to_have_count(2)
    assert len(mq.queue(f"{name}.billing")) == 0
    form.get_by_role("button", name="Clear").click()
    expect(picture.locator(".hit")).to_have_count(0)
    assert_axe(page)


def test_exchanges_are_made_bound_tried_and_deleted(visitor: Visitor, mq: ws.Client) -> None:
    name = unique("checked")
    mq.queue(f"{name}.big")
    page = visitor.go(f"/routing?search={name}")
    page.get_by_role("button", name="New exchange").click()
    dialog = page.get_by_role("dialog", name="New exchange")
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Kind").select_option("filter")
    dialog.get_by_role("button", name="Create").click()
    expect(row_of(page, "Exchanges", name)).to_contain_text("filter")

    page.get_by_role("button", name="Bind", exact=True).click()
    dialog = page.get_by_role("dialog", name="Bind")
    dialog.get_by_label("Exchange").fill(name)
    dialog.get_by_label("Name").fill(f"{name}.big")
    dialog.get_by_label("Arguments (JSON)").fill('{"filter": "json.total >"}')
    dialog.get_by_role("button", name="Bind").click()
    expect(dialog.get_by_role("alert")).to_contain_text("filter")
    visitor.forgive("400 (Bad Request)")
    dialog.get_by_label("Arguments (JSON)").fill('{"filter": "json.total > 1000 and headers.region = \'eu\'"}')
    dialog.get_by_role("button", name="Bind").click()
    expect(page.get_by_role("table", name="Bindings")).to_contain_text("json.total > 1000")
    exchange = mq.exchange(name, kind="filter")
    assert exchange.route({"total": 2000}, headers={"region": "eu"}) == [f"queue:{name}.big"]

    form = page.get_by_role("form", name="Test the routing")
    form.get_by_label("Exchange").fill(name)
    form.get_by_text("Payload and headers").click()
    form.get_by_label("Payload", exact=True).fill('{"total": 2000}')
    form.get_by_label("Headers").fill("region=us")
    form.get_by_role("button", name="Test", exact=True).click()
    expect(form.get_by_role("status")).to_contain_text("It would be unroutable")
    form.get_by_label("Headers").fill("region=eu")
    form.get_by_role("button", name="Test", exact=True).click()
    expect(form.get_by_role("link", name=f"queue:{name}.big")).to_be_visible()

    page.get_by_role("button", name=f"Unbind queue:{name}.big from {name}").click()
    page.get_by_role("dialog", name="Unbind?").get_by_role("button", name="Unbind").click()
    expect(page.get_by_text("There are no bindings here.")).to_be_visible()
    assert exchange.route({"total": 2000}, headers={"region": "eu"}) == []
    page.get_by_role("button", name=f"Delete exchange {name}").click()
    page.get_by_role("dialog", name=f"Delete exchange {name}?").get_by_role("button", name="Delete").click()
    expect(page.get_by_text(f"Nothing has “{name}” in its name.")).to_be_visible()
    assert not visitor.api.has(f"/v1/exchanges/{name}")
    assert visitor.fits()


@desktop_only
def test_many_bindings_are_shown_page_by_page(visitor: Visitor, mq: ws.Client) -> None:
    name = unique("wide")
    exchange = mq.exchange(name, kind="direct")
    mq.queue(f"{name}.all")
    for n in range(70):
        exchange.bind(f"queue:{name}.all", f"key-{n:02}")
    page = visitor.go(f"/routing?search={name}")
    rows = page.get_by_role("table", name="Bindings").locator("tbody").get_by_role("row")
    expect(rows).to_have_count(60)
    page.get_by_role("button", name="Next").click()
    expect(rows).to_have_count(10)
    expect(page.get_by_role("img", name=re.compile("10 bindings"))).to_be_visible()
    page.get_by_role("button", name="Previous").click()
    expect(rows).to_have_count(60)
