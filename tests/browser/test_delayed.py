"""The page of delayed messages: what waits, in the order of the times, and how to call it off."""

from __future__ import annotations

from playwright.sync_api import expect

import waystation as ws
from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import Visitor, row_of
from tests.support.names import unique
from tests.support.waiting import wait_for


def test_what_waits_is_shown_in_the_order_of_its_times_and_cancelled(visitor: Visitor, mq: ws.Client) -> None:
    name = unique("later")
    queue = mq.queue(name, retry=ws.Retry(base=500))
    for seconds in (900, 300, 600):
        queue.put({"in": seconds}, delay=seconds, id=f"in-{seconds}", priority=2)
    queue.put({"now": True}, id="failed")
    message = queue.get(timeout=5)
    message.reject("not today")
    wait_for(lambda: queue.describe().parked == 4, "the failed one waits, too")

    page = visitor.go("/delayed")
    page.get_by_label("Search").fill(name)
    row = row_of(page, "Queues with delayed messages", name)
    expect(row.get_by_role("cell", name="4", exact=True)).to_be_visible()
    assert visitor.fits()
    assert_accessible(page)
    row.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Delayed in {name}")
    rows = page.get_by_role("table", name="Delayed messages").locator("tbody").get_by_role("row")
    expect(rows).to_have_count(4)
    for number, message_id in enumerate(["in-300", "failed", "in-600", "in-900"]):
        expect(rows.nth(number).get_by_role("button", name=message_id, exact=True)).to_be_visible()
    expect(rows.nth(1)).to_contain_text("retry")
    expect(rows.nth(0)).to_contain_text("delayed")
    assert visitor.fits()
    assert_accessible(page)

    page.get_by_role("button", name="in-600", exact=True).click()
    expect(page.get_by_role("dialog", name="Message in-600")).to_contain_text('"in": 600')
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Cancel in-600").click()
    dialog = page.get_by_role("dialog", name="Cancel this message?")
    expect(dialog).to_contain_text("is never delivered")
    dialog.get_by_role("button", name="Cancel", exact=True).click()
    assert queue.find("in-600") is not None
    page.get_by_role("button", name="Cancel in-600").click()
    dialog.get_by_role("button", name="Cancel the message").click()
    expect(rows).to_have_count(3)
    assert queue.find("in-600") is None
    assert queue.find("in-300") is not None


def test_what_waits_for_a_topic_is_shown_and_cancelled(visitor: Visitor, mq: ws.Client) -> None:
    topic = unique("news")
    mq.publish(topic, {"now": True})
    mq.publish(topic, {"later": True}, delay=600, id=f"{topic}-1")
    page = visitor.go("/delayed")
    page.get_by_role("link", name="to be published to topics").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Delayed to topics")
    expect(row_of(page, "Delayed messages", f"{topic}-1")).to_contain_text(topic)
    page.get_by_role("button", name=f"Cancel {topic}-1").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the message").click()
    expect(page.get_by_text(f"{topic}-1", exact=True)).to_have_count(0)
    waiting = visitor.api.get(f"/v1/delayed?topic={topic}")["messages"]
    assert waiting == []
    assert visitor.fits()
    assert_axe(page)
