"""The frame around the pages: navigation, theme, token, protection, and a broker that goes away and comes back."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from playwright.sync_api import expect

from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import PAGES, Api, Visitor, desktop_only, row_of
from tests.security.users_kit import add_users
from tests.support.names import unique
from tests.support.server import Server

TOKEN = "open-sesame-42"


def test_every_page_is_reached_by_the_navigation_and_usable_by_all(visitor: Visitor) -> None:
    page = visitor.go()
    for name in PAGES:
        if visitor.size == "phone":
            page.get_by_role("button", name="Menu").click()
        page.get_by_role("navigation", name="Pages").get_by_role("link", name=name, exact=True).click()
        expect(page).to_have_title(f"{name} · Waystation")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_role("alert")).to_have_count(0)
        assert visitor.fits(), name
        assert_accessible(page)
        expect(page.get_by_role("link", name=name, exact=True, include_hidden=True).first).to_have_attribute(
            "aria-current", "page"
        )


@desktop_only
@pytest.mark.parametrize("place", PAGES.values(), ids=PAGES)
def test_axe_finds_nothing(visitor: Visitor, place: str) -> None:
    page = visitor.go(place)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert_axe(page)


def test_the_theme_is_switched_and_remembered(visitor: Visitor) -> None:
    page = visitor.go("/settings")
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "light")
    page.emulate_media(color_scheme="dark")  # nothing was chosen yet: it follows the system
    expect(root).to_have_attribute("data-theme", "dark")
    page.get_by_role("button", name="Switch between light and dark").press("Enter")
    expect(root).to_have_attribute("data-theme", "light")
    page.reload()
    expect(root).to_have_attribute("data-theme", "light")
    page.get_by_role("button", name="Switch between light and dark").click()
    expect(root).to_have_attribute("data-theme", "dark")


@desktop_only
def test_the_first_tab_skips_to_the_content(visitor: Visitor) -> None:
    page = visitor.go("/settings")
    page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("Search settings")).to_be_focused()


@desktop_only
def test_addresses_that_make_no_sense_lead_back(visitor: Visitor) -> None:
    page = visitor.go("/nowhere/%")
    expect(page.get_by_role("heading", level=1)).to_have_text("There is no such page")
    page.get_by_role("link", name="Back to the overview").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Overview")


# -- who may ----------------------------------------------------------------------------------------------------------


def test_a_link_wins_over_a_search_that_was_just_typed(visitor: Visitor) -> None:
    """The search is written to the address a moment later: then the address may be another one already."""
    page = visitor.go("/delayed")
    page.get_by_label("Search").wait_for()
    page.evaluate("""() => {
      const input = document.querySelector('input[name="search"]');
      const later = [], setTimeout = window.setTimeout;
      window.setTimeout = (work) => later.push(work);
      input.value = "orders";
      input.dispatchEvent(new Event("input"));
      window.setTimeout = setTimeout;
      location.hash = "#/delayed?topics=true";
      for (const work of later) work();
    }""")
    expect(page.get_by_role("heading", level=1)).to_have_text("Delayed to topics")


def test_a_broker_with_a_token_asks_for_it_once(chromium: Any, tmp_path: Path) -> None:
    with Server(tmp_path, settings={"waystation.http.token": TOKEN}) as server:
        address = f"http://{server.addresses['http']}"
        api = Api(address, TOKEN)
        topic = unique("guarded")
        api.put(f"/v1/topics/{topic}", {})
        context = chromium.new_context()
        visitor = Visitor(context, address, "desktop")
        try:
            page = visitor.page
            page.goto(f"{address}/#/topics")
            dialog = page.get_by_role("dialog", name="This broker asks for a token")
            expect(dialog.get_by_label("Token")).to_be_focused()
            page.keyboard.press("Escape")  # who has closed it is left alone, and can ask for it
            page.get_by_role("button", name="Enter a token").click()
            dialog.get_by_label("Token").fill("wrong")
            page.keyboard.press("Enter")
            expect(dialog.get_by_role("alert")).to_contain_text("the token is not the one")
            assert_accessible(page)
            dialog.get_by_label("Token").fill(TOKEN)
            page.keyboard.press("Enter")
            expect(page.get_by_role("link", name=topic, exact=True)).to_be_visible()
            expect(page.locator("#health")).not_to_have_text("not connected")
            page.goto(f"{address}/#/topics/{topic}?tab=publish")
            page.get_by_label("Payload", exact=True).fill("1")
            page.get_by_role("button", name="Publish").click()
            expect(page.get_by_text("It is stored in partition 0 at offset 0.")).to_be_visible()
            assert api.get(f"/v1/topics/{topic}")["messages"] == 1
            visitor.forgive("401")
            visitor.check()
        finally:
            context.close()
        with pytest.raises(HTTPError, match="401"):
            Api(address).publish(topic, {"payload": "nobody"})


def test_a_broker_with_users_asks_for_name_and_password(chromium: Any, tmp_path: Path) -> None:
    add_users(tmp_path / "data", {"admin": "admin-secret"})
    with Server(tmp_path, settings={"connection.failed.authentication.delay.ms": 1}) as server:
        address = f"http://{server.addresses['http']}"
        context = chromium.new_context()
        visitor = Visitor(context, address, "desktop")
        try:
            page = visitor.page
            page.goto(f"{address}/#/topics")
            dialog = page.get_by_role("dialog", name="Log in")
            expect(dialog.get_by_label("User")).to_be_focused()
            page.keyboard.press("Escape")
            page.get_by_role("button", name="Log in").click()
            dialog.get_by_label("User").fill("admin")
            dialog.get_by_label("Password").fill("wrong")
            page.keyboard.press("Enter")
            expect(dialog.get_by_role("alert")).to_contain_text("wrong name or password")
            assert_accessible(page)
            dialog.get_by_label("Password").fill("admin-secret")
            page.keyboard.press("Enter")
            expect(dialog).not_to_be_visible()
            expect(page.locator("#health")).not_to_have_text("not connected")
            topic = unique("guarded")
            page.evaluate("name => fetch(`/v1/topics/${name}`, { method: 'PUT', body: '{}' })", topic)
            page.goto(f"{address}/#/topics/{topic}?tab=publish")
            page.get_by_label("Payload", exact=True).fill("1")
            page.get_by_role("button", name="Publish").click()
            expect(page.get_by_text("It is stored in partition 0 at offset 0.")).to_be_visible()
            assert page.evaluate("document.cookie") == "", "no script sees the session"
            visitor.forgive("401")
            visitor.check()
        finally:
            context.close()


class _ForeignPage(BaseHTTPRequestHandler):
    """A page of somebody else that tries to publish by the visitor's browser."""

    target = ""

    def do_GET(self) -> None:
        script = f"""<!doctype html><title>elsewhere</title><form method="post" enctype="text/plain"
            action="{self.target}" target="there"><input name='{{"payload": "by a form", "x' value='": 1}}'></form>
            <iframe name="there"></iframe><script>
            document.forms[0].submit();
            Promise.allSettled(["text/plain", "application/json"].map(kind =>
              fetch("{self.target}", {{method: "POST", mode: kind === "text/plain" ? "no-cors" : "cors",
                headers: {{"content-type": kind}}, body: '{{"payload": "by a script"}}'}})))
              .then(() => {{ document.title = "tried" }});</script>"""
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(script.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""


@contextmanager
def foreign_page(target: str) -> Iterator[str]:
    handler = type("Handler", (_ForeignPage,), {"target": target})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever, daemon=True)
        thread.start()
        yield f"http://localhost:{web.server_port}/"
        web.shutdown()
        thread.join()


