"""Every verb of `Access` and of its families asks whether the principal may, once, before anything happens.

The public methods are walked: a new one that does not ask fails here, and one that is called with something new has to
say with what (`Stage`). Verbs that list or translate names leave out what the principal may not see (`LISTS`). The
broker is a real one behind a glass that notes which of its parts is touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.broker.kit import broker_on, run, send
from tests.support.permissions import OpenPermissions, RefusesEverything
from waystation.admin.views.view_quotas import SetQuotas
from waystation.broker.access import Access
from waystation.broker.access.administration.view_rows import ACTIONS, VIEWS, AnyRow, Listed
from waystation.broker.access.administration.views import ViewAccess
from waystation.broker.access.messaging.groups import GroupAccess
from waystation.broker.access.types import (
    ANONYMOUS,
    DEFAULT,
    ConsumerBeat,
    JoinRequest,
    LeavingMember,
    OffsetToCommit,
    Policy,
    Principal,
    Producer,
    PutResult,
    QueueSettings,
    ShareBeat,
    ShareSession,
    SyncRequest,
    TopicQueueSettings,
    TransactionFilter,
)
from waystation.broker.broker import Broker
from waystation.errors import NotAllowed, NotFound, WaystationError
from waystation.log.batches.batch import build, read_header
from waystation.message import Message
from waystation.protocol import RoutingInfo, StagedTransaction, Subscribe
from waystation.queues.errors import NeverFits
from waystation.routing.namespaces import Limits
from waystation.security.permissions import Operation, Permissions, Resource, refusal
from waystation.security.quotas.entities import QuotaEntity
from waystation.security.rules import Rule
from waystation.security.topic_permissions import TopicPermission
from waystation.security.users import User
from waystation.subscriptions.tailing import NEXT
from waystation.transactions.listing import Listing
from waystation.wire.scram import ScramKeys

ALICE = Principal("alice")
TOPIC, GROUP, SHARE, TX, QUEUE, EXCHANGE = "orders", "readers", "workers", "shop", "jobs", "events"
STREAM, ON_TOPIC = "clicks", "on-orders"
VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
PATIENCE_S = 0.05
"""For verbs that wait for somebody else: they have asked by then."""

LISTS = {
    "cluster.may_describe",
    "exchanges.names",
    "groups.listing",
    "groups.with_settings",
    "list_queues",
    "list_routing",
    "namespaces.names",
    "policies.listing",
    "queue_figures.names",
    "reading.matching",
    "shares.with_settings",
    "stream_queues.find",
    "stream_queues.names",
    "subscriptions.counts",
    "topic_queues.names",
    "sees_queue",
    "topics.find",
    "topics.id_of",
    "topics.listing",
    "topics.name_of",
    "topics.partitions_of",
    "users.may_alter",
    "transactions.listing",
}
"""These have nothing for a principal that may see nothing."""

ASK_NOBODY = {
    "count": "what was published was asked about",
    "count_batches": "what was published was asked about",
    "count_delivered": "what was read was asked about",
    "count_shown": "what was read was asked about",
    "told": "what it adds to an error, it asks about by itself (tests/security/test_near_names.py)",
    "worked": "about the session itself",
    "mutate": "about the session itself",
    "wait_s": "about the session itself",
    "publish_wait_s": "about the session itself",
    "consume_wait_s": "about the session itself",
    "request_wait_s": "about the session itself",
    "check_publish_quota": "about the session itself",
    "check_consume_quota": "about the session itself",
    "begin_routed": "what is published in it was asked about when it was routed",
    "put_routed": "it was asked about when it was routed",
    "put_same_routed": "it was asked about when it was routed",
    "put_several_routed": "it was asked about when it was routed",
    "publish_routed": "it was asked about when it was routed",
    "check_key": "topic permissions only take away from what was asked about",
    "durable": "what was written was asked about",
    "durable_soon": "what was written was asked about",
    "holds": "about names alone, whatever there is",
    "namespace_of": "about names alone",
    "namespace_of_topic": "about names alone",
    "release_owner": "a session may always end",
    "cluster.disconnected": "a session may always end",
    "subscribe_alarms": "publishers of any namespace have to be held back",
    "inboxes.close": "gives up what the session itself has opened",
    "shares.end_session": "gives back what is in flight, also when the connection is gone or may nothing any more",
    "subscriptions.count": "part of the answer to a publish, which was asked about",
    "rules.operations": "about the principal itself",
    "delegation.listing": "those that concern the principal itself; what else it has depends on the rules",
    "delegation.renew": "who owns a token, or is named as one who may renew it, may",
    "delegation.expire": "who owns a token, or is named as one who may renew it, may",
    "users.check_connections": "about the principal itself",
    "users.own_limit": "about the principal itself",
    "users.may_everything": "about the principal itself",
    "users.own": "about the principal itself",
    "transactions.elsewhere": "about names alone: who coordinates an id",
    "views.health": "for anybody, without reasons: see below",
    "views.readiness": "for anybody, without reasons: see below",
    "when_durable": "what was written was asked about",
    "when_each_durable": "what was written was asked about",
}
LOOK_FIRST = {
    "delegation.create": "whether there are tokens, and whether they are for such a principal",
    "admit_default": "what is asked is whether it may write to what there is of this name",
    "append": "the partition is at hand, and names its topic",
    "topics.ask_use": "what is asked depends on whether it is there; to read or write it was asked about",
    "shares.led": "a topic by its id has to be found for its name",
    "shares.partition": "a topic by its id has to be found for its name",
    "topics.ensure": "what is asked is whether it may be created, if it is not there",
}
"""They find out what to ask about."""


class Watched:
    """A broker whose parts nobody touches without being seen."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.touched: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.touched.add(name)
        return getattr(self._broker, name)


