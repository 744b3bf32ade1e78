"""Clients of every protocol that are faster than their quota: they are slowed, by what a clock guarantees, and told as
their protocol can; others are not. The broker's own count of bytes says how fast they were."""

from __future__ import annotations

import base64
import http.client
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pika
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer

import waystation
from tests.security.test_kafka_logins import authenticate, handshake, talk
from tests.security.users_kit import PASSWORDS, add_users
from tests.security.users_kit import waystation as command
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for

RATE = 100_000
"""Bytes a second. A second's worth may come at once."""
PIECE = 10_000
MESSAGE = b"x" * PIECE
COUNT = 40


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder: Path = tmp_path_factory.mktemp("quotas")
    add_users(folder / "data", PASSWORDS, superusers=("admin",))
    with Server(folder, settings={"max.connections": 1000}) as running:
        yield running


def address(server: Server, user: str) -> str:
    return f"waystation://{user}:{quote(PASSWORDS[user], safe='')}@{server.bootstrap}"


def quotas(server: Server, *arguments: str) -> str:
    verb, *rest = arguments
    return command("quotas", verb, "--server", address(server, "admin"), *rest).stdout


@pytest.fixture
def limited(server: Server) -> Iterator[Server]:
    """Alice may publish and consume so much."""
    quotas(server, "set", "--user", "alice", f"producer_byte_rate={RATE // 1000}k", f"consumer_byte_rate={RATE}")
    yield server
    quotas(server, "remove", "--user", "alice")


def sasl(server: Server, user: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": server.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": PASSWORDS[user],
    }


def python_sasl(server: Server, user: str) -> dict[str, Any]:
    return {
        "bootstrap_servers": server.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": PASSWORDS[user],
    }


def counted(server: Server, what: str, protocol: str) -> float:
    """A counter of the broker's own."""
    host, port = split_address(server.addresses["http"])
    token = base64.b64encode(f"admin:{PASSWORDS['admin']}".encode()).decode()
    with closing(http.client.HTTPConnection(host, port, timeout=DEADLINE_S)) as connection:
        connection.request("GET", "/metrics", headers={"authorization": f"Basic {token}"})
        text = connection.getresponse().read().decode()
    found = re.search(rf'waystation_{what}_total\{{[^}}]*"{protocol}"[^}}]*\}} (\S+)', text)
    assert found is not None, what
    return float(found[1])


class Watched:
    """What the broker has counted between two moments, and how long that took."""

    def __init__(self, server: Server, what: str, protocol: str) -> None:
        self._asked = (server, what, protocol)
        self._before = counted(*self._asked)
        self._throttled = counted(server, "throttled", protocol)
        self._began = time.monotonic()

    def assert_slowed(self, overshoot: int = 2 * PIECE) -> None:
        """`overshoot`: what may be taken in one go, and is waited for afterwards."""
        elapsed = time.monotonic() - self._began
        taken = counted(*self._asked) - self._before
        assert taken >= COUNT * PIECE
        assert elapsed >= (taken - RATE - overshoot) / RATE
        assert counted(self._asked[0], "throttled", self._asked[2]) > self._throttled


# -- Kafka -------------------------------------------------------------------------------------------------------------


def test_confluent_producer_is_slowed_and_told(limited: Server) -> None:
    told: list[float] = []
    topic = unique("quota")
    producer = Producer(
        {
            **sasl(limited, "alice"),
            "throttle_cb": lambda event: told.append(event.throttle_time),
            "batch.num.messages": 1,
            "max.in.flight": 1,
            "linger.ms": 0,
        }
    )
    watched = Watched(limited, "published_bytes", "kafka")
    for _ in range(COUNT):
        producer.produce(topic, MESSAGE)
    assert producer.flush(DEADLINE_S) == 0
    watched.assert_slowed()
    assert max(told) > 0


def test_kafka_python_producer_and_consumer_are_slowed_and_told(limited: Server) -> None:
    topic = unique("quota")
    watched = Watched(limited, "published_bytes", "kafka")
    producer = KafkaProducer(
        **python_sasl(limited, "alice"), batch_size=PIECE, max_in_flight_requests_per_connection=1, acks=1
    )
    try:
        for _ in range(COUNT):
            producer.send(topic, MESSAGE)
        producer.flush(DEADLINE_S)
        watched.assert_slowed()
        assert throttle_max(producer) > 0
    finally:
        producer.close()
    watched = Watched(limited, "delivered_bytes", "kafka")
    consumer = KafkaConsumer(
        topic,
        **python_sasl(limited, "alice"),
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=PIECE,
        fetch_max_bytes=PIECE,
        consumer_timeout_ms=int(DEADLINE_S * 1000),
    )
    try:
        for _ in range(COUNT):
            next(consumer)
        watched.assert_slowed()
        assert throttle_max(consumer) > 0
    finally:
        consumer.close()


