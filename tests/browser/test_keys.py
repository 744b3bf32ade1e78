"""The page of API keys."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import requests
from playwright.sync_api import expect

from tests.browser.a11y import assert_accessible
from tests.browser.kit import Api, Visitor, row_of
from tests.support.names import unique
from tests.support.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """It has users, and asks nobody."""
    with Server(tmp_path_factory.mktemp("keys"), settings={"auth.required": "false"}) as server:
        yield server


def test_a_key_is_made_shown_once_and_revoked(visitor: Visitor, server: Server) -> None:
    address = f"http://{server.addresses['http']}"
    user = unique("user")
    Api(address).post("/v1/users", {"user": user, "password": "secret"})
    page = visitor.go("/keys")
    page.get_by_role("button", name="New key…").click()
    page.get_by_label("User").fill(user)
    page.get_by_label("Role").select_option("read-only")
    page.get_by_label("Note").fill("for a test")
    page.get_by_role("button", name="Create").click()
    told = page.get_by_role("dialog", name="The new key")
    secret = told.locator("code").inner_text()
    who = requests.get(f"{address}/v1/whoami", headers={"authorization": f"Bearer {secret}"}, timeout=20).json()
    assert who["user"] == user
    told.get_by_role("button", name="Close").click()
    expect(told).to_have_count(0)
    row = row_of(page, "API keys", user)
    expect(row).to_contain_text("read-only")
    expect(row).to_contain_text("for a test")
    assert secret not in page.content()
    assert visitor.fits()
    assert_accessible(page)
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_have_count(0)
    answer = requests.get(f"{address}/v1/overview", headers={"authorization": f"Bearer {secret}"}, timeout=20)
    assert answer.status_code == 401