class OnlyTopicsRefused(OpenPermissions):
    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        if resource == "topic":
            raise refusal(principal, operation, resource, name)


class NotesEverything(OpenPermissions):
    """Everybody may do everything; `asked` is what somebody wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Operation, Resource, str]] = []

    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        self.asked.append((operation, resource, name))


def families() -> list[str]:
    """The properties of `Access` that give a family of verbs."""
    return [
        name
        for name, one in vars(Access).items()
        if isinstance(one, property) and str(inspect.signature(one.fget).return_annotation).endswith("Access")  # type: ignore[arg-type]
    ]


def verbs(access: Access) -> Iterator[str]:
    """`VERB` of Access itself, `FAMILY.VERB` of the others."""
    for family in ("", *families()):
        kind = type(getattr(access, family)) if family else Access
        for name, _ in inspect.getmembers(kind, inspect.isfunction):
            if not name.startswith("_"):
                yield f"{family}.{name}" if family else name


class Stage:
    """A broker on which every verb would find what it is about; and what the verbs are called with."""

    def __init__(self, broker: Broker, producer: Producer, session: ShareSession, permissions: Permissions) -> None:
        self.broker = broker
        self.watched = Watched(broker)
        topic = broker.topics.get(TOPIC)
        batch = build([(None, b"x", ())], broker.world.clock.now_ms())
        staged = [StagedTransaction(TX, *producer)]
        policy = Policy("/", "other", "^jobs", {"max-length": 1})
        self.given: dict[str, Any] = {
            "added": [],
            "batch": batch,
            "beat": ShareBeat(group_id=SHARE, member_id="m", member_epoch=0, topics=(TOPIC,)),
            "before_offset": 1,
            "callback": print,
            "change": {"retention.ms": "5"},
            "changes": {"num.partitions": "3"},
            "command": Subscribe(consumer=1, topics=[TOPIC]),
            "commit": True,
            "committed": True,
            "connection": "native-1",
            "consumer": "c",
            "consumer_name": "c",
            "coordinator_epoch": 0,
            "count": 1,
            "deliver": print,
            "max_life_ms": 1_000,
            "owners": None,
            "period_ms": 1_000,
            "renewers": [],
            "secret": b"",
            "epoch": 1,
            "exchange": EXCHANGE,
            "generation_id": -1,
            "group": broker.shared.get(SHARE),
            "group_id": SHARE,
            "header": read_header(batch),
            "inbox": "inbox",
            "index": 0,
            "key": QUEUE,
            "keys": [(TOPIC, 0)],
            "levels": [("waystation", 10)],
            "limits": Limits(max_queues=9),
            "max_bytes": 1_000,
            "member_id": "m",
            "members": [LeavingMember("m")],
            "message": Message(b"x"),
            "message_id": f"{QUEUE}#0",
            "messages": [Message(b"x")],
            "name": TOPIC,
            "node_id": 1,
            "offsets": [(TOPIC, 0, 1)],
            "on_end": print,
            "on_point": print,
            "own": {"share.delivery.count.limit": "3"},
            "owner": "o",
            "partition": topic.partition(0),
            "partitions": [(TOPIC, 0)],
            "placed": [(0, bytearray(batch))],
            "policies": [policy],
            "policy": policy,
            "positions": [(TOPIC, 0, 0)],
            "producer": producer,
            "promised": True,
            "puts": [(QUEUE, [Message(b"x")])],
            "query": {},
            "queue": QUEUE,
            "queues": [QUEUE],
            "removed": [],
            "old": [],
            "new": [],
            "operation": "read",
            "entity": QuotaEntity("alice"),
            "most_s": 1.0,
            "seconds": 0.001,
            "password": "secret",
            "resource": "topic",
            "replicas": [1],
            "request": b"",
            "routing_key": "k",
            "rule": Rule("User:alice", "read", "topic", TOPIC),
            "rules": [Rule("User:alice", "read", "topic", TOPIC)],
            "receipts": [],
            "runs": [(0, 1)],
            "sequence": 1,
            "session": session,
            "settings": {},
            "size": 1,
            "staged": staged,
            "start": NEXT,
            "target": f"queue:{QUEUE}",
            "timeout_ms": 1_000,
            "topic": TOPIC,
            "topic_id": topic.id,
            "topics": [TOPIC],
            "total": 7,
            "transactional_id": TX,
            "unclean": False,
            "user": User(),
            "wait_ms": 0,
            "way": "write",
            "limit": "max-connections",
            "permission": TopicPermission("bob", "/", EXCHANGE, ".*", ".*"),
            "permissions": [TopicPermission("bob", "/", EXCHANGE, ".*", ".*")],
            "wanted": TransactionFilter(),
        }
        keys = ScramKeys("SCRAM-SHA-256", b"salt", 4096, b"k" * 32, b"k" * 32)
        group_settings = {"consumer.session.timeout.ms": "50000"}
        commits = {"group_id": GROUP, "offsets": [OffsetToCommit(TOPIC, 0, 5)]}
        shop, queue_on_topic = {"name": "shop"}, {"queue": ON_TOPIC}
        self.own: dict[str, dict[str, Any]] = {
            "when_durable": {"told": print},
            "when_each_durable": {"told": print},
            "count": {"messages": 1},
            "count_delivered": {"messages": 1},
            "count_shown": {"messages": 1},
            "mutate": {"partitions": 1},
            "client_quotas.check": {"changes": {"producer_byte_rate": 1.0}},
            "client_quotas.alter": {"changes": {"producer_byte_rate": 1e9}},
            "holds": {"name": QUEUE},
            "told": {"error": NotFound("there is none", "queue", f"{QUEUE}s")},
            "put_same": {"queues": [QUEUE]},
            "cluster.alter_settings": {"changes": {"num.partitions": "3"}},
            "groups.join": {
                "request": JoinRequest(
                    group_id=GROUP,
                    member_id="",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    protocol_type="consumer",
                    protocols=(("range", b""),),
                )
            },
            "groups.sync": {"request": SyncRequest(group_id=GROUP, member_id="m", generation_id=0)},
            "groups.consumer_heartbeat": {
                "beat": ConsumerBeat(group_id="new", member_id="m", member_epoch=0, topics=(TOPIC,), owned=frozenset())
            },
            "groups.commit_offsets": commits,
            "groups.delete_offsets": {"group_id": GROUP},
            "groups.delete": {"group_id": GROUP},
            "groups.check_settings": {"own": group_settings},
            "groups.alter_settings": {"own": group_settings},
            "namespaces.connect": shop,
            "namespaces.connect_home": shop,
            "namespaces.create": {"name": "new"},
            "namespaces.delete": shop,
            "namespaces.describe": shop,
            "namespaces.exists": shop,
            "namespaces.set_limits": shop,
            "policies.delete": {"namespace": "/", "name": "limits"},
            "policies.find": {"namespace": "/", "name": "limits"},
            "reading.await_records": {"positions": [(TOPIC, 0, 0)]},
            "reading.read": {"partition": 0},
            "staged.commit": {"name": "job"},
            "staged.position": {"name": TX},
            "subscriptions.join": {"group": "members"},
            "subscriptions.commit_offsets": {"group": GROUP},
            "topic_queues.consume": queue_on_topic,
            "topic_queues.counts": queue_on_topic,
            "topic_queues.declare": {"queue": "another", "settings": TopicQueueSettings(topic=TOPIC)},
            "topic_queues.delete": queue_on_topic,
            "topic_queues.find": queue_on_topic,
            "topic_queues.getter": queue_on_topic,
            "topic_queues.purge": queue_on_topic,
            "topics.ask_use": {"name": "new"},
            "topics.check_new": {"name": "new", "partitions": 1},
            "topics.ensure": {"name": "new"},
            "transactions.commit_offsets": {**commits, "joins": True},
            "transactions.end": {"bumps_epoch": True},
            "users.find": {"name": "bob"},
            "users.is_superuser": {"name": "bob"},
            "users.to_alter": {"name": "bob"},
            "users.remove": {"name": "bob"},
            "users.save": {"name": "carol"},
            "users.save_all": {"users": {"carol": User()}},
            "cluster.alter_scram": {"user": "carol", "verifiers": {keys.mechanism: keys}},
            "views.act": {"what": "cancel-job", "query": {"job": "1"}},
            "views.view": {"what": "overview"},
        }
        broker.permissions = permissions

    @property
    def access(self) -> Access:
        return Access(self.watched, ALICE, DEFAULT, self.broker.meters.kafka)  # type: ignore[arg-type]

    async def call(self, verb: str) -> Any:
        """Calls it on a new Access, with what its parameters are called; defaults stay."""
        family, _, name = verb.rpartition(".")
        access = self.access
        target = getattr(access, family) if family else access
        self.watched.touched.clear()
        method = getattr(target, name)
        own = self.own.get(verb, {})
        arguments = {}
        for parameter in inspect.signature(method).parameters.values():
            if parameter.name in own:
                arguments[parameter.name] = own[parameter.name]
            elif parameter.default is parameter.empty and parameter.kind not in VARIABLE:
                assert parameter.name in self.given, f"say what {verb} is to be called with as {parameter.name!r}"
                arguments[parameter.name] = self.given[parameter.name]
        result = method(**arguments)
        if isinstance(result, Awaitable):
            result = await result
        if isinstance(result, list) and result and isinstance(result[0], NotAllowed):
            raise result[0]  # of several, each is told by itself
        return list(result) if isinstance(result, Iterator) else result

    def seen(self) -> dict[str, object]:
        """What a verb could have changed."""
        broker = self.broker
        return {
            "topics": [
                (topic.name, topic.overrides, [(one.start_offset, one.end_offset) for one in topic.partitions])
                for topic in broker.topics
            ],
            "groups": sorted((one.group_id, one.state) for one in broker.groups.list_groups()),
            "offsets": {name: sorted(broker.groups.committed(name)) for name in broker.groups.names()},
            "shares": [(one.id, one.machine.epoch, one.places(), dict(one.own)) for one in broker.shared],
            "group settings": broker.groups.groups_with_settings(),
            "share settings": broker.shared.groups_with_settings(),
            "share sessions": len(broker.shared.sessions),
            "transactions": broker.transactions.listing(TransactionFilter()).transactions,
            "settings": dict(broker.settings.changed),
            "queues": [msgspec.to_builtins(info) for info in broker.queues.list()],
            "routing": msgspec.to_builtins(broker.routing.listing()),
            "namespaces": [(name, broker.namespaces.get(name)) for name in broker.namespaces.names()],
            "policies": broker.policies.listing(),
            "subscriptions": broker.subscriptions.counts(),
            "inboxes": len(broker.inboxes),
            "users": broker.users.names(),
        }


def with_stage(folder: Path, permissions: Permissions, story: Callable[[Stage], Any]) -> None:
    async def play() -> None:
        async with broker_on(
            folder,
            offsets_topic_num_partitions="1",
            waystation_queue_shards="1",
            delegation_token_secret_key="secret",
        ) as broker:
            await broker.topics.create(TOPIC, 2)
            await broker.topics.create(STREAM, 1, {"waystation.stream": "true"})
            send(broker, TOPIC, b"a", b"b")
            await broker.groups.commit_offsets(GROUP, [OffsetToCommit(TOPIC, 0, 1)])
            await broker.shared.heartbeat(ShareBeat(group_id=SHARE, member_id="x", member_epoch=0, topics=(TOPIC,)))
            await broker.groups.alter_settings(GROUP, {"consumer.session.timeout.ms": "55000"})
            broker.shared.change_settings(SHARE, {"share.delivery.count.limit": "4"})
            await broker.queues.declare(QUEUE, QueueSettings())
            await broker.queues.put_durable(QUEUE, [Message(b"x")])
            await broker.routing.declare_exchange(EXCHANGE, "fanout")
            await broker.routing.bind(EXCHANGE, f"queue:{QUEUE}")
            await broker.topic_queues.declare(ON_TOPIC, TopicQueueSettings(topic=TOPIC))
            await broker.namespaces.create("shop")
            await broker.policies.set(Policy("/", "limits", "^none", {"max-length": 1}))
            subscribing = Subscribe(consumer=1, topics=[TOPIC], mode="live")
            await broker.subscriptions.open(subscribing, "c", print, print)
            producer = await broker.transactions.init_producer_id(TX, 60_000)
            await broker.transactions.add_partitions(TX, producer, [(TOPIC, 0)])
            session = broker.shared.begin_session(SHARE, "m", str(ALICE), print)
            token = await broker.delegation_tokens.create(ALICE.name, ALICE.name, (), -1)
            stage = Stage(broker, producer, session, permissions)
            stage.own |= {f"delegation.{verb}": {"secret": token.secret} for verb in ("renew", "expire")}
            await story(stage)

    run(play())


def test_every_verb_asks_before_anything_happens(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        wrong = []
        before = stage.seen()
        for verb in verbs(stage.access):
            try:
                result = await stage.call(verb)
            except NotAllowed as error:
                if verb in LISTS or verb in ASK_NOBODY or "alice" not in str(error):
                    wrong.append(f"{verb}: {error}")
                if not stage.watched.touched <= {"permissions"} and verb not in LOOK_FIRST:
                    wrong.append(f"{verb} touched {stage.watched.touched}")
            else:
                if verb not in ASK_NOBODY and (verb not in LISTS or _rows(result)):
                    wrong.append(f"{verb} returned {result}")
                if verb in ASK_NOBODY:
                    before = stage.seen()
            if stage.seen() != before:
                wrong.append(f"{verb} changed something")
                before = stage.seen()
        assert wrong == []

    with_stage(tmp_path, RefusesEverything(), story)


def test_what_is_not_listed_is_there_for_who_may_see_it(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        nothing = [verb for verb in LISTS if not _rows(await stage.call(verb))]
        assert nothing == [], "the test above proves nothing"

    with_stage(tmp_path, OpenPermissions(), story)


def test_no_verb_asks_the_same_twice(tmp_path: Path) -> None:
    """With everything allowed: what the verbs do to each other's things does not matter, they ask first."""

    async def story(stage: Stage) -> None:
        notes = stage.broker.permissions
        assert isinstance(notes, NotesEverything)
        wrong = []
        for verb in verbs(stage.access):
            notes.asked.clear()
            with contextlib.suppress(WaystationError, TimeoutError):
                await asyncio.wait_for(stage.call(verb), PATIENCE_S)
            unasked = not notes.asked and verb not in {*LISTS, *ASK_NOBODY, *LOOK_FIRST}
            if unasked or len(set(notes.asked)) != len(notes.asked):
                wrong.append(f"{verb} asks {notes.asked}")
        assert wrong == []

    with_stage(tmp_path, NotesEverything(), story)


