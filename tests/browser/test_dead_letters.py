"""The pages of dead letters: what happened to them, and the way back."""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

import waystation as ws
from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import Visitor, desktop_only, row_of
from tests.support.names import unique
from tests.support.waiting import wait_for

ERRORS = ["no van", "no van", "no van", "address unknown"]


def buried(mq: ws.Client, source: str, dead: str, count: int = 4) -> tuple[Any, Any]:
    """A queue and its dead letters `SOURCE-0`, `SOURCE-1`, …"""
    mq.queue(dead)
    queue = mq.queue(source, dead_letter=dead)
    for n in range(count):
        queue.put({"n": n}, id=f"{source}-{n}")
    while count:
        for message in queue.get_many(count, timeout=10):
            message.kill(ERRORS[message.json()["n"] % len(ERRORS)])
            count -= 1
    return queue, mq.queue(dead)


def test_the_story_of_dead_letters_is_told(visitor: Visitor, mq: ws.Client) -> None:
    source, dead = unique("parcels"), unique("dead")
    queue, letters = buried(mq, source, dead)
    wait_for(lambda: len(letters) == 4, "all are dead")
    page = visitor.go("/dead-letters")
    page.get_by_label("Search").fill(dead)
    row = row_of(page, "Dead-letter queues", dead)
    expect(row).to_contain_text("4")
    expect(row.get_by_role("link", name=source)).to_be_visible()
    assert visitor.fits()
    assert_accessible(page)
    row.get_by_role("link", name=dead, exact=True).click()
    expect(page.get_by_role("img", name="no van: 3")).to_be_visible()
    expect(page.get_by_role("img", name="rejected: 4")).to_be_visible()
    expect(page.get_by_role("img", name=f"{source}: 4")).to_be_visible()
    rows = page.get_by_role("table", name="Dead letters").locator("tbody").get_by_role("row")
    expect(rows).to_have_count(4)
    assert visitor.fits()
    assert_accessible(page)

    page.get_by_role("button", name="Only address unknown").click()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name=f"{source}-3", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"Message {source}-3")
    story = dialog.get_by_role("table", name="Failure history, the latest first")
    expect(story).to_contain_text("address unknown")
    expect(story.get_by_role("link", name=source)).to_be_visible()
    dialog.get_by_role("button", name="Redrive this one…").click()
    page.get_by_role("dialog", name=f"Redrive {source}-3").get_by_role("button", name="Redrive").click()
    expect(dialog).to_be_hidden()
    wait_for(lambda: [message.id for message in queue.peek()] == [f"{source}-3"], "it is back where it died")
    page.get_by_role("button", name="Any error").click()
    expect(rows).to_have_count(3)

    page.get_by_label("Filter").fill("json.n >")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("filter")
    visitor.forgive("400 (Bad Request)")
    page.get_by_label("Filter").fill("json.n >= 2")
    page.get_by_role("button", name="Filter", exact=True).click()
    expect(rows).to_have_count(1)


def test_selected_letters_are_sent_back_after_a_dry_run(visitor: Visitor, mq: ws.Client) -> None:
    source, dead = unique("scans"), unique("dead")
    queue, letters = buried(mq, source, dead)
    wait_for(lambda: len(letters) == 4, "all are dead")
    page = visitor.go(f"/dead-letters/{dead}")
    page.get_by_label(f"Select {source}-1").check()
    page.get_by_label(f"Select {source}-2").check()
    expect(page.get_by_text("2 selected")).to_be_visible()
    page.get_by_role("button", name="Redrive the selected…").click()
    dialog = page.get_by_role("dialog", name="Redrive 2 selected")
    dialog.get_by_role("button", name="Dry run").click()
    preview = dialog.get_by_role("status")
    expect(preview).to_contain_text("2 would be moved to")
    expect(preview.get_by_text(source, exact=True)).to_be_visible()
    assert len(queue) == 0
    assert visitor.fits()
    dialog.get_by_role("button", name="Redrive", exact=True).click()
    expect(page.get_by_label("Redrives").get_by_text("2 of", exact=False)).to_be_visible()
    expect(page.get_by_label("Redrives").get_by_text("done", exact=True)).to_be_visible()
    expect(page.get_by_role("table", name="Dead letters").locator("tbody").get_by_role("row")).to_have_count(2)
    expect(page.get_by_text("None selected")).to_be_visible()
    assert sorted(message.id for message in queue.peek()) == [f"{source}-1", f"{source}-2"]
    assert sorted(message.id for message in letters.peek()) == [f"{source}-0", f"{source}-3"]


def test_a_filter_chooses_what_goes_elsewhere(visitor: Visitor, mq: ws.Client) -> None:
    source, dead, other = unique("mails"), unique("dead"), unique("other")
    queue, letters = buried(mq, source, dead)
    elsewhere = mq.queue(other)
    wait_for(lambda: len(letters) == 4, "all are dead")
    page = visitor.go(f"/dead-letters/{dead}?filter=json.n%20%3E%201")
    page.get_by_role("button", name="Redrive all that match…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("To", exact=True).fill(other)
    dialog.get_by_label("Maximum number").fill("1")
    dialog.get_by_role("button", name="Dry run").click()
    expect(dialog.get_by_role("status")).to_contain_text("1 would be moved to")
    dialog.get_by_role("button", name="Redrive", exact=True).click()
    expect(dialog).to_be_hidden()
    wait_for(lambda: [message.id for message in elsewhere.peek()] == [f"{source}-2"], "the first that matches is there")
    assert (len(queue), len(letters)) == (0, 3)
    # What the bars narrow the list to can be selected as a whole, and sent back one by one.
    page = visitor.go(f"/dead-letters/{dead}?error=no%20van")
    page.get_by_role("button", name="Select all that match").click()
    expect(page.get_by_text("2 selected")).to_be_visible()
    assert_axe(page)


@desktop_only
def test_a_slow_redrive_shows_how_far_it_is_and_can_be_stopped(visitor: Visitor, mq: ws.Client) -> None:
    source, dead = unique("slow"), unique("dead")
    queue, letters = buried(mq, source, dead, 60)
    wait_for(lambda: len(letters) == 60, "all are dead")
    page = visitor.go(f"/dead-letters/{dead}")
    page.get_by_role("button", name="Redrive all…").click()
    dialog = page.get_by_role("dialog", name="Redrive all dead letters here")
    dialog.get_by_label("Maximum per second").fill("1")
    dialog.get_by_role("button", name="Redrive", exact=True).click()
    way = page.get_by_label("Redrives")
    expect(way.get_by_text("running", exact=True)).to_be_visible()
    expect(way.get_by_role("progressbar")).to_be_visible()
    expect(way.get_by_text(re.compile(r"^[1-9]\d* of 60 redriven"))).to_be_visible()
    page.reload()
    way.get_by_role("button", name=re.compile("^Stop job")).click()
    page.get_by_role("dialog").get_by_role("button", name="Stop", exact=True).click()
    expect(way.get_by_text("cancelled", exact=True)).to_be_visible()
    assert len(queue) + len(letters) == 60
    assert len(letters) > 0
