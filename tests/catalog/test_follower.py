"""The broker is what the catalog says, whoever wrote it, and in the order in which it was written."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.broker.kit import broker_on, run
from waystation.admin.policy_rules import Policy
from waystation.broker.broker import Broker
from waystation.catalog import ABSENT, BindingRow, CatalogChange, ExchangeRow, MemoryCatalog, TopicRow, Update, rows
from waystation.catalog.follower import FAILURES_MOST, CatalogFollower
from waystation.errors import AlreadyExists, Conflict, RevisionConflict, StorageFailed, Unavailable
from waystation.message import Message
from waystation.queues.settings import QueueSettings
from waystation.routing.namespaces import Limits, Namespace
from waystation.share.topic_queue_settings import TopicQueueSettings
from waystation.topics.partitions.partition import log_of
from waystation.world import real_world


class Mirror:
    """A part that holds what its keys say, and what it was told."""

    def __init__(self, *prefixes: str) -> None:
        self.prefixes: tuple[str, ...] = prefixes
        self.held: dict[str, bytes] = {}
        self.told: list[Update] = []
        self.before: Callable[[Update], Awaitable[None]] | None = None

    async def apply(self, update: Update) -> None:
        if self.before is not None:
            await self.before(update)
        self.told.append(update)
        for key, value in update.changes:
            if value is None:
                self.held.pop(key, None)
            else:
                self.held[key] = value

    def known_keys(self) -> Iterable[str]:
        return list(self.held)


class Stage:
    def __init__(self) -> None:
        self.catalog = MemoryCatalog()
        self.world = real_world()
        self.follower = CatalogFollower(self.catalog, self.world)
        self.a, self.b = Mirror("a/", "c/"), Mirror("b/")
        for part in (self.a, self.b):
            self.follower.follow(part)


def follow(story: Callable[[Stage], Awaitable[None]]) -> None:
    async def main() -> None:
        stage = Stage()
        stage.follower.begin()
        stage.follower.start()
        try:
            await asyncio.wait_for(story(stage), 20)
        finally:
            await stage.follower.stop()
            stage.world.offload.close()

    asyncio.run(main())


def test_a_writer_is_answered_when_its_change_is_in_force() -> None:
    async def story(stage: Stage) -> None:
        revision = await stage.follower.change({"a/1": b"x", "b/1": b"y", "nobody's": b""}, {"a/1": ABSENT})
        assert (stage.a.held, stage.b.held) == ({"a/1": b"x"}, {"b/1": b"y"})
        assert stage.a.told == [Update(revision, (CatalogChange("a/1", b"x"),))]
        with pytest.raises(RevisionConflict):
            await stage.follower.change({"a/1": b"z"}, {"a/1": ABSENT})
        assert stage.a.held == {"a/1": b"x"}
        assert await stage.follower.change({"a/none": None}) == revision  # no change: nothing to wait for

    follow(story)


def test_changes_of_others_are_made_too_and_in_order() -> None:
    async def story(stage: Stage) -> None:
        def write() -> int:
            return [stage.catalog.write({f"{'ab'[n % 2]}/{n}": b"%d" % n}) for n in range(50)][-1]

        revision = await asyncio.to_thread(write)
        await stage.follower.applied(revision)
        told = [update.revision for update in stage.a.told]
        assert told == sorted(told)
        assert len(told) == len(stage.b.told) == 25

    follow(story)


def test_a_change_that_cannot_be_made_is_told_to_its_writer_and_to_nobody_else() -> None:
    async def story(stage: Stage) -> None:
        async def refuse(update: Update) -> None:
            if update.changes[0].key == "a/bad":
                raise StorageFailed("no room")

        stage.a.before = refuse
        results = await asyncio.gather(
            *(stage.follower.change({f"a/{name}": b""}) for name in ("good", "bad", "better")), return_exceptions=True
        )
        assert [type(result) for result in results] == [int, StorageFailed, int]
        assert set(stage.a.held) == {"a/good", "a/better"}
        for _ in range(FAILURES_MOST * 2):  # of others: nobody asks
            revision = await asyncio.to_thread(stage.catalog.write, {"a/bad": b""})
        await asyncio.wait([asyncio.ensure_future(stage.follower.applied(revision))])
        assert len(stage.follower._failures) <= FAILURES_MOST

    follow(story)


def test_an_error_that_nobody_thought_of_does_not_end_the_following() -> None:
    async def story(stage: Stage) -> None:
        async def fail(update: Update) -> None:
            raise ZeroDivisionError

        stage.a.before = fail
        with pytest.raises(ZeroDivisionError):
            await stage.follower.change({"a/1": b"", "b/1": b""})
        stage.a.before = None
        await stage.follower.change({"a/2": b""})
        assert (set(stage.a.held), set(stage.b.held)) == ({"a/2"}, {"b/1"})

    follow(story)


def test_who_is_behind_what_the_catalog_remembers_reads_all_of_it_again() -> None:
    async def story(stage: Stage) -> None:
        stage.catalog.history.max_bytes = 2_000
        await stage.follower.change({"a/kept": b"1", "a/gone": b"1", "a/again": b"1", "b/gone": b"1"})
        slow, reached = asyncio.Event(), asyncio.Event()

        async def wait(update: Update) -> None:
            reached.set()
            await slow.wait()

        stage.a.before = wait
        waiting = asyncio.ensure_future(stage.follower.change({"a/slow": b""}))
        await reached.wait()

        def write() -> int:
            stage.catalog.write({"a/gone": None, "a/again": None, "b/gone": None})
            for number in range(100):
                stage.catalog.write({"c/1": b"%d" % number, "b/1": b"%d" % number})
            return stage.catalog.write({"a/again": b"2"})

        revision = await asyncio.to_thread(write)
        slow.set()
        await stage.follower.applied(revision)
        await waiting
        assert stage.a.held == {"a/kept": b"1", "a/slow": b"", "a/again": b"2", "c/1": b"99"}
        assert stage.b.held == {"b/1": b"99"}
        assert len(stage.a.told) < 50
        await stage.follower.change({"a/then": b""})
        assert "a/then" in stage.a.held

    follow(story)


def test_a_writer_does_not_wait_for_a_follower_that_has_stopped() -> None:
    async def story(stage: Stage) -> None:
        never = asyncio.Event()

        async def wait(update: Update) -> None:
            await never.wait()

        stage.a.before = wait
        waiting = asyncio.ensure_future(stage.follower.change({"a/1": b""}))
        while not stage.follower._waiting:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await stage.follower.stop()
        with pytest.raises(Unavailable):
            await waiting
        with pytest.raises(Unavailable):
            await stage.follower.change({"a/2": b""})

    follow(story)


# -- a whole broker --------------------------------------------------------------------------------------------------


async def elsewhere(broker: Broker, changes: dict[str, bytes | None], expected: dict[str, int] | None = None) -> None:
    """As another node writes it; returns when this broker has heard of it."""
    revision = await asyncio.to_thread(broker.catalog.write, changes, expected)
    await broker.follower.applied(revision)


def is_there(path: str) -> bool:
    return Path(path).exists()


def broker_story(tmp_path: Path, story: Callable[[Broker], Awaitable[None]], after: Any = None) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            await story(broker)
        async with broker_on(tmp_path) as broker:
            if after is not None:
                await after(broker)

    run(main())


def test_topics_that_are_created_altered_and_deleted_elsewhere_are_so_here(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        row = TopicRow("t", broker.world.random.uuid(), 1, overrides={"retention.ms": "5"})
        told: list[str] = []
        broker.topics.subscribe_deletions(told.extend)
        await elsewhere(broker, rows.topic_saved(row))
        topic = broker.topics.get("t")
        assert (len(topic.partitions), topic.settings.retention_ms) == (1, 5)
        assert is_there(f"{topic.folder}/topic.json")
        grown = replace(row, partitions=3, overrides={"retention.ms": "7"})
        await elsewhere(broker, {rows.topic_key(row.id): rows.encode(grown)})
        assert (len(topic.partitions), topic.settings.retention_ms) == (3, 7)
        assert log_of(topic.partition(2)).settings.retention_ms == 7
        await broker.topics.alter("t", {"retention.ms": "9"})  # on top of what was written elsewhere
        await elsewhere(broker, rows.topic_deleted(row))
        assert ("t" in broker.topics, told) == (False, ["t"])
        await broker.topics.settle()
        assert not is_there(topic.folder)
        await broker.topics.create("t", 2)

    async def after(broker: Broker) -> None:
        assert len(broker.topics.get("t").partitions) == 2

    broker_story(tmp_path, story, after)


def test_who_alters_deletes_or_creates_what_was_changed_elsewhere_is_told(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        topic = await broker.topics.create("t", 1)
        row = TopicRow("taken", broker.world.random.uuid(), 1)
        await broker.follower.stop()  # late: it has not heard of what is written now
        catalog = broker.catalog
        theirs = replace(topic.row, overrides={"retention.ms": "5"})
        await asyncio.to_thread(catalog.write, {rows.topic_key(topic.id): rows.encode(theirs)})
        await asyncio.to_thread(catalog.write, rows.topic_saved(row))
        for change in (
            broker.topics.alter("t", {"retention.ms": "7"}),
            broker.topics.add_partitions("t", 2),
            broker.topics.delete("t"),
        ):
            with pytest.raises(Conflict, match="'t' was changed by somebody else"):
                await change
        with pytest.raises(AlreadyExists):
            await broker.topics.create("taken", 1)
        await asyncio.to_thread(catalog.write, {rows.setting_key("num.partitions"): b"5"})
        with pytest.raises(Conflict, match=r"num\.partitions"):
            await broker.alter_settings({"num.partitions": "7"})
        assert {row.name: row.overrides for row in catalog.topics() if not row.internal} == {
            "t": {"retention.ms": "5"},
            "taken": {},
        }

    async def after(broker: Broker) -> None:
        assert broker.topics.get("t").overrides == {"retention.ms": "5"}
        assert "taken" in broker.topics
        assert broker.settings.integer("num.partitions") == 5

    broker_story(tmp_path, story, after)


def test_what_was_written_and_not_made_yet_when_the_broker_died_is_so_after_its_start(tmp_path: Path) -> None:
    data, killed = tmp_path / "data", tmp_path / "killed"

    async def story(broker: Broker) -> None:
        grows, goes = await broker.topics.create("grows", 1), await broker.topics.create("goes", 1)
        await broker.follower.stop()
        new = TopicRow("new", broker.world.random.uuid(), 2)
        for changes in (
            rows.topic_saved(new),
            {rows.topic_key(grows.id): rows.encode(replace(grows.row, partitions=3, overrides={"retention.ms": "5"}))},
            rows.topic_deleted(goes.row),
            {rows.setting_key("num.partitions"): b"5"},
            put(ExchangeRow("events", "topic"), BindingRow("events", "topic:new", "#")),
        ):
            await asyncio.to_thread(broker.catalog.write, changes)
        shutil.copytree(data, killed)

    async def after(broker: Broker) -> None:
        found = {topic.name: len(topic.partitions) for topic in broker.topics if not topic.internal}
        assert found == {"grows": 3, "new": 2}
        assert broker.topics.get("grows").settings.retention_ms == 5
        assert broker.settings.integer("num.partitions") == 5
        assert broker.routing.route("events", Message(b""), "k") == ["topic:new"]
        assert (broker.topics.folders.lost(), broker.catalog.deleted_topics()) == ([], [])
        assert not any((killed / "topics").glob("goes.*"))

    async def main() -> None:
        async with broker_on(data) as broker:
            await story(broker)
        async with broker_on(killed) as broker:
            await after(broker)

    run(main())


def test_settings_that_are_changed_elsewhere_are_in_force_here(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        topic = await broker.topics.create("t", 1)
        key = rows.setting_key("log.retention.ms")
        await elsewhere(broker, {key: b"77", rows.setting_key("of.a.later.version"): b"1"})
        assert (broker.settings.integer("log.retention.ms"), topic.settings.retention_ms) == (77, 77)
        await broker.alter_settings({"log.retention.ms": "78"})
        assert topic.settings.retention_ms == 78
        await elsewhere(broker, {key: None, rows.setting_key("of.a.later.version"): None})
        assert broker.settings.changed == {}
        assert topic.settings.retention_ms != 78

    broker_story(tmp_path, story)


def put(*given: ExchangeRow | BindingRow) -> dict[str, bytes | None]:
    return {
        rows.exchange_key(row.name) if isinstance(row, ExchangeRow) else rows.binding_key(row): rows.encode(row)
        for row in given
    }


def test_exchanges_and_bindings_that_are_declared_and_deleted_elsewhere_are_so_here(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        routing = broker.routing
        await broker.queues.declare("jobs")
        events, plain = ExchangeRow("events", "topic"), BindingRow("events", "queue:jobs", "größe/%.#")
        rich = BindingRow("events", "queue:jobs", "größe/%.#", b"\x81\xa1a\x01")
        await elsewhere(broker, put(events, plain, rich, BindingRow("events", "queue:never was")))
        assert routing.route("events", Message(b""), "größe/%.x") == ["queue:jobs"]
        assert routing.binding_count == 2
        await routing.declare_exchange("events", "topic")  # as it is
        with pytest.raises(Conflict):
            await routing.declare_exchange("events", "fanout")
        await elsewhere(broker, dict.fromkeys(put(rich)))
        assert [binding.canonical for binding in routing.bindings_to("queue:jobs")] == [b"\x80"]
        await elsewhere(broker, dict.fromkeys(put(plain)))
        assert routing.route("events", Message(b""), "größe/%.x") == []
        await elsewhere(broker, put(plain))
        await elsewhere(broker, dict.fromkeys(put(events, plain)))
        assert (routing.find("events"), routing.binding_count) == (None, 0)
        await routing.declare_exchange("events", "fanout")

    async def after(broker: Broker) -> None:
        assert broker.routing.describe("events").kind == "fanout"

    broker_story(tmp_path, story, after)


def test_who_declares_binds_or_deletes_what_was_changed_elsewhere_is_told(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        routing, catalog = broker.routing, broker.catalog
        await broker.queues.declare("jobs")
        await routing.declare_exchange("events", "topic")
        heard, late = asyncio.Event(), Mirror(rows.EXCHANGES)

        async def wait(update: Update) -> None:
            await heard.wait()

        late.before = wait
        broker.follower._parts.insert(0, late)
        for name in ("same", "different"):
            await asyncio.to_thread(catalog.write, put(ExchangeRow(name, "topic")))
        declaring = [
            asyncio.ensure_future(routing.declare_exchange("same", "topic")),
            asyncio.ensure_future(routing.declare_exchange("different", "fanout")),
        ]
        asyncio.get_running_loop().call_later(0.05, heard.set)
        same, different = await asyncio.gather(*declaring, return_exceptions=True)
        assert same is None
        assert isinstance(different, Conflict)
        await broker.follower.stop()  # late
        await asyncio.to_thread(catalog.write, put(ExchangeRow("events", "fanout")))
        for change in (routing.bind("events", "queue:jobs"), routing.delete_exchange("events")):
            with pytest.raises(Conflict, match="'events'"):
                await change
        assert catalog.bindings() == []

    async def after(broker: Broker) -> None:
        assert broker.routing.describe("events").kind == "fanout"
        assert broker.routing.describe("different").kind == "topic"

    broker_story(tmp_path, story, after)


def test_routes_are_as_the_catalog_says_after_it_was_read_again(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        routing, catalog = broker.routing, broker.catalog
        await broker.queues.declare("jobs")
        for name in ("stays", "goes", "changes"):
            await routing.declare_exchange(name, "topic")
            await routing.bind(name, "queue:jobs", "k")
        await routing.declare_exchange("passing", "topic", durable=False)
        changed = [ExchangeRow("changes", "fanout"), ExchangeRow("new", "fanout")]
        bound = [BindingRow("changes", "queue:jobs", "k"), BindingRow("new", "exchange:stays", "k")]
        gone = dict.fromkeys(put(ExchangeRow("goes", "topic"), BindingRow("goes", "queue:jobs", "k"), bound[0]))
        catalog.history.max_bytes = 1  # type: ignore[attr-defined]
        topic = TopicRow("t", broker.world.random.uuid(), 1)

        def write() -> int:
            catalog.write(gone)
            catalog.write(put(changed[0]))
            catalog.write(rows.topic_saved(topic))
            return catalog.write(put(changed[1], *bound))

        await broker.follower.applied(await asyncio.to_thread(write))
        names = {name for name in routing.exchange_names() if name and not name.startswith("amq.")}
        assert names == {"stays", "changes", "new", "passing"}
        assert routing.describe("changes").kind == "fanout"
        assert {(b.exchange, b.target) for b in routing.bindings_to("queue:jobs")} == {
            ("stays", "queue:jobs"),
            ("changes", "queue:jobs"),
        }
        assert routing.route("new", Message(b""), "k") == ["queue:jobs"]
        assert len(routing.exchange_names()) == 6 + 4
        assert "t" in broker.topics
        assert "__consumer_offsets" in broker.topics

    broker_story(tmp_path, story)


def definition(kind: str, name: str, value: object) -> dict[str, bytes | None]:
    return {rows.definition_key(kind, name): None if value is None else msgspec.msgpack.encode(value)}


def test_namespaces_that_are_made_and_deleted_elsewhere_are_so_here(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.queues.declare("shop/old")
        await elsewhere(broker, definition("namespace", "shop", Namespace(limits=Limits(max_queues=9, max_bytes=77))))
        assert broker.namespaces.limits("shop") == Limits(max_queues=9, max_bytes=77)
        assert (broker.namespaces.queue_count("shop"), broker.namespaces.byte_limits) == (1, {"shop": 77})
        assert broker.routing.find("shop/amq.fanout") is not None
        await broker.namespaces.set_limits("shop", Limits(max_queues=8))
        await elsewhere(broker, definition("namespace", "shop", Namespace(limits=Limits(max_queues=7))))
        assert broker.namespaces.limits("shop") == Limits(max_queues=7)
        await elsewhere(broker, definition("namespace", "shop", None))
        assert broker.namespaces.names() == ["/"]
        assert broker.routing.find("shop/amq.fanout") is None
        assert broker.routing.find("amq.fanout") is not None
        await broker.queues.delete("shop/old")
        assert await broker.namespaces.create("shop")
        await broker.follower.stop()
        await asyncio.to_thread(broker.catalog.write, definition("namespace", "shop", Namespace(description="theirs")))
        with pytest.raises(Conflict, match="'shop'"):
            await broker.namespaces.create("shop", description="mine")
        assert "shop" in broker.namespaces

    async def after(broker: Broker) -> None:
        assert broker.namespaces.get("shop").description == "theirs"

    broker_story(tmp_path, story, after)


def test_policies_that_are_set_and_deleted_elsewhere_are_in_force_here(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.queues.declare("jobs", QueueSettings(queue_type="classic"))
        theirs = Policy("/", "p", "^jobs$", {"max-length": 5})

        async def length(wanted: int | None) -> None:
            async with asyncio.timeout(20):
                while broker.queues.describe("jobs").settings.max_length != wanted:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        await elsewhere(broker, definition("policy", "%2F/p", theirs))
        assert broker.policies.listing() == [theirs]
        await length(5)
        await broker.policies.set(Policy("/", "p", "^jobs$", {"max-length": 6}))
        assert broker.queues.describe("jobs").settings.max_length == 6
        await elsewhere(broker, definition("policy", "%2F/p", None))
        assert broker.policies.listing() == []
        await length(None)
        await broker.policies.set(theirs)
        await broker.follower.stop()
        await asyncio.to_thread(
            broker.catalog.write, definition("policy", "%2F/p", Policy("/", "p", "^jobs$", {"max-length": 7}))
        )
        for change in (broker.policies.set(theirs), broker.policies.delete("/", "p")):
            with pytest.raises(Conflict, match="'p'"):
                await change

    async def after(broker: Broker) -> None:
        assert [policy.definition for policy in broker.policies.listing()] == [{"max-length": 7}]

    broker_story(tmp_path, story, after)


def test_queues_on_topics_that_are_declared_and_deleted_elsewhere_are_so_here(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.topics.create("t", 1)
        queues = broker.topic_queues
        await elsewhere(broker, definition("topic-queue", "q", TopicQueueSettings(topic="t")))
        assert queues.get("q").settings.topic == "t"
        with pytest.raises(Conflict):
            await queues.declare("q", TopicQueueSettings(topic="u"))
        ended: list[object] = []
        await queues.consume("q", "me", lambda _: None, ended.append)
        await elsewhere(broker, definition("topic-queue", "q", None))
        assert (queues.names(), len(ended)) == ([], 1)
        await queues.declare("q", TopicQueueSettings(topic="t"))
        await broker.follower.stop()
        await asyncio.to_thread(broker.catalog.write, definition("topic-queue", "q", TopicQueueSettings(topic="u")))
        with pytest.raises(Conflict, match="'q'"):
            await queues.delete("q")

    async def after(broker: Broker) -> None:
        assert broker.topic_queues.get("q").settings.topic == "u"

    broker_story(tmp_path, story, after)


def test_a_change_that_the_disk_refuses_is_made_when_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may be another broker, which knows nothing of this one's disk, and does not take it back."""
    monkeypatch.setattr("waystation.catalog.follower.MAKE_AGAIN_S", 0.01)

    async def story(stage: Stage) -> None:
        full = True

        async def refuse(update: Update) -> None:
            if full and any(change.key == "a/1" for change in update.changes):
                raise StorageFailed("no room")

        stage.a.before = refuse
        with pytest.raises(StorageFailed):
            await stage.follower.change({"a/1": b"x"})
        await stage.follower.change({"a/2": b"y"})
        assert stage.a.held == {"a/2": b"y"}
        full = False
        while stage.a.held != {"a/1": b"x", "a/2": b"y"}:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    follow(story)


def test_a_change_that_was_refused_and_taken_back_is_not_made_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.catalog.follower.MAKE_AGAIN_S", 0.01)

    async def story(stage: Stage) -> None:
        full = True

        async def refuse(update: Update) -> None:
            if full and update.changes[0].value is not None:
                raise StorageFailed("no room")

        stage.a.before = refuse
        with pytest.raises(StorageFailed):
            await stage.follower.change({"a/1": b"x"})
        await stage.follower.change({"a/1": None})
        full = False
        await asyncio.sleep(0.05)
        assert stage.a.held == {}

    follow(story)
