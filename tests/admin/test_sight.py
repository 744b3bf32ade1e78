"""What rules and namespaces leave of a list, and that neither `next` nor a total tells of the rest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.broker.kit import broker_on, run
from waystation.admin.sealed_places import SealedPlaces
from waystation.admin.views import view_delayed
from waystation.broker.access.types import LOCAL, Policy, Principal
from waystation.broker.broker import Broker
from waystation.errors import Invalid
from waystation.message import Message
from waystation.queues.settings import QueueSettings
from waystation.security.permissions import Resource
from waystation.security.rules import Rule
from waystation.security.users import User
from waystation.share.machines.calls import ShareBeat
from waystation.world.random import SystemRandom

ADMIN, ALICE, CARL = (Principal(name) for name in ("admin", "alice", "carl"))
NAMESPACES = ("", "lab/", "shop/", "shop.eu/", "zoo/")
KINDS: tuple[Resource, ...] = ("topic", "queue", "exchange", "group", "namespace")
LISTS = ("queues", "topics", "exchanges", "groups", "namespaces", "policies", "dead-letters", "delayed", "routing")
RULES = [
    *(Rule("User:alice", "all", kind, "*", namespace="shop") for kind in KINDS),
    *(Rule("User:carl", "all", kind, "seen") for kind in KINDS),
    Rule("User:carl", "describe", "exchange", "amq.", match="prefixed"),
    Rule("User:carl", "describe", "exchange", "amq.match", allow=False),
    Rule("User:carl", "read", "queue", "m", match="prefixed"),
    Rule("User:carl", "describe", "queue", "m-secret", match="prefixed", allow=False),
    Rule("User:carl", "describe", "queue", "seen.dead"),
]


def with_tenants(folder: Path, story: Callable[[Broker], Awaitable[None]], *, users: bool = True) -> None:
    """In every namespace the same: two queues, and what belongs to them."""

    async def play() -> None:
        async with broker_on(folder, offsets_topic_num_partitions="1", waystation_queue_shards="1") as broker:
            for prefix in NAMESPACES:
                if prefix:
                    await broker.namespaces.create(prefix[:-1])
                for name in ("m-secret", "seen"):
                    await fill(broker, prefix, name)
                for policy in ("first", "second"):
                    await broker.policies.set(Policy(prefix[:-1] or "/", policy, "^none", {"max-length": 1}))
            if users:
                for user, known in (("admin", User(superuser=True)), ("alice", User()), ("carl", User())):
                    await broker.users.add(user, known)
                await broker.permissions.add(RULES)
            await story(broker)

    run(play())


async def fill(broker: Broker, prefix: str, name: str) -> None:
    topic, full = f"{prefix.replace('/', '.')}{name}", f"{prefix}{name}"
    await broker.topics.create(topic, 1)
    broker.messages.publish(topic, [Message(b"x", delay_ms=60_000)])
    await broker.queues.declare(full, QueueSettings(dead_letter=f"{full}.dead"))
    await broker.queues.declare(f"{full}.dead", QueueSettings())
    await broker.queues.put_durable(full, [Message(b"x", delay_ms=60_000)])
    await broker.routing.declare_exchange(full, "fanout")
    await broker.routing.bind(full, f"queue:{full}")
    await broker.routing.bind(full, f"topic:{topic}")
    await broker.shared.heartbeat(ShareBeat(group_id=full, member_id="x", member_epoch=0, topics=(topic,)))


async def pages(broker: Broker, who: Principal, what: str, **query: Any) -> list[Any]:
    views = broker.access(who, who.within or "/", broker.meters.http).views
    found = [await views.view(what, query)]
    while found[-1].next is not None:
        found.append(await views.view(what, {**query, "after": found[-1].next}))
        assert len(found) < 200
    return found


def names_in(page: Any) -> set[str]:
    """Every text that it has, and the parts of `next`."""
    found: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, str):
            found.update((value, value.partition(":")[2], *value.split("\n")))
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(one)

    look(msgspec.to_builtins(page))
    return found


def all_names(within: Iterable[str]) -> set[str]:
    return {
        f"{prefix if kind else prefix.replace('/', '.')}{name}{end}"
        for prefix in within
        for kind in (True, False)
        for name in ("m-secret", "seen")
        for end in ("", ".dead")
    } | {prefix[:-1] for prefix in within if prefix}


@pytest.mark.parametrize("limit", [1, 2, 1_000])
def test_in_a_namespace_no_page_of_any_list_tells_of_another(tmp_path: Path, limit: int) -> None:
    foreign = all_names(prefix for prefix in NAMESPACES if prefix != "shop/")

    async def story(broker: Broker) -> None:
        for what in LISTS:
            query = {"prefix": "shop/"} if what == "delayed" else {}
            totals = set()
            for who in (ALICE, ADMIN):  # whom rules keep there, and who could be everywhere
                found = await pages(broker, who.inside("shop"), what, limit=limit, **query)
                assert not names_in(found) & foreign, what
                assert all(any("shop" in name for name in names_in(page)) for page in found), what
                totals |= {page.total for page in found}
            assert len(totals) == 1, "what there is elsewhere is not counted"

    with_tenants(tmp_path, story)


def test_who_sees_one_of_many_cannot_walk_through_the_others(tmp_path: Path) -> None:
    expected = {
        "queues": ["seen", "seen.dead"],
        "topics": ["seen"],
        "groups": ["seen"],
        "exchanges": ["", "amq.direct", "amq.fanout", "amq.headers", "amq.topic", "seen"],
    }

    async def story(broker: Broker) -> None:
        for what, names in expected.items():
            for limit in (1, 2, 100):
                found = await pages(broker, CARL, what, limit=limit)
                shown = [getattr(row, what[:-1]) for page in found for row in getattr(page, what)]
                assert shown == names
                assert len(found) == -(-len(shown) // limit)
                assert {page.total for page in found} == {len(shown)}
                for page in found[:-1]:
                    assert page.next in shown
        (delayed,) = await pages(broker, CARL, "delayed", prefix="m", limit=1)
        assert (delayed.queues, delayed.total, delayed.to_topics) == ([], 0, None)
        (letters,) = await pages(broker, CARL, "dead-letters", limit=1)
        assert [(row.target, row.sources) for row in letters.dead_letters] == [("seen.dead", ["seen"])]

    with_tenants(tmp_path, story)


def test_sources_of_dead_letters_are_those_that_the_reader_sees(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.queues.declare("zoo/hidden", QueueSettings(dead_letter="seen.dead"))
        (seen,) = await pages(broker, CARL, "dead-letters")
        (place,) = seen.dead_letters
        assert (place.sources, place.source_count) == (["seen"], 1)
        (every,) = await pages(broker, ADMIN, "dead-letters", search="seen.dead")
        assert ["seen", "zoo/hidden"] in [place.sources for place in every.dead_letters]

    with_tenants(tmp_path, story)


@pytest.mark.parametrize("users", [True, False])
def test_where_everything_is_allowed_no_name_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: bool
) -> None:
    async def story(broker: Broker) -> None:
        asked: list[str] = []
        really = broker.permissions.allows

        def allows(principal: Principal, operation: Any, resource: Resource, name: str) -> bool:
            asked.append(name)
            return really(principal, operation, resource, name)

        monkeypatch.setattr(broker.permissions, "allows", allows)
        for what in LISTS:
            views = broker.access(ADMIN if users else LOCAL, "/", broker.meters.http).views
            asked.clear()
            page = await views.view(what, {"limit": 1})
            assert page.total is not None
            assert page.total > 4
            assert len(asked) <= 4, "of the rows of the page alone"

    with_tenants(tmp_path, story, users=users)


def test_in_a_namespace_a_search_looks_at_plain_names(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        alice = ALICE.inside("shop")
        for what in LISTS:
            query = {"prefix": "shop/"} if what == "delayed" else {}
            (nothing,) = await pages(broker, alice, what, search="shop", **query)
            rows = [row for field in nothing.__struct_fields__ for row in _list(getattr(nothing, field))]
            assert bool(rows) == (what == "namespaces"), what
            if what not in ("namespaces", "policies"):
                assert (await pages(broker, alice, what, search="SEEN", **query))[0].total, what
        assert (await pages(broker, alice, "policies", search="first"))[0].total == 1

    with_tenants(tmp_path, story)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# -- messages that wait for topics -------------------------------------------------------------------------------------


def test_messages_for_topics_are_not_told_by_what_waits_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(view_delayed, "AT_ONCE", 1)
    monkeypatch.setattr(view_delayed, "LOOKED_AT", 1)
    alice = ALICE.inside("shop")
    queries: tuple[dict[str, Any], ...] = (
        {"topics": True, "topic_prefix": "shop."},
        {"topic": "shop.seen"},
        {"topic": "shop.nothing-waits"},
    )

    async def story(broker: Broker) -> None:
        dues = {f"{row.due_ms}" for page in await pages(broker, ADMIN, "delayed", topics=True) for row in page.messages}
        assert dues
        for query in queries:
            found = await pages(broker, alice, "delayed", limit=1, **query)
            rows = [row for page in found for row in page.messages]
            assert all(row.topic in ("shop.seen", "shop.m-secret") for row in rows)
            assert bool(rows) == ("nothing" not in str(query))
            assert len(found) > 2, "it was looked at in steps"
            assert {(page.to_topics, page.total) for page in found} == {(None, None)}
            for page in found[:-1]:
                assert not any(due[:8] in page.next for due in dues)
                assert broker.sealed_places.opened(page.next) is not None
            views = broker.access(alice, "shop", broker.meters.http).views
            for made_up in ("0-0", f"{max(dues)}-3", found[0].next[:-4] + "AAAA", found[0].next[1:], "é"):
                with pytest.raises(Invalid, match="start again without `after`"):
                    await views.view("delayed", {**query, "after": made_up})
        (whole,) = await pages(broker, ADMIN, "delayed", topics=True)
        assert whole.total == whole.to_topics == len(whole.messages) == 2 * len(NAMESPACES)

    with_tenants(tmp_path, story)


def test_whether_anything_waits_elsewhere_makes_no_difference(tmp_path: Path) -> None:
    async def play() -> None:
        async with broker_on(tmp_path, offsets_topic_num_partitions="1", waystation_queue_shards="1") as broker:
            for name in ("shop", "lab"):
                await broker.namespaces.create(name)
                await broker.topics.create(f"{name}.t", 1)
            alice = ALICE.inside("shop")
            queries: tuple[dict[str, Any], ...] = ({"topics": True, "topic_prefix": "shop."}, {"topic": "shop.t"})
            before = [await pages(broker, alice, "delayed", **query) for query in queries]
            broker.messages.publish("lab.t", [Message(b"x", delay_ms=60_000)])
            assert [await pages(broker, alice, "delayed", **query) for query in queries] == before

    run(play())


places = st.tuples(st.integers(0, 2**62), st.integers(-1, 2**54))


@given(places, places)
def test_a_sealed_place_is_opened_where_it_was_sealed_and_nowhere_else(place: tuple[int, int], other: Any) -> None:
    here, elsewhere = SealedPlaces(SystemRandom()), SealedPlaces(SystemRandom())
    text = here.sealed(place)
    assert here.opened(text) == place
    assert elsewhere.opened(text) is None
    assert (here.sealed(other) == text) == (other == place)


@given(st.text(max_size=60) | st.binary(min_size=32, max_size=32).map(lambda octets: octets.hex()))
def test_what_nobody_sealed_does_not_open(text: str) -> None:
    assert SealedPlaces(SystemRandom()).opened(text) is None
