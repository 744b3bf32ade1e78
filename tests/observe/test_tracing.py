"""One message, one trace: what real clients send and get, as a real OTLP collector sees it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pika
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

import waystation
from tests.clients.share_kit import from_the_beginning, share_consumer, take
from tests.observe.collector import Collector, Seen, Trace
from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.client.sync.message import Message
from waystation.client.sync.subscription import Subscription

FAST = {"OTEL_BSP_SCHEDULE_DELAY": "50"}


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    started = Collector()
    yield started
    started.close()


@pytest.fixture(scope="module")
def server(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {**FAST, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}.items():
            environment.setenv(name, value)
        started = Server(tmp_path_factory.mktemp("tracing"), settings={"waystation.tracing": "otlp"})
        started.start()
    yield started
    started.close()


@pytest.fixture
def http(server: Server) -> Http:
    return Http(server.addresses["http"])


@pytest.fixture
def mq(server: Server) -> Iterator[waystation.Client]:
    with waystation.connect(server.bootstrap) as client:
        yield client


def received(messages: Subscription) -> Message:
    message = messages.get_message(timeout=30)
    assert message is not None
    return message


def check_publish(spans: dict[str, Seen], trace: Trace, name: str, kind: str, protocol: str) -> None:
    """A publish with its fsync, below the sender's span."""
    publish, fsync = spans[f"publish {name}"], spans["fsync"]
    assert publish.parent == trace.span
    assert fsync.parent == publish.id
    assert publish.began_ns <= fsync.began_ns <= fsync.ended_ns <= publish.ended_ns
    assert publish.service == "waystation"
    about = publish.attributes
    assert about["messaging.system"] == "waystation"
    assert about["messaging.operation.type"] == "send"
    assert about["messaging.destination.name"] == name
    assert (about["waystation.destination.kind"], about["waystation.door"]) == (kind, protocol)


def check_delivery(spans: dict[str, Seen], trace: Trace, name: str, protocol: str, outcome: str | None) -> Seen:
    """A delivery below the sender's span, after the message was taken in; with its verdict, if it has one."""
    deliver, publish = spans[f"deliver {name}"], spans[f"publish {name}"]
    assert deliver.parent == trace.span
    assert deliver.began_ns >= publish.began_ns
    assert deliver.ended_ns >= deliver.began_ns
    assert deliver.attributes["messaging.operation.type"] == "receive"
    assert deliver.attributes["messaging.destination.name"] == name
    assert deliver.attributes["waystation.door"] == protocol
    assert deliver.attributes.get("waystation.outcome") == outcome
    if outcome in spans:
        verdict = spans[str(outcome)]
        assert verdict.parent == deliver.id
        assert verdict.began_ns == deliver.ended_ns
        assert verdict.ended_ns >= verdict.began_ns
        assert verdict.attributes["messaging.operation.type"] == "settle"
    return deliver


def test_a_put_its_fsync_its_delivery_and_its_ack_are_one_trace(collector: Collector, mq: waystation.Client) -> None:
    trace, name = Trace(), unique("jobs")
    queue = mq.queue(name)
    headers = {"traceparent": trace.header, "tracestate": "vendor=1"}
    queue.put(b"work", id="order-7", headers=headers)
    message = queue.get(timeout=30)
    assert message.headers == headers, "the consumer gets the sender's headers as they are"
    message.ack()
    spans = collector.wait(trace, f"publish {name}", "fsync", f"deliver {name}", "ack")
    check_publish(spans, trace, name, "queue", "native")
    deliver = check_delivery(spans, trace, name, "native", "ack")
    assert not any(span.failed for span in spans.values())
    assert {span.state for span in spans.values()} == {"vendor=1"}
    assert spans[f"publish {name}"].attributes["messaging.message.id"] == "order-7"
    assert spans[f"publish {name}"].attributes["messaging.message.body.size"] == 4
    assert deliver.attributes["waystation.deliveries"] == 1
    assert deliver.attributes["waystation.consumer"]


def test_each_delivery_of_a_message_has_its_outcome(collector: Collector, mq: waystation.Client) -> None:
    trace, name = Trace(), unique("retried")
    queue = mq.queue(name, retry=None, hold=0.3)
    queue.put(b"work", headers={"traceparent": trace.header})
    queue.get(timeout=30).reject("not today")
    queue.get(timeout=30).release()
    queue.get(timeout=30)  # kept too long
    queue.get(timeout=30, hold=30).ack()

    def outcomes() -> list[Seen] | None:
        found = [span for span in collector.of(trace.id) if span.name == f"deliver {name}"]
        return sorted(found, key=lambda span: span.began_ns) if len(found) == 4 else None

    found = wait_for(outcomes, "all deliveries")
    assert [span.attributes["waystation.outcome"] for span in found] == ["reject", "release", "expired-hold", "ack"]
    assert [span.failed for span in found] == [True, False, True, False]
    assert all("not today" not in json.dumps(span.attributes) for span in found)