def throttle_max(client: Any) -> float:
    """What kafka-python was told in answers, in milliseconds."""
    found = [group["throttle-time-max"] for group in client.metrics().values() if "throttle-time-max" in group]
    return float(max(value for value in found if value is not None))


def test_another_user_is_not_slowed(limited: Server) -> None:
    told: list[float] = []
    topic = unique("quota")
    producer = Producer({**sasl(limited, "bob"), "throttle_cb": lambda event: told.append(event.throttle_time)})
    for _ in range(COUNT):
        producer.produce(topic, MESSAGE)
    assert producer.flush(DEADLINE_S) == 0
    consumer = Consumer(
        {
            **sasl(limited, "bob"),
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "throttle_cb": lambda event: told.append(event.throttle_time),
        }
    )
    consumer.subscribe([topic])
    try:
        found = 0

        def all_there() -> bool:
            nonlocal found
            found += len(consumer.consume(COUNT, 0.2))
            return found >= COUNT

        wait_for(all_there, "all messages")
    finally:
        consumer.close()
    assert not told


def test_a_quota_of_a_client_id_is_for_whoever_calls_itself_so(server: Server) -> None:
    quotas(server, "set", "--client-id", "slow", f"producer_byte_rate={RATE}")
    try:
        told: dict[str, list[float]] = {"slow": [], "fast": []}
        for client, throttled in told.items():
            producer = Producer(
                {
                    **sasl(server, "bob"),
                    "client.id": client,
                    "throttle_cb": lambda event, throttled=throttled: throttled.append(event.throttle_time),
                    "batch.num.messages": 1,
                    "max.in.flight": 1,
                }
            )
            topic = unique("quota")
            for _ in range(COUNT // 2):
                producer.produce(topic, MESSAGE)
            assert producer.flush(DEADLINE_S) == 0
        assert told["slow"]
        assert not told["fast"]
    finally:
        quotas(server, "remove", "--client-id", "slow")


def test_topics_that_are_created_too_fast_are_refused_with_kafkas_code(server: Server) -> None:
    quotas(server, "set", "--user", "bob", "controller_mutation_rate=0.1")
    try:
        admin = AdminClient(sasl(server, "bob"))
        first, second = unique("quota"), unique("quota")
        admin.create_topics([NewTopic(first, 20, 1)])[first].result(DEADLINE_S)  # more than was saved
        for future in (
            admin.create_topics([NewTopic(second, 1, 1)])[second],
            admin.create_partitions([NewPartitions(first, 21)])[first],
            admin.delete_topics([first])[first],
        ):
            with pytest.raises(KafkaException) as refused:
                future.result(DEADLINE_S)
            assert refused.value.args[0].code() == KafkaError.THROTTLING_QUOTA_EXCEEDED
        there = admin.list_topics(timeout=DEADLINE_S).topics
        assert second not in there
        assert len(there[first].partitions) == 20
        with waystation.connect(address(server, "bob")) as mq, pytest.raises(waystation.errors.QuotaExceeded):
            mq.publish(second, "x")
    finally:
        quotas(server, "remove", "--user", "bob")


# -- native ------------------------------------------------------------------------------------------------------------


def test_native_publisher_and_worker_are_slowed(limited: Server) -> None:
    name = unique("quota")
    with waystation.connect(address(limited, "alice")) as mq:
        watched = Watched(limited, "published_bytes", "native")
        queue = mq.queue(name)
        for _ in range(COUNT):
            queue.put(MESSAGE)
        watched.assert_slowed()
        watched = Watched(limited, "delivered_bytes", "native")
        for _ in range(COUNT):
            with queue.get(timeout=DEADLINE_S):
                pass
        watched.assert_slowed()


# -- AMQP --------------------------------------------------------------------------------------------------------------


def amqp(server: Server, user: str) -> pika.BlockingConnection:
    host, port = split_address(server.addresses["amqp"])
    credentials = pika.PlainCredentials(user, PASSWORDS[user])
    return pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=credentials))


