"""Exchanges and bindings as the broker keeps them: what is remembered, what goes with what, where a publish ends up.

Queues and topics are stand-ins here, so that each can refuse or vanish at a chosen moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import msgspec
import pytest

from tests.broker.kit import HandClock, broker_on, run, values
from waystation.catalog import BindingRow, Catalog, MemoryCatalog
from waystation.catalog.follower import CatalogFollower
from waystation.catalog.sqlite import SqliteCatalog
from waystation.errors import (
    Conflict,
    FilterSyntax,
    Full,
    Invalid,
    NotAllowed,
    NotFound,
    StorageFailed,
    UnknownTopic,
    WaystationError,
)
from waystation.message import Message
from waystation.protocol import QueueInfo
from waystation.queues.settings import QueueSettings
from waystation.routing.exchanges.binding import canonical_arguments
from waystation.routing.routing import Routing
from waystation.topics.partitions.partition import Receipt
from waystation.world import InlineOffload, OsDisk, SystemRandom, World

HELLO = Message(b"hello")


def through(exchange: str, key: str, *messages: Message) -> list[Message]:
    """What a target gets of messages that went through an exchange."""
    return [msgspec.structs.replace(message, exchange=exchange, routing_key=key) for message in messages]


class PutResult(NamedTuple):
    receipt: Receipt | None


class Published(NamedTuple):
    places: list[tuple[str, int, int]]
    receipts: list[Receipt]


def receipt(name: str) -> Receipt:
    return Receipt(cast(Any, name), 1)


class Queues:
    def __init__(self) -> None:
        self.settings: dict[str, QueueSettings] = {}
        self.stored: dict[str, list[Message]] = {}
        self.refusals: dict[str, WaystationError] = {}

    def add(self, *names: str, **settings: Any) -> None:
        for name in names:
            self.settings[name] = QueueSettings(**settings)

    def __contains__(self, name: object) -> bool:
        return name in self.settings

    def describe(self, name: str) -> QueueInfo:
        if name not in self.settings:
            raise NotFound(f"there is no queue {name!r}")
        return QueueInfo(name, self.settings[name])

    def put_same(self, names: Iterable[str], messages: Sequence[Message]) -> Iterator[tuple[Sequence[str], Receipt]]:
        return iter(())  # each by itself

    def put(self, name: str, messages: Sequence[Message]) -> PutResult:
        self.describe(name)
        if name in self.refusals:
            raise self.refusals[name]
        self.stored.setdefault(name, []).extend(messages)
        return PutResult(receipt(f"queue:{name}"))


class Topics(set[str]):
    """Also what stands for the topics' messages."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[str, list[Message]] = {}

    async def ensure(self, topic: str) -> object:
        if topic not in self:
            raise UnknownTopic(f"there is no topic {topic!r}")
        return object()

    def publish(self, topic: str, messages: Sequence[Message]) -> Published:
        stored = self.stored.setdefault(topic, [])
        stored.extend(messages)
        return Published([(topic, 0, len(stored) - len(messages))], [receipt(f"topic:{topic}")])


class LateFollower(CatalogFollower):
    """Begins with the first change: the stage is set before the loop runs."""

    async def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, int] | None = None) -> int:
        if self._task is None:
            self.begin()
            self.start()
        return await super().write(changes, expected)


class Stage:
    def __init__(self, catalog: Catalog) -> None:
        self.catalog = catalog
        self.queues = Queues()
        self.topics = Topics()
        self.waited: list[str] = []
        self.offload = InlineOffload()
        self.followers: dict[Routing, CatalogFollower] = {}
        self.routing = self.fresh()

    def fresh(self) -> Routing:
        """As after a start on the same catalog."""
        world = World(HandClock(), SystemRandom(), OsDisk(), self.offload)
        follower = LateFollower(self.catalog, world)
        routing = Routing(self.catalog, follower, self.queues, self.topics, self.topics, self.kept)
        routing.load()
        follower.follow(routing)
        self.followers[routing] = follower
        return routing

    async def kept(self, *receipts: Receipt | None) -> None:
        await asyncio.sleep(0)
        self.waited += [str(each.partition) for each in receipts if each is not None]

    async def delete_queue(self, name: str) -> None:
        del self.queues.settings[name]
        self.routing.on_queue_deleted(name, receipt(f"deletion of {name}"))
        await self.routing.settle()

    def same_after_restart(self) -> bool:
        fresh = self.fresh().listing()
        now = self.routing.listing()
        return fresh.exchanges == now.exchanges and sorted(fresh.bindings, key=repr) == sorted(now.bindings, key=repr)


