"""Counters agree exactly with what clients did: Kafka, AMQP, native and HTTP clients against a real broker."""

from __future__ import annotations

import pika
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import waystation
from tests.observe.kit import Growth
from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import NotFound

MESSAGES = 500


@pytest.mark.clients
def test_what_a_kafka_producer_sends_and_a_consumer_gets_is_counted_exactly(server: Server, growth: Growth) -> None:
    topic = unique("orders")
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5, "enable.idempotence": True})
    for number in range(MESSAGES):
        producer.produce(topic, b"x" * 100, key=str(number).encode())
        if number % 90 == 0:
            producer.flush()  # so that there are several batches
    producer.flush()
    options = {"bootstrap.servers": server.bootstrap, "group.id": unique("g"), "auto.offset.reset": "earliest"}
    consumer = Consumer({**options, "check.crcs": True, "enable.auto.commit": False})
    consumer.subscribe([topic])
    got = 0
    while got < MESSAGES:
        got += sum(message.error() is None for message in consumer.consume(MESSAGES, 1.0))
    consumer.commit(asynchronous=False)
    consumer.close()
    assert growth.messages("kafka") == {"published": MESSAGES, "delivered": MESSAGES}
    for what in ("published", "delivered"):
        assert growth.of(f"waystation_topic_messages_{what}_total", topic=topic) == MESSAGES
        assert growth.of(f"waystation_{what}_bytes_total", door="kafka") > 100 * MESSAGES
    assert growth.of("waystation_topic_published_bytes_total", topic=topic) > 100 * MESSAGES
    assert growth.of("waystation_request_seconds_count", door="kafka", call="produce") >= 6
    assert growth.of("waystation_request_seconds_count", door="kafka", call="join_group") >= 1
    assert growth.of("waystation_connections_opened_total", door="kafka") >= 2


@pytest.mark.clients
def test_a_kafka_consumer_that_begins_inside_a_batch_is_given_what_is_behind_it(server: Server, growth: Growth) -> None:
    """Offsets of a batch that are before the wanted one do not count, though their bytes are sent."""
    topic = unique("middle")
    producer = Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 1000})
    for number in range(100):
        producer.produce(topic, str(number).encode())
    producer.flush()
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": unique("g")})
    consumer.assign([TopicPartition(topic, 0, 60)])
    got: list[bytes | None] = []
    while len(got) < 40:
        got += [message.value() for message in consumer.consume(100, 1.0) if message.error() is None]
    consumer.close()
    assert got == [str(number).encode() for number in range(60, 100)]
    assert growth.of("waystation_topic_messages_delivered_total", topic=topic) == 40


@pytest.mark.clients
def test_errors_are_counted_by_kind(server: Server, http: Http, growth: Growth) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    with pytest.raises(KafkaException) as refused:
        admin.create_topics([NewTopic("no/name", 1)])["no/name"].result(30)
    assert refused.value.args[0].code() == KafkaError.TOPIC_EXCEPTION
    assert growth.of("waystation_errors_total", door="kafka", kind="invalid_topic_exception") == 1
    assert http.refused("GET", f"/v1/queues/{unique('none')}") == (404, "NotFound")
    assert growth.of("waystation_errors_total", door="http", kind="NotFound") == 1
    connection = pika.BlockingConnection(_amqp(server))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        connection.channel().queue_declare(unique("none"), passive=True)
    connection.close()
    assert growth.of("waystation_errors_total", door="amqp", kind="NOT_FOUND") == 1
    with waystation.connect(f"waystation://{server.bootstrap}") as mq, pytest.raises(NotFound):
        mq.describe_topic(unique("none"))
    assert growth.of("waystation_errors_total", door="native", kind="NotFound") == 1


def _amqp(server: Server) -> pika.ConnectionParameters:
    host, _, port = server.addresses["amqp"].rpartition(":")
    return pika.ConnectionParameters(host, int(port))


@pytest.mark.clients
def test_what_pika_publishes_consumes_acks_and_rejects_is_counted_exactly(server: Server, growth: Growth) -> None:
    queue = unique("letters")
    connection = pika.BlockingConnection(_amqp(server))
    channel = connection.channel()
    channel.queue_declare(queue, durable=True)
    channel.confirm_delivery()
    for _ in range(60):
        channel.basic_publish("", queue, b"y" * 50, pika.BasicProperties(delivery_mode=2))
    for _ in range(4):
        method, _, _ = channel.basic_get(queue)
    channel.basic_ack(method.delivery_tag, multiple=True)
    channel.basic_qos(prefetch_count=1)  # so that nothing is sent that is not settled here
    for got, (method, _, _) in enumerate(channel.consume(queue, inactivity_timeout=30), 1):
        if got <= 40:
            channel.basic_ack(method.delivery_tag)
        elif got <= 45:
            channel.basic_reject(method.delivery_tag, requeue=False)
        else:
            channel.basic_reject(method.delivery_tag, requeue=True)
            break
    channel.cancel()
    assert channel.basic_get(queue, auto_ack=True)[0] is not None
    connection.close()
    messages = growth.messages("amqp")
    assert messages["published"] == 60
    assert messages["acked"] == 4 + 40 + 1
    again = messages["rejected"] - 6  # what came to the consumer after its last reject, before it was cancelled
    assert again <= 1
    assert messages["delivered"] == 4 + 46 + 1 + again
    assert growth.of("waystation_published_bytes_total", door="amqp") == 60 * 50
    assert growth.of("waystation_queue_messages_delivered_total", queue=queue) == messages["delivered"]
    assert growth.of("waystation_delivered_bytes_total", door="amqp") == messages["delivered"] * 50
    assert growth.of("waystation_queue_messages_put_total", queue=queue) == 60
    assert growth.of("waystation_queue_messages_acked_total", queue=queue) == 45
    assert growth.of("waystation_queue_messages_dead_total", queue=queue) == 5
    assert growth.of("waystation_messages_dead_total", reason="rejected", fate="dropped") == 5
    assert growth.of("waystation_request_seconds_count", door="amqp", call="basic.publish") == 60
    assert growth.of("waystation_request_seconds_count", door="amqp", call="queue.declare") == 1
    now = growth.now()
    assert now.sum("waystation_queue_messages", queue=queue, state="ready") == 60 - 45 - 5
    assert now.sum("waystation_queue_messages", queue=queue, state="held") == 0


