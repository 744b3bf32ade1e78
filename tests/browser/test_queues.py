"""The pages of queues: what clients put there is shown, and every action does what it says."""

from __future__ import annotations

import re
from typing import Any

import pika
from playwright.sync_api import expect

import waystation as ws
from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import Visitor, desktop_only, row_of, spelled
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

LONG_MS = 11_000
"""Longer than a page ever waits before it asks again."""


def figure(page: Any, label: str) -> Any:
    """The value of a figure on the page."""
    return page.locator(".stat").filter(has=page.get_by_text(label, exact=True)).locator(".value")


def test_queues_of_clients_are_listed_and_found(visitor: Visitor, mq: ws.Client) -> None:
    name = unique("orders")
    queue = mq.queue(name)
    queue.put_many([{"n": n} for n in range(1234)])
    queue.put({"n": "later"}, delay=600)
    held = queue.get_many(3, timeout=5)
    page = visitor.go("/queues")
    page.get_by_label("Search").fill(name)
    row = row_of(page, "Queues", name)
    expect(row.get_by_role("cell", name=spelled(1231))).to_be_visible()
    expect(row.get_by_role("cell", name=spelled(3))).to_be_visible()
    assert visitor.fits()
    assert_accessible(page)
    page.get_by_label("Search").fill("nobody has this name")
    expect(page.get_by_text("No queue has “nobody has this name” in its name.")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Search")).to_have_value("nobody has this name")
    queue.ack_many(held)


@desktop_only
def test_many_queues_are_shown_page_by_page(visitor: Visitor) -> None:
    start = unique("many")
    for i in range(60):
        visitor.api.put(f"/v1/queues/{start}.{i:02}", {})
    page = visitor.go(f"/queues?search={start}.")
    names = page.get_by_role("table", name="Queues").get_by_role("link")
    expect(names).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    expect(names).to_have_count(10)
    expect(names.last).to_have_text(f"{start}.59")
    page.get_by_role("button", name="Previous").click()
    expect(names.first).to_have_text(f"{start}.00")


def test_settings_are_changed_once_they_are_known(visitor: Visitor, mq: ws.Client) -> None:
    """A click before the broker has answered would do nothing, and nobody would be told."""
    name = mq.queue(unique("slow"), max_deliveries=3).name
    waiting: list[Any] = []
    visitor.page.route(re.compile(rf"/v1/queues/{name}$"), lambda route: waiting.append(route))
    page = visitor.go(f"/queues/{name}")
    change = page.get_by_role("button", name="Change settings")
    wait_for(lambda: page.evaluate("true") and bool(waiting), "the page asks about the queue")
    expect(change).to_be_disabled()
    visitor.page.unroute_all()  # what waits goes on
    change.click()
    dialog = page.get_by_role("dialog", name=f"Settings of {name}")
    expect(dialog.get_by_label("Maximum deliveries")).to_have_value("3")


def test_a_queue_is_made_changed_and_deleted(visitor: Visitor, mq: ws.Client) -> None:
    name = unique("made/here")
    page = visitor.go("/queues")
    page.get_by_role("button", name="New queue").click()
    dialog = page.get_by_role("dialog", name="New queue")
    dialog.get_by_label("Name", exact=True).fill(name)
    dialog.get_by_label("Maximum deliveries").fill("3")
    dialog.get_by_label("When it is full").select_option("dead-letter")
    dialog.get_by_role("button", name="Create").click()
    expect(dialog.get_by_role("alert")).to_contain_text("needs a dead_letter target")
    visitor.forgive("400 (Bad Request)")
    dialog.get_by_label("Dead-letter queue").fill(f"{name}.dead")
    dialog.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    settings = mq.queue(name).describe().settings
    assert (settings.max_deliveries, settings.overflow, settings.dead_letter) == (3, "dead-letter", f"{name}.dead")

    page.get_by_role("button", name="Change settings").click()
    dialog = page.get_by_role("dialog", name=f"Settings of {name}")
    expect(dialog.get_by_label("Maximum deliveries")).to_have_value("3")
    dialog.get_by_label("Visibility timeout (ms)").fill("60000")
    dialog.get_by_label("One consumer at a time").check()
    dialog.get_by_role("button", name="Save").click()
    expect(page.get_by_label("Settings").get_by_text("60 s")).to_be_visible()
    settings = mq.queue(name).describe().settings
    assert (settings.hold_ms, settings.single_active, settings.max_deliveries) == (60_000, True, 3)
    expect(page.get_by_role("link", name=f"Dead letters in {name}.dead")).to_be_visible()

    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"Delete {name}?")
    dialog.get_by_label(f"Type {name} to confirm").fill("something else")
    dialog.get_by_role("button", name="Delete").click()
    expect(dialog.get_by_role("alert")).to_contain_text("nothing changed")
    assert mq.queue(name).describe().queue == name
    dialog.get_by_label(f"Type {name} to confirm").fill(name)
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Queues")
    assert name not in [queue["queue"] for queue in visitor.api.get(f"/v1/queues?search={name}")["queues"]]


