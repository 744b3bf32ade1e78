"""Every verb that publishes, of every protocol, obeys the same rules: resource alarms, limits of a namespace, and the
replicas that a topic wants in sync.

What a protocol offers is taken from its own table. An entry that is in neither list here fails
`test_every_entry_of_a_protocols_table_is_classified`: say whether it publishes, and if it does, how to try it.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import confluent_kafka
import pika
import pytest
from pika.exceptions import ChannelClosedByBroker, ConnectionBlockedTimeout, NackError

from tests.protocols.http.kit import Http, name
from tests.protocols.native.kit import JsonLines
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.log.batches import batch as batches
from waystation.protocol import AnyCommand
from waystation.protocols.amqp.methods import HANDLERS as AMQP_METHODS
from waystation.protocols.http.api.routes import ROUTES
from waystation.protocols.kafka.apis import APIS
from waystation.protocols.management.api import ROUTES as MANAGEMENT_ROUTES
from waystation.protocols.native.plain_actions.plain import PlainActions

Situation = Literal["alarm", "limit", "in sync"]
SITUATIONS: tuple[Situation, ...] = ("alarm", "limit", "in sync")
SHOP = "shop"
BLOCKED_S = 2.0
"""How long an AMQP client waits for a confirm that cannot come."""


# -- where it is tried -------------------------------------------------------------------------------------------------


@dataclass
class Place:
    """A broker in a situation, and fresh names in it for one try."""

    server: Server
    situation: Situation
    queue: str = field(default_factory=lambda: unique("jobs"))
    topic: str = field(default_factory=lambda: unique("events"))
    exchange: str = field(default_factory=lambda: unique("news"))

    def __post_init__(self) -> None:
        if self.situation == "limit":
            self.queue, self.exchange = f"{SHOP}/{self.queue}", f"{SHOP}/{self.exchange}"
            self.topic = f"{SHOP}.{self.topic}"
        http = self.http
        http("PUT", f"/v1/queues/{name(self.queue)}")
        settings = {"min.insync.replicas": "2"} if self.situation == "in sync" else {}
        http("PUT", f"/v1/topics/{self.topic}", {"partitions": 1, "settings": settings})
        http("PUT", f"/v1/exchanges/{name(self.exchange)}", {"kind": "fanout"})
        http("POST", f"/v1/exchanges/{name(self.exchange)}/bindings", {"target": f"topic:{self.topic}"})

    @property
    def http(self) -> Http:
        return Http(self.server.addresses["http"])

    @property
    def vhost(self) -> str:
        return SHOP if self.situation == "limit" else "/"

    def local(self, full: str) -> str:
        return full.rpartition("/")[2]

    def stored(self) -> int:
        """Messages in the queue and the topic."""
        topic = self.http("GET", f"/v1/topics/{self.topic}").json
        in_topic = sum(partition["end_offset"] - partition["start_offset"] for partition in topic["partitions"])
        return int(self.http.queue(self.queue)["ready"] + in_topic)


@pytest.fixture(scope="module", params=SITUATIONS)
def place_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Place]]:
    situation: Situation = request.param
    settings = {"waystation.disk.free.min.bytes": 2**60 if situation == "alarm" else 0}
    with Server(tmp_path_factory.mktemp("server"), settings=settings) as server:
        if situation == "limit":
            _fill_the_shop(Http(server.addresses["http"]))
        yield lambda: Place(server, situation)


def _fill_the_shop(http: Http) -> None:
    """A namespace that has more than it may."""
    headers = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    http("PUT", f"/api/vhosts/{SHOP}", {}, headers=headers)
    ballast = name(f"{SHOP}/ballast")
    http("PUT", f"/v1/queues/{ballast}")
    http("POST", f"/v1/queues/{ballast}/messages", [{"payload": "x" * 100}])
    http("PUT", f"/api/vhost-limits/{SHOP}/max-bytes", {"value": 1}, headers=headers)
    wait_for(
        lambda: http("POST", f"/v1/queues/{ballast}/messages", [{"payload": "x"}], ok=False).status == 503,
        "the namespace's limit to be noticed",
    )


# -- verbs -------------------------------------------------------------------------------------------------------------

Try = Callable[[Place], str]
"""Publishes one message; returns the error that the protocol's client sees, or TAKEN."""
TAKEN = "taken"
ALARM, REPLICAS = "ResourceAlarm", "NotEnoughReplicas"


