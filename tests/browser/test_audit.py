"""The page of the audit log."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

import waystation as ws
from tests.browser.a11y import assert_accessible
from tests.browser.kit import Visitor, row_of
from tests.support.names import unique
from tests.support.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It records without users."""
    with Server(tmp_path_factory.mktemp("audit"), settings={"waystation.audit": "on"}) as server:
        yield server


def test_changes_are_shown_and_found(visitor: Visitor, mq: ws.Client) -> None:
    name = unique("audited")
    mq.queue(name)
    page = visitor.go("/audit")
    row = row_of(page, "Audit log", f"create queue {name}")
    expect(row).to_contain_text("ok")
    page.get_by_label("Kind").select_option("refusal")
    expect(page.get_by_text("No entry matches.")).to_be_visible()
    page.get_by_label("Kind").select_option("change")
    page.get_by_label("Search entries").fill(name)
    expect(page.get_by_role("table", name="Audit log").locator("tbody").get_by_role("row")).to_have_count(1)
    assert visitor.fits()
    assert_accessible(page)
