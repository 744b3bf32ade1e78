"""A RabbitMQ client, unchanged: pika declares a queue behind a topic exchange, publishes with confirms and consumes."""

import sys

import pika
from pika.adapters.blocking_connection import BlockingChannel

URL = "amqp://guest:guest@127.0.0.1:5672/"
EXCHANGE, QUEUE = "mail", "mail.urgent"


def declare(channel: BlockingChannel) -> None:
    """Declares them; declaring what already exists with the same settings does nothing."""
    channel.exchange_declare(EXCHANGE, "topic", durable=True)
    channel.queue_declare(QUEUE, durable=True, arguments={"x-delivery-limit": 5})
    channel.queue_bind(QUEUE, EXCHANGE, "*.urgent")


def publish(channel: BlockingChannel) -> None:
    channel.confirm_delivery()  # basic_publish returns when the message is fsynced, and raises if it was not taken
    durable = pika.BasicProperties(delivery_mode=pika.DeliveryMode.Persistent)
    for key in ("sales.urgent", "sales.later", "support.urgent"):  # nothing is bound to "sales.later"
        channel.basic_publish(EXCHANGE, key, f"a letter to {key}".encode(), durable)


def consume(channel: BlockingChannel, count: int) -> None:
    channel.basic_qos(prefetch_count=1)
    for number, (method, _, body) in enumerate(channel.consume(QUEUE, inactivity_timeout=30), 1):
        if method is None:
            raise TimeoutError(f"no message in {QUEUE} within 30 seconds")
        print(body.decode())
        channel.basic_ack(method.delivery_tag)
        if number == count:
            break
    channel.cancel()


def main(url: str) -> None:
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        channel = connection.channel()
        declare(channel)
        publish(channel)
        consume(channel, 2)
    finally:
        connection.close()


if __name__ == "__main__":
    main(*sys.argv[1:] or [URL])
