"""A broker coordinates the share groups of some partitions of their state and not of others: what it leads is what the
log says, what it does not lead it knows nothing of, and what is led again goes on as after a crash."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.broker.kit import run, send, snapshot
from tests.share.test_share_feed import MEMORY, Desk, numbered, quiet, small_broker, until
from waystation.admin.operations.group_resetting import ResetGroup, delete_whole_group, reset_group
from waystation.admin.views.view_dead_letters import PlacesQuery, dead_letter_places
from waystation.broker.broker import Broker
from waystation.errors import NotFound, NotLeader
from waystation.groups.machines.calls import OffsetToCommit
from waystation.groups.machines.errors import InconsistentProtocol, NotCoordinator, UnknownGroup, UnknownMember
from waystation.message import Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.share.group import SharedGroup
from waystation.share.machines.calls import ShareBeat
from waystation.share.machines.errors import UnknownShareSession
from waystation.share.topic_queue_settings import TopicQueueSettings
from waystation.topics.topics import SHARE_TOPIC


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


def drop(broker: Broker) -> None:
    """Another broker leads the one partition that there is."""
    [partition] = broker.topics.get(SHARE_TOPIC).partitions
    broker.shared.drop(partition.index)
    partition.follow(partition.epoch)


def lead(broker: Broker) -> None:
    [partition] = broker.topics.get(SHARE_TOPIC).partitions
    partition.lead(partition.epoch)
    broker.shared.lead(partition)


def play(folder: Path, story: Callable[[Broker], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with small_broker(folder) as broker:
            await broker.topics.create("t", 1)
            await story(broker)

    run(main())


def beat(epoch: int) -> ShareBeat:
    return ShareBeat(group_id="g", member_id="m", member_epoch=epoch, topics=("t",))


def test_what_is_not_led_is_refused_with_the_error_that_makes_clients_look_for_the_coordinator(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        shared = broker.shared
        await Desk().open(broker, "t")
        await broker.topic_queues.declare("q", TopicQueueSettings(topic="t"))
        drop(broker)

        async def answered(ask: Callable[[], Awaitable[object] | object]) -> None:
            answer = ask()
            if isinstance(answer, Awaitable):
                await answer

        for ask in (
            lambda: Desk().open(broker, "t"),
            lambda: shared.heartbeat(beat(0)),
            lambda: shared.heartbeat(beat(1)),
            lambda: shared.get("g"),
            lambda: shared.begin_session("g", "m", "User:alice", print),
            lambda: shared.own_settings("g"),
            lambda: shared.change_settings("g", {}),
            lambda: broker.shared_admin.offsets("g"),
            lambda: broker.topic_queues.counts("q"),
            lambda: broker.topic_queues.purge("q"),
            lambda: broker.topic_queues.delete("q"),
            lambda: broker.topic_queues.declare("other", TopicQueueSettings(topic="t")),
            lambda: broker.topic_queues.getter("q", "me"),
        ):
            with pytest.raises(NotCoordinator):
                await answered(ask)
        [view] = broker.shared_admin.describe(["g"])
        assert isinstance(view.error, NotCoordinator)
        assert (shared.names(), "g" in shared, shared.count("t")) == ([], False, 0)
        lead(broker)
        with pytest.raises(UnknownGroup):
            shared.get("another")

    play(tmp_path, story)


def test_members_are_told_at_once_and_what_they_hold_is_not_theirs_to_settle(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        send(broker, "t", *numbered(3))
        desk, retired = [await Desk().open(broker, "t", name=name, credit=1) for name in "ab"]
        await desk.until(1)
        await retired.until(1)
        retired.feed.retire()
        await broker.shared.heartbeat(beat(0))
        session = broker.shared.begin_session("g", "m", "User:alice", print)
        poked: list[bool] = []
        session.poke = lambda: poked.append(True)
        drop(broker)
        assert [type(error) for error in desk.ends] == [NotCoordinator]
        assert retired.ends == [], "it expects nothing"
        assert poked == [True], "a fetch that waits is ended"
        for one in (desk, retired):
            settled = one.settle(Verdict.ACK, *one.got)
            assert (settled.receipt, settled.unknown) == (None, [(1, 1)])
            with pytest.raises(NotCoordinator):
                one.feed.take(1)
        lead(broker)
        assert desk.settle(Verdict.ACK, *desk.got).unknown == [(1, 1)]
        with pytest.raises(UnknownShareSession):
            broker.shared.sessions.enter(("g", "m"), 1)
        with pytest.raises(UnknownMember):
            await broker.shared.heartbeat(beat(1))
        other = await Desk().open(broker, "t")
        await other.until(3)
        assert [(one.offset, one.deliveries) for one in other.got] == [(0, 2), (1, 2), (2, 1)]

    play(tmp_path, story)


def test_an_acknowledgement_that_was_not_written_yet_is_kept(tmp_path: Path) -> None:
    copies: list[Path] = []

    async def story(broker: Broker) -> None:
        await broker.durable(broker.shared.change_settings("g", {"share.record.lock.duration.ms": "20000"}))
        send(broker, "t", *numbered(3))
        desk = await Desk().open(broker, "t")
        await desk.until(3)
        settled = desk.settle(Verdict.ACK, desk.got[1])
        assert settled.receipt is not None
        [partition] = broker.topics.get(SHARE_TOPIC).partitions
        assert partition.end_offset < settled.receipt.offset, "it was written before; this shows nothing"
        drop(broker)
        lead(broker)  # before the commit has written anything
        other = await Desk().open(broker, "t", credit=0)
        await broker.durable(settled.receipt)
        copies.append(snapshot(tmp_path / "data", "copy"))
        other.feed.credit(10)
        await other.until(2)
        await quiet()
        assert [(one.offset, one.deliveries) for one in other.got] == [(0, 2), (2, 2)]
        assert broker.shared.get("g").settings.lock_ms == 20_000

    async def after_a_crash() -> None:
        async with small_broker(copies[0]) as broker:
            desk = await Desk().open(broker, "t")
            await desk.until(2)
            await quiet()
            assert [one.offset for one in desk.got] == [0, 2]

    play(tmp_path / "data", story)
    run(after_a_crash())


def test_an_acknowledgement_that_cannot_be_written_any_more_is_not_confirmed_by_others_records(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        send(broker, "t", *numbered(1))
        desk = await Desk().open(broker, "t")
        await desk.until(1)
        [partition] = broker.topics.get(SHARE_TOPIC).partitions
        promised: list[int] = []
        told: list[object] = []

        async def acknowledge() -> None:
            receipt = desk.settle(Verdict.ACK, *desk.got).receipt
            promised.append(receipt.offset)
            broker.when_durable([receipt], told.append)
            await broker.durable(receipt)

        waiting = asyncio.ensure_future(acknowledge())
        await asyncio.sleep(0)
        assert partition.end_offset < promised[0], "it was written before; this shows nothing"
        partition.follow(partition.epoch)  # the log takes no more
        broker.shared.drop(partition.index)
        lead(broker)
        for n in range(5):  # its offset becomes durable
            await broker.durable(broker.shared.change_settings(f"g{n}", {"share.record.lock.duration.ms": "20000"}))
        assert partition.durable_offset >= promised[0]
        with pytest.raises(NotLeader):
            await waiting
        assert [type(one) for one in told] == [NotLeader]
        other = await Desk().open(broker, "t")
        await other.until(1)

    play(tmp_path, story)


def test_a_topic_queue_stays_and_its_consumers_come_back(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        queues = broker.topic_queues
        await queues.declare("q", TopicQueueSettings(topic="t", auto_delete=True))
        got: list[Any] = []
        ends: list[Exception] = []
        feed = await queues.consume("q", "me", got.extend, ends.append, exclusive=True)
        feed.credit(10)
        drop(broker)
        await quiet()
        assert [type(error) for error in ends] == [NotCoordinator]
        assert "q" in queues, "its last consumer did not go by itself"
        send(broker, "t", *numbered(2))
        lead(broker)
        again = await queues.consume("q", "me", got.extend, ends.append)
        again.credit(10)
        await until(lambda: len(got) == 2, "what came while nobody led it")

    play(tmp_path, story)


def test_dead_letters_that_wait_are_sent_by_who_leads(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.queues.declare("dead", QueueSettings(max_length=1))
        broker.queues.put("dead", [Message(b"in the way")])
        await broker.durable(broker.shared.change_settings("g", {"waystation.dead.letter": "dead"}))
        send(broker, "t", *numbered(2))
        desk = await Desk().open(broker, "t")
        await desk.until(2)
        await broker.durable(desk.settle(Verdict.KILL, desk.got[0]).receipt)
        await quiet()
        drop(broker)
        await quiet()
        assert not [task for task in asyncio.all_tasks() if "dead letters of" in task.get_name()]
        await broker.queues.purge("dead")
        lead(broker)
        other = await Desk().open(broker, "t")
        await other.until(1)
        await until(lambda: broker.queues.describe("dead").ready, "the letter")
        assert [one.offset for one in other.got] == [1]

    play(tmp_path, story)


def test_nothing_of_a_dropped_group_stays_in_memory(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        send(broker, "t", *numbered(5))
        [partition] = broker.topics.get("t").partitions
        await quiet()
        watchers, tasks = len(partition.watchers), len(asyncio.all_tasks())
        desk = await Desk().open(broker, "t", credit=2)
        await desk.until(2)
        desk.settle(Verdict.RELEASE, desk.got[1], delay_ms=60_000)
        await broker.shared.heartbeat(beat(0))
        group: weakref.ref[SharedGroup] = weakref.ref(broker.shared.get("g"))
        one = weakref.ref(next(iter(broker.shared.get("g").partitions.values())))
        drop(broker)
        await quiet()
        assert one() is None, "who is slow to let go of a feed keeps little"
        del desk
        gc.collect()
        assert group() is None
        assert len(partition.watchers) == watchers
        assert len(asyncio.all_tasks()) == tasks
        assert (len(broker.shared.sessions), broker.shared._own, len(broker.shared._alarm._deadlines)) == (0, {}, 0)
        assert len(broker.shared._calendar._deadlines) == 0

    play(tmp_path, story)


# -- names, of which consumer groups have some -------------------------------------------------------------------------


def test_a_share_group_is_made_where_another_broker_coordinates_consumer_groups(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        await broker.groups.commit_offsets("readers", [OffsetToCommit("t", 0, 0)])
        with pytest.raises(InconsistentProtocol):
            broker.shared.make("readers")
        broker.groups.drop(0)
        assert not broker.groups.exists("readers"), "nobody can say here"
        broker.shared.make("g")
        await broker.queues.declare("t.readers.dead")
        places = await dead_letter_places(broker, PlacesQuery())
        assert places.total == 0, "of a group that is not known here nothing is said, and nothing fails"

    play(tmp_path, story)


def test_a_group_that_may_be_another_brokers_is_not_said_to_be_unknown(tmp_path: Path) -> None:
    async def story(broker: Broker) -> None:
        reset = ResetGroup(group="g", to="earliest")
        for error in (NotFound, NotCoordinator):
            with pytest.raises(error):
                await reset_group(broker, reset)
            with pytest.raises(UnknownGroup if error is NotFound else NotCoordinator):
                await delete_whole_group(broker, "g")
            if error is NotFound:
                drop(broker)

    play(tmp_path, story)
