"""The little shop whose traffic `waystation demo` shows: who sends what through which protocol, and who works on it.

Each actor is a thread with a connection of its own. Given a number it does so much and ends; else it goes on, at a rate
that swings, until it is told to stop. What an actor did is in its `counts`, which the tour compares in the end.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import waystation as ws
from waystation.client.links.address import Address
from waystation.demo.amqp_link import AmqpLink
from waystation.errors import AlreadyExists
from waystation.message import Message

ORDERS, SEEN, TOTALS = "shop.orders", "shop.pages", "shop.totals"
EVENTS, MAILS, AUDIT = "shop.events", "mails", "audit"
PAYMENTS, DEAD, PICTURES, BILLING, FRAUD = "payments", "payments.dead", "pictures", "billing", "fraud"
PARTITIONS = 4
SWING_S = 40.0
COUNTRIES = ("at", "de", "fr", "it", "nl", "se")
GOODS = ("kettle", "lamp", "map", "notebook", "radio", "rope", "stove", "tent")


class Shop:
    """What all actors share."""

    def __init__(self, kafka: Address, amqp: Address, http_address: Address) -> None:
        self.kafka = kafka
        self.amqp = amqp
        self.http = http_address
        self.stopping = threading.Event()
        self.counts: Counter[str] = Counter()
        self.errors: list[str] = []
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Makes topics, queues, an exchange and its bindings."""
        with ws.connect(str(self.kafka), name="demo") as mq:
            for topic in (ORDERS, SEEN, TOTALS):
                try:
                    mq.create_topic(topic, PARTITIONS)
                except AlreadyExists:
                    pass  # an earlier demo in the same folder
            mq.queue(DEAD)
            mq.queue(PAYMENTS, max_deliveries=3, retry=ws.Retry(0.2, max=1), dead_letter=DEAD)
            mq.queue(MAILS)
            mq.queue(AUDIT)
            mq.queue(PICTURES)
            events = mq.exchange(EVENTS, "topic")
            events.bind(mq.queue(MAILS), "order.*")
            events.bind(mq.queue(AUDIT), "#")

    def start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=self._run, args=(name, work), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def stop(self) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join(20)

    def _run(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # it is told at the end of the tour, which then fails
            if not self.stopping.is_set():
                self.errors.append(f"{name}: {error}")

    def rhythm(self, per_s: float, count: int | None) -> Iterator[int]:
        """How many to do now, again and again: in all `count`, or for ever at about `per_s`."""
        done = 0
        while not self.stopping.is_set() and (count is None or done < count):
            swing = 1 if count is not None else 1 + 0.6 * math.sin(time.monotonic() / SWING_S * 2 * math.pi)
            share = max(1, round(per_s * swing / 10))
            now = share if count is None else min(share, count - done)
            yield now
            done += now
            if count is None:
                self.stopping.wait(0.1)

    # -- who sends -----------------------------------------------------------------------------------------------------

    def order(self, count: int | None = None) -> None:
        """Orders and page views, into topics."""
        with ws.connect(str(self.kafka), name="demo shop") as mq:
            for share in self.rhythm(200, count):
                orders = [_order() for _ in range(share)]
                mq.publish_many(
                    ORDERS, [Message(json.dumps(one).encode(), key=one["customer"].encode()) for one in orders]
                )
                mq.publish_many(SEEN, [f"/goods/{one['goods']}" for one in orders])
                self.counts["orders"] += share

    def tell(self, count: int | None = None) -> None:
        """Events, by AMQP, through a topic exchange, with confirms."""
        link = AmqpLink(self.amqp)
        try:
            for share in self.rhythm(60, count):
                for _ in range(share):
                    kind = random.choice(("order.paid", "order.sent", "stock.low"))
                    said = json.dumps({"kind": kind, "country": random.choice(COUNTRIES)}).encode()
                    link.publish(EVENTS, kind, said, "application/json")
                    self.counts["events"] += 1
                    self.counts["mails sent"] += kind.startswith("order.")
                link.settle()
        finally:
            link.close()

    def upload(self, count: int | None = None) -> None:
        """Pictures to resize, by HTTP; every fifth one later, some urgent."""
        client = http.client.HTTPConnection(self.http.host, self.http.port, timeout=20)
        for share in self.rhythm(20, count):
            batch = [
                {
                    "json": {"resize": f"{random.choice(GOODS)}.png"},
                    "priority": random.choice((0, 0, 0, 9)),
                    "delay_ms": 1500 if i % 5 == 4 else 0,
                }
                for i in range(share)
            ]
            client.request(
                "POST",
                f"/v1/queues/{PICTURES}/messages",
                json.dumps(batch),
                {"content-type": "application/json"},
            )
            answer = client.getresponse()
            answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"the broker answered {answer.status} to a picture")
            self.counts["pictures"] += share
        client.close()

    def pay(self, count: int | None = None) -> None:
        """Payments, by the Python client."""
        with ws.connect(str(self.kafka), name="demo checkout") as mq:
            payments = mq.queue(PAYMENTS, passive=True)
            for share in self.rhythm(40, count):
                payments.put_many([{"amount": _amount(), "card": random.randrange(10_000)} for _ in range(share)])
                self.counts["payments"] += share

    # -- who works on it -----------------------------------------------------------------------------------------------

    def bill(self, until: Callable[[], bool] | None = None) -> None:
        """A consumer group that reads the orders."""
        with (
            ws.connect(str(self.kafka), name="demo billing") as mq,
            mq.subscribe(ORDERS, group=BILLING, mode="stream", start="earliest") as orders,
        ):
            while not self._done(until):
                batch = orders.poll(0.1)
                orders.ack_many(batch)
                self.counts["billed"] += len(batch)

    def suspect(self, until: Callable[[], bool] | None = None) -> None:
        """A shared subscription to the same orders: every message is acked by itself."""
        with (
            ws.connect(str(self.kafka), name="demo fraud check") as mq,
            mq.subscribe(ORDERS, group=FRAUD, mode="shared", start="earliest") as orders,
        ):
            while not self._done(until):
                batch = orders.poll(0.1)
                orders.ack_many(batch)
                self.counts["checked"] += len(batch)

    def mail(self, until: Callable[[], bool] | None = None) -> None:
        """Mails, taken by AMQP and acked one by one."""
        link = AmqpLink(self.amqp)
        try:
            link.consume(MAILS, 50)
            while not self._done(until):
                letter = link.take(0.2)
                if letter is not None:
                    link.ack(letter.tag)
                    self.counts["mailed"] += 1
        finally:
            link.close()

    def collect(self, until: Callable[[], bool] | None = None) -> None:
        """Takes payments; some cards are always refused, and their messages die after three tries."""
        with ws.connect(str(self.kafka), name="demo bank") as mq:
            payments = mq.queue(PAYMENTS, passive=True)
            while not self._done(until):
                for message in payments.get_many(50, 0.2):
                    if message.json()["card"] % 25 == 7:
                        message.reject("the card was refused")
                    else:
                        message.ack(wait=False)
                        self.counts["paid"] += 1

    def resize(self, until: Callable[[], bool] | None = None) -> None:
        """Resizes pictures: the urgent first, the late ones when they are due."""
        with ws.connect(str(self.kafka), name="demo resizer") as mq:
            pictures = mq.queue(PICTURES, passive=True)
            while not self._done(until):
                taken = pictures.get_many(20, 0.2)
                pictures.ack_many(taken)
                self.counts["resized"] += len(taken)

    def _done(self, until: Callable[[], bool] | None) -> bool:
        return self.stopping.is_set() or (until is not None and until())


def _order() -> dict[str, Any]:
    return {
        "id": f"{random.getrandbits(48):012x}",
        "customer": f"c{random.randrange(500):03d}",
        "country": random.choice(COUNTRIES),
        "goods": random.choice(GOODS),
        "amount": _amount(),
        "paid": True,
    }


def _amount() -> float:
    return round(random.uniform(2, 250), 2)