def test_a_consumer_that_goes_away_ends_its_deliveries(
    collector: Collector, server: Server, mq: waystation.Client
) -> None:
    trace, name = Trace(), unique("left")
    mq.queue(name).put(b"work", headers={"traceparent": trace.header})
    with waystation.connect(server.bootstrap) as other:
        other.queue(name).get(timeout=30)
    spans = collector.wait(trace, f"deliver {name}")
    assert spans[f"deliver {name}"].attributes["waystation.outcome"] in ("release", "consumer-gone")


@pytest.mark.clients
def test_amqp_headers(collector: Collector, server: Server) -> None:
    trace, name = Trace(), unique("amqp")
    host, port = split_address(server.addresses["amqp"])
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
    channel = connection.channel()
    channel.queue_declare(name, durable=True)
    channel.confirm_delivery()
    properties = pika.BasicProperties(headers={"traceparent": trace.header}, message_id="m-1")
    channel.basic_publish("", name, b"work", properties)
    method, got, _ = next(channel.consume(name, inactivity_timeout=30))
    assert got.headers["traceparent"] == trace.header
    channel.basic_ack(method.delivery_tag)
    spans = collector.wait(trace, f"publish {name}", "fsync", f"deliver {name}", "ack")
    connection.close()
    check_publish(spans, trace, name, "queue", "amqp")
    check_delivery(spans, trace, name, "amqp", "ack")
    assert spans[f"publish {name}"].attributes["messaging.message.id"] == "m-1"


@pytest.mark.clients
def test_kafka_records_read_by_kafka_and_by_others(
    collector: Collector, server: Server, http: Http, mq: waystation.Client
) -> None:
    trace, topic = Trace(), unique("orders")
    producer = Producer({"bootstrap.servers": server.bootstrap, "acks": "all", "linger.ms": 50})
    for number in range(3):
        headers: dict[str, str | bytes | None] = {"traceparent": trace.header} if number == 1 else {"other": b"x"}
        producer.produce(topic, b"12345", headers=headers)
    producer.flush()
    spans = collector.wait(trace, f"publish {topic}", "fsync")
    check_publish(spans, trace, topic, "topic", "kafka")
    assert spans[f"publish {topic}"].attributes["waystation.offset"] == 1
    assert spans[f"publish {topic}"].attributes["messaging.destination.partition.id"] == "0"
    assert spans[f"publish {topic}"].attributes["messaging.message.body.size"] == 5

    read = http("GET", f"/v1/topics/{topic}/messages").json["messages"]
    assert read[1]["headers"] == {"traceparent": trace.header}
    check_delivery(collector.wait(trace, f"deliver {topic}"), trace, topic, "http", None)

    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": unique("g"), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    got = [consumer.poll(30) for _ in range(3)]
    consumer.close()
    assert [None if one is None else one.headers() for one in got][1] == [("traceparent", trace.header.encode())]
    with mq.subscribe(topic, group=unique("stream"), mode="stream", start="earliest") as messages:
        for _ in range(3):
            received(messages).ack()

    def all_protocols() -> bool:
        found = [span for span in collector.of(trace.id) if span.name == f"deliver {topic}"]
        return {"http", "kafka", "native"} <= {str(span.attributes["waystation.door"]) for span in found}

    wait_for(all_protocols, "a delivery by each protocol")


def test_a_shared_subscription_has_verdicts(collector: Collector, mq: waystation.Client) -> None:
    trace, topic, group = Trace(), unique("events"), unique("workers")
    with mq.subscribe(topic, group=group, mode="shared", start="earliest") as messages:
        mq.publish(topic, b"event", headers={"traceparent": trace.header})
        received(messages).ack()
    spans = collector.wait(trace, f"publish {topic}", "fsync", f"deliver {topic}", "ack")
    check_publish(spans, trace, topic, "topic", "native")
    deliver = check_delivery(spans, trace, topic, "native", "ack")
    assert deliver.attributes["messaging.consumer.group.name"] == group


@pytest.mark.clients
def test_a_kafka_share_consumers_fetch_is_a_delivery(collector: Collector, server: Server) -> None:
    trace, topic, group = Trace(), unique("shared"), unique("g")
    from_the_beginning(AdminClient({"bootstrap.servers": server.bootstrap}), group)
    producer = Producer({"bootstrap.servers": server.bootstrap})
    producer.produce(topic, b"first")
    producer.produce(topic, b"second", headers={"traceparent": trace.header})
    producer.flush()
    with share_consumer(server.bootstrap, group, [topic]) as consumer:
        take(consumer, 2)
    spans = collector.wait(trace, f"publish {topic}", "fsync", f"deliver {topic}")
    deliver = check_delivery(spans, trace, topic, "kafka", None)
    assert deliver.attributes["messaging.consumer.group.name"] == group
    assert deliver.attributes["waystation.offset"] == 1