@dataclass(frozen=True)
class Verb:
    """One way to publish. `to`: what it leads to; only topics know replicas."""

    entry: str
    how: str
    to: Literal["queue", "topic"]
    attempt: Try
    alarm: str = ALARM
    replicas: str = REPLICAS
    stored: int = 0
    """The protocol blocks publishers, and so many offsets are taken by what they have sent until then."""

    def __str__(self) -> str:
        return f"{self.entry}: {self.how}"


def filled(place: Place, said: Any) -> Any:
    """With this place's names in it."""
    text = json.dumps(said)
    for word, known in (("QUEUE", place.queue), ("TOPIC", place.topic), ("NEWS", place.exchange)):
        text = text.replace(word, known)
    return json.loads(text)


def lines(action: str, **fields: Any) -> Try:
    """A JSON line."""

    def attempt(place: Place) -> str:
        said = filled(place, fields)
        with JsonLines(place.server.bootstrap) as client:
            if said.pop("in_transaction", False):
                said["tx"] = client.ask("begin", transactional_id=unique("tx"))
            answer = client.try_ask(action, **said)
        return TAKEN if answer["status"] == "success" else str(answer.get("error_type") or answer["error"])

    return attempt


def posted(path: str, body: Any, **query: Any) -> Try:
    def attempt(place: Place) -> str:
        there = path.format(queue=name(place.queue), topic=place.topic, exchange=name(place.exchange))
        answer = place.http("POST", there, filled(place, body), ok=False, **filled(place, query))
        if answer.status < 300 or answer.status == 504:  # it was sent, and nobody has replied to it
            return TAKEN
        assert answer.status != 503 or answer.headers["retry-after"]
        return answer.error

    return attempt


def managed(place: Place) -> str:
    headers = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    body = {"properties": {}, "routing_key": "", "payload": "x", "payload_encoding": "string"}
    path = f"/api/exchanges/{name(place.vhost)}/{place.local(place.exchange)}/publish"
    answer = place.http("POST", path, body, headers=headers, ok=False)
    return TAKEN if answer.status < 300 else f"{answer.status}"


def aliveness(place: Place) -> str:
    headers = {"authorization": "Basic " + base64.b64encode(b"guest:guest").decode()}
    answer = place.http("GET", f"/api/aliveness-test/{name(place.vhost)}", headers=headers, ok=False)
    return TAKEN if answer.status < 300 else f"{answer.status}"


def produced(*, acks: str, transactional: bool = False) -> Try:
    def attempt(place: Place) -> str:
        told: list[str] = []
        config: dict[str, Any] = {
            "bootstrap.servers": place.server.bootstrap,
            "acks": acks,
            "message.timeout.ms": 3_000,
            "retry.backoff.ms": 100,
        }
        if transactional:
            config |= {"transactional.id": unique("tx"), "transaction.timeout.ms": 5_000}
        else:
            config["retries"] = 0
        producer = confluent_kafka.Producer(config)
        if transactional:
            producer.init_transactions(20)
            producer.begin_transaction()
        producer.produce(
            place.topic, b"x", on_delivery=lambda error, _: told.append(TAKEN if error is None else error.name())
        )
        producer.flush(20)
        [outcome] = told
        return outcome

    return attempt


def amqp(*, exchange: bool, confirms: bool = True, tx: bool = False) -> Try:
    def attempt(place: Place) -> str:
        host, port = split_address(place.server.addresses["amqp"])
        connection = pika.BlockingConnection(
            pika.ConnectionParameters(
                host, port, virtual_host=place.vhost, blocked_connection_timeout=BLOCKED_S, socket_timeout=20
            )
        )
        channel = connection.channel()
        key = "" if exchange else place.local(place.queue)
        target = place.local(place.exchange) if exchange else ""
        try:
            if tx:
                channel.tx_select()
            elif confirms:
                channel.confirm_delivery()
            for _ in range(2):  # the first may be stored before the client is blocked
                channel.basic_publish(target, key, b"x")
                if tx:
                    channel.tx_commit()
            if place.situation != "in sync":
                connection.process_data_events(2 * BLOCKED_S)
        except ConnectionBlockedTimeout:  # after connection.blocked, which it was told
            return "blocked"
        except NackError:
            return "nack"
        except ChannelClosedByBroker as error:
            return f"channel closed {error.reply_code}"
        finally:
            if connection.is_open:
                connection.close()
        return TAKEN

    return attempt