def test_a_message_is_put_looked_at_and_deleted(visitor: Visitor, mq: ws.Client) -> None:
    name = unique("jobs")
    queue = mq.queue(name)
    page = visitor.go(f"/queues/{name}")
    page.get_by_role("button", name="Put a message").click()
    dialog = page.get_by_role("dialog", name=f"Put a message into {name}")
    dialog.get_by_label("Payload", exact=True).fill('{"total": ')
    dialog.get_by_label("The payload is").select_option("json")
    dialog.get_by_role("button", name="Put", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("the payload: is no JSON")
    dialog.get_by_label("Payload", exact=True).fill('{"total": 12}')
    dialog.get_by_label("Id").fill("job-1")
    dialog.get_by_label("Priority").fill("7")
    dialog.get_by_label("Delay (seconds)").fill("600")
    dialog.get_by_label("Time to live (seconds)").fill("3600")
    dialog.get_by_label("Headers").fill("region=eu\nby=a person")
    assert_accessible(page)
    dialog.get_by_role("button", name="Put", exact=True).click()
    expect(dialog).to_be_hidden()
    (message,) = queue.peek()
    assert (message.json(), message.id, message.priority) == ({"total": 12}, "job-1", 7)
    assert (message.headers["region"], message.headers["by"], message.state) == ("eu", "a person", "parked")

    queue.put(b"\x00\x01\xff", id="bytes")
    page.get_by_role("button", name="Refresh").click()
    page.get_by_label("State").select_option("parked")
    expect(page.get_by_role("table", name="Messages").get_by_role("row")).to_have_count(2)
    page.get_by_role("button", name="job-1", exact=True).click()
    dialog = page.get_by_role("dialog", name="Message job-1")
    expect(dialog.get_by_role("tabpanel", name="payload as json")).to_contain_text('"total": 12')
    expect(dialog.get_by_text("a person", exact=True)).to_be_visible()
    assert visitor.fits()
    dialog.get_by_role("button", name="Delete this message").click()
    page.get_by_role("dialog", name="Delete this message?").get_by_role("button", name="Delete", exact=True).click()
    expect(dialog).to_be_hidden()
    assert queue.find("job-1") is None
    page.get_by_label("State").select_option("ready")
    page.get_by_role("button", name="bytes", exact=True).click()
    expect(page.get_by_role("tabpanel", name="payload as hex")).to_contain_text("00 01 ff")


def test_purging_asks_first(visitor: Visitor, mq: ws.Client) -> None:
    name = unique("full")
    queue = mq.queue(name)
    queue.put_many(range(5))
    page = visitor.go(f"/queues/{name}")
    expect(figure(page, "Ready")).to_have_text("5")
    page.get_by_role("button", name="Purge").click()
    dialog = page.get_by_role("dialog", name=f"Purge {name}?")
    expect(dialog).to_contain_text("5 messages that are not in flight")
    dialog.get_by_role("button", name="Cancel").click()
    assert len(queue) == 5
    page.get_by_role("button", name="Purge").click()
    dialog.get_by_role("button", name="Purge").click()
    expect(figure(page, "Ready")).to_have_text("0")
    assert len(queue) == 0


def test_figures_and_consumers_are_live(visitor: Visitor, server: Server, mq: ws.Client) -> None:
    name = unique("live")
    queue = mq.queue(name, dead_letter=f"{name}.dead")
    page = visitor.go(f"/queues/{name}")
    expect(page.get_by_text("This queue has no consumers now.")).to_be_visible()
    host, port = server.addresses["amqp"].split(":")
    with pika.BlockingConnection(pika.ConnectionParameters(host, int(port))) as connection:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=5)
        channel.basic_consume(name, lambda *_: None, consumer_tag="worker-1")
        queue.put_many(range(12))
        wait_for(lambda: (connection.process_data_events(0), queue.describe().held == 5)[1], "the consumer holds five")
        row = row_of(page, "Consumers", "worker-1")
        expect(row).to_contain_text("amqp")
        expect(row.get_by_role("cell", name="5", exact=True).first).to_be_visible()
        expect(figure(page, "In flight")).to_have_text("5")
        expect(figure(page, "Ready")).to_have_text("7")
        chart = page.get_by_role("img", name=re.compile("Messages in the queue: ready 7, delayed 0, in flight 5"))
        expect(chart).to_be_visible()
        assert visitor.fits()
        assert_accessible(page)
    page.get_by_role("link", name=f"Dead letters in {name}.dead").click()
    expect(page.get_by_text(f"No dead letters yet: there is no queue {name}.dead.")).to_be_visible()
    visitor.forgive("404 (Not Found)")


