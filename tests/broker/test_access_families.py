"""Every verb of the families of `Access` asks whether the principal may, before anything happens.

The public methods of each class are walked: a new one that does not ask fails here. Verbs that list or translate names
leave out what the principal may not see; those are named below.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.broker import test_access_facets, test_facets_ask_first
from tests.broker.kit import broker_on, run, send
from tests.support.permissions import RefusesEverything
from waystation.broker.access import Access
from waystation.broker.access.cluster import ClusterAccess
from waystation.broker.access.groups import GroupAccess
from waystation.broker.access.placement import PlacementAccess
from waystation.broker.access.shares import ShareAccess
from waystation.broker.access.topics import TopicAccess
from waystation.broker.access.transactions import TransactionAccess
from waystation.broker.access.types import (
    DEFAULT,
    ConsumerBeat,
    JoinRequest,
    LeavingMember,
    OffsetToCommit,
    Principal,
    Producer,
    ShareBeat,
    ShareSession,
    SyncRequest,
    TransactionFilter,
)
from waystation.broker.broker import Broker
from waystation.errors import NotAllowed
from waystation.security.permissions import Operation, Permissions, Resource
from waystation.transactions.listing import Listing

ALICE = Principal("alice")
TOPIC, GROUP, SHARE, TX = "orders", "readers", "workers", "shop"
FAMILIES = (ClusterAccess, GroupAccess, PlacementAccess, ShareAccess, TopicAccess, TransactionAccess)

HIDE: dict[Callable[..., Any], object] = {
    GroupAccess.listing: [],
    GroupAccess.with_settings: [],
    ShareAccess.with_settings: [],
    TopicAccess.find: None,
    TopicAccess.id_of: None,
    TopicAccess.listing: [],
    TopicAccess.name_of: None,
    TopicAccess.partitions_of: None,
    TransactionAccess.listing: [],
}
"""What these return for a principal that may see nothing."""
ASK_NOBODY = {ShareAccess.end_session}
"""It gives back what the principal has in flight, also when its connection is gone or it may nothing any more."""


class OnlyTopicsRefused(Permissions):
    def check(self, principal: Principal, operation: Operation, resource: Resource, name: str) -> None:
        if resource == "topic":
            raise NotAllowed(f"{principal} may not {operation} topic {name!r}")


def verbs() -> list[Callable[..., Any]]:
    return [
        verb
        for family in FAMILIES
        for name, verb in inspect.getmembers(family, inspect.isfunction)
        if not name.startswith("_")
    ]


class Stage:
    """A broker on which every verb would find what it is about; and what the verbs are called with."""

    def __init__(self, broker: Broker, producer: Producer, session: ShareSession) -> None:
        self.broker = broker
        topic = broker.topics.get(TOPIC)
        self.given: dict[str, Any] = {
            "added": [],
            "before_offset": 1,
            "beat": ShareBeat(group_id=SHARE, member_id="m", member_epoch=0, topics=(TOPIC,)),
            "change": {"retention.ms": "5"},
            "changes": {"num.partitions": "3"},
            "commit": True,
            "coordinator_epoch": 0,
            "epoch": 1,
            "generation_id": -1,
            "group": broker.shared.get(SHARE),
            "group_id": SHARE,
            "index": 0,
            "keys": [(TOPIC, 0)],
            "levels": [("waystation", 10)],
            "member_id": "m",
            "members": [LeavingMember("m")],
            "name": TOPIC,
            "node_id": 1,
            "offsets": [(TOPIC, 0, 1)],
            "own": {"share.delivery.count.limit": "3"},
            "partitions": [(TOPIC, 0)],
            "producer": producer,
            "removed": [],
            "replicas": [1],
            "session": session,
            "settings": {},
            "timeout_ms": 1_000,
            "topic": TOPIC,
            "topic_id": topic.id,
            "topics": [TOPIC],
            "total": 7,
            "transactional_id": TX,
            "unclean": False,
            "wanted": TransactionFilter(),
        }
        self.own: dict[Callable[..., Any], dict[str, Any]] = {
            GroupAccess.join: {
                "request": JoinRequest(
                    group_id=GROUP,
                    member_id="",
                    session_timeout_ms=10_000,
                    rebalance_timeout_ms=10_000,
                    protocol_type="consumer",
                    protocols=(("range", b""),),
                )
            },
            GroupAccess.sync: {"request": SyncRequest(group_id=GROUP, member_id="m", generation_id=0)},
            GroupAccess.consumer_heartbeat: {
                "beat": ConsumerBeat(group_id="new", member_id="m", member_epoch=0, topics=(TOPIC,), owned=frozenset())
            },
            GroupAccess.commit_offsets: {"group_id": GROUP, "offsets": [OffsetToCommit(TOPIC, 0, 5)]},
            GroupAccess.delete_offsets: {"group_id": GROUP},
            GroupAccess.delete: {"group_id": GROUP},
            GroupAccess.check_settings: {"own": {"consumer.session.timeout.ms": "50000"}},
            GroupAccess.alter_settings: {"own": {"consumer.session.timeout.ms": "50000"}},
            TopicAccess.check_new: {"name": "new", "partitions": 1},
            TopicAccess.ensure: {"name": "new"},
            TransactionAccess.commit_offsets: {
                "group_id": GROUP,
                "offsets": [OffsetToCommit(TOPIC, 0, 5)],
                "joins": True,
            },
            TransactionAccess.end: {"bumps_epoch": True},
        }

    @property
    def access(self) -> Access:
        return self.broker.access(ALICE, DEFAULT, self.broker.meters.kafka)

    async def call(self, verb: Callable[..., Any]) -> Any:
        """Calls it on the family of a new Access, with what its parameters are called; defaults stay."""
        family = next(
            one
            for name in ("cluster", "groups", "placement", "shares", "topics", "transactions")
            if type(one := getattr(self.access, name)).__qualname__ == verb.__qualname__.partition(".")[0]
        )
        own = self.own.get(verb, {})
        arguments = {}
        for name, parameter in list(inspect.signature(verb).parameters.items())[1:]:
            if name in own:
                arguments[name] = own[name]
            elif parameter.default is inspect.Parameter.empty:
                assert name in self.given, f"say what {verb.__qualname__} is to be called with as {name!r}"
                arguments[name] = self.given[name]
        result = verb(family, **arguments)
        return await result if inspect.isawaitable(result) else result

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
        }


def with_stage(folder: Path, permissions: Permissions, story: Callable[[Stage], Any]) -> None:
    async def play() -> None:
        async with broker_on(folder, offsets_topic_num_partitions="1", waystation_queue_shards="1") as broker:
            await broker.topics.create(TOPIC, 2)
            send(broker, TOPIC, b"a", b"b")
            await broker.groups.commit_offsets(GROUP, [OffsetToCommit(TOPIC, 0, 1)])
            await broker.shared.heartbeat(ShareBeat(group_id=SHARE, member_id="x", member_epoch=0, topics=(TOPIC,)))
            await broker.groups.alter_settings(GROUP, {"consumer.session.timeout.ms": "55000"})
            broker.shared.change_settings(SHARE, {"share.delivery.count.limit": "4"})
            producer = await broker.transactions.init_producer_id(TX, 60_000)
            await broker.transactions.add_partitions(TX, producer, [(TOPIC, 0)])
            session = broker.shared.begin_session(SHARE, "m")
            broker.permissions = permissions
            await story(Stage(broker, producer, session))

    run(play())


def test_every_verb_asks_before_anything_happens(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        wrong = []
        before = stage.seen()
        for verb in verbs():
            try:
                result = await stage.call(verb)
            except NotAllowed as error:
                if verb in HIDE or "alice" not in str(error):
                    wrong.append(f"{verb.__qualname__}: {error}")
            else:
                if verb not in ASK_NOBODY and (verb not in HIDE or _list_of(result) != HIDE[verb]):
                    wrong.append(f"{verb.__qualname__} returned {result}")
                if verb in ASK_NOBODY:
                    before = stage.seen()
            if stage.seen() != before:
                wrong.append(f"{verb.__qualname__} changed something")
                before = stage.seen()
        assert wrong == []

    with_stage(tmp_path, RefusesEverything(), story)


def test_what_is_hidden_is_there_for_who_may_see_it(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        nothing = [verb.__qualname__ for verb in HIDE if not _list_of(await stage.call(verb))]
        assert nothing == [], "the test above proves nothing"

    with_stage(tmp_path, Permissions(), story)


def _list_of(result: Any) -> Any:
    return list(result.transactions) if isinstance(result, Listing) else result


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


def test_an_id_without_transactions_is_for_everybody(tmp_path: Path) -> None:
    """It lets its holder write nothing: each topic is asked about when something is published to it."""

    async def story(stage: Stage) -> None:
        producer = await stage.access.transactions.init_producer_id(None, 0)
        assert producer.epoch == 0

    with_stage(tmp_path, RefusesEverything(), story)


def test_two_who_use_a_new_topic_at_once_both_get_it(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        one, other = await asyncio.gather(*(stage.access.topics.ensure("new") for _ in range(2)))
        assert one is other is stage.broker.topics.get("new")

    with_stage(tmp_path, Permissions(), story)


def test_a_marker_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    async def story(stage: Stage) -> None:
        partition = stage.broker.topics.get(TOPIC).partition(0)
        end = partition.end_offset
        await stage.access.transactions.write_marker(TOPIC, 0, stage.given["producer"], False, 0)
        assert partition.durable_offset == partition.end_offset == end + 1

    with_stage(tmp_path, Permissions(), story)


def test_every_family_of_verbs_is_walked_somewhere() -> None:
    walked = {*FAMILIES, *test_access_facets.FACETS, *test_facets_ask_first.CALLS}
    getters = [one.fget for one in vars(Access).values() if isinstance(one, property) and one.fget is not None]
    given = {str(inspect.signature(getter).return_annotation) for getter in getters}
    assert {name for name in given if name.endswith("Access")} == {family.__name__ for family in walked}