@pytest.fixture(params=["memory", "sqlite"])
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    catalog: Catalog = MemoryCatalog() if request.param == "memory" else SqliteCatalog(str(tmp_path), SystemRandom())
    stage = Stage(catalog)
    stage.queues.add("jobs", "mail")
    stage.topics |= {"orders", "audit"}
    yield stage
    catalog.close()


def names(routing: Routing) -> set[str]:
    return {name for name, _, _ in routing.listing().exchanges if name and not name.startswith("amq.")}


# -- publishing --------------------------------------------------------------------------------------------------------


def test_a_publish_reaches_every_target_and_waits_until_all_have_it(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        await routing.declare_exchange("orders", "topic")
        await routing.bind("orders", "queue:jobs", "eu.#")
        await routing.bind("orders", "queue:jobs", "#")
        await routing.bind("orders", "topic:audit", "*.new")
        await routing.bind("orders", "queue:mail", "us.*")
        answer = await routing.publish("orders", "eu.new", [HELLO, HELLO])
        assert (answer.queues, answer.places) == (["jobs"], [("audit", 0, 0)])
        assert sorted(stage.waited) == ["queue:jobs", "topic:audit"]
        assert stage.queues.stored == {"jobs": through("orders", "eu.new", HELLO, HELLO)}
        assert stage.topics.stored == {"audit": through("orders", "eu.new", HELLO, HELLO)}
        assert sorted(routing.route("orders", HELLO, "us.new")) == ["queue:jobs", "queue:mail", "topic:audit"]

    run(story())


def test_each_message_of_a_batch_finds_its_own_way(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        await routing.declare_exchange("by-total", "filter", alternate="rest")
        await routing.declare_exchange("rest", "fanout")
        await routing.bind("by-total", "queue:jobs", arguments={"filter": "json.total > 100"})
        await routing.bind("by-total", "topic:audit", "json.total > 10")
        await routing.bind("rest", "queue:mail")
        messages = [Message(b'{"total": %d}' % total) for total in (5, 50, 500)]
        await routing.publish("by-total", "", messages)
        messages = through("by-total", "", *messages)
        assert stage.queues.stored == {"jobs": messages[2:], "mail": messages[:1]}
        assert stage.topics.stored == {"audit": messages[1:]}

    run(story())


def test_the_default_exchange_puts_into_the_queue_of_that_name(stage: Stage) -> None:
    async def story() -> None:
        assert (await stage.routing.publish("", "jobs", [HELLO])).queues == ["jobs"]
        assert (await stage.routing.publish("", "nobody", [HELLO])).queues == []
        with pytest.raises(NotFound, match="'nobody'"):
            await stage.routing.publish("", "nobody", [HELLO], mandatory=True)

    run(story())


def test_mandatory_stores_nothing_if_one_message_has_no_way(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        await routing.declare_exchange("f", "filter")
        await routing.bind("f", "queue:jobs", "exists headers.a")
        with pytest.raises(NotFound, match=r"'f'.*'k'"):
            await routing.publish("f", "k", [Message(b"", headers={"a": 1}), HELLO], mandatory=True)
        assert stage.queues.stored == {}
        assert (await routing.publish("f", "k", [HELLO])).queues == []

    run(story())


def test_the_answer_says_how_many_nobody_got(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        assert (await routing.publish("", "nobody", [HELLO, HELLO])).unroutable == 2
        assert (await routing.publish("", "jobs", [HELLO])).unroutable == 0
        await routing.declare_exchange("f", "filter")
        await routing.bind("f", "queue:jobs", "exists headers.a")
        answer = await routing.publish("f", "k", [Message(b"", headers={"a": 1}), HELLO])
        assert (answer.queues, answer.unroutable) == (["jobs"], 1)

    run(story())


def test_a_target_that_refuses_keeps_no_other_from_taking(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        for target in ("queue:jobs", "queue:mail", "topic:audit"):
            await routing.bind("amq.fanout", target)
        stage.queues.refusals["jobs"] = Full("queue 'jobs' is full")
        with pytest.raises(Full, match="jobs"):
            await routing.publish("amq.fanout", "", [HELLO])
        assert (stage.queues.stored, stage.topics.stored) == (
            {"mail": through("amq.fanout", "", HELLO)},
            {"audit": through("amq.fanout", "", HELLO)},
        )

    run(story())


def test_a_queue_that_is_just_being_deleted_is_no_target(stage: Stage) -> None:
    async def story() -> None:
        await stage.routing.bind("amq.fanout", "queue:jobs")
        del stage.queues.settings["jobs"]  # and nobody has told the routing yet
        assert (await stage.routing.publish("amq.fanout", "", [HELLO])).queues == []

    run(story())


def test_bad_publishes_are_refused_with_a_reason(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        await routing.declare_exchange("orders")
        await routing.declare_exchange("inner", internal=True)
        for exchange, key, error, what in (
            ("ordrs", "", NotFound, "there is no exchange 'ordrs'"),
            ("inner", "", NotAllowed, "internal"),
            ("orders", "k" * 256, Invalid, "routing_key: it has 256 bytes, the limit is 255"),
            ("orders", "\ud800", Invalid, "routing_key"),
        ):
            with pytest.raises(error, match=what):
                await routing.publish(exchange, key, [HELLO])
        await routing.bind("orders", "exchange:inner", "k")
        await routing.bind("inner", "queue:jobs", "k")
        assert (await routing.publish("orders", "k", [HELLO])).queues == ["jobs"]

    run(story())


# -- exchanges ---------------------------------------------------------------------------------------------------------


def test_exchanges_and_bindings_survive_a_restart(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        arguments = {"x-match": "any", "n": 1, "f": 1.5, "b": True, "raw": b"\xff", "deep": {"z": [1], "a": None}}
        await routing.declare_exchange("h", "headers", "amq.fanout", internal=True, arguments={"note": "mine"})
        await routing.declare_exchange("größe", "direct", auto_delete=True)
        await routing.bind("h", "queue:jobs", "", arguments)
        await routing.bind("größe", "topic:orders", "schlüssel")
        await routing.bind("amq.topic", "exchange:h", "a.*")
        assert stage.same_after_restart()
        fresh = stage.fresh()
        assert fresh.describe("h") == routing.describe("h")
        assert fresh.describe("h").arguments == {"note": "mine"}
        assert ("h", "queue:jobs", "", arguments) in fresh.listing().bindings
        assert fresh.route("h", Message(b"", headers={"raw": b"\xff"})) == ["queue:jobs"]
        assert fresh.route("amq.topic", Message(b"", headers={"n": 1}), "a.b") == ["queue:jobs"]

    run(story())


def test_what_is_not_durable_does_not_survive(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        stage.queues.add("mine", exclusive=True)
        await routing.declare_exchange("passing", durable=False)
        await routing.bind("passing", "queue:jobs")
        await routing.bind("amq.direct", "exchange:passing")
        await routing.bind("amq.direct", "queue:mine")
        assert routing.route("amq.direct", HELLO) == ["queue:mine", "queue:jobs"]
        assert (stage.catalog.exchanges(), stage.catalog.bindings()) == ([], [])
        assert names(stage.fresh()) == set()

    run(story())


def test_declaring_again_is_fine_if_it_is_the_same(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        for _ in range(2):
            await routing.declare_exchange("a", "topic", "amq.fanout")
        await routing.declare_exchange("a", "topic", "amq.fanout", arguments={"other": "notes"})
        await routing.declare_exchange("a", passive=True)
        await routing.declare_exchange("amq.topic", "topic")
        await routing.declare_exchange("", "direct")
        for changed, what in (
            ({"kind": "direct"}, "kind 'topic', not 'direct'"),
            ({"alternate": None}, "alternate"),
            ({"durable": False}, "durable"),
            ({"auto_delete": True}, "auto_delete"),
            ({"internal": True}, "internal"),
        ):
            with pytest.raises(Conflict, match=what):
                await routing.declare_exchange("a", **({"kind": "topic", "alternate": "amq.fanout"} | changed))
        assert stage.same_after_restart()

    run(story())


@pytest.mark.parametrize(
    ("name", "options", "error", "what"),
    [
        ("a", {"kind": "x-random"}, Invalid, "direct, fanout, topic, headers, filter"),
        ("amq.mine", {}, NotAllowed, "broker's own"),
        ("x" * 256, {}, Invalid, "255"),
        ("a\nb", {}, Invalid, "printable"),
        ("\ud800", {}, Invalid, "printable"),
        ("a", {"alternate": "\x00"}, Invalid, "printable"),
        ("a", {"arguments": {"a": object()}}, Invalid, "arguments"),
        ("a", {"arguments": {"a": "x" * 70_000}}, Invalid, "arguments"),
        ("ordrs", {"passive": True}, NotFound, "there is no exchange 'ordrs'"),
        ("amq.topic", {"kind": "fanout"}, Conflict, "kind"),
    ],
)
def test_exchanges_that_cannot_be_are_refused(
    stage: Stage, name: str, options: dict[str, Any], error: type[Exception], what: str
) -> None:
    async def story() -> None:
        await stage.routing.declare_exchange("orders")
        with pytest.raises(error, match=what):
            await stage.routing.declare_exchange(name, **options)
        assert names(stage.routing) == {"orders"}
        assert stage.same_after_restart()

    run(story())


def test_a_deleted_exchange_takes_its_bindings_along(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        for name in ("a", "b"):
            await routing.declare_exchange(name, "fanout")
        await routing.bind("a", "exchange:b")
        await routing.bind("b", "queue:jobs")
        with pytest.raises(Conflict, match="in use"):
            await routing.delete_exchange("b", if_unused=True)
        await routing.delete_exchange("b")
        assert routing.listing().bindings == []
        await routing.delete_exchange("a", if_unused=True)
        assert names(routing) == set()
        assert stage.catalog.bindings() == []
        assert stage.same_after_restart()
        for name, error in (("a", NotFound), ("", NotAllowed), ("amq.direct", NotAllowed)):
            with pytest.raises(error):
                await routing.delete_exchange(name)

    run(story())


# -- bindings ----------------------------------------------------------------------------------------------------------


def test_a_binding_is_there_once_and_arguments_tell_bindings_apart(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        for arguments in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, None, {}):
            await routing.bind("amq.headers", "queue:jobs", "k", arguments)
        assert len(routing.listing().bindings) == 3
        assert await routing.unbind("amq.headers", "queue:jobs", "k", {"b": 2, "a": 1})
        assert not await routing.unbind("amq.headers", "queue:jobs", "k", {"b": 2, "a": 1})
        assert await routing.unbind("amq.headers", "queue:jobs", "k")
        assert [arguments for *_, arguments in routing.listing().bindings] == [{"a": 1}]
        assert stage.same_after_restart()

    run(story())


@pytest.mark.parametrize(
    ("exchange", "target", "options", "error", "what"),
    [
        ("amq.direct", "jobs", {}, Invalid, "queue:NAME"),
        ("amq.direct", "queue:", {}, Invalid, "queue:NAME"),
        ("amq.direct", "stream:jobs", {}, Invalid, "queue:NAME"),
        ("amq.direct", "queue:nobody", {}, NotFound, "nobody"),
        ("amq.direct", "topic:nobody", {}, NotFound, "nobody"),
        ("amq.direct", "exchange:amq.topc", {}, NotFound, "there is no exchange 'amq.topc'"),
        ("amq.topc", "queue:jobs", {}, NotFound, "there is no exchange 'amq.topc'"),
        ("", "queue:jobs", {}, NotAllowed, "default exchange"),
        ("amq.direct", "queue:jobs", {"key": "k" * 256}, Invalid, "routing_key"),
        ("amq.headers", "queue:jobs", {"arguments": {"x-match": "most"}}, Invalid, "x-match"),
        ("amq.headers", "queue:jobs", {"arguments": {"x": {1: 2}, "y": object()}}, Invalid, "arguments"),
        ("by", "queue:jobs", {"key": "json.a >"}, FilterSyntax, "character 9"),
    ],
)
def test_bindings_that_cannot_be_are_refused(
    stage: Stage, exchange: str, target: str, options: dict[str, Any], error: type[Exception], what: str
) -> None:
    async def story() -> None:
        await stage.routing.declare_exchange("by", "filter")
        with pytest.raises(error, match=what):
            await stage.routing.bind(exchange, target, **options)
        assert stage.routing.listing().bindings == []
        assert stage.same_after_restart()

    run(story())


def test_an_auto_delete_exchange_goes_with_its_last_binding(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        await routing.declare_exchange("a", auto_delete=True)
        await routing.declare_exchange("b", auto_delete=True)
        for _ in range(2):
            await routing.bind("a", "queue:jobs")
        await routing.bind("b", "exchange:a")
        assert await routing.unbind("a", "queue:jobs")
        assert names(routing) == set()
        assert (stage.catalog.exchanges(), stage.catalog.bindings()) == ([], [])

    run(story())


# -- targets that go ---------------------------------------------------------------------------------------------------


def test_the_bindings_of_a_deleted_queue_go_with_it(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        await routing.declare_exchange("a", auto_delete=True)
        await routing.bind("a", "queue:jobs")
        await routing.bind("amq.fanout", "queue:jobs")
        await routing.bind("amq.fanout", "queue:mail")
        del stage.queues.settings["jobs"]
        routing.on_queue_deleted("jobs", receipt("deletion"))
        assert routing.route("amq.fanout", HELLO) == ["queue:mail"], "at once"
        assert len(stage.catalog.bindings()) == 3, "not before the deletion is durable"
        await routing.settle()
        assert stage.waited == ["deletion"]
        assert stage.catalog.bindings() == [BindingRow("amq.fanout", "queue:mail")]
        assert names(routing) == set()
        assert stage.same_after_restart()

    run(story())


def test_the_bindings_of_deleted_topics_go_with_them(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        for topic in ("orders", "audit"):
            await routing.bind("amq.fanout", f"topic:{topic}")
        stage.topics.clear()
        routing.on_topics_deleted(["orders", "audit", "other"])
        await routing.settle()
        assert routing.listing().bindings == []
        assert stage.catalog.bindings() == []

    run(story())


def test_many_queues_that_go_at_once_are_one_change_of_the_catalog(stage: Stage) -> None:
    async def story() -> None:
        stage.queues.add(*map(str, range(20)))
        for number in range(20):
            await stage.routing.bind("amq.fanout", f"queue:{number}")
        calls = counting(stage.catalog, "write")
        for number in range(20):
            del stage.queues.settings[str(number)]
            stage.routing.on_queue_deleted(str(number))
        await stage.routing.settle()
        assert stage.catalog.bindings() == []
        assert len(calls) == 1

    run(story())


def counting(catalog: Catalog, name: str) -> list[Any]:
    calls: list[Any] = []
    real: Callable[..., Any] = getattr(catalog, name)

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return real(*arguments)

    setattr(catalog, name, counted)
    return calls


def test_bindings_that_a_crash_left_behind_are_dropped_at_the_start(stage: Stage) -> None:
    for row in (
        BindingRow("amq.fanout", "queue:gone"),
        BindingRow("amq.fanout", "topic:gone"),
        BindingRow("amq.fanout", "exchange:gone"),
        BindingRow("gone", "queue:jobs"),
        BindingRow("amq.fanout", "queue:jobs"),
    ):
        stage.catalog.save_binding(row)
    assert len(stage.fresh().listing().bindings) == 1
    assert stage.catalog.bindings() == [BindingRow("amq.fanout", "queue:jobs")]


def test_a_binding_that_this_version_cannot_use_is_kept_and_the_broker_starts(stage: Stage) -> None:
    async def story() -> None:
        await stage.routing.declare_exchange("by", "filter")
        stage.catalog.save_binding(BindingRow("by", "queue:jobs", "a language of the future"))
        assert stage.fresh().listing().bindings == []
        assert len(stage.catalog.bindings()) == 1

    run(story())


# -- changes at the same time ------------------------------------------------------------------------------------------


@asynccontextmanager
async def meanwhile(stage: Stage, happens: Callable[[], None]) -> AsyncIterator[None]:
    """Something happens while the next call of the catalog is under way."""

    class Once(InlineOffload):
        async def __call__(self, work: Any, /, *args: object) -> Any:
            follower._world = before
            result = await stage.offload(work, *args)
            happens()
            return result

    follower = stage.followers[stage.routing]
    before = follower._world
    follower._world = World(before.clock, before.random, before.disk, Once())
    yield


def test_a_queue_that_goes_while_it_is_bound_is_not_bound(stage: Stage) -> None:
    async def story() -> None:
        def delete() -> None:
            del stage.queues.settings["jobs"]
            stage.routing.on_queue_deleted("jobs")

        async with meanwhile(stage, delete):
            with pytest.raises(NotFound, match="deleted while"):
                await stage.routing.bind("amq.fanout", "queue:jobs")
        await stage.routing.settle()
        assert stage.routing.listing().bindings == []
        assert stage.catalog.bindings() == []

    run(story())


def test_a_queue_that_is_recreated_and_bound_again_keeps_its_new_binding(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        await routing.bind("amq.fanout", "queue:jobs")

        def delete_and_declare() -> None:
            del stage.queues.settings["jobs"]
            routing.on_queue_deleted("jobs")
            stage.queues.add("jobs")

        async with meanwhile(stage, delete_and_declare):
            # The second bind waits for its turn already when the queue goes, so it comes before the clearing up.
            await asyncio.gather(routing.declare_exchange("other"), routing.bind("amq.fanout", "queue:jobs"))
        await routing.settle()
        assert len(routing.listing().bindings) == 1
        assert stage.same_after_restart()

    run(story())


def test_a_change_goes_to_its_end_when_whoever_asked_has_gone(stage: Stage) -> None:
    async def story() -> None:
        asking = asyncio.ensure_future(stage.routing.declare_exchange("orders"))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.sleep(0)
        await stage.routing.settle()
        assert names(stage.routing) == {"orders"}
        assert stage.same_after_restart()

    run(story())


def test_a_change_that_the_catalog_refuses_does_not_happen(stage: Stage) -> None:
    async def story() -> None:
        routing = stage.routing
        await routing.bind("amq.fanout", "queue:mail")

        def refuses(*_: object) -> None:
            raise StorageFailed("no room")

        stage.catalog.write = refuses  # type: ignore[method-assign, assignment]
        for change in (
            routing.declare_exchange("orders"),
            routing.bind("amq.fanout", "queue:jobs"),
            routing.unbind("amq.fanout", "queue:mail"),
        ):
            with pytest.raises(StorageFailed):
                await change
        assert names(routing) == set()
        assert routing.route("amq.fanout", HELLO) == ["queue:mail"]
        await stage.delete_queue("mail")  # gone all the same; the next start clears up
        assert routing.route("amq.fanout", HELLO) == []

    run(story())


def test_limits_are_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr("waystation.routing.routing.MAX_EXCHANGES", len(stage.routing.listing().exchanges))
        monkeypatch.setattr("waystation.routing.routing.MAX_BINDINGS", 1)
        with pytest.raises(Full, match="'one too many'"):
            await stage.routing.declare_exchange("one too many")
        await stage.routing.bind("amq.fanout", "queue:jobs")
        with pytest.raises(Full):
            await stage.routing.bind("amq.fanout", "queue:mail")

    run(story())


# -- on a real broker --------------------------------------------------------------------------------------------------


def test_routing_works_on_a_real_broker_and_after_its_restart(tmp_path: Path) -> None:
    async def story() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.queues.declare("jobs")
            await broker.queues.declare("mine", QueueSettings(exclusive=True), owner="somebody")
            await broker.routing.declare_exchange("orders", "topic")
            for target, key in (("queue:jobs", "eu.#"), ("queue:mine", "#"), ("topic:audit", "*.new")):
                await broker.routing.bind("orders", target, key)
            answer = await broker.routing.publish("orders", "eu.new", [HELLO, HELLO])
            assert (sorted(answer.queues), answer.places) == (["jobs", "mine"], [("audit", 0, 0)])
            with pytest.raises(NotAllowed, match="broker's own"):
                await broker.routing.bind("orders", "topic:__consumer_offsets")
            with pytest.raises(NotFound, match="there is no queue 'job'"):
                await broker.routing.bind("orders", "queue:job")
        async with broker_on(tmp_path) as broker:
            assert broker.queues.describe("jobs").ready == 2
            assert values(broker, "audit") == [b"hello", b"hello"]
            assert sorted(broker.routing.route("orders", HELLO, "eu.new")) == ["queue:jobs", "topic:audit"]
            await broker.queues.delete("jobs")
            await broker.topics.delete("audit")
            assert broker.routing.route("orders", HELLO, "eu.new") == []
        async with broker_on(tmp_path) as broker:
            assert broker.catalog.bindings() == []
            assert broker.routing.describe("orders").kind == "topic"

    run(story())


def test_a_condition_that_an_older_version_let_pass_stays_bound_and_can_be_unbound(stage: Stage) -> None:
    async def story() -> None:
        said = {"filter": "json.total > 100"}
        with pytest.raises(Invalid, match="is of the kind 'direct' and does not look at 'filter'"):
            await stage.routing.bind("amq.direct", "queue:jobs", "k", said)
        stage.catalog.save_binding(BindingRow("amq.direct", "queue:jobs", "k", canonical_arguments(said)))
        routing = stage.fresh()
        assert routing.route("amq.direct", HELLO, "k") == ["queue:jobs"]
        assert await routing.unbind("amq.direct", "queue:jobs", "k", said)

    run(story())
