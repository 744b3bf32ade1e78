"""AMQP clients under the long run: confirms, acks, rejects to a dead-letter queue, requeues, transactions.

An ack has no answer in AMQP. A confirm on the same channel has: what is confirmed after settlements was stored after
them. So consumers publish a receipt now and then, and count what they settled before it as acknowledged.
"""

from __future__ import annotations

import time
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel, BlockingConnection
from pika.exceptions import AMQPError

from tests.clients.pika_kit import PERSISTENT
from tests.soak_real.audit import Findings, QueueAccount, check_pair
from tests.soak_real.ground import Ground, Pace, Steady

EXCHANGE, MORGUE = "soak.x", "soak.morgue"
WORK, DEAD, RECEIPTS, LEFT, RIGHT = "amqp.work", "amqp.dead", "amqp.receipts", "amqp.left", "amqp.right"
PREFETCH = 40
LATE_S = 0.7
"""The delay of every tenth message."""
AWAY = (AMQPError, OSError)


def connect(ground: Ground) -> BlockingConnection:
    host, port = ground.amqp
    return BlockingConnection(
        pika.ConnectionParameters(
            host=host, port=port, socket_timeout=10, stack_timeout=10, blocked_connection_timeout=30, heartbeat=30
        )
    )


def prepare(ground: Ground) -> None:
    """Exchanges, queues and bindings, all durable."""
    with connect(ground) as connection:
        channel = connection.channel()
        channel.exchange_declare(EXCHANGE, "topic", durable=True)
        channel.exchange_declare(MORGUE, "fanout", durable=True)
        channel.queue_declare(WORK, durable=True, arguments={"x-dead-letter-exchange": MORGUE})
        channel.queue_declare(DEAD, durable=True)
        channel.queue_declare(RECEIPTS, durable=True, arguments={"x-max-length": 10})
        channel.queue_bind(WORK, EXCHANGE, "work.#")
        channel.queue_bind(DEAD, MORGUE, "")
        for queue in (LEFT, RIGHT):
            channel.queue_declare(queue, durable=True)


def is_bad(number: int) -> bool:
    return number % 20 == 3


def is_late(number: int) -> bool:
    return number % 10 == 1


class Publishing(Steady):
    """Publishes through a topic exchange with confirms, some with a delay."""

    expected = AWAY

    def __init__(self, ground: Ground, account: QueueAccount, per_s: float) -> None:
        super().__init__(ground)
        self.account = account
        self._pace = Pace(per_s * ground.rate)

    @property
    def progress(self) -> int:
        return self.account.stored_count

    def session(self) -> None:
        with connect(self.ground) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            number = 0
            while not self._stopped.is_set():
                late = number % 10 == 0
                number = self.account.try_next(due_s=time.time() + LATE_S if late else 0.0)
                headers = {"x-delay": int(LATE_S * 1000)} if late else {}
                properties = pika.BasicProperties(delivery_mode=2, headers=headers)
                channel.basic_publish(EXCHANGE, "work.item", b"%d" % number, properties)
                self.account.stored(number)
                self._pace.wait(self._stopped)


class Consuming(Steady):
    """A consumer whose settlements count once a receipt behind them was confirmed."""

    expected = AWAY

    def __init__(self, ground: Ground, account: QueueAccount, queue: str) -> None:
        super().__init__(ground)
        self.account = account
        self.queue = queue
        self._settled: list[int] = []

    @property
    def progress(self) -> int:
        return self.account.acked_count

    def session(self) -> None:
        self._settled = []
        with connect(self.ground) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            channel.basic_qos(prefetch_count=PREFETCH)
            channel.basic_consume(self.queue, self._on_message)
            while not self._stopped.is_set():
                connection.process_data_events(0.2)
                self._receipt(channel)

    def _on_message(self, channel: BlockingChannel, method: Any, properties: Any, body: bytes) -> None:
        number = int(body)
        self.account.delivered(number)
        self.settle(channel, number, method, properties)

    def settle(self, channel: BlockingChannel, number: int, method: Any, properties: Any) -> None:
        self.account.ack_sent(number)
        channel.basic_ack(method.delivery_tag)
        self._settled.append(number)

    def _receipt(self, channel: BlockingChannel) -> None:
        if not self._settled:
            return
        settled, self._settled = self._settled, []
        channel.basic_publish("", RECEIPTS, b"receipt", PERSISTENT)
        for number in settled:
            self.confirmed(number)

    def confirmed(self, number: int) -> None:
        self.account.acked(number)


class Working(Consuming):
    """Acks; rejects the bad ones, which have to be in the dead-letter queue then; gives some back once."""

    def __init__(self, ground: Ground, account: QueueAccount, dead: QueueAccount) -> None:
        super().__init__(ground, account, WORK)
        self.dead = dead

    def settle(self, channel: BlockingChannel, number: int, method: Any, properties: Any) -> None:
        if is_bad(number):
            self.dead.try_number(number)
            self.account.ack_sent(number)
            channel.basic_reject(method.delivery_tag, requeue=False)
            self._settled.append(number)
        elif number % 20 == 5 and not method.redelivered:
            channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            super().settle(channel, number, method, properties)

    def confirmed(self, number: int) -> None:
        super().confirmed(number)
        if is_bad(number):
            self.dead.stored(number)


