"""Shared subscriptions of our own protocols: feeds on a real broker in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.broker.kit import HandClock, broker_on, publish, read, run, send, snapshot
from waystation.broker.broker import Broker
from waystation.errors import Conflict, FilterSyntax, Invalid, InvalidPattern, StorageFailed, WaystationError
from waystation.groups.machines.errors import InconsistentProtocol
from waystation.log.batches import batch as batches
from waystation.message import Delivered, Message
from waystation.protocol import Subscribe
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.share.feed import SharedFeed
from waystation.share.group import earliest
from waystation.share.journal import SOON_S
from waystation.share.machines.calls import ShareBeat
from waystation.share.machines.delivery import Saved
from waystation.share.machines.marks import DONE
from waystation.share.machines.window import SharedWindow
from waystation.share.partition import UNREADABLE_MS
from waystation.topics.partitions.partition import log_of

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory where there is such a folder: these tests are not about the disk, and there are many."""
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        yield Path(folder)


class Desk:
    """A consumer: what it was sent, and its feed."""

    def __init__(self) -> None:
        self.got: list[Delivered] = []
        self.ends: list[WaystationError] = []
        self.feed: SharedFeed

    async def open(self, broker: Broker, *topics: str, credit: int = 1000, group: str = "g", **options: Any) -> Desk:
        options.setdefault("start", "earliest")
        name, syntax = options.pop("name", "c"), options.pop("syntax", "wildcard")
        self.feed = await broker.shared.open(
            group, list(topics), syntax, name, self.got.extend, self.ends.append, **options
        )
        self.feed.credit(credit)
        return self

    async def until(self, count: int) -> list[Delivered]:
        await until(lambda: len(self.got) >= count, f"{count} messages, {len(self.got)} came")
        return self.got

    @property
    def values(self) -> list[bytes]:
        return [one.message.payload for one in self.got]

    def settle(self, verdict: Verdict, *messages: Delivered, **options: Any) -> Any:
        return self.feed.settle(verdict, [(one.tag, 1) for one in messages], **options)


def small_broker(folder: Path) -> AbstractAsyncContextManager[Broker]:
    """One log of each kind: it starts in a blink."""
    return broker_on(
        folder,
        offsets_topic_num_partitions="1",
        transaction_state_log_num_partitions="1",
        share_coordinator_state_topic_num_partitions="1",
        waystation_queue_shards="1",
    )


async def until(condition: Callable[[], object], what: str) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + 20
    while not condition():
        assert loop.time() < deadline, f"not in time: {what}"
        await asyncio.sleep(0.005)


async def quiet() -> None:
    """Everything that is under way has happened."""
    for _ in range(20):
        await asyncio.sleep(0)


def numbered(count: int) -> list[bytes]:
    return [b"%d" % n for n in range(count)]


def test_messages_come_as_far_as_credit_goes_and_acks_are_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", *numbered(10))
            desk = await Desk().open(broker, "t", credit=4)
            await desk.until(4)
            await quiet()
            assert desk.values == numbered(4)
            settled = desk.feed.settle(Verdict.ACK, [(desk.got[0].tag, 3)])
            assert settled.unknown == []
            await broker.durable(settled.receipt)
            copy = snapshot(tmp_path / "a", "b")
            desk.feed.credit(100)
            await desk.until(10)
        async with small_broker(copy) as broker:
            desk = await Desk().open(broker, "t")
            await desk.until(7)
            assert [(one.offset, one.deliveries) for one in desk.got] == [(3, 2), *((n, 1) for n in range(4, 10))]

    run(story())