@pytest.mark.clients
def test_publishes_in_a_transaction_and_those_that_nobody_wants_are_counted_once(
    server: Server, growth: Growth
) -> None:
    queue = unique("tx")
    connection = pika.BlockingConnection(_amqp(server))
    channel = connection.channel()
    channel.queue_declare(queue)
    channel.basic_publish("", unique("nobody"), b"a" * 10)
    channel.tx_select()
    channel.basic_publish("", queue, b"b" * 10)
    channel.basic_publish("", queue, b"c" * 10)
    channel.tx_commit()
    connection.close()
    assert growth.messages("amqp") == {"published": 3}
    assert growth.of("waystation_published_bytes_total", door="amqp") == 30
    assert growth.of("waystation_queue_messages_put_total", queue=queue) == 2


@pytest.mark.clients
def test_what_a_native_client_puts_gets_and_settles_is_counted_exactly(server: Server, growth: Growth) -> None:
    queue, topic = unique("jobs"), unique("news")
    with waystation.connect(f"waystation://{server.bootstrap}") as mq:
        jobs = mq.queue(queue)
        jobs.put_many([b"z" * 20] * 50)
        jobs.put(b"z" * 20)
        messages = jobs.get_many(51, timeout=30)
        while len(messages) < 51:
            messages += jobs.get_many(51 - len(messages), timeout=30)
        jobs.ack_many(messages[:40])
        jobs.reject_many(messages[40:45])
        for message in messages[45:]:
            message.release(delay=600)
        mq.publish_many(topic, [b"n"] * 30)
        mq.publish(topic, b"n")
    counted = growth.messages("native")
    again = growth.of("waystation_queue_messages_delivered_total", queue=queue) - 51
    assert counted == {"published": 82, "delivered": 51 + again, "acked": 40, "rejected": 5, "released": 6}
    assert growth.of("waystation_topic_messages_published_total", topic=topic) == 31
    assert growth.of("waystation_queue_messages_put_total", queue=queue) == 51
    assert growth.of("waystation_request_seconds_count", door="native", call="put") >= 2
    assert growth.of("waystation_request_seconds_count", door="native", call="publish_messages") >= 1


def test_what_slow_live_subscribers_miss_is_counted(server: Server, http: Http, growth: Growth) -> None:
    topic = unique("fast")
    with waystation.connect(f"waystation://{server.bootstrap}") as mq:
        mq.create_topic(topic, 1)
        with mq.subscribe(topic, slow="drop", prefetch=2) as subscription:
            mq.publish_many(topic, [b"x"] * 50)
            wait_for(lambda: subscription.poll(timeout=0.5, max=1), "the first")
            wait_for(lambda: growth.of("waystation_messages_dropped_total") > 0, "some are dropped")
            assert growth.of("waystation_messages_dropped_total") == http("GET", f"/v1/topics/{topic}").json["dropped"]


def test_what_is_sent_taken_and_settled_by_http_is_counted_exactly(http: Http, growth: Growth) -> None:
    queue, topic = unique("tasks"), unique("events")
    http("PUT", f"/v1/queues/{queue}", {"max_deliveries": 1, "dead_letter": f"{queue}.dead"})
    http.put(queue, *["12345"] * 10)
    taken = http.take(queue, 10)
    http("POST", "/v1/ack", {"ack_ids": [one["ack_id"] for one in taken[:6]]})
    http("POST", "/v1/reject", {"ack_ids": [one["ack_id"] for one in taken[6:9]], "dead": True})
    http("POST", "/v1/release", {"ack_ids": [taken[9]["ack_id"]]})
    http("POST", f"/v1/topics/{topic}/messages", [{"payload": "e"}] * 4)
    (last,) = http.take(queue, 1, auto_ack=True)
    assert last["payload"] == "12345"
    assert growth.messages("http") == {"published": 14, "delivered": 11, "acked": 7, "rejected": 3, "released": 1}
    assert growth.of("waystation_published_bytes_total", door="http") == 10 * 5 + 4
    assert growth.of("waystation_messages_dead_total", reason="rejected", fate="dead-lettered") == 3
    call = "POST /v1/queues/{queue}/messages"
    assert growth.of("waystation_request_seconds_count", door="http", call=call) == 1
    moved = wait_for(
        lambda: growth.of("waystation_queue_messages_put_total", queue=f"{queue}.dead"), "the dead letters are moved"
    )
    assert moved == 3


def test_a_flush_says_how_long_it_took_and_what_it_served(http: Http, growth: Growth) -> None:
    queue = unique("synced")
    http("PUT", f"/v1/queues/{queue}")
    http.put(queue, "x" * 1000)
    now = growth.now()
    flushes = growth.of("waystation_fsync_seconds_count")
    assert flushes >= 2
    assert growth.of("waystation_fsync_appends_count") == growth.of("waystation_fsync_bytes_count")
    assert growth.of("waystation_fsync_appends_sum") >= flushes
    assert growth.of("waystation_fsync_bytes_sum") > 1000
    assert now.sum("waystation_fsync_failures_total") == 0