class Burying(Consuming):
    """Takes dead letters out, and looks at what they died of."""

    def __init__(self, ground: Ground, account: QueueAccount) -> None:
        super().__init__(ground, account, DEAD)

    def settle(self, channel: BlockingChannel, number: int, method: Any, properties: Any) -> None:
        death = (properties.headers or {}).get("x-death", [{}])[0]
        if death.get("reason") != "rejected" or death.get("queue") != WORK or death.get("count") != 1:
            self.findings.broken("dead letters say what they died of", f"{DEAD}: {number}: {death}")
        super().settle(channel, number, method, properties)


class Pairing(Steady):
    """Transactions that publish to two queues; every tenth is rolled back and must never be seen."""

    expected = AWAY

    def __init__(self, ground: Ground, left: QueueAccount, right: QueueAccount, per_s: float) -> None:
        super().__init__(ground)
        self.left, self.right = left, right
        self._pace = Pace(per_s * ground.rate)
        self.rolled_back = 0

    @property
    def progress(self) -> int:
        return self.left.stored_count

    def session(self) -> None:
        with connect(self.ground) as connection:
            channel = connection.channel()
            channel.tx_select()
            while not self._stopped.is_set():
                self._transaction(channel)
                self._pace.wait(self._stopped)

    def _transaction(self, channel: BlockingChannel) -> None:
        number = self.left.try_next()
        self.right.try_number(number)
        for queue in (LEFT, RIGHT):
            channel.basic_publish("", queue, b"%d" % number, PERSISTENT)
        channel.tx_commit()
        self.left.stored(number)
        self.right.stored(number)
        if number % 10 == 0:
            for queue in (LEFT, RIGHT):
                channel.basic_publish("", queue, b"-1", PERSISTENT)
            channel.tx_rollback()
            self.rolled_back += 1


class TxConsuming(Steady):
    """Acks in transactions: once committed, nothing of it comes again."""

    expected = AWAY

    def __init__(self, ground: Ground, account: QueueAccount, queue: str) -> None:
        super().__init__(ground)
        self.account = account
        self.queue = queue
        self._open: list[int] = []

    @property
    def progress(self) -> int:
        return self.account.acked_count

    def session(self) -> None:
        self._open = []
        with connect(self.ground) as connection:
            channel = connection.channel()
            channel.tx_select()
            channel.basic_qos(prefetch_count=PREFETCH)
            channel.basic_consume(self.queue, self._on_message)
            while not self._stopped.is_set():
                connection.process_data_events(0.3)
                if self._open:
                    done, self._open = self._open, []
                    channel.tx_commit()
                    for number in done:
                        self.account.acked(number)

    def _on_message(self, channel: BlockingChannel, method: Any, _properties: Any, body: bytes) -> None:
        number = int(body)
        self.account.delivered(number)
        if number >= 0:
            self.account.ack_sent(number)
            self._open.append(number)
        channel.basic_ack(method.delivery_tag)


class AmqpSide:
    """All of it, and what is checked at the end."""

    def __init__(self, ground: Ground, findings: Findings) -> None:
        self.ground, self.findings = ground, findings
        self.work = QueueAccount(WORK, findings)
        self.dead = QueueAccount(DEAD, findings)
        self.left = QueueAccount(LEFT, findings, ordered=True)
        self.right = QueueAccount(RIGHT, findings, ordered=True)
        self.accounts = [self.work, self.dead, self.left, self.right]
        pairing = Pairing(ground, self.left, self.right, 15)
        self.writers: list[Steady] = [Publishing(ground, self.work, 50), pairing]
        self.readers: list[Steady] = [
            Working(ground, self.work, self.dead),
            Working(ground, self.work, self.dead),
            Burying(ground, self.dead),
            TxConsuming(ground, self.left, LEFT),
            TxConsuming(ground, self.right, RIGHT),
        ]
        self._pairing = pairing

    def depth(self) -> int:
        with connect(self.ground) as connection:
            channel = connection.channel()
            return sum(
                int(channel.queue_declare(queue, passive=True).method.message_count)
                for queue in (WORK, DEAD, LEFT, RIGHT)
            )

    def drained(self) -> bool:
        return not any(account.open_numbers() for account in self.accounts) and self.depth() == 0

    def finish(self) -> None:
        for account in self.accounts:
            account.finish()
        check_pair(self.left, self.right, self.findings)

    def figures(self) -> dict[str, object]:
        return {
            "messages confirmed": self.work.stored_count,
            "acked, redelivered": [self.work.acked_count, self.work.redeliveries],
            "dead letters: due, acked": [self.dead.stored_count, self.dead.acked_count],
            "transactions committed and rolled back": [self.left.stored_count, self._pairing.rolled_back],
        }