def _batch() -> str:
    return base64.b64encode(batches.build([(None, b"x", ())], 1_790_000_000_000)).decode()


MESSAGES = [{"payload": "x"}]
NATIVE = (
    Verb("Put", "to a queue", "queue", lines("put", queue="QUEUE", messages=MESSAGES)),
    Verb("Put", "and waits for room", "queue", lines("put", queue="QUEUE", messages=MESSAGES, wait_ms=500)),
    Verb("Put", "in a transaction", "queue", lines("put", queue="QUEUE", messages=MESSAGES, in_transaction=True)),
    Verb("Publish", "to a topic", "topic", lines("publish_messages", topic="TOPIC", messages=MESSAGES)),
    Verb("Publish", "to an exchange", "topic", lines("publish_messages", exchange="NEWS", messages=MESSAGES)),
    Verb(
        "Publish", "in a transaction", "topic",
        lines("publish_messages", topic="TOPIC", messages=MESSAGES, in_transaction=True),
    ),
    Verb("PublishBatches", "alone", "topic", lines("publish_batches", topic="TOPIC", batches=[[0, _batch()]])),
    Verb(
        "PublishBatches", "in a transaction", "topic",
        lines("publish_batches", topic="TOPIC", batches=[[0, _batch()]], in_transaction=True),
    ),
)  # fmt: skip
PLAIN = (Verb("publish", "a plain line", "topic", lines("publish", message={"topic": "TOPIC", "payload": "x"})),)
HTTP = (
    Verb("POST /v1/queues/{queue}/messages", "put", "queue", posted("/v1/queues/{queue}/messages", MESSAGES)),
    Verb("POST /v1/topics/{topic}/messages", "publish", "topic", posted("/v1/topics/{topic}/messages", MESSAGES)),
    Verb(
        "POST /v1/exchanges/{exchange}/messages", "publish", "topic",
        posted("/v1/exchanges/{exchange}/messages", MESSAGES),
    ),
    Verb(
        "POST /v1/requests", "to a queue", "queue", posted("/v1/requests", MESSAGES, queue="QUEUE", timeout_ms=200)
    ),
    Verb(
        "POST /v1/requests", "to a topic", "queue", posted("/v1/requests", MESSAGES, topic="TOPIC", timeout_ms=200)
    ),  # which promises a reply, not that the request is durable
    Verb("POST /queue/enqueue", "put", "queue", posted("/queue/enqueue", {"queue": "QUEUE", "message": "x"})),
    Verb("POST /pubsub/publish", "publish", "topic", posted("/pubsub/publish", {"channel": "TOPIC", "message": "x"})),
)  # fmt: skip
MANAGEMENT = (
    Verb("POST /api/exchanges/{vhost}/{exchange}/publish", "publish", "topic", managed, alarm="503", replicas="503"),
    Verb("GET /api/aliveness-test/{vhost}", "put and get", "queue", aliveness, alarm="503"),
)
RETRIED = "NOT_ENOUGH_REPLICAS"
KAFKA = (
    Verb("produce", "acks=all", "topic", produced(acks="all"), RETRIED, RETRIED),
    Verb("produce", "acks=1", "queue", produced(acks="1"), RETRIED),  # which promises nothing about replicas
    Verb(  # it retries for as long as it may
        "produce", "in a transaction", "topic", produced(acks="all", transactional=True), "_MSG_TIMED_OUT",
        "_MSG_TIMED_OUT",
    ),
)  # fmt: skip
AMQP = (
    Verb("Basic.Publish", "confirmed", "queue", amqp(exchange=False), "blocked", stored=1),
    Verb(
        "Basic.Publish", "confirmed, to a topic", "topic", amqp(exchange=True), "blocked", "nack", stored=1
    ),
    Verb(
        "Basic.Publish", "unconfirmed", "queue", amqp(exchange=False, confirms=False), "blocked", stored=2
    ),
    Verb(
        "Tx.Commit", "to a topic", "topic", amqp(exchange=True, tx=True), "blocked", "channel closed 541",
        stored=2,
    ),
)  # fmt: skip


