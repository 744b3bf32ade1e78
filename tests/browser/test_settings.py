"""The page of settings: what holds, where it comes from, and a change that the broker takes."""

from __future__ import annotations

from collections.abc import Iterator

import confluent_kafka.admin as cka
import pytest
from playwright.sync_api import expect

from tests.browser.a11y import assert_accessible
from tests.browser.kit import Visitor, desktop_only, row_of
from tests.support.server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("settings"), settings={"num.partitions": 2}) as server:
        yield server


def value_of(visitor: Visitor, name: str) -> str:
    found = visitor.api.get(f"/v1/settings?search={name}")["settings"]
    return str(next(one["value"] for one in found if one["name"] == name))


def test_a_setting_is_found_changed_and_taken_back(visitor: Visitor, server: Server) -> None:
    page = visitor.go("/settings")
    row = row_of(page, "Settings", "num.partitions")
    expect(row.get_by_text("flag", exact=True)).to_be_visible()
    page.get_by_label("Search settings").fill("log.retention.ms")
    expect(row).to_have_count(0)
    changed = row_of(page, "Settings", "log.retention.ms")
    expect(changed.get_by_text("default", exact=True)).to_be_visible()
    assert visitor.fits()
    assert_accessible(page)

    page.get_by_role("button", name="Change log.retention.ms").press("Enter")
    field = page.get_by_role("dialog").get_by_label("log.retention.ms", exact=True)
    expect(field).to_be_focused()
    field.fill("7654321")
    page.keyboard.press("Enter")
    expect(changed.get_by_text("7654321", exact=True)).to_be_visible()
    expect(changed.get_by_text("changed", exact=True)).to_be_visible()
    admin = cka.AdminClient({"bootstrap.servers": server.bootstrap})
    resource = cka.ConfigResource(cka.ResourceType.BROKER, "1")
    seen = admin.describe_configs([resource])[resource].result(30)
    assert seen["log.retention.ms"].value == "7654321"

    page.get_by_role("button", name="Change log.retention.ms").click()
    page.get_by_label("Back to the default").check()
    page.get_by_role("button", name="Save").click()
    expect(changed.get_by_text("default", exact=True)).to_be_visible()
    assert value_of(visitor, "log.retention.ms") != "7654321"


@desktop_only
def test_a_value_that_makes_no_sense_is_refused_in_a_sentence(visitor: Visitor) -> None:
    page = visitor.go("/settings?search=num.partitions")
    page.get_by_role("button", name="Change num.partitions").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("num.partitions", exact=True).fill("many")
    dialog.get_by_role("button", name="Save").click()
    expect(dialog.get_by_role("alert")).to_contain_text("many")
    assert_accessible(page)
    dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_have_count(0)
    assert value_of(visitor, "num.partitions") == "2"
    visitor.forgive("400")


@desktop_only
def test_what_only_a_start_can_change_has_no_button(visitor: Visitor) -> None:
    page = visitor.go("/settings?search=waystation.http.token")
    expect(row_of(page, "Settings", "waystation.http.token")).to_contain_text("at the next start")
    expect(page.get_by_role("button", name="Change waystation.http.token")).to_have_count(0)
