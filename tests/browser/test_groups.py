"""The pages of groups: who reads what and how far behind they are; and resetting, which shows first what it will do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka as ck
import confluent_kafka.admin as cka
from playwright.sync_api import expect

import waystation as ws
from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import Visitor, desktop_only, row_of, spelled
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

MESSAGES = 30
PARTITIONS = 3


def filled(server: Server) -> str:
    """A topic with ten messages in each of its three partitions."""
    topic = unique("orders")
    admin = cka.AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([cka.NewTopic(topic, PARTITIONS)])[topic].result(30)
    producer = ck.Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5})
    for n in range(MESSAGES):
        producer.produce(topic, str(n), partition=n % PARTITIONS)
    assert producer.flush(30) == 0
    return topic


@contextmanager
def member(server: Server, group: str, topic: str) -> Iterator[Any]:
    """A Kafka consumer that has its partitions; it leaves the group at the end."""
    consumer = ck.Consumer(
        {
            "bootstrap.servers": server.bootstrap,
            "group.id": group,
            "client.id": "till-7",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe([topic])
        wait_for(lambda: (consumer.poll(0.1), consumer.assignment())[1], "the consumer has its partitions")
        yield consumer
    finally:
        consumer.close()


def test_members_lag_and_history_are_shown(visitor: Visitor, server: Server) -> None:
    topic, group = filled(server), unique("billing")
    with member(server, group, topic) as consumer:
        consumer.commit(offsets=[ck.TopicPartition(topic, n, n * 5) for n in range(PARTITIONS)], asynchronous=False)
        page = visitor.go("/groups")
        page.get_by_label("Search").fill(group)
        row = row_of(page, "Groups", group)
        expect(row).to_contain_text("classic")
        expect(row).to_contain_text("Stable")
        expect(row.get_by_role("cell", name=spelled(15))).to_be_visible()
        expect(row.get_by_role("link", name=topic)).to_be_visible()
        assert visitor.fits()
        assert_accessible(page)
        row.get_by_role("link", name=group, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(group)
        members = page.get_by_role("table", name="Members")
        expect(members).to_contain_text("till-7")
        expect(members).to_contain_text(f"{topic} 0–2")
        shown = visitor.api.get(f"/v1/groups/{group}")
        for name, value in (("Generation", str(shown["generation"])), ("Coordinator", f"node {shown['coordinator']}")):
            expect(page.locator(".stat", has_text=name)).to_contain_text(value)
        for partition, lag in ((0, 10), (1, 5), (2, 0)):
            expect(page.get_by_role("img", name=f"lag of {topic} {partition}: {lag}", exact=True)).to_be_visible()
        assert visitor.fits()
        assert_accessible(page)

        page.get_by_role("button", name="Reset offsets").click()
        dialog = page.get_by_role("dialog", name=f"Reset offsets of {group}")
        dialog.get_by_role("button", name="Preview").click()
        expect(dialog.get_by_role("alert")).to_contain_text("has 1 member")
        visitor.forgive("409 (Conflict)")
        dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("This group has no members now.")).to_be_visible()
    history = page.get_by_role("table", name="State history, the latest first")
    expect(history.get_by_role("row").nth(1)).to_contain_text("Empty")
    expect(history).to_contain_text("Stable")


def test_offsets_are_reset_after_a_preview_and_the_group_deleted(
    visitor: Visitor, server: Server, mq: ws.Client
) -> None:
    topic, group = filled(server), unique("audit")
    mq.commit_offsets(group, [(topic, n, 10) for n in range(PARTITIONS)])
    page = visitor.go(f"/groups/{group}")
    page.get_by_role("button", name="Reset offsets").click()
    dialog = page.get_by_role("dialog", name=f"Reset offsets of {group}")
    dialog.get_by_label("Topic").select_option(topic)
    dialog.get_by_label("Partitions").fill("0, 2")
    dialog.get_by_label("Continue from").select_option("back")
    dialog.get_by_label("Position").fill("4")
    dialog.get_by_role("button", name="Preview").click()
    preview = page.get_by_role("dialog", name=f"Reset {group} like this?")
    rows = preview.get_by_role("table", name="What would change").locator("tbody").get_by_role("row")
    expect(rows).to_have_count(2)
    for row, partition in ((rows.nth(0), "0"), (rows.nth(1), "2")):
        expect(row.get_by_role("cell")).to_have_text([topic, partition, "10", "6"])
    assert_accessible(page)
    assert _committed(server, group, topic) == [10, 10, 10]
    preview.get_by_role("button", name="Reset", exact=True).click()
    expect(page.get_by_role("img", name=f"lag of {topic} 2: 4", exact=True)).to_be_visible()
    assert _committed(server, group, topic) == [6, 10, 6]

    page.get_by_role("button", name="Delete", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"Delete {group}?")
    dialog.get_by_label(f"Type {group} to confirm").fill(group)
    dialog.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Groups and subscriptions")
    assert visitor.api.get(f"/v1/groups?search={group}")["groups"] == []
    assert_axe(page)


def _committed(server: Server, group: str, topic: str) -> list[int]:
    admin = cka.AdminClient({"bootstrap.servers": server.bootstrap})
    (found,) = admin.list_consumer_group_offsets([ck.ConsumerGroupTopicPartitions(group)]).values()
    offsets = {one.partition: one.offset for one in found.result(30).topic_partitions if one.topic == topic}
    return [offsets[n] for n in range(PARTITIONS)]


@desktop_only
def test_shared_subscriptions_are_groups_too(visitor: Visitor, server: Server, mq: ws.Client) -> None:
    topic, group = filled(server), unique("workers")
    with mq.subscribe(topic, group=group, start="earliest") as subscription:
        for message in subscription.poll(10, max=3):
            message.ack()
        page = visitor.go("/groups?kind=shared")
        page.get_by_label("Search").fill(group)
        row = row_of(page, "Groups", group)
        expect(row).to_contain_text("shared")
        row.get_by_role("link", name=group, exact=True).click()
        expect(page.get_by_role("table", name="Lag by partition").get_by_role("row")).to_have_count(PARTITIONS + 1)
        expect(page.get_by_role("table", name="Members").get_by_role("row")).to_have_count(2)