# -- the tables --------------------------------------------------------------------------------------------------------

READING = ("GET", "DELETE")
"""HTTP methods that publish nothing, but for what is among the verbs."""


def _routes(table: Any) -> set[str]:
    return {f"{route.method} {route.path}" for route in table}


def native_table() -> set[str]:
    return {command.__name__ for command in get_args(AnyCommand)}


def plain_table() -> set[str]:
    nobody: Any = None
    return set(PlainActions(nobody, nobody, nobody).actions)


def amqp_table() -> set[str]:
    return {*AMQP_METHODS, "Basic.Publish"}  # which is an event of the engine


KAFKA_SILENT = """
add_offsets_to_txn add_partitions_to_txn alter_client_quotas alter_configs
alter_partition_reassignments alter_replica_log_dirs
alter_share_group_offsets alter_user_scram_credentials api_versions consumer_group_describe
consumer_group_heartbeat create_acls create_delegation_token describe_delegation_token expire_delegation_token
renew_delegation_token
create_partitions create_topics delete_acls delete_groups delete_records delete_share_group_offsets
delete_topics describe_acls describe_client_quotas describe_cluster describe_configs describe_groups
describe_log_dirs describe_producers describe_quorum describe_share_group_offsets describe_topic_partitions
describe_transactions describe_user_scram_credentials elect_leaders end_txn fetch find_coordinator heartbeat
incremental_alter_configs init_producer_id join_group leave_group list_config_resources list_groups
list_offsets list_partition_reassignments list_transactions metadata offset_commit offset_delete offset_fetch
offset_for_leader_epoch sasl_authenticate sasl_handshake
share_acknowledge share_fetch share_group_describe share_group_heartbeat sync_group
txn_offset_commit update_features write_txn_markers unregister_broker
"""
AMQP_SILENT = """
Basic.Cancel Basic.CancelOk Basic.Consume Basic.Get Basic.Nack Basic.Qos Basic.Recover Basic.RecoverAsync
Basic.Reject Channel.CloseOk Channel.Flow Channel.FlowOk Confirm.Select Exchange.Bind Exchange.Declare
Exchange.Delete Exchange.Unbind Queue.Bind Queue.Declare Queue.Delete Queue.Purge Queue.Unbind Tx.Rollback
Tx.Select
"""