def test_amqp_publisher_is_slowed_and_told_if_it_takes_long_and_so_is_its_consumer(limited: Server) -> None:
    queue = unique("quota")
    with closing(amqp(limited, "alice")) as connection:
        blocked: list[Any] = []
        unblocked: list[Any] = []
        connection.add_on_connection_blocked_callback(lambda _, method: blocked.append(method))
        connection.add_on_connection_unblocked_callback(lambda _, method: unblocked.append(method))
        channel = connection.channel()
        channel.queue_declare(queue)
        channel.confirm_delivery()
        watched = Watched(limited, "published_bytes", "amqp")
        for _ in range(COUNT):
            channel.basic_publish("", queue, MESSAGE)
        watched.assert_slowed()
        channel.basic_publish("", queue, b"y" * 3 * RATE)  # three seconds' worth
        deadline = time.monotonic() + DEADLINE_S
        while not unblocked and time.monotonic() < deadline:
            connection.process_data_events(0.1)
        assert len(blocked) == len(unblocked) == 1
        assert "quota" in blocked[0].method.reason
        watched = Watched(limited, "delivered_bytes", "amqp")
        channel.basic_qos(prefetch_count=1)
        deliveries = channel.consume(queue, inactivity_timeout=DEADLINE_S)
        for _ in range(COUNT):
            method, _, _ = next(deliveries)
            assert method is not None
            channel.basic_ack(method.delivery_tag)
        watched.assert_slowed()


# -- HTTP --------------------------------------------------------------------------------------------------------------


