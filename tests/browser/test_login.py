"""The dashboard of a broker that asks everybody who they are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.kit import Visitor, desktop_only
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("login")
    add_users(folder / "data", PASSWORDS, superusers=["admin"])
    with Server(folder) as server:
        yield server


@desktop_only
def test_the_page_asks_for_the_password_and_the_browser_does_not(visitor: Visitor) -> None:
    visitor.forgive("401")
    refused: list[str] = []

    def note(answer: object) -> None:
        if answer.status == 401:  # type: ignore[attr-defined]
            refused.append(answer.headers["www-authenticate"])  # type: ignore[attr-defined]

    visitor.page.on("response", note)
    page = visitor.go("/topics")
    dialog = page.get_by_role("dialog", name="Log in")
    dialog.get_by_label("Password").fill("wrong")
    dialog.get_by_label("User").fill("admin")
    dialog.get_by_role("button", name="Log in").click()
    expect(dialog).to_contain_text("wrong name or password")
    dialog.get_by_label("Password").fill(PASSWORDS["admin"])
    dialog.get_by_role("button", name="Log in").click()
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    assert len(refused) >= 2
    assert set(refused) == {"Bearer"}
