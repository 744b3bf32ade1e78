"""The pages of topics: what clients put there is shown, and every action does what it says."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import confluent_kafka as ck
import confluent_kafka.admin as cka
from playwright.sync_api import expect

from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import Visitor, chosen_tab, desktop_only, row_of, spelled
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for


def produce(server: Server, topic: str, count: int, *, partitions: int = 1, **fields: Any) -> None:
    """Messages `{"n": 0}`, `{"n": 1}`, … with the keys k0, k1, k2 in turn, by a Kafka client."""
    admin = cka.AdminClient({"bootstrap.servers": server.bootstrap})
    admin.create_topics([cka.NewTopic(topic, partitions)])[topic].result(30)
    producer = ck.Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5})
    for i in range(count):
        producer.produce(topic, f'{{"n": {i}}}', key=f"k{i % 3}", partition=i % partitions, **fields)
    assert producer.flush(30) == 0


def consume_one(server: Server, topic: str) -> ck.Message:
    settings = {"bootstrap.servers": server.bootstrap, "group.id": unique("g"), "auto.offset.reset": "earliest"}
    consumer = ck.Consumer(settings)
    try:
        consumer.subscribe([topic])
        return wait_for(lambda: consumer.poll(0.5), "a message for the Kafka consumer")
    finally:
        consumer.close()


def test_topics_of_a_kafka_client_are_listed_and_found(visitor: Visitor, server: Server) -> None:
    topic = unique("orders")
    produce(server, topic, 1234, partitions=3)
    page = visitor.go("/topics")
    page.get_by_label("Search topics").fill(topic[:-1])
    row = row_of(page, "Topics", topic)
    expect(row.get_by_role("cell", name=spelled(3))).to_be_visible()
    expect(row.get_by_role("cell", name=spelled(1234))).to_be_visible()
    expect(row.get_by_text("delete", exact=True)).to_be_visible()
    page.get_by_label("Search topics").fill("no topic is called this")
    expect(page.get_by_text("No topic has “no topic is called this” in its name.")).to_be_visible()
    page.reload()
    expect(page.get_by_label("Search topics")).to_have_value("no topic is called this")
    page.get_by_label("Search topics").fill(topic)
    assert visitor.fits()
    assert_accessible(page)
    page.get_by_role("link", name=topic, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(topic)
    expect(page.get_by_role("table", name="Partitions").get_by_role("row")).to_have_count(4)
    expect(page.get_by_role("table", name="Partitions").get_by_role("cell", name=spelled(412)).first).to_be_visible()
    assert visitor.fits()
    assert_accessible(page)
    assert_axe(page)


@desktop_only
def test_watermarks_leader_and_when_it_was_made_are_shown(visitor: Visitor, server: Server) -> None:
    """A message of an open transaction is below the high watermark, and not stable. What is counted are offsets."""
    topic = unique("orders")
    produce(server, topic, 2)
    producer = ck.Producer({"bootstrap.servers": server.bootstrap, "transactional.id": unique("tx")})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, "open")
    assert producer.flush(30) == 0
    page = visitor.go(f"/topics/{topic}")
    row = page.get_by_role("table", name="Partitions").get_by_role("row").nth(1)
    cells = row.get_by_role("cell")
    # partition, leader, start, last stable, high watermark, end, offsets
    for column, text in enumerate(["0", "1 (epoch 0)", "0", "2", "3", "3", "3"]):
        expect(cells.nth(column)).to_have_text(text)
    expect(page.get_by_text("Created", exact=True)).to_be_visible()
    producer.abort_transaction(30)
    expect(cells.nth(3)).to_have_text("4")
    page = visitor.go(f"/topics?search={topic}")
    expect(page.get_by_role("table", name="Topics").get_by_role("columnheader", name="Offsets")).to_be_visible()
    expect(row_of(page, "Topics", topic).get_by_role("cell", name=spelled(4))).to_be_visible()


@desktop_only
def test_many_topics_are_shown_page_by_page(visitor: Visitor) -> None:
    start = unique("many")
    for i in range(60):
        visitor.api.put(f"/v1/topics/{start}.{i:02}", {"partitions": 1})
    page = visitor.go(f"/topics?search={start}.")
    names = page.get_by_role("table", name="Topics").get_by_role("link")
    expect(names).to_have_count(50)
    page.get_by_role("button", name="Next").click()
    expect(names).to_have_count(10)
    expect(names.last).to_have_text(f"{start}.59")
    page.get_by_role("button", name="Previous").click()
    expect(names.first).to_have_text(f"{start}.00")


def test_a_topic_is_made_by_keyboard_alone(visitor: Visitor) -> None:
    topic = unique("made")
    page = visitor.go("/topics")
    page.get_by_role("button", name="New topic").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_label("Name", exact=True)).to_be_focused()
    page.keyboard.type(topic)
    page.keyboard.press("Tab")
    expect(page.get_by_label("Partitions", exact=True)).to_be_focused()
    page.keyboard.type("4")  # over what is selected
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    page.keyboard.type("2")
    assert_accessible(page)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(topic)
    made = visitor.api.get(f"/v1/topics/{topic}")
    assert len(made["partitions"]) == 4
    assert made["settings"] == {"retention.ms": "7200000"}


@desktop_only
def test_a_topic_that_cannot_be_made_says_why_and_escape_leaves(visitor: Visitor) -> None:
    page = visitor.go("/topics")
    opener = page.get_by_role("button", name="New topic")
    opener.click()
    page.get_by_label("Name", exact=True).fill("not a name")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("not a name")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(opener).to_be_focused()
    visitor.forgive("400")


def test_messages_are_browsed_in_every_way(visitor: Visitor, server: Server) -> None:
    topic = unique("browse")
    produce(server, topic, 120, headers=[("trace", b"t-1")])
    middle_ms = int(time.time() * 1000) + 1
    wait_for(lambda: time.time() * 1000 > middle_ms, "the clock is behind the first messages")
    visitor.api.publish(topic, {"payload": "a needle here", "id": "my-id-1", "key": "other", "headers": {"shop": "eu"}})
    page = visitor.go(f"/topics/{topic}")
    panel = chosen_tab(page, "Messages")
    rows = panel.get_by_role("table", name="Messages").get_by_role("row")
    expect(rows).to_have_count(51)
    expect(rows.nth(1).get_by_role("link")).to_have_text("120")

    ask(panel, "with a key", "other")
    expect(rows).to_have_count(2)
    expect(rows.nth(1)).to_contain_text("a needle here")
    ask(panel, "that have a text in them", "needle")
    expect(rows).to_have_count(2)
    ask(panel, "with an id", "my-id-1")
    expect(rows).to_have_count(2)
    ask(panel, "with a header", "shop=eu")
    expect(rows).to_have_count(2)
    ask(panel, "that have a text in them", "no message has this")
    expect(panel.get_by_text("No such message.")).to_be_visible()

    ask(panel, "from an offset on", "30")
    expect(rows).to_have_count(51)
    expect(rows.nth(1).get_by_role("link")).to_have_text("30")
    panel.get_by_role("button", name="More").click()
    expect(rows).to_have_count(92)
    expect(panel.get_by_role("button", name="More")).to_have_count(0)
    assert visitor.fits()

    page.reload()  # what was asked for is in the address
    expect(rows).to_have_count(51)
    expect(rows.nth(1).get_by_role("link")).to_have_text("30")
    assert_accessible(page)


def ask(panel: Any, way: str, value: str) -> None:
    panel.get_by_label("Show messages").select_option(way)
    labels = {"key": "Key", "text": "Text", "id": "Id", "header": "Header", "offset": "Offset", "time": "Time"}
    word = next(word for word in way.split() if word in labels)
    panel.get_by_label(labels[word], exact=True).fill(value)
    panel.get_by_label(labels[word], exact=True).press("Enter")


@desktop_only
def test_messages_are_found_by_time(visitor: Visitor) -> None:
    topic = unique("times")
    hours = [1_700_000_000_000 + i * 3_600_000 for i in range(5)]
    visitor.api.publish(topic, *({"payload": f"hour {i}", "timestamp_ms": hours[i]} for i in range(5)))
    page = visitor.go(f"/topics/{topic}?tab=messages")
    panel = page.get_by_role("tabpanel", name="Messages")
    moment = datetime.fromtimestamp(hours[3] / 1000).strftime("%Y-%m-%dT%H:%M:%S")
    ask(panel, "from a time on", moment)
    rows = panel.get_by_role("table", name="Messages").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("hour 3")


def test_a_message_is_shown_as_json_text_and_hex_and_has_a_link(visitor: Visitor) -> None:
    topic = unique("shown")
    visitor.api.publish(
        topic, {"payload": '{"id": 12345678901234567890}', "key": "k", "headers": {"shop": "eu"}, "priority": 7}
    )
    page = visitor.go(f"/topics/{topic}?tab=messages")
    page.get_by_role("button", name='{"id": 12345678901234567890}').click()
    dialog = page.get_by_role("dialog")
    shown = dialog.get_by_role("tabpanel")
    expect(shown).to_have_text('{\n  "id": 12345678901234567890\n}')  # not a digit is lost
    dialog.get_by_role("tab", name="JSON").press("ArrowRight")
    expect(dialog.get_by_role("tab", name="Text")).to_be_focused()
    expect(shown).to_have_text('{"id": 12345678901234567890}')
    dialog.get_by_role("tab", name="Hex").click()
    expect(shown).to_contain_text("000000  7b 22 69 64 22 3a 20 31")
    expect(row_of(page, "Headers", "shop")).to_contain_text("eu")
    expect(dialog.get_by_text("priority")).to_be_visible()
    assert_accessible(page)
    dialog.get_by_role("link", name="Its own page").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Message {topic}-0@0")
    page.reload()
    expect(page.get_by_role("tabpanel")).to_contain_text("12345678901234567890")
    expect(page.get_by_role("link", name=topic, exact=True)).to_be_visible()
    assert visitor.fits()
    assert_accessible(page)
    page.get_by_role("link", name="show the messages around it").click()
    expect(page.get_by_role("tabpanel", name="Messages").get_by_role("link", name="0", exact=True)).to_be_visible()


@desktop_only
def test_bytes_that_are_no_text_are_shown_as_hex(visitor: Visitor, server: Server) -> None:
    topic = unique("bytes")
    producer = ck.Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(topic, bytes(range(256)), key=b"\xff\x00")
    assert producer.flush(30) == 0
    page = visitor.go(f"/topics/{topic}?tab=messages")
    page.get_by_role("button", name="(binary, 256 B)").click()
    expect(page.get_by_role("dialog").get_by_role("tabpanel")).to_contain_text("0000f0  f0 f1 f2 f3 f4 f5 f6 f7")


@desktop_only
def test_a_message_is_found_by_its_id_wherever_it_is(visitor: Visitor) -> None:
    topic, queue = unique("topic"), unique("queue")
    visitor.api.publish(topic, {"payload": "in a topic", "id": f"{topic}-own"})
    visitor.api.put(f"/v1/queues/{queue}", {})
    visitor.api.post(f"/v1/queues/{queue}/messages", {"payload": "in a queue", "id": f"{queue}-own"})
    page = visitor.go("/settings")
    page.get_by_label("Find a message by its id").fill(f"{queue}-own")
    page.get_by_label("Find a message by its id").press("Enter")
    expect(page.get_by_role("tabpanel")).to_have_text("in a queue")
    expect(page.get_by_role("link", name=queue, exact=True)).to_be_visible()

    page.get_by_label("Find a message by its id").fill(f"{topic}-own")
    page.get_by_label("Find a message by its id").press("Enter")
    expect(page.get_by_role("tabpanel")).to_have_text("in a topic")
    expect(page.get_by_role("link", name=topic, exact=True)).to_be_visible()

    page.get_by_label("Find a message by its id").fill("nobodys-own")
    page.get_by_label("Find a message by its id").press("Enter")
    expect(page.get_by_text("there is no message 'nobodys-own'")).to_be_visible()
    assert_accessible(page)
    page.get_by_label("Id", exact=True).fill(f"{topic}-own")
    page.get_by_label("Topic", exact=True).fill(topic)
    page.get_by_role("button", name="Find").click()
    expect(page.get_by_role("tabpanel")).to_have_text("in a topic")
    visitor.forgive("404")


def test_a_message_that_is_published_by_the_form_reaches_a_kafka_consumer(visitor: Visitor, server: Server) -> None:
    topic = unique("published")
    visitor.api.put(f"/v1/topics/{topic}", {"partitions": 2})
    page = visitor.go(f"/topics/{topic}?tab=publish")
    panel = page.get_by_role("tabpanel", name="Publish")
    panel.get_by_label("Key", exact=True).fill("customer-1")
    panel.get_by_label("The payload is").select_option("JSON")
    panel.get_by_label("Payload", exact=True).fill("not json")
    panel.get_by_label("Headers").fill("shop=eu\ntrace=a:b")
    panel.get_by_label("Partition").select_option("1")
    panel.get_by_role("button", name="Publish").click()
    expect(panel.get_by_role("alert")).to_contain_text("the payload: is no JSON")
    panel.get_by_label("Payload", exact=True).fill('{"total": 12.50}')
    assert visitor.fits()
    assert_accessible(page)
    panel.get_by_role("button", name="Publish").press("Enter")
    expect(panel.get_by_text("It is stored in partition 1 at offset 0.")).to_be_visible()
    message = consume_one(server, topic)
    assert (message.key(), message.value(), message.partition()) == (b"customer-1", b'{"total": 12.50}', 1)
    headers = dict(message.headers() or [])
    assert (headers["shop"], headers["trace"]) == (b"eu", b"a:b")
    panel.get_by_role("link", name="0").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Message {topic}-1@0")


@desktop_only
def test_bytes_and_a_delay_can_be_published(visitor: Visitor) -> None:
    topic = unique("later")
    visitor.api.put(f"/v1/topics/{topic}", {})
    page = visitor.go(f"/topics/{topic}?tab=publish")
    panel = page.get_by_role("tabpanel", name="Publish")
    panel.get_by_label("The payload is").select_option("base64 (any bytes)")
    panel.get_by_label("Payload", exact=True).fill("/wD+")
    panel.get_by_label("Delay (seconds)").fill("0.2")
    panel.get_by_role("button", name="Publish").click()
    expect(panel.get_by_text("It is scheduled, and will be published at")).to_be_visible()

    def arrived() -> Any:
        return visitor.api.get(f"/v1/topics/{topic}/history?count=1")["messages"]

    (message,) = wait_for(arrived, "the delayed message is in the topic")
    assert (message["payload"], message["encoding"]) == ("/wD+", "base64")


def test_a_setting_of_a_topic_is_changed_and_taken_back(visitor: Visitor, server: Server) -> None:
    topic = unique("kept")
    visitor.api.put(f"/v1/topics/{topic}", {})
    page = visitor.go(f"/topics/{topic}?tab=settings")
    change = page.get_by_role("button", name="Change retention.ms")
    change.click()
    page.get_by_role("dialog").get_by_label("retention.ms", exact=True).fill("60000")
    page.get_by_role("button", name="Save").click()
    row = row_of(page, f"Settings of {topic}", "retention.ms")
    expect(row).to_contain_text("60000")
    expect(row.get_by_text("topic", exact=True)).to_be_visible()
    expect(page.get_by_text("60 s", exact=True)).to_be_visible()  # the tile on top
    assert visitor.fits()
    assert_accessible(page)
    admin = cka.AdminClient({"bootstrap.servers": server.bootstrap})
    resource = cka.ConfigResource(cka.ResourceType.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(30)["retention.ms"].value == "60000"
    change.click()
    page.get_by_label("Back to the default").check()
    page.get_by_role("button", name="Save").click()
    expect(row.get_by_text("default", exact=True)).to_be_visible()
    assert visitor.api.get(f"/v1/topics/{topic}")["settings"] == {}
    change.click()
    page.get_by_role("dialog").get_by_label("retention.ms", exact=True).fill("soon")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("soon")
    visitor.forgive("400")


def test_partitions_are_added_and_records_and_topics_deleted_when_asked_twice(visitor: Visitor) -> None:
    topic = unique("gone")
    visitor.api.publish(topic, *({"payload": str(i)} for i in range(10)))
    page = visitor.go(f"/topics/{topic}")
    page.get_by_role("button", name="Add partitions").click()
    page.get_by_label("Partitions in all").fill("3")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("table", name="Partitions").get_by_role("row")).to_have_count(4)
    assert len(visitor.api.get(f"/v1/topics/{topic}")["partitions"]) == 3

    page.get_by_role("button", name="Delete records of partition 0").click()
    page.get_by_label("First offset to keep").fill("7")
    page.get_by_role("button", name="Delete records", exact=True).click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    assert visitor.api.get(f"/v1/topics/{topic}")["partitions"][0]["start_offset"] == 7

    page.get_by_role("button", name="Delete topic").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label(f"Type {topic} to confirm").fill("another")
    dialog.get_by_role("button", name="Delete topic").click()
    expect(dialog.get_by_role("alert")).to_contain_text("nothing changed")
    assert visitor.api.has(f"/v1/topics/{topic}")
    assert_accessible(page)
    dialog.get_by_label(f"Type {topic} to confirm").fill(topic)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Topics")
    assert not visitor.api.has(f"/v1/topics/{topic}")


@desktop_only
def test_live_figures_leave_focus_and_typed_text_alone(visitor: Visitor) -> None:
    topic = unique("busy")
    visitor.api.publish(topic, {"payload": "1"})
    page = visitor.go(f"/topics/{topic}?tab=publish")
    payload = page.get_by_label("Payload", exact=True)
    payload.focus()
    page.keyboard.type("half a wo")
    visitor.api.publish(topic, {"payload": "2"}, {"payload": "3"})
    expect(page.locator(".stat").filter(has_text="Messages")).to_contain_text("3")
    expect(payload).to_be_focused()
    page.keyboard.type("rd")
    expect(payload).to_have_value("half a word")


@desktop_only
def test_a_topic_that_is_not_there_is_said_in_a_sentence(visitor: Visitor) -> None:
    page = visitor.go(f"/topics/{unique('missing')}")
    expect(page.get_by_role("alert")).to_contain_text("there is no topic")
    visitor.forgive("404")