def test_http_publisher_is_answered_later_and_refused_if_it_takes_long(limited: Server) -> None:
    host, port = split_address(limited.addresses["http"])
    token = base64.b64encode(f"alice:{PASSWORDS['alice']}".encode()).decode()
    headers = {"authorization": f"Basic {token}", "content-type": "application/json"}
    name = unique("quota")

    def call(method: str, path: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
        sent = None if body is None else json.dumps(body)
        connection.request(method, path, sent, headers)
        answer = connection.getresponse()
        data = answer.read()
        return answer.status, dict(answer.headers), json.loads(data) if data else None

    with closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        assert call("PUT", f"/v1/queues/{name}", {})[0] in (200, 201)
        watched = Watched(limited, "published_bytes", "http")
        text = MESSAGE.decode()
        for _ in range(COUNT):
            assert call("POST", f"/v1/queues/{name}/messages", [{"payload": text}])[0] in (200, 201)
        watched.assert_slowed()
        watched = Watched(limited, "delivered_bytes", "http")
        for _ in range(COUNT):
            assert call("POST", f"/v1/queues/{name}/take")[2]
        watched.assert_slowed()
        # A debt of a quarter of a minute: the answer to this comes after ten seconds, and then it is too much.
        assert call("POST", f"/v1/queues/{name}/messages", [{"payload": text * (20 * RATE // PIECE)}])[0] in (200, 201)
        before = counted(limited, "messages_published", "http")
        status, told, problem = call("POST", f"/v1/queues/{name}/messages", [{"payload": "y"}])
        if status == 429:  # on a machine that is so slow that it is over by now there is nothing to refuse
            assert problem["error"] == "QuotaExceeded"
            assert 0 < int(told["retry-after"]) <= 20
            assert counted(limited, "messages_published", "http") == before


class Browser:
    """Asks over HTTP as one user, or as nobody."""

    def __init__(self, server: Server, user: str = "") -> None:
        self._address = split_address(server.addresses["http"])
        token = base64.b64encode(f"{user}:{PASSWORDS[user]}".encode()).decode() if user else ""
        self._headers = {"authorization": f"Basic {token}"} if user else {}

    def get(self, path: str) -> tuple[int, bytes]:
        with closing(http.client.HTTPConnection(*self._address, timeout=60)) as connection:
            connection.request("GET", path, headers=self._headers)
            answer = connection.getresponse()
            return answer.status, answer.read()


def test_reading_a_topic_by_http_counts_and_is_refused_if_it_takes_long(limited: Server) -> None:
    topic = unique("quota")
    with waystation.connect(address(limited, "bob")) as mq:
        for _ in range(COUNT):
            mq.publish(topic, MESSAGE)
        for _ in range(25):
            mq.publish(topic, MESSAGE * 10)
    alice = Browser(limited, "alice")
    began = time.monotonic()
    for offset in range(COUNT):
        status, data = alice.get(f"/v1/topics/{topic}/messages?count=1&offset={offset}")
        assert status == 200
        assert len(data) > PIECE
    assert time.monotonic() - began >= (COUNT * PIECE - RATE - 2 * PIECE) / RATE
    assert alice.get(f"/v1/topics/{topic}/messages?count=25&offset={COUNT}")[0] == 200  # waits for its ten seconds
    status, data = alice.get(f"/v1/topics/{topic}/history?count=5")
    assert (status, json.loads(data)["error"]) == (429, "QuotaExceeded")


def test_who_has_not_logged_in_uses_up_nobodys_time(server: Server) -> None:
    """All who log in would share what strangers have used."""
    quotas(server, "set", "--user", "default", "request_percentage=0.01")
    try:
        for _ in range(20):
            assert talk(server, handshake("PLAIN"))[0] is not None
        login = authenticate(b"\0bob\0" + PASSWORDS["bob"].encode())
        assert talk(server, handshake("PLAIN"), login)[1] is not None
    finally:
        quotas(server, "remove", "--user", "default")


def test_whoever_looks_whether_the_broker_lives_is_answered_at_once(tmp_path: Path) -> None:
    """On a broker that everybody may use, a publisher is nobody, and so is a probe."""
    with Server(tmp_path) as server:
        command("quotas", "set", "--user", "default", "producer_byte_rate=1000", "--server", server.bootstrap)
        with waystation.connect(server.bootstrap) as mq:
            mq.publish(unique("quota"), b"x" * RATE)
        began = time.monotonic()
        assert Browser(server).get("/healthz")[0] == 200
        assert time.monotonic() - began < 8


def test_connections_of_one_user_share_its_rate_over_http(limited: Server) -> None:
    """Those that waited for the same debt do not all publish when it is paid."""
    host, port = split_address(limited.addresses["http"])
    token = base64.b64encode(f"alice:{PASSWORDS['alice']}".encode()).decode()
    path = f"/v1/queues/{unique('quota')}"

    def call(connection: http.client.HTTPConnection, method: str, where: str, body: bytes) -> None:
        connection.request(method, where, body, {"authorization": f"Basic {token}"})
        answer = connection.getresponse()
        assert answer.status in (200, 201), answer.read()
        answer.read()

    def post(count: int) -> None:
        with closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
            for _ in range(count):
                call(connection, "POST", f"{path}/messages?raw=true", MESSAGE)

    with closing(http.client.HTTPConnection(host, port, timeout=60)) as connection:
        call(connection, "PUT", path, b"{}")
    before, began = counted(limited, "published_bytes", "http"), time.monotonic()
    post(RATE // PIECE)  # what was saved up
    with ThreadPoolExecutor(8) as pool:
        posts = [pool.submit(post, 3) for _ in range(8)]
        while not all(one.done() for one in posts):
            taken = counted(limited, "published_bytes", "http") - before
            assert taken <= RATE + RATE * (time.monotonic() - began) + PIECE, "what was saved up, and one request more"
        for one in posts:
            one.result()


# -- connections -------------------------------------------------------------------------------------------------------


def test_an_address_that_connects_too_fast_is_refused(server: Server) -> None:
    host, port = split_address(server.addresses["http"])
    try:
        quotas(server, "set", "--ip", "127.0.0.1", "connection_creation_rate=1")
        before = refused(server)
        for _ in range(30):
            connection = http.client.HTTPConnection(host, port, timeout=DEADLINE_S)
            try:
                connection.request("GET", "/healthz")
                connection.getresponse().read()
            except (ConnectionError, http.client.RemoteDisconnected, TimeoutError):
                break
            finally:
                connection.close()
        else:
            raise AssertionError("thirty connections at once")
    finally:
        wait_for(lambda: _removed(server), "the quota is removed")
    assert refused(server) > before


def _removed(server: Server) -> bool:
    done = command("quotas", "remove", "--ip", "127.0.0.1", "--server", address(server, "admin"), check=False)
    return done.returncode == 0


def refused(server: Server) -> int:
    host, port = split_address(server.addresses["http"])
    token = base64.b64encode(f"admin:{PASSWORDS['admin']}".encode()).decode()

    def ask() -> str:
        try:
            with closing(http.client.HTTPConnection(host, port, timeout=DEADLINE_S)) as connection:
                connection.request("GET", "/metrics", headers={"authorization": f"Basic {token}"})
                return connection.getresponse().read().decode()
        except (ConnectionError, http.client.RemoteDisconnected):
            return ""

    text = wait_for(ask, "metrics")
    return sum(int(float(number)) for number in re.findall(r"(?m)^\S*connections_refused_total\S* (\S+)", str(text)))
