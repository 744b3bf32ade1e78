"""A real Chromium on a live broker. Whatever a page logs as an error, or asks of another host, fails its test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

import waystation
from tests.browser.chromium import ARGUMENTS, CHROMIUM
from tests.browser.kit import WAIT_MS, Visitor
from tests.support.server import Server

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
sync_api.expect.set_options(timeout=WAIT_MS)

SIZES = {"desktop": {"width": 1280, "height": 900}, "phone": {"width": 390, "height": 844}}


@pytest.fixture(scope="module")
def chromium() -> Iterator[object]:
    """One per file: while Playwright is open its event loop runs, and tests of other files want one of their own."""
    if CHROMIUM is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Chromium is missing; scripts/test-tools installs it")
        pytest.skip("Chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("browser")) as server:
        yield server


@pytest.fixture
def mq(server: Server) -> Iterator[waystation.Client]:
    """A client of the native protocol."""
    with waystation.connect(f"waystation://{server.bootstrap}") as client:
        yield client


@pytest.fixture(params=list(SIZES))
def visitor(request: pytest.FixtureRequest, chromium: object, server: Server) -> Iterator[Visitor]:
    """Somebody who looks at the dashboard of `server`, once on a desktop and once on a phone."""
    context = chromium.new_context(viewport=SIZES[request.param])  # type: ignore[attr-defined]
    visitor = Visitor(context, f"http://{server.addresses['http']}", request.param)
    yield visitor
    visitor.close()
    context.close()
    visitor.check()


ON_THE_PHONE = ("test_overview.py", "test_shell.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Some pages on a phone each time, all of them in `make soak`: a browser costs a core for seconds."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if parameters.get("visitor") == "phone" and item.path.name not in ON_THE_PHONE:
            item.add_marker(pytest.mark.soak)