@desktop_only
def test_live_updates_leave_alone_what_somebody_does_and_the_page_does_not_grow(
    visitor: Visitor, mq: ws.Client
) -> None:
    name = unique("busy")
    queues = [mq.queue(f"{name}.{i}") for i in range(10)]
    visitor.page.clock.install()
    page = visitor.go("/queues")
    search = page.get_by_label("Search")
    search.fill(name)
    expect(page.get_by_role("table", name="Queues").get_by_role("row")).to_have_count(11)
    search.press_sequentially(".")
    count = "document.querySelectorAll('*').length"
    before = 0
    for turn in range(12):
        queues[turn % 10].put({"turn": turn})
        with page.expect_response(re.compile(r"/v1/queues\?")):
            page.clock.run_for(LONG_MS)
        before = before or page.evaluate(count)
    expect(row_of(page, "Queues", f"{name}.0").get_by_role("cell", name="2", exact=True)).to_be_visible()
    expect(search).to_be_focused()
    expect(search).to_have_value(f"{name}.")
    assert page.evaluate(count) == before

    page.goto(f"{visitor.address}/#/queues/{name}.0")
    expect(page.get_by_role("button", name="Put a message")).to_be_visible()
    link = page.get_by_role("button", name=f"{name}.0#0", exact=True)
    link.focus()
    for _ in range(5):
        with page.expect_response(re.compile(f"/v1/queues/{name}.0$")):
            page.clock.run_for(LONG_MS)
    expect(link).to_be_focused()
    page.get_by_role("button", name="Put a message").click()
    page.get_by_label("Payload", exact=True).fill("half a sent")
    grown = page.evaluate(count)
    for _ in range(3):
        with page.expect_response(re.compile(f"/v1/queues/{name}.0$")):
            page.clock.run_for(LONG_MS)
    expect(page.get_by_label("Payload", exact=True)).to_have_value("half a sent")
    expect(page.get_by_label("Payload", exact=True)).to_be_focused()
    assert page.evaluate(count) <= grown
    kept = page.evaluate(
        """async () => {
          const { Trail } = await import("/ui/lib/following.js");
          const trail = new Trail(["ready"]);
          for (let i = 0; i < 1000; i += 1) trail.add(i, { ready: i });
          return [trail.times.length, trail.values.ready.length, trail.values.ready[0]];
        }"""
    )
    assert kept == [300, 300, 700]


def test_what_the_broker_says_is_shown(visitor: Visitor) -> None:
    name = unique("nowhere")
    page = visitor.go(f"/queues/{name}")
    expect(page.get_by_role("alert").first).to_contain_text(name)
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    assert_axe(page)
    visitor.forgive("404 (Not Found)")


@desktop_only
def test_a_page_outlives_a_restart_of_the_broker(visitor: Visitor, server: Server) -> None:
    name = unique("kept")
    visitor.api.put(f"/v1/queues/{name}", {})
    page = visitor.go("/queues")
    page.get_by_label("Search").fill(name)
    expect(row_of(page, "Queues", name)).to_be_visible()
    server.kill()
    expect(page.get_by_role("alert")).to_contain_text("the broker does not answer")
    page.get_by_label("Search").press_sequentially("-typed meanwhile")
    server.restart()
    expect(page.get_by_role("alert")).to_have_count(0)
    expect(page.get_by_label("Search")).to_have_value(f"{name}-typed meanwhile")
    page.get_by_label("Search").fill(name)
    visitor.api.post(f"/v1/queues/{name}/messages", {"payload": "new"})
    expect(row_of(page, "Queues", name).get_by_role("cell", name="1", exact=True)).to_be_visible()
    visitor.forgive("net::ERR_")
