"""A broker inside a test: the fixture `waystation` comes with the package, and each test has a broker of its own.

`waystation` is an embedded broker and a client of it in one; `waystation.url`, `.kafka`, `.amqp` and `.http` are its
addresses for the program under test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import Producer

import waystation as ws

if TYPE_CHECKING:
    from waystation.inprocess import EmbeddedBroker


def bill_next_order(url: str) -> None:
    """The code under test: it connects by itself, as it does in production."""
    with ws.connect(url) as mq, mq.queue("orders").get(timeout=10) as order:
        if order.json()["price"] < 0:
            raise ValueError("a negative price")
        mq.queue("bills").put({"total": order.json()["price"] * 2})


def test_an_order_is_billed(waystation: EmbeddedBroker) -> None:
    waystation.queue("orders").put({"price": 21})
    bill_next_order(waystation.url)
    with waystation.queue("bills").get(timeout=10) as bill:
        assert bill.json() == {"total": 42}


def test_an_order_that_cannot_be_billed_is_in_the_dead_letter_queue(waystation: EmbeddedBroker) -> None:
    orders = waystation.queue("orders", max_deliveries=1, dead_letter="orders.dead")
    orders.put({"price": -1})
    try:
        bill_next_order(waystation.url)
    except ValueError:
        pass
    with waystation.queue("orders.dead").get(timeout=10) as letter:
        assert "negative price" in letter.deaths[0]["error"]


def test_a_kafka_client_reaches_the_same_broker(waystation: EmbeddedBroker) -> None:
    events = waystation.subscribe("events", group="readers", start="earliest")
    producer = Producer({"bootstrap.servers": waystation.kafka})
    producer.produce("events", b"hello")
    producer.flush(10)
    assert next(iter(events)).text() == "hello"