def test_a_page_of_another_site_cannot_post(chromium: Any, server: Server) -> None:
    api = Api(f"http://{server.addresses['http']}")
    topic = unique("foreign")
    api.put(f"/v1/topics/{topic}", {})
    answers: list[int] = []
    context = chromium.new_context()
    try:
        page = context.new_page()
        page.on("response", lambda answer: answers.append(answer.status) if topic in answer.url else None)
        with foreign_page(f"{api.address}/v1/topics/{topic}/messages") as address:
            page.goto(address)
            expect(page).to_have_title("tried")
            page.wait_for_load_state("networkidle")
    finally:
        context.close()
    assert api.get(f"/v1/topics/{topic}")["messages"] == 0
    assert answers
    assert set(answers) == {403}


@desktop_only
def test_the_policy_lets_nothing_in_from_elsewhere(visitor: Visitor) -> None:
    page = visitor.go("/settings")
    for path in ("/", "/ui/app.js", "/ui/style.css", "/ui/pages/topics.js"):
        with urlopen(Request(f"{visitor.address}{path}", headers={"accept": "text/html"}), timeout=30) as answer:
            policy = answer.headers["content-security-policy"]
            tag = answer.headers["etag"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        with pytest.raises(HTTPError, match="304"):
            urlopen(Request(f"{visitor.address}{path}", headers={"accept": "text/html", "if-none-match": tag}))
    ran = page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.head.append(script);
          return Boolean(window.ran);
        }"""
    )
    assert not ran
    assert [fault for fault in visitor.faults if "Content Security Policy" in fault]
    visitor.forgive("Content Security Policy")


# -- away and back ----------------------------------------------------------------------------------------------------


def test_a_page_stays_usable_over_a_restart_of_the_broker(chromium: Any, tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        address = f"http://{server.addresses['http']}"
        api = Api(address)
        topic, later = unique("before"), unique("later")
        api.publish(topic, {"payload": "1"})
        context = chromium.new_context()
        visitor = Visitor(context, address, "desktop")
        try:
            form = visitor.go(f"/topics/{topic}?tab=publish")
            form.get_by_label("Payload", exact=True).fill("typed before")
            lists = Visitor(context, address, "desktop")
            page = lists.go("/topics")
            expect(row_of(page, "Topics", topic)).to_be_visible()
            server.kill()
            expect(page.locator("#health")).to_have_text("not connected")
            expect(row_of(page, "Topics", topic)).to_be_visible()  # what was shown stays
            page.get_by_role("link", name="Settings", exact=True).click()  # a page that cannot be shown now
            expect(page.get_by_role("alert")).to_contain_text("does not answer")
            server.restart()
            api.publish(later, {"payload": "2"})
            expect(row_of(page, "Settings", "num.partitions")).to_be_visible()
            page.get_by_role("link", name="Topics", exact=True).click()
            expect(row_of(page, "Topics", later)).to_be_visible()
            expect(page.locator("#health")).not_to_have_text("not connected")
            expect(form.get_by_label("Payload", exact=True)).to_have_value("typed before")
            form.get_by_role("button", name="Publish").click()
            expect(form.get_by_text(re.compile("It is stored in partition 0 at offset 1"))).to_be_visible()
            for one in (visitor, lists):
                one.forgive("ERR_CONNECTION_REFUSED")
                one.forgive("ERR_INCOMPLETE_CHUNKED_ENCODING")
                one.forgive("ERR_CONNECTION_RESET")
                one.forgive("ERR_EMPTY_RESPONSE")
                one.check()
        finally:
            context.close()
