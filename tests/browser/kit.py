"""What browser tests share: a visitor that goes to pages and remembers everything a page did wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote, urlsplit
from urllib.request import Request, urlopen

import pytest

WAIT_MS = 20_000
"""How long a locator waits for what it needs; long enough for a loaded machine with two cores."""

PAGES = {
    "Overview": "/",
    "Topics": "/topics",
    "Queues": "/queues",
    "Delayed": "/delayed",
    "Groups": "/groups",
    "Dead letters": "/dead-letters",
    "Routing": "/routing",
    "Pipelines": "/pipelines",
    "Connections": "/connections",
    "Cluster": "/cluster",
    "Settings": "/settings",
}
"""Every page of the navigation, and where it is."""

desktop_only = pytest.mark.parametrize("visitor", ["desktop"], indirect=True)
"""For what the width of the window has no part in."""


class Api:
    """The broker's HTTP API, to put things there and to see what an action of a page did."""

    def __init__(self, address: str, token: str = "") -> None:
        self.address = address
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    def call(self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None) -> Any:
        """The answer's JSON; an HTTPError for a refusal."""
        data = None if body is None else json.dumps(body).encode()
        sent = {**self._headers, "content-type": "application/json", **(headers or {})}
        with urlopen(Request(f"{self.address}{path}", data, sent, method=method), timeout=30) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: object) -> Any:
        return self.call("POST", path, body)

    def put(self, path: str, body: object) -> Any:
        return self.call("PUT", path, body)

    def patch(self, path: str, body: object) -> Any:
        return self.call("PATCH", path, body)

    def delete(self, path: str) -> Any:
        return self.call("DELETE", path)

    def has(self, path: str) -> bool:
        """Whether there is something at a path."""
        try:
            self.get(path)
        except HTTPError as error:
            if error.code == 404:
                return False
            raise
        return True

    def publish(self, topic: str, *messages: dict[str, Any], partition: int | None = None) -> Any:
        where = "" if partition is None else f"?partition={partition}"
        return self.post(f"/v1/topics/{quote(topic, safe='')}/messages{where}", list(messages))


def spelled(number: int) -> re.Pattern[str]:
    """A number as the dashboard writes it, with thin spaces between thousands, as the whole text of a cell."""
    return re.compile("^" + f"{number:,}".replace(",", r"\s") + "$")


def row_of(page: Any, table: str, text: str) -> Any:
    """The row of a table that has a cell or a link with exactly this text."""
    rows = page.get_by_role("table", name=table, exact=True).get_by_role("row")
    return rows.filter(has=page.get_by_text(text, exact=True))


def chosen_tab(page: Any, name: str) -> Any:
    """Goes to a tab, and returns its panel."""
    page.get_by_role("tab", name=name, exact=True).click()
    return page.get_by_role("tabpanel", name=name, exact=True)


class Visitor:
    """One browser window. `check` fails for console errors, uncaught exceptions and requests to other hosts."""

    def __init__(self, context: Any, address: str, size: str) -> None:
        self.address = address
        self.size = size
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.api = Api(address)
        self.faults: list[str] = []
        self._forgiven: list[str] = []
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.faults.append(f"uncaught: {error}"))
        self.page.on("request", self._request)

    def go(self, place: str = "/") -> Any:
        """To `#/PLACE`; returns the page."""
        self.page.goto(f"{self.address}/#{place}")
        self.page.wait_for_selector("main h1")
        return self.page

    def forgive(self, part: str) -> None:
        """A fault that the test provokes on purpose. A page that asks again may show it again."""
        self._forgiven.append(part)

    def check(self) -> None:
        faults = [fault for fault in self.faults if not any(part in fault for part in self._forgiven)]
        assert not faults, "\n".join(faults)

    def fits(self) -> bool:
        """Whether the page is no wider than the window."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth + 1"))

    def close(self) -> None:
        self.page.close()

    def _console(self, message: Any) -> None:
        if message.type == "error":
            self.faults.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws") and f"http://{parts.netloc}" != self.address:
            self.faults.append(f"left the host: {request.url}")
