"""Joins in pipeline files: a stream with tables of files and topics, and two streams within a time range."""

from __future__ import annotations

import datetime
import json
import threading
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

import waystation
from tests.spark.pipeline_kit import START, Kit
from tests.spark.topic_reading import read_topic
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.spark.pipelines.checking import check_pipeline
from waystation.spark.pipelines.running import Ears, run_pipeline

if TYPE_CHECKING:
    pass


def test_a_stream_is_joined_with_tables_of_csv_json_and_a_topic(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    orders, customers, out = unique("orders"), unique("customers"), unique("out")
    for topic in (orders, customers, out):
        mq.create_topic(topic, 1)
    (kit.folder / "countries.csv").write_text("country,vat\nDE,19\nFR,20\n")
    (kit.folder / "products").mkdir()
    (kit.folder / "products" / "all.json").write_text(
        '{"product": "p1", "price": 2.5}\n{"product": "p2", "price": 4}\n'
    )
    text = f"""servers = "{server.bootstrap}"
trigger = "100ms"
[source.orders]
topics = "{orders}"
schema = "id INT, customer STRING, product STRING, country STRING"
select = ["value.*"]
[source.countries]
csv = "countries.csv"
static = true
[source.products]
json = "products"
schema = "product STRING, price DOUBLE"
static = true
[source.customers]
topics = "{customers}"
schema = "name STRING"
static = true
[step.newest]
sql = "SELECT CAST(key AS STRING) AS customer, max_by(value.name, offset) AS name FROM customers GROUP BY key"
[step.priced]
from = "orders"
join = {{ with = "products", on = "product" }}
[step.taxed]
from = "priced"
join = {{ with = "countries", on = "country", how = "left" }}
[step.named]
from = "taxed"
join = {{ with = "newest", on = "customer", how = "left" }}
select = ["id", "name", "price", "vat"]
[sink.out]
from = "named"
topic = "{out}"
"""
    mq.publish(customers, {"name": "Ann"}, key="c1")
    mq.publish(customers, {"name": "Anna"}, key="c1")
    stop = threading.Event()
    ears = Ears(note=kit.notes.append, should_stop=stop.is_set)
    read = kit.read(text)
    thread = threading.Thread(target=run_pipeline, args=(read,), kwargs={"ears": ears})
    thread.start()
    try:
        mq.publish(orders, {"id": 1, "customer": "c1", "product": "p1", "country": "DE"})
        mq.publish(orders, {"id": 2, "customer": "c2", "product": "p2", "country": "XX"})
        mq.publish(orders, {"id": 3, "customer": "c1", "product": "none", "country": "DE"})
        wait_for(lambda: len(read_topic(server, out, 1)) >= 2, "the first batch", within_s=120)
        mq.publish(customers, {"name": "Bob"}, key="c2")
        mq.publish(orders, {"id": 4, "customer": "c2", "product": "p1", "country": "FR"})
        wait_for(lambda: len(read_topic(server, out, 1)) >= 3, "the next batch", within_s=120)
    finally:
        stop.set()
        thread.join(60)
    found = sorted((json.loads(value) for _, value in read_topic(server, out, 1)), key=lambda row: row["id"])
    assert found == [
        {"id": 1, "name": "Anna", "price": 2.5, "vat": 19},
        {"id": 2, "price": 4.0},
        {"id": 4, "price": 2.5, "vat": 20},
    ], "a table is what it was at the start: Bob came later"


STREAMS = """
[source.orders]
topics = "{orders}"
schema = "id INT"
watermark = {{ column = "timestamp", delay = "1 minute" }}
select = ["value.id AS id", "timestamp AS ordered"]
[source.payments]
topics = "{payments}"
schema = "order INT, amount DOUBLE"
watermark = {{ column = "timestamp", delay = "1 minute" }}
select = ["value.order AS order", "value.amount AS amount", "timestamp AS paid"]
[step.settled]
from = "orders"
join = {{ with = "payments", how = "left", on = '''
orders.id = payments.order AND payments.paid BETWEEN orders.ordered AND orders.ordered + INTERVAL 10 MINUTES''' }}
select = ["id", "amount"]
[sink.out]
from = "settled"
topic = "{out}"
key = "id"
"""


def test_two_streams_are_joined_within_a_time_range(kit: Kit, server: Server, mq: waystation.Client) -> None:
    names = {name: unique(name) for name in ("orders", "payments", "out")}
    for topic in names.values():
        mq.create_topic(topic, 1)

    def publish(topic: str, value: object, minute: float) -> None:
        mq.publish(names[topic], value, timestamp=START + datetime.timedelta(minutes=minute))

    text = f'servers = "{server.bootstrap}"\n' + STREAMS.format(**names)
    publish("orders", {"id": 1}, 0)
    publish("orders", {"id": 2}, 1)
    publish("orders", {"id": 3}, 2)
    publish("payments", {"order": 2, "amount": 20.0}, 3)
    kit.run(text)
    publish("payments", {"order": 1, "amount": 10.0}, 5)
    publish("payments", {"order": 3, "amount": 30.0}, 40)  # too late for its order
    publish("orders", {"id": 4}, 60)
    kit.run(text)
    found = sorted(tuple(json.loads(value).items()) for _, value in read_topic(server, names["out"], 1))
    assert found == [
        (("id", 1), ("amount", 10.0)),
        (("id", 2), ("amount", 20.0)),
        (("id", 3),),
    ], "the first run's orders were remembered; an order without a payment is told when none can come any more"


def test_check_refuses_a_join_of_streams_that_keeps_rows_for_ever(
    kit: Kit, server: Server, mq: waystation.Client
) -> None:
    names = {name: unique(name) for name in ("orders", "payments", "out")}
    for topic in names.values():
        mq.create_topic(topic, 1)
    whole = f'servers = "{server.bootstrap}"\n' + STREAMS.format(**names)
    assert check_pipeline(kit.write(whole)) == []

    def told(text: str, line: str) -> str:
        file = kit.write(text)
        (problem,) = check_pipeline(file)
        assert file.read_text().splitlines()[problem.line - 1].startswith(line)
        return problem.text

    inner = whole.replace('how = "left"', 'how = "inner"')
    at = inner.index("[source.payments]")
    mark = 'watermark = { column = "timestamp", delay = "1 minute" }\n'
    said = told(inner[:at] + inner[at:].replace(mark, ""), "join")
    assert "this joins two streams" in said
    assert "payments has none: add watermark = {" in said
    said = told(
        inner.replace(" AND payments.paid BETWEEN orders.ordered AND orders.ordered + INTERVAL 10 MINUTES", ""), "join"
    )
    assert "add a time range, like payments.paid BETWEEN orders.ordered AND orders.ordered + INTERVAL 1 HOUR" in said
    start = inner.index("[step.settled]")
    query = "[step.settled]\nsql = '''SELECT id, amount FROM orders JOIN payments ON id = order'''\n"
    said = told(inner[:start] + query + inner[inner.index("[sink.out]") :], "sql")
    assert "add a time range" in said
