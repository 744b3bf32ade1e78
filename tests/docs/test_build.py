"""The site is built without a warning, has every page, and asks no other host for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.browser.chromium import ARGUMENTS, CHROMIUM
from tests.support.server import ROOT

DOCS = ROOT / "docs"
BUILD_S = 280


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--keep-going", "--quiet"]
    command += ["--doctree-dir", str(folder / "doctrees"), str(DOCS), str(folder / "html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


class Assets(HTMLParser):
    """Collects what a browser fetches by itself when it shows a page; a link that somebody may click is not that."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if tag == "a":
            self.links.add(values.get("href", ""))
            return
        self.found.update(values[name] for name in ("src", "href", "data", "poster", "action") if name in values)
        self.found.update(source.split()[0] for source in values.get("srcset", "").split(",") if source.strip())
        self.found.update(re.findall(r"url\(([^)]*)\)", values.get("style", "")))


def read(page: Path) -> Assets:
    assets = Assets()
    assets.feed(page.read_text())
    return assets


def test_every_page_is_in_the_site_and_in_its_navigation(site: Path) -> None:
    pages = {str(page.relative_to(DOCS).with_suffix(".html")) for page in DOCS.rglob("*.md")}
    links = read(site / "index.html").links
    assert {page for page in pages if not (site / page).exists()} == set()
    assert pages - links - {"index.html"} == set()


def test_no_page_asks_another_host_for_anything(site: Path) -> None:
    outside = re.compile(r"^[\s'\"]*(?:[a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
    asked = {
        f"{page.relative_to(site)}: {asset}"
        for page in site.rglob("*.html")
        for asset in read(page).found
        if outside.match(asset)
    }
    for sheet in site.rglob("*.css"):
        named = re.findall(r"(?:url\(|@import\s+)([^);]*)", sheet.read_text())
        asked.update(f"{sheet.relative_to(site)}: {name}" for name in named if outside.match(name))
    assert asked == set()


def test_what_a_page_fetches_is_there(site: Path) -> None:
    missing = {
        f"{page.relative_to(site)}: {asset}"
        for page in site.rglob("*.html")
        for asset in read(page).found
        if (path := asset.partition("?")[0].partition("#")[0])
        and not path.startswith("data:")
        and not (page.parent / path).exists()
    }
    assert missing == set()


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_the_search_finds_a_page_without_asking_another_host(site: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{(site / 'search.html').as_uri()}?q=redrive")
        found = page.locator("#search-results a[href*='redrive-dead-letters.html']").first
        sync_api.expect(found).to_be_visible(timeout=30_000)
        found.click()
        sync_api.expect(page.locator("h1")).to_contain_text("Redrive dead letters")
        browser.close()
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
