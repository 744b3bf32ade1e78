"""The page of the cluster: nodes, partitions, those that are under-replicated, and what is being moved."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.conftest import SIZES
from tests.browser.kit import Visitor, desktop_only, row_of
from tests.support.cluster import ClusterOfThree
from tests.support.names import unique

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfThree]:
    with ClusterOfThree(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def operator(chromium: object, three: ClusterOfThree) -> Iterator[Visitor]:
    """Somebody who looks at the dashboard of node 1."""
    context = chromium.new_context(viewport=SIZES["desktop"])  # type: ignore[attr-defined]
    visitor = Visitor(context, f"http://{three.address(1, 'http')}", "desktop")
    yield visitor
    visitor.close()
    context.close()
    visitor.check()


@desktop_only
def test_a_broker_alone_is_a_cluster_of_one(visitor: Visitor) -> None:
    page = visitor.go("/cluster")
    expect(page.get_by_text("1 of 1")).to_be_visible()
    page.get_by_label("Show", exact=True).select_option("under-replicated")
    expect(page.get_by_text("Every replica is in sync.")).to_be_visible()
    assert_accessible(page)


def test_nodes_and_under_replicated_partitions_are_shown(operator: Visitor, three: ClusterOfThree) -> None:
    topic = three.create(unique("orders"), 3)
    three.wait_whole()
    page = operator.go(f"/cluster?search={topic}")
    expect(page.get_by_text("3 of 3")).to_be_visible()
    expect(page.get_by_role("table", name="Nodes").get_by_text("alive", exact=True)).to_have_count(3)
    partitions = page.get_by_role("table", name="Partitions")
    expect(partitions.get_by_role("link", name=topic)).to_have_count(3)
    assert operator.fits()
    assert_accessible(page)
    assert_axe(page)
    page.get_by_label("Show", exact=True).select_option("under-replicated")
    expect(page.get_by_text("No partition matches.")).to_be_visible()
    three.kill(3)
    expect(page.get_by_text("2 of 3")).to_be_visible()
    expect(row_of(page, "Nodes", three.address(2))).to_contain_text("alive")
    expect(page.get_by_role("table", name="Nodes").get_by_text("away", exact=True)).to_be_visible()
    expect(partitions.get_by_text("under-replicated", exact=True)).to_have_count(3)
    three.start_node(3)
    expect(page.get_by_text("No partition matches.")).to_be_visible()
    page.get_by_label("Show", exact=True).select_option("being moved")
    expect(page.get_by_text("No partition matches.")).to_be_visible()
