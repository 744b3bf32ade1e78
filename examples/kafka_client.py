"""A Kafka client, unchanged: confluent-kafka produces to a topic, and a consumer group reads it and commits offsets."""

import json
import sys

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer

SERVER = "127.0.0.1:9092"
TOPIC = "readings"


def text(data: bytes | None) -> str:
    """A record may be without a key, or without a value."""
    return "" if data is None else data.decode()


def delivered(error: KafkaError | None, message: Message) -> None:
    """Called for each record: with acks=all it is fsynced by now."""
    if error is not None:
        raise KafkaException(error)
    print(f"stored {text(message.key())} in partition {message.partition()}")


def produce(server: str) -> None:
    producer = Producer({"bootstrap.servers": server, "acks": "all", "enable.idempotence": True})
    for room, degrees in (("kitchen", 21.5), ("attic", 17.0), ("cellar", 12.5)):
        producer.produce(TOPIC, json.dumps({"degrees": degrees}), key=room, on_delivery=delivered)
    producer.flush(30)


def consume(server: str, count: int) -> None:
    settings = {"group.id": "averages", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": server, **settings})
    consumer.subscribe([TOPIC])
    try:
        for _ in range(count):
            message = consumer.poll(30)
            if message is None:
                raise TimeoutError(f"no record of {TOPIC} within 30 seconds")
            if message.error():
                raise KafkaException(message.error())
            print(f"{text(message.key())}: {json.loads(text(message.value()))['degrees']} degrees")
            consumer.commit(message=message, asynchronous=False)  # returns when the offset is on disk
    finally:
        consumer.close()


def main(server: str) -> None:
    produce(server)  # the topic is created by the first record
    consume(server, 3)


if __name__ == "__main__":
    main(*sys.argv[1:] or [SERVER])