def test_two_members_get_their_shares(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            one, two = [await Desk().open(broker, "t", name=name) for name in "ab"]
            send(broker, "t", *numbered(10))
            await until(lambda: len(one.got) + len(two.got) == 10, "ten messages")
            assert sorted(one.values + two.values) == numbered(10)
            assert len(one.got) == len(two.got) == 5

    run(story())


def test_released_goes_to_another_and_prefetch_bounds_what_is_in_flight(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 2)
            send(broker, "t", *numbered(10))
            desk = await Desk().open(broker, "t", prefetch=3)
            await desk.until(3)
            await quiet()
            assert len(desk.got) == 3
            desk.settle(Verdict.RELEASE, desk.got[1])
            await desk.until(4)
            assert (desk.got[3].offset, desk.got[3].deliveries) == (1, 2)
            assert desk.got[3].tag != desk.got[1].tag
            assert desk.settle(Verdict.ACK, desk.got[1]).unknown == [(desk.got[1].tag, 1)]

    run(story())


def test_release_with_a_delay_waits(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"later")
            desk = await Desk().open(broker, "t")
            await desk.until(1)
            clock = broker.world.clock
            assert isinstance(clock, HandClock)
            desk.settle(Verdict.RELEASE, desk.got[0], delay_ms=200)
            clock.ms += 199
            send(broker, "t", b"sooner")
            await desk.until(2)
            assert [one.message.payload for one in desk.got] == [b"later", b"sooner"], "never early"
            clock.ms += 1
            await desk.until(3)

    run(story())


def test_a_hold_that_runs_out_gives_the_message_to_another(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"job")
            slow = await Desk().open(broker, "t", visibility_timeout_ms=50, name="slow", credit=1)
            await slow.until(1)
            other = await Desk().open(broker, "t", name="other")
            await other.until(1)
            assert other.got[0].deliveries == 2
            assert slow.settle(Verdict.ACK, slow.got[0]).unknown == [(slow.got[0].tag, 1)]
            assert other.settle(Verdict.ACK, other.got[0]).unknown == []

    run(story())


def test_touch_prolongs_a_hold(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"job")
            slow = await Desk().open(broker, "t", visibility_timeout_ms=100, credit=1)
            await slow.until(1)
            assert slow.feed.touch([(slow.got[0].tag, 1)], 60_000) == []
            assert slow.feed.touch([(77, 2)]) == [(77, 2)]
            other = await Desk().open(broker, "t", name="other")
            await asyncio.sleep(0.15)
            assert other.got == []
            assert slow.settle(Verdict.ACK, slow.got[0]).unknown == []

    run(story())


def test_the_dead_go_to_a_queue_with_their_story(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"bad", b"worse", key=b"k", headers=(("h", b"v"),))
            desk = await Desk().open(broker, "t", max_deliveries=2, dead_letter="dead")
            await desk.until(2)
            desk.settle(Verdict.KILL, desk.got[1], error="cannot be parsed")
            desk.settle(Verdict.REJECT, desk.got[0], error="try again", delay_ms=0)
            await desk.until(3)
            desk.settle(Verdict.REJECT, desk.got[2], error="boom")
            await until(lambda: "dead" in broker.queues and broker.queues.describe("dead").ready == 2, "two letters")
            letters = [one.delivered.message for one in broker.queues.peek("dead", 10)]
            assert [letter.payload for letter in letters] == [b"worse", b"bad"]
            assert letters[0].headers["h"] == "v"
            assert letters[0].key == b"k"
            deaths = [failure_history_of(letter)[0] for letter in letters]
            assert [(one["reason"], one["deliveries"], one["error"]) for one in deaths] == [
                ("rejected", 1, "cannot be parsed"),
                ("delivery-limit", 2, "boom"),
            ]
            assert deaths[0]["queue"] == "topic:t"
            (offset,) = broker.shared_admin.offsets("g")
            assert (offset.start, offset.lag) == (2, 0)

    run(story())


def letters_in(broker: Broker, queue: str) -> list[bytes]:
    if queue not in broker.queues:
        return []
    return [one.delivered.message.payload for one in broker.queues.peek(queue, 1000)]


def test_what_is_dead_goes_to_a_queue_of_its_topic_and_group_if_nobody_says_otherwise(tmp_path: Path) -> None:
    """Also what died with the last member, or is found to be dead after a restart."""

    async def story() -> None:
        async with small_broker(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", *numbered(4))
            desk = await Desk().open(broker, "t", max_deliveries=1)
            await desk.until(4)
            desk.settle(Verdict.REJECT, desk.got[0], error="bad")
            desk.settle(Verdict.KILL, desk.got[1])
            await until(lambda: len(letters_in(broker, "t.g.dead")) == 2, "two letters")
            [death] = failure_history_of(broker.queues.peek("t.g.dead", 1)[0].delivered.message)
            assert (death["queue"], death["group"], death["error"]) == ("topic:t", "g", "bad")
            desk.settle(Verdict.RELEASE, desk.got[2])
            await until(lambda: len(letters_in(broker, "t.g.dead")) == 3, "the third")
            await asyncio.sleep(SOON_S * 1.5)  # its delivery is on disk
            copy = snapshot(tmp_path / "a", "b")
        async with small_broker(copy) as broker:
            assert broker.shared.get("g").ours
            broker.shared.get("g").partition(broker.topics.get("t").partition(0)).fill(10, 1 << 20)
            await until(lambda: sorted(letters_in(broker, "t.g.dead")) == numbered(4), "all four")
            assert broker.shared_admin.offsets("g")[0].start == 4

    run(story())


def test_who_says_that_there_are_no_dead_letters_gets_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"x")
            desk = await Desk().open(broker, "t", dead_letter="")
            await desk.until(1)
            desk.settle(Verdict.KILL, desk.got[0])
            assert broker.shared_admin.offsets("g")[0].start == 1
            await quiet()
            assert "t.g.dead" not in broker.queues

    run(story())


def test_kafkas_share_groups_archive_what_is_dead(tmp_path: Path) -> None:
    """As in Kafka, unless they have a dead-letter topic."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"x")
            one = broker.shared.make("g").partition(broker.topics.get("t").partition(0), earliest)
            one.acquire("kafka", 1, 30_000)
            one.settle("kafka", Verdict.KILL, [(0, 1)])
            assert one.core.start == 1
            await quiet()
            assert "t.g.dead" not in broker.queues

    run(story())


def test_what_only_kafkas_consumers_gave_up_is_not_redriven_to_everybody(tmp_path: Path) -> None:
    """They can be given nothing but what is in their topics, which other groups read too."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"x")
            broker.shared.change_settings("g", {"waystation.dead.letter": "dead"})
            one = broker.shared.make("g").partition(broker.topics.get("t").partition(0), earliest)
            one.acquire("kafka", 1, 30_000)
            one.settle("kafka", Verdict.KILL, [(0, 1)])
            await until(lambda: letters_in(broker, "dead") == [b"x"], "a letter")
            answer = await broker.queues.redrive("dead")
            assert (answer.moved, answer.skipped) == (0, 1)
            answer = await broker.queues.redrive("dead", to="topic:t")
            assert (answer.moved, len(read(broker, "t"))) == (1, 2)

    run(story())


def test_what_has_expired_does_not_go_to_the_default_queue(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            assert isinstance(broker.world.clock, HandClock)
            await broker.topics.create("t", 1)
            broker.messages.publish("t", [Message(b"old", ttl_ms=10), Message(b"new")])
            broker.world.clock.ms += 20
            desk = await Desk().open(broker, "t")
            await desk.until(1)
            desk.settle(Verdict.KILL, *desk.got)
            await until(lambda: letters_in(broker, "t.g.dead") == [b"new"], "what failed")

    run(story())


def test_zero_deliveries_are_no_limit(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"x")
            desk = await Desk().open(broker, "t", max_deliveries=0)
            for n in range(40):
                await desk.until(n + 1)
                assert desk.got[n].deliveries == n + 1
                desk.settle(Verdict.RELEASE, desk.got[n])

    run(story())


def test_a_limit_of_a_messages_own_goes_before_the_groups(tmp_path: Path) -> None:
    """After a restart too."""

    async def story() -> None:
        async with small_broker(tmp_path / "a") as broker:
            await broker.topics.create("t", 1)
            made = [Message(b"1", max_deliveries=1), Message(b"4", max_deliveries=4), Message(b"2")]
            broker.messages.publish("t", made)
            desk = await Desk().open(broker, "t", max_deliveries=2)
            await desk.until(3)
            desk.settle(Verdict.RELEASE, *desk.got[1:])
            await desk.until(5)
            await until(lambda: broker.shared.get("g").partitions, "a window")
            await asyncio.sleep(SOON_S * 1.5)
            copy = snapshot(tmp_path / "a", "b")
        async with small_broker(copy) as broker:
            desk = await Desk().open(broker, "t")
            await desk.until(1)
            assert [(one.message.payload, one.deliveries) for one in desk.got] == [(b"4", 3)]
            await until(lambda: sorted(letters_in(broker, "t.g.dead")) == [b"1", b"2"], "those that were spent")
            desk.settle(Verdict.RELEASE, desk.got[0])
            await desk.until(2)
            desk.settle(Verdict.RELEASE, desk.got[1])
            await until(lambda: len(letters_in(broker, "t.g.dead")) == 3, "the last")
            assert len(desk.got) == 2

    run(story())


def test_dead_letters_do_not_go_in_circles(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"bad")
            desk = await Desk().open(broker, "t", dead_letter="topic:t")
            await desk.until(1)
            desk.settle(Verdict.KILL, desk.got[0])
            await until(lambda: broker.shared_admin.offsets("g")[0].start == 1, "it is done")
            assert len(read(broker, "t")) == 1

    run(story())


def test_what_does_not_pass_the_filter_is_done(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            for n in range(50):
                send(broker, "t", b"%d" % n, headers=(("parity", b"odd" if n % 2 else b"even"),))
            desk = await Desk().open(broker, "t", filter="headers.parity = 'odd'", credit=10)
            await desk.until(10)
            desk.feed.credit(100)
            await desk.until(25)
            assert desk.values == [b"%d" % n for n in range(1, 50, 2)]
            desk.settle(Verdict.ACK, *desk.got)
            await until(lambda: broker.shared_admin.offsets("g")[0].start == 50, "all is done")
            with pytest.raises(Conflict, match="filter"):
                await Desk().open(broker, "t", name="other")

    run(story())


def test_patterns_pick_up_topics_made_later(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("a.old", 1)
            send(broker, "a.old", b"old")
            desk = await Desk().open(broker, "a.*", start="latest")
            await broker.topics.create("a.new", 2)
            send(broker, "a.new", b"first")
            await broker.topics.create("b.new", 1)
            send(broker, "b.new", b"not for us")
            await desk.until(1)
            send(broker, "a.old", b"second")
            await desk.until(2)
            assert [(one.source, one.message.payload) for one in desk.got] == [
                ("a.new", b"first"),
                ("a.old", b"second"),
            ]
            await broker.topics.delete("a.old")
            send(broker, "a.new", b"third")
            await desk.until(3)
            assert desk.settle(Verdict.ACK, *desk.got).unknown == []
            assert broker.shared.count("a.new") == 1
            desk.feed.close()
            assert broker.shared.count("a.new") == 0

    run(story())


def test_start_by_time(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            now = broker.world.clock.now_ms()
            for n in range(5):
                send(broker, "t", b"%d" % n, at=now + n)
            desk = await Desk().open(broker, "t", start_ms=now + 3)
            await desk.until(2)
            assert desk.values == [b"3", b"4"]

    run(story())


def test_auto_ack_is_done_when_it_is_sent(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", *numbered(5))
            desk = await Desk().open(broker, "t", auto_ack=True)
            await desk.until(5)
            assert broker.shared_admin.offsets("g")[0].start == 5
            desk.feed.close()
            other = await Desk().open(broker, "t")
            await quiet()
            assert other.got == []

    run(story())


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_aborted_transactions_and_markers_are_passed_over(tmp_path: Path, isolation: str) -> None:
    """Whatever the group's setting is, which is for Kafka's members."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            broker.shared.change_settings("g", {"share.isolation.level": isolation})
            desk = await Desk().open(broker, "t")
            for n, commit in enumerate((False, True, False)):
                tx = await broker.transacting.begin("tx")
                await tx.publish("t", [Message(b"%d" % n)])
                await quiet()
                assert all(value != b"%d" % n for value in desk.values)
                await tx.end(commit=commit)
            send(broker, "t", b"plain")
            await desk.until(2)
            assert desk.values == [b"1", b"plain"]
            desk.settle(Verdict.ACK, *desk.got)
            end = log_of(broker.topics.get("t").partition(0)).end_offset
            assert broker.shared_admin.offsets("g")[0].start == end

    run(story())


def test_a_new_group_gets_what_is_committed_after_it_began(tmp_path: Path) -> None:
    """A transaction that is open when the group begins at the end is not old: nobody could see it yet."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"old")
            tx = await broker.transacting.begin("tx")
            await tx.publish("t", [Message(b"new")])
            desk = await Desk().open(broker, "t", start="latest")
            await tx.end(commit=True)
            await desk.until(1)
            assert desk.values == [b"new"]

    run(story())


@pytest.mark.parametrize("by_setting", [False, True])
def test_kafkas_members_see_what_the_isolation_level_says_until_ours_come(tmp_path: Path, by_setting: bool) -> None:
    """Or until the level is changed. What they did not settle is redelivered, counted; what is open or aborted is
    not."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            group = broker.shared.make("g")
            one = group.partition(broker.topics.get("t").partition(0), earliest)
            send(broker, "t", b"plain")
            for name, commit in (("aborted", False), ("open", True)):
                tx = await broker.transacting.begin("tx")
                await tx.publish("t", [Message(name.encode())])
                [*_, last] = one.acquire("kafka", 10, 30_000)
                assert last.deliveries == 1
                if not commit:
                    await tx.end(commit=False)
            if by_setting:
                broker.shared.change_settings("g", {"share.isolation.level": "read_committed"})
                assert [(got.first, got.deliveries) for got in one.acquire("other", 10, 30_000)] == [(0, 2)]
                one.release_all("other")
            desk = await Desk().open(broker, "t")
            await desk.until(1)
            await quiet()
            assert desk.values == [b"plain"]
            assert desk.got[0].deliveries == (3 if by_setting else 2)
            assert one.settle("kafka", Verdict.ACK, [(0, 4)]).unknown == [(0, 4)]
            await tx.end(commit=True)
            await desk.until(2)
            assert desk.values == [b"plain", b"open"]

    run(story())


@pytest.mark.parametrize("before", [False, True])
def test_what_is_left_of_a_batch_whose_beginning_was_deleted_is_delivered(tmp_path: Path, before: bool) -> None:
    """`before`: the group had begun with the batch when the records were deleted."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            partition = broker.topics.get("t").partition(0)
            send(broker, "t", *numbered(10))
            desk = await Desk().open(broker, "t", credit=int(before))
            await desk.until(int(before))
            await partition.delete_records(5)
            desk.got.clear()
            desk.feed.credit(100)
            await desk.until(5)
            assert [(one.message.payload, one.deliveries) for one in desk.got] == [(b"%d" % n, 1) for n in range(5, 10)]
            desk.settle(Verdict.ACK, *desk.got)
            assert broker.shared_admin.offsets("g")[0].start == 10

    run(story())


def test_a_record_that_could_not_be_read_has_not_been_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often that was tried: a disk may come to its senses."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            assert isinstance(broker.world.clock, HandClock)
            await broker.topics.create("t", 1)
            send(broker, "t", b"x")
            desk = await Desk().open(broker, "t", credit=0, max_deliveries=2)
            [one] = broker.shared.get("g").partitions.values()
            with monkeypatch.context() as patch:
                patch.setattr(SharedWindow, "opened", _cannot_be_read)
                for _ in range(5):
                    desk.feed.credit(1)
                    await quiet()
                    assert "unreadable" in one.trouble
                    broker.world.clock.ms += UNREADABLE_MS
                    one.ring()
            await desk.until(1)
            assert desk.got[0].deliveries == 1

    run(story())


def _cannot_be_read(*_: object) -> None:
    raise StorageFailed("unreadable")


def test_compaction_leaves_gaps_that_nobody_waits_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            partition = broker.topics.get("t").partition(0)
            records = [batches.Record(offset, 1000, b"k", b"%d" % offset) for offset in (0, 3, 7)]
            body, count = batches.encode_records(records, 0, 1000)
            plain = batches.read_header(batches.build([(b"k", b"v", ())], 1000))
            header = plain._replace(last_offset_delta=9, record_count=count)
            batch = batches.assemble(header, body)
            partition.append(batch, batches.read_header(batch))
            desk = await Desk().open(broker, "t")
            await desk.until(3)
            assert [one.offset for one in desk.got] == [0, 3, 7]
            desk.settle(Verdict.ACK, *desk.got)
            assert broker.shared_admin.offsets("g")[0].start == 10

    run(story())


def test_records_that_cannot_be_opened_are_dead_not_deadly(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            partition = broker.topics.get("t").partition(0)
            header = batches.read_header(batches.build([(None, b"v", ())], 1000))
            batch = batches.assemble(header, b"\xff\xff\xff\xff not records")
            partition.append(batch, batches.read_header(batch))
            send(broker, "t", b"good")
            desk = await Desk().open(broker, "t", dead_letter="topic:dead")
            await desk.until(1)
            assert desk.values == [b"good"]
            await until(lambda: broker.shared_admin.offsets("g")[0].start == 1, "the bad one is done")

    run(story())


def test_retention_moves_the_group_along(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", *numbered(3))
            desk = await Desk().open(broker, "t", credit=1)
            await desk.until(1)
            send(broker, "t", b"new")
            await broker.topics.get("t").partition(0).delete_records(3)
            desk.feed.credit(10)
            await desk.until(2)
            assert desk.values == [b"0", b"new"]
            desk.settle(Verdict.ACK, *desk.got)
            assert broker.shared_admin.offsets("g")[0].start == 4

    run(story())


def test_a_kafka_member_and_a_feed_of_one_name_are_one_group(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            desk = await Desk().open(broker, "t", group="both")
            await broker.shared.heartbeat(ShareBeat(group_id="both", member_id="kafka", member_epoch=0, topics=("t",)))
            (view,) = broker.shared_admin.describe(["both"])
            assert [member.member_id for member in view.members] == ["c", "kafka"]
            desk.feed.close()
            assert [member.member_id for member in broker.shared_admin.describe(["both"])[0].members] == ["kafka"]

    run(story())


def test_the_native_command_opens_a_shared_feed(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("a.b", 1)
            send(broker, "a.b", b"one")
            got: list[Delivered] = []
            command = Subscribe(consumer=1, topics=["a.#"], mode="shared", group="g", start="earliest")
            feed, answer = await broker.subscriptions.open(command, "c", got.extend, lambda _: None)
            assert (answer.topics, answer.subscribers) == (["a.b"], 1)
            feed.credit(5)
            await until(lambda: got, "the message")
            assert feed.settle(Verdict.ACK, [(got[0].tag, 1)]).unknown == []
            feed.close()

    run(story())


def test_names_of_other_groups_are_taken(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            from waystation.groups.machines.calls import OffsetToCommit

            await broker.groups.commit_offsets("classic", [OffsetToCommit("t", 0, 0)])
            with pytest.raises(InconsistentProtocol, match="consumer group"):
                await Desk().open(broker, "t", group="classic")
            await Desk().open(broker, "t", group="shared")
            with pytest.raises(InconsistentProtocol, match="share group"):
                await broker.groups.commit_offsets("shared", [OffsetToCommit("t", 0, 0)])

    run(story())


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"prefetch": -1}, Invalid, "prefetch"),
        ({"visibility_timeout_ms": 0}, Invalid, "hold_ms"),
        ({"max_deliveries": -2}, Invalid, "max_deliveries"),
        ({"max_deliveries": 10**6}, Invalid, "max_deliveries"),
        ({"dead_letter": "topic:not a name"}, Invalid, r"waystation\.dead\.letter"),
        ({"dead_letter": "topic:__queues"}, Invalid, "broker's own"),
        ({"start": "middle"}, Invalid, "start"),
        ({"filter": "headers.a =="}, FilterSyntax, "filter"),
        ({"syntax": "regex", "topics": ["("]}, InvalidPattern, r"\("),
        ({"topics": []}, Invalid, "topics"),
        ({"group": ""}, Invalid, "group"),
        ({"group": "\ud800"}, Invalid, "group"),
    ],
)
def test_bad_subscriptions_are_refused_by_field(
    tmp_path: Path, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            topics = options.pop("topics", ["t"])
            with pytest.raises(error, match=words):
                await Desk().open(broker, *topics, **options)
            assert not broker.shared_admin.listing()

    run(story())


def test_settings_survive_and_groups_are_deleted(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            desk = await Desk().open(broker, "t", max_deliveries=9, dead_letter="dead")
            assert (await broker.shared_admin.delete("g")).error is not None
            desk.feed.close()
        async with small_broker(tmp_path) as broker:
            assert broker.shared.get("g").settings.max_deliveries == 9
            assert broker.shared.get("g").settings.dead_letter == "dead"
            assert (await broker.shared_admin.delete("g")).error is None
            assert "g" not in broker.shared
        async with small_broker(tmp_path) as broker:
            assert "g" not in broker.shared
            assert broker.shared.own_settings("g")["share.delivery.count.limit"] == "9"

    run(story())


def test_state_of_deleted_topics_goes(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            desk = await Desk().open(broker, "t")
            send(broker, "t", b"x")
            await desk.until(1)
            await broker.topics.delete("t")
            assert broker.shared_admin.offsets("g") == []
            await broker.topics.create("t", 1)
            send(broker, "t", b"y")
            await desk.until(2)
            assert desk.got[1].offset == 0
        async with small_broker(tmp_path) as broker:
            assert len(broker.shared.get("g").places()) == 1

    run(story())


def test_verdicts_on_messages_of_a_deleted_topic_leave_no_trace(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", *numbered(3))
            desk = await Desk().open(broker, "t", dead_letter="dead")
            await desk.until(3)
            await broker.topics.delete("t")
            desk.settle(Verdict.ACK, desk.got[0])
            desk.settle(Verdict.KILL, desk.got[1])
            await quiet()
            assert not broker.shared.get("g").places()
        async with small_broker(tmp_path) as broker:
            assert not broker.shared.get("g").places()

    run(story())


def test_no_partition_is_starved_by_another(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 3)
            for index in range(3):
                publish(broker, "t", batches.build([(None, b"x", ())] * 50, broker.world.clock.now_ms()), index)
            desk = await Desk().open(broker, "t", credit=0)
            for n in range(9):
                desk.feed.credit(1)
                await desk.until(n + 1)
            assert {one.partition for one in desk.got} == {0, 1, 2}

    run(story())


def test_a_log_that_lost_its_tail_uses_its_offsets_for_other_records(tmp_path: Path) -> None:
    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            topic = await broker.topics.create("t", 1)
            send(broker, "t", *numbered(3))
            group = broker.shared.make("g")
            group.remembered[topic.id, 0] = Saved(0, 1, [(0, 1, 2), (1, 5, DONE)])  # 1 was handed out, 3 to 7 are done
            desk = await Desk().open(broker, "t")
            send(broker, "t", b"new")
            await desk.until(3)
            assert [(one.offset, one.deliveries) for one in desk.got] == [(1, 2), (2, 1), (3, 1)]

    run(story())


def test_a_leader_that_was_deposed_and_does_not_know_it_takes_no_acknowledgement_back(tmp_path: Path) -> None:
    """Its log is shorter than that of the leader after it, which has told this coordinator what there is."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            topic = await broker.topics.create("t", 1)
            send(broker, "t", *numbered(3))
            group = broker.shared.make("g")
            later = topic.partition(0).epoch + 1
            group.remembered[topic.id, 0] = Saved(0, 1, [(0, 1, 2), (1, 5, DONE)], later)
            one = group.partition(topic.partition(0))
            one.fill(10, 1 << 20)
            assert one.core.saved() == Saved(0, 1, [(0, 1, 2), (1, 5, DONE)], later)

    run(story())


def test_a_window_that_is_full_in_the_middle_of_a_batch_loses_nothing(tmp_path: Path) -> None:
    """After a crash, what is done in a batch takes no room in the window: the rest of the batch must not be taken for
    a gap in the log."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            topic = await broker.topics.create("t", 1)
            for _ in range(3):
                send(broker, "t", *numbered(10))
            broker.shared.change_settings("g", {"share.partition.max.record.locks": "4"})
            group = broker.shared.make("g")
            group.remembered[topic.id, 0] = Saved(0, 0, [(1, 2, DONE), (1, 2, DONE), (8, 3, DONE)])
            desk = await Desk().open(broker, "t")
            wanted = sorted(set(range(30)) - {1, 2, 4, 5, 14, 15, 16})
            for n in range(len(wanted)):
                await desk.until(n + 1)
                desk.settle(Verdict.ACK, desk.got[n])
            assert [one.offset for one in desk.got] == wanted

    run(story())


def test_a_rejected_message_waits_longer_each_time(tmp_path: Path) -> None:
    """As in a queue: a second, then two. Given back without a verdict on it (a release), it does not wait."""

    async def story() -> None:
        async with small_broker(tmp_path) as broker:
            await broker.topics.create("t", 1)
            send(broker, "t", b"bad", b"good")
            desk = await Desk().open(broker, "t", max_deliveries=0)
            await desk.until(2)
            ledger = next(iter(desk.feed.partitions)).core.ledger
            waits: list[int] = []
            for _ in range(3):
                before_ms = broker.world.clock.now_ms()
                assert desk.settle(Verdict.REJECT, desk.got[-2] if len(desk.got) == 2 else desk.got[-1]).unknown == []
                due_ms = ledger.next_ms()
                assert due_ms is not None
                waits.append(due_ms - before_ms)
                ledger.lapse(due_ms)
                desk.feed.wake()
                await desk.until(len(waits) + 2)
            assert [round(wait_ms, -2) for wait_ms in waits] == [1_000, 2_000, 4_000]
            desk.settle(Verdict.RELEASE, desk.got[-1])
            await desk.until(6)
            assert [one.message.payload for one in desk.got] == [b"bad", b"good", b"bad", b"bad", b"bad", b"bad"]

    run(story())