def test_a_dead_letter_stays_in_its_trace(collector: Collector, mq: waystation.Client) -> None:
    trace, name = Trace(), unique("dying")
    mq.queue(f"{name}.dead")
    queue = mq.queue(name, dead_letter=f"{name}.dead", max_deliveries=1)
    queue.put(b"work", headers={"traceparent": trace.header})
    queue.get(timeout=30).reject()
    mq.queue(f"{name}.dead").get(timeout=30).ack()

    def moved() -> Seen | None:
        found = [span for span in collector.of(trace.id) if span.name == f"publish {name}.dead"]
        delivered = [span for span in collector.of(trace.id) if span.name == f"deliver {name}.dead"]
        return found[0] if found and delivered else None

    assert wait_for(moved, "the dead letter's spans").attributes["waystation.door"] == "broker"


def test_a_transactions_ack_is_one_too(collector: Collector, mq: waystation.Client) -> None:
    trace, source, target = Trace(), unique("in"), unique("out")
    queue, results = mq.queue(source), mq.queue(target)
    queue.put(b"work", headers={"traceparent": trace.header})
    message = queue.get(timeout=30)
    with mq.transaction(unique("tx")) as transaction:
        transaction.put(results, b"done", headers={"traceparent": message.headers["traceparent"]})
        transaction.ack(message)

    def there() -> bool:
        names = {span.name for span in collector.of(trace.id)}
        return {f"publish {source}", f"deliver {source}", "ack", f"publish {target}"} <= names

    wait_for(there, "both queues in one trace")
    assert not any(span.failed for span in collector.of(trace.id))


def test_http_takes_the_requests_own_header_for_messages_that_have_none(collector: Collector, http: Http) -> None:
    mine, other, name = Trace(), Trace(), unique("web")
    http("PUT", f"/v1/queues/{name}", {})
    body = [{"payload": "a"}, {"payload": "b", "headers": {"traceparent": other.header}}]
    http("POST", f"/v1/queues/{name}/messages", body, headers={"traceparent": mine.header, "tracestate": "v=2"})
    taken = http("POST", f"/v1/queues/{name}/take", count=2).json["messages"]
    assert taken[0]["headers"] == {"traceparent": mine.header, "tracestate": "v=2"}
    assert taken[1]["headers"] == {"traceparent": other.header}
    http("POST", "/v1/ack", {"ack_ids": [one["ack_id"] for one in taken]})
    for trace in (mine, other):
        spans = collector.wait(trace, f"publish {name}", "fsync", f"deliver {name}", "ack")
        check_publish(spans, trace, name, "queue", "http")
        check_delivery(spans, trace, name, "http", "ack")


def test_what_is_not_sampled_or_no_traceparent_is_not_traced(collector: Collector, mq: waystation.Client) -> None:
    unsampled, traced, name = Trace(sampled=False), Trace(), unique("quiet")
    queue = mq.queue(name)
    bad = ["", "00", f"ff-{'1' * 32}-{'2' * 16}-01", f"00-{'0' * 32}-{'2' * 16}-01", f"00-{'A' * 32}-{'2' * 16}-01", 7]
    for value in (unsampled.header, *bad, traced.header):
        queue.put(b"x", headers={"traceparent": value})
    mq.publish(unique("quiet"), b"x", headers={"traceparent": unsampled.header})
    for _ in range(len(bad) + 2):
        queue.get(timeout=30).ack()
    collector.wait(traced, f"publish {name}", "fsync", f"deliver {name}", "ack")
    assert collector.of(unsampled.id) == []
    assert collector.of("1" * 32) == []


def test_a_broker_is_fine_without_its_collector(tmp_path_factory: pytest.TempPathFactory) -> None:
    gone = Collector()
    gone.close()
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", gone.endpoint)
        environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        server = Server(tmp_path_factory.mktemp("away"), settings={"waystation.tracing": "otlp"})
        server.start()
    try:
        with waystation.connect(server.bootstrap) as mq:
            queue = mq.queue("jobs")
            for number in range(200):
                queue.put(str(number).encode(), headers={"traceparent": Trace().header})
            assert [queue.get(timeout=30).payload for _ in range(200)] == [str(n).encode() for n in range(200)]
            wait_for(lambda: "does not take spans" in server.log.read_text(), "the warning")
    finally:
        assert server.stop() == 0
    log = server.log.read_text()
    assert log.count("does not take spans") == 1
    assert "opentelemetry" not in log
    assert "Traceback" not in log