TABLES: dict[str, tuple[Callable[[], set[str]], tuple[Verb, ...], set[str]]] = {
    "native": (
        native_table,
        NATIVE,
        {
            *(
                "Hello",
                "Authenticate",
                "Ping",
                "Stats",
                "DeclareQueue",
                "DeleteQueue",
                "PurgeQueue",
                "DescribeQueue",
                "ListQueues",
            ),
            *("Get", "Peek", "Find", "Cancel", "Redrive", "Consume", "Subscribe", "Credit", "Settle", "Touch"),
            *("Cease", "OpenReader", "ClaimEntries", "ReadEntries", "CreateTopic", "DeleteTopic", "DescribeTopic"),
            *("ListTopics", "DeclareExchange", "DeleteExchange", "Bind", "Unbind", "ListRouting", "Route"),
            *("OpenInbox", "Reply", "Begin", "CommitOffsets", "End", "Stage", "CommitStaged", "AbortStaged"),
            *(
                "ReadBatches",
                "AwaitRecords",
                "JoinGroup",
                "GroupAssignment",
                "StagedPosition",
                "View",
                "Act",
                "EndConnection",
                "AlterSettings",
                "AskNode",
            ),
        },
    ),
    "plain lines": (plain_table, PLAIN, {"subscribe", "unsubscribe", "consume", "ack", "reject", "stats"}),
    "http": (
        lambda: {entry for entry in _routes(ROUTES) if not entry.startswith(READING)},
        HTTP,
        {
            "PATCH /v1/settings",
            "POST /v1/acls",
            "POST /v1/acls/remove",
            "PUT /v1/quotas",
            "POST /v1/quotas/remove",
            "POST /v1/cluster/elect",
            "POST /v1/cluster/nodes/{node}/drain",
            "POST /v1/cluster/reassign",
            "PATCH /v1/topics/{topic}",
            "POST /queue/ack",
            "POST /queue/dequeue",
            "POST /queue/purge",
            "POST /queue/reject",
            "POST /v1/ack",
            "POST /v1/dead-letters/{queue}/redrive",
            "POST /v1/exchanges/{exchange}/bindings",
            "POST /v1/exchanges/{exchange}/route",
            "POST /v1/groups/{group}/reset",
            "POST /v1/login",
            "POST /v1/logout",
            "POST /v1/keys",
            "POST /v1/users",
            "PUT /v1/users/{user}/password",
            "PUT /v1/namespaces/{namespace}",
            "PUT /v1/policies/{namespace}/{policy}",
            "POST /v1/pipelines/{pipeline}/start",
            "POST /v1/pipelines/{pipeline}/stop",
            "POST /v1/queues/{queue}/ack",
            "POST /v1/queues/{queue}/redrive",
            "POST /v1/queues/{queue}/reject",
            "POST /v1/queues/{queue}/release",
            "POST /v1/queues/{queue}/stream",
            "POST /v1/queues/{queue}/take",
            "POST /v1/queues/{queue}/touch",
            "POST /v1/reject",
            "POST /v1/release",
            "POST /v1/replies",
            "POST /v1/subscriptions/stream",
            "POST /v1/topics/{topic}/delete-records",
            "POST /v1/touch",
            "PUT /v1/exchanges/{exchange}",
            "PUT /v1/queues/{queue}",
            "PUT /v1/topics/{topic}",
        },
    ),
    "management": (
        lambda: {entry for entry in _routes(MANAGEMENT_ROUTES) if not entry.startswith(READING)},
        MANAGEMENT,
        {
            "POST /api/bindings/{vhost}/e/{source}/{kind}/{destination}",
            "POST /api/definitions",
            "POST /api/definitions/{vhost}",
            "POST /api/queues/{vhost}/{queue}/get",
            "POST /api/users/bulk-delete",
            "PUT /api/exchanges/{vhost}/{exchange}",
            "PUT /api/permissions/{vhost}/{user}",
            "PUT /api/policies/{vhost}/{policy}",
            "PUT /api/queues/{vhost}/{queue}",
            "PUT /api/topic-permissions/{vhost}/{user}",
            "PUT /api/user-limits/{user}/{limit}",
            "PUT /api/users/{user}",
            "PUT /api/vhost-limits/{vhost}/{limit}",
            "PUT /api/vhosts/{vhost}",
        },
    ),
    "kafka": (lambda: {api.name for api in APIS.values()}, KAFKA, set(KAFKA_SILENT.split())),
    "amqp": (amqp_table, AMQP, set(AMQP_SILENT.split())),
}


@pytest.mark.parametrize("protocol", TABLES)
def test_every_entry_of_a_protocols_table_is_classified(protocol: str) -> None:
    table, verbs, silent = TABLES[protocol]
    publishing = {verb.entry for verb in verbs if not verb.entry.startswith(READING)}
    entries = table()
    assert not publishing & silent
    assert entries - publishing - silent == set(), "does it publish? Then say how to try it"
    assert (publishing | silent) - entries == set(), "there is no such entry any more"


VERBS = [verb for _, verbs, _ in TABLES.values() for verb in verbs]


@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_what_cannot_be_taken_is_refused_by_every_verb(place_of: Callable[[], Place], verb: Verb) -> None:
    place = place_of()
    if place.situation == "in sync":
        expected = verb.replicas if verb.to == "topic" else TAKEN
    else:
        expected = verb.alarm
    assert verb.attempt(place) == expected
    if expected != TAKEN:
        assert place.stored() <= verb.stored, "it was refused, and is stored all the same"
