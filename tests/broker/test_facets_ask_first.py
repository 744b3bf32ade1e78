"""Every verb of these facets of `Access` asks permissions before it touches any part of the broker.

The verbs are taken from the classes: one that is not in `CALLS` fails. The broker that a facet is given here has
nothing but permissions, so a verb that does something before it asks fails with AttributeError.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.broker.kit import broker_on, run
from tests.support.permissions import RefusesEverything
from waystation.broker.access.reading import ReadingAccess
from waystation.broker.access.staged import StagedAccess
from waystation.broker.access.subscriptions import SubscriptionAccess
from waystation.broker.access.view_rows import ACTIONS, VIEWS, AnyRow
from waystation.broker.access.views import ViewAccess
from waystation.errors import NotAllowed
from waystation.observe.meters import ProtocolMeter
from waystation.protocol import StagedTransaction, Subscribe
from waystation.security.principals import ANONYMOUS

Asked = tuple[str, str, str]


class NothingElse:
    """A broker without parts."""

    def __init__(self) -> None:
        self.permissions = RefusesEverything()


FACETS: dict[type, Callable[[Any], Any]] = {
    StagedAccess: lambda broker: StagedAccess(broker, ANONYMOUS),
    SubscriptionAccess: lambda broker: SubscriptionAccess(broker, ANONYMOUS),
    ReadingAccess: lambda broker: ReadingAccess(broker, ANONYMOUS, ProtocolMeter("test")),
    ViewAccess: lambda broker: ViewAccess(broker, ANONYMOUS),
}

STAGED = [StagedTransaction("tx", 1, 0)]
CALLS: dict[type, dict[str, Callable[[Any], Any]]] = {
    StagedAccess: {
        "commit": lambda staged: staged.commit("name", 1, STAGED),
        "abort": lambda staged: staged.abort(STAGED, prefix="p"),
        "position": lambda staged: staged.position("name"),
    },
    SubscriptionAccess: {
        "open": lambda it: it.open(Subscribe(consumer=1, topics=["t.#"]), "c", print, print),
        "join": lambda it: it.join("g", ["t"], "c", print),
        "commit_offsets": lambda it: it.commit_offsets("g", [("t", 0, 1)]),
        "counts": lambda it: it.counts(),
        "total": lambda it: it.total(),
    },
    ReadingAccess: {
        "find": lambda topics: topics.find("t"),
        "get": lambda topics: topics.get("t"),
        "describe": lambda topics: topics.describe("t"),
        "matching": lambda topics: topics.matching("t.#"),
        "read": lambda topics: topics.read("t", 0, count=1, max_bytes=1),
        "history": lambda topics: topics.history("t", 1),
        "read_batches": lambda topics: topics.read_batches([("t", 0, 0)], 1, committed=True),
        "await_records": lambda topics: topics.await_records([("t", 0, 0)], 0, committed=True),
    },
    ViewAccess: {
        "view": lambda views: views.view("overview", {}),
        "act": lambda views: views.act("cancel-job", {"job": "1"}),
        "overview": lambda views: views.overview(),
        "stats": lambda views: views.stats(),
        "figures": lambda views: views.figures(),
        "watch": lambda views: views.watch(print),
        "alter_settings": lambda views: views.alter_settings({"num.partitions": 2}),
        "end_connection": lambda views: views.end_connection("native-1"),
    },
}
UNASKED: dict[type, set[str]] = {
    SubscriptionAccess: {"count"},  # part of the answer to a publish, which was asked about
    ViewAccess: {"health", "readiness"},  # for anybody, without reasons: see below
}


def verbs(facet: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(facet, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("facet", FACETS, ids=lambda facet: facet.__name__)
def test_every_verb_is_tried_here(facet: type) -> None:
    assert verbs(facet) == CALLS[facet].keys() | UNASKED.get(facet, set())


async def done(call: Callable[[], Any]) -> None:
    answer = call()
    if isinstance(answer, Awaitable):
        await answer


async def refused(call: Callable[[], Any]) -> None:
    with pytest.raises(NotAllowed):
        await done(call)


@pytest.mark.parametrize(
    ("facet", "verb"),
    [(facet, verb) for facet, calls in CALLS.items() for verb in calls],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_verb_that_is_refused_has_touched_nothing(facet: type, verb: str) -> None:
    broker = NothingElse()
    run(refused(lambda: CALLS[facet][verb](FACETS[facet](broker))))
    assert broker.permissions.asked


def least(kind: type[msgspec.Struct]) -> dict[str, Any]:
    """A query with what it must have."""
    required = [field for field in msgspec.structs.fields(kind) if field.required]
    return {field.encode_name: 0 if "before_offset" in field.name else f"a-{field.name}" for field in required}


@pytest.mark.parametrize(
    ("kind", "what", "row"),
    [("view", what, row) for what, row in VIEWS.items()] + [("act", what, row) for what, row in ACTIONS.items()],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_view_and_action_asks_for_what_it_names(kind: str, what: str, row: AnyRow) -> None:
    broker = NothingElse()
    query = least(row.query)
    run(refused(lambda: getattr(ViewAccess(broker, ANONYMOUS), kind)(what, query)))  # type: ignore[arg-type]
    ((operation, resource, name),) = broker.permissions.asked
    things = ("topic", "queue", "group", "exchange", "namespace")
    named = [(field, value) for field, value in query.items() if field in things]
    if named:
        assert [(resource, name)] == named, "a query that names a thing is about that one"
    else:
        assert name == "*"
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


def test_a_session_that_is_refused_everything_changes_nothing(tmp_path: Path) -> None:
    """On a real broker, through the facets that its sessions have."""

    async def scenario() -> None:
        async with broker_on(tmp_path / "data") as broker:
            await broker.topics.create("t", 1)
            before = (sorted(topic.name for topic in broker.topics), len(broker.inboxes), broker.groups.names())
            broker.permissions = RefusesEverything()
            access = broker.access(ANONYMOUS, "/", broker.meters.native)
            held = (access.staged, access.subscriptions, access.reading, access.views)
            for facet in held:
                for call in CALLS[type(facet)].values():
                    await refused(lambda call=call, facet=facet: call(facet))  # type: ignore[misc]
            await refused(lambda: access.read_entries("q", [(0, 1)], 1, 1))
            await refused(lambda: access.queue_exists("q"))
            await refused(lambda: access.begin_named("tx", 1000))
            await asyncio.sleep(0)
            assert before == (sorted(topic.name for topic in broker.topics), len(broker.inboxes), broker.groups.names())
            assert not broker.subscriptions.counts()

    run(scenario())