def test_the_tables_of_exceptions_name_verbs_that_there_are(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        assert {*LISTS, *ASK_NOBODY, *LOOK_FIRST, *stage.own} <= set(verbs(stage.access))
        assert "transactions" in families()

    with_stage(tmp_path, OpenPermissions(), story)


def test_the_walk_sees_a_verb_that_does_not_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def members(self: GroupAccess, group_id: str) -> list[str]:
        return self._broker.groups.names()

    monkeypatch.setattr(GroupAccess, "members", members, raising=False)
    with pytest.raises(AssertionError, match=r"groups\.members returned"):
        test_every_verb_asks_before_anything_happens(tmp_path)


def _rows(result: Any) -> Any:
    if isinstance(result, Listing):
        return result.transactions
    return result.exchanges + result.bindings if isinstance(result, RoutingInfo) else result


# -- some of them ------------------------------------------------------------------------------------------------------


def test_a_topic_that_the_producer_may_not_write_to_joins_no_transaction(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        producer = stage.given["producer"]
        before = stage.seen()
        for joining in (
            stage.access.transactions.add_partitions(TX, producer, [(TOPIC, 1)]),
            stage.access.transactions.add_producing(TX, producer, TOPIC, 1),
        ):
            with pytest.raises(NotAllowed, match="write topic"):
                await joining
        assert stage.seen() == before

    with_stage(tmp_path, OnlyTopicsRefused(), story)


def test_an_id_without_transactions_is_for_whoever_may_write_to_some_topic(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(NotAllowed, match="idempotent-write cluster"):
            await stage.access.transactions.init_producer_id(None, 0)

    with_stage(tmp_path, RefusesEverything(), story)


def test_a_queue_with_dead_letters_asks_to_read_it_and_to_write_to_where_they_go(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        notes = stage.broker.permissions
        assert isinstance(notes, NotesEverything)
        await stage.access.declare_queue("new", QueueSettings(dead_letter_exchange=EXCHANGE))
        assert notes.asked == [("create", "queue", "new"), ("read", "queue", "new"), ("write", "exchange", EXCHANGE)]
        notes.asked.clear()
        await stage.access.bind(EXCHANGE, "queue:new")
        assert notes.asked == [("read", "exchange", EXCHANGE), ("write", "queue", "new")]

    with_stage(tmp_path, NotesEverything(), story)


class RefusesSecrets(OpenPermissions):
    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        if name.startswith("secret"):
            raise refusal(principal, operation, resource, name)


def test_of_puts_to_several_queues_those_that_are_refused_harm_no_other_and_are_not_metered(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        broker = stage.broker
        for name in ("secret", "full"):
            await broker.queues.declare(name, QueueSettings(max_length=1))
        access = stage.access
        before = (access.meter.published, access.meter.published_bytes)
        refused, first, full, second, unknown = access.put_several(
            [
                ("secret", [Message(b"a")]),
                (QUEUE, [Message(b"bb")]),
                ("full", [Message(b"c"), Message(b"d")]),
                ("full", [Message(b"eee")]),
                ("nowhere", [Message(b"f")]),
            ]
        )
        assert [type(one) for one in (refused, full, unknown)] == [NotAllowed, NeverFits, NotFound]
        assert isinstance(first, PutResult)
        assert isinstance(second, PutResult)
        await access.durable(first.receipt, second.receipt)
        assert (access.meter.published - before[0], access.meter.published_bytes - before[1]) == (2, 5)
        counts = [broker.queues.describe(name).ready for name in ("secret", QUEUE, "full")]
        assert counts == [0, 2, 1]

    with_stage(tmp_path, RefusesSecrets(), story)


def test_what_is_not_admitted_stays_nowhere(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        payload = bytes(100_000)
        gc.collect()
        gc.disable()
        try:
            before = sys.getrefcount(payload)
            for _ in range(3):
                stage.access.put_several([("secret", [Message(payload)]), (QUEUE, [Message(b"a")])])
            assert sys.getrefcount(payload) == before
        finally:
            gc.enable()

    with_stage(tmp_path, RefusesSecrets(), story)


def test_two_who_use_a_new_topic_at_once_both_get_it(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        one, other = await asyncio.gather(*(stage.access.topics.ensure("new") for _ in range(2)))
        assert one is other is stage.broker.topics.get("new")

    with_stage(tmp_path, OpenPermissions(), story)


def test_a_marker_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        partition = stage.broker.topics.get(TOPIC).partition(0)
        end = partition.end_offset
        await stage.access.transactions.write_marker(TOPIC, 0, stage.given["producer"], False, 0)
        assert partition.durable_offset == partition.end_offset == end + 1

    with_stage(tmp_path, OpenPermissions(), story)


# -- views -------------------------------------------------------------------------------------------------------------


class NothingElse:
    """A broker without parts."""

    def __init__(self) -> None:
        self.permissions = RefusesEverything()


def least(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A query with what it must have."""
    required = [field for field in msgspec.structs.fields(kind) if field.required]
    known: dict[str, Any] = {"before_offset": 0, "node": 0, "acls": []}
    if kind is SetQuotas:
        known["quotas"] = {}
    return {field.encode_name: known.get(field.name, f"a-{field.name}") for field in required}


@pytest.mark.parametrize(
    ("kind", "what", "row"),
    [("view", what, row) for what, row in VIEWS.items()] + [("act", what, row) for what, row in ACTIONS.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_view_and_action_asks_for_what_it_names(kind: str, what: str, row: AnyRow) -> None:
    if row.lists and row.asks.name_in(msgspec.convert(least(row.query), row.query)) == "*":
        return  # walked below
    broker = NothingElse()
    query = least(row.query)
    with pytest.raises(NotAllowed):
        run(getattr(ViewAccess(broker, ANONYMOUS), kind)(what, query))  # type: ignore[arg-type]
    ((operation, resource, name),) = broker.permissions.asked
    things = ("topic", "queue", "group", "exchange", "namespace")
    named = [(field, value) for field, value in query.items() if field in things]
    if named:
        assert [(resource, name)] == named, "a query that names a thing is about that one"
    else:
        assert name == (row.asks.name or "*")
    if kind == "act":
        assert operation != "describe", "an action changes something"


def test_whoever_may_not_look_learns_how_the_broker_is_but_not_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with broker_on(tmp_path / "data", waystation_disk_free_min_bytes=str(2**60)) as broker:
            meter = broker.meters.http
            told = broker.access(ANONYMOUS, "/", meter).views.health()
            assert told.status == "failing"
            assert "disk" in told.reasons[0].what
            broker.permissions = RefusesEverything()
            stranger = broker.access(ANONYMOUS, "/", meter).views
            assert (stranger.health().status, stranger.health().reasons) == ("failing", [])
            assert (stranger.readiness().status, stranger.readiness().reasons) == ("ok", [])

    run(scenario())


WIDE: Mapping[tuple[str, str], dict[str, Any]] = {
    ("bindings", "bindings"): {"exchange": EXCHANGE},
    ("delayed", "messages"): {"topics": True},
}
"""Queries that show what a list of a view has, where the least one does not."""


@pytest.mark.parametrize(
    ("what", "listed"),
    [(what, one) for what, row in VIEWS.items() for one in row.lists],
    ids=lambda value: value if isinstance(value, str) else value.field,
)
def test_a_view_that_lists_things_has_those_that_the_principal_may_see(
    tmp_path: Path, what: str, listed: Listed
) -> None:
    query = {**least(VIEWS[what].query), **WIDE.get((what, listed.field), {})}
    row_lists = VIEWS[what].lists

    class NoneOfThose(OpenPermissions):
        """What the rows are about is for nobody."""

        def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
            if (resource, name) in hidden:
                raise refusal(principal, operation, resource, name)

    hidden: set[tuple[Resource, str]] = set()

    def total(rows: list[Any]) -> int | None:
        """Nobody opens all messages that wait for topics, to count some."""
        return None if (what, listed.field) == ("delayed", "messages") else len(rows)

    def is_shown(row: Any) -> bool:
        return not hidden & {*listed.about(row)}

    async def story(stage: Stage) -> None:
        await fill(stage.broker)

        async def walk(**more: Any) -> list[Any]:
            """Its pages, to the last."""
            pages = [await stage.access.views.view(what, {**query, **more})]
            while pages[-1].next is not None:
                pages.append(await stage.access.views.view(what, {**query, **more, "after": pages[-1].next}))
                assert len(pages) < 100
            return pages

        (everything,) = await walk()
        there = getattr(everything, listed.field)
        assert len(there) > 3, "there is something to hide"
        assert getattr(everything, listed.total) == total(there)
        for left_out in ({0}, {len(there) - 1}, {0, 2, len(there) - 1}):
            hidden.clear()
            hidden.update(about for index in left_out for about in listed.about(there[index])[-1:])
            visible = [row for row in there if is_shown(row)]
            (part,) = await walk()
            assert getattr(part, listed.field) == visible
            assert getattr(part, listed.total) == total(visible)
            pages = await walk(limit=1)
            found = [row for page in pages for row in getattr(page, listed.field)]
            assert [row for at, row in enumerate(found) if row not in found[:at]] == visible
            assert {getattr(page, listed.total) for page in pages} == {total(visible)}
            # A page without a row would begin behind one that is hidden, and one more would say that there is one.
            rows = [[row for other in row_lists for row in getattr(page, other.field)] for page in pages]
            assert all(rows), "no page is empty, so each begins behind what was on the one before"

    with_stage(tmp_path, NoneOfThose(), story)


async def fill(broker: Broker) -> None:
    """Four things at least of each kind that a view lists."""
    for name in ("extra-a", "extra-b", "extra-c", "extra-d"):
        await broker.topics.create(name, 1)
        await broker.queues.declare(name, QueueSettings(dead_letter=f"{name}.dead"))
        await broker.queues.put_durable(name, [Message(b"x", delay_ms=60_000)])
        broker.messages.publish(name, [Message(b"x", delay_ms=60_000)])
        await broker.groups.commit_offsets(name, [OffsetToCommit(TOPIC, 0, 1)])
        await broker.routing.declare_exchange(name, "fanout")
        await broker.routing.bind(EXCHANGE, f"queue:{name}")
        await broker.namespaces.create(name)
        await broker.policies.set(Policy(name, "limits", "^none", {"max-length": 1}))
