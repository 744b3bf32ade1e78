"""Random stories of a shared subscription on a real broker: batches and transactions of all sizes, small windows,
members that come and go, share consumers of Kafka that take their place for a while, verdicts of all kinds, records
that are deleted in the middle of batches, dead letters that are redriven, crashes, and leadership that moves away and
back. Another group reads the same topic and acknowledges everything.

What must hold: every record that should be seen, and is there, is handed out until it is acknowledged or dead; nothing
is seen of a transaction that is open or aborted, whatever the group's isolation level lets Kafka's consumers see;
nothing comes again after its acknowledgement was kept, to the other group neither when a dead letter is redriven;
counts never go back but for a crash; the dead have their letters.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.broker.kit import HandClock, read, run, send, snapshot
from tests.share.test_share_feed import MEMORY, Desk, quiet, small_broker
from waystation.broker.broker import Broker
from waystation.message import Delivered, Message
from waystation.queues import redriving
from waystation.queues.backoff import RetryRule
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.share import partition as share_partition
from waystation.share.feed import SharedFeed
from waystation.share.group import SharedGroup
from waystation.share.machines.calls import ShareOffset
from waystation.share.machines.window import SharedWindow
from waystation.share.partition import SharedPartition
from waystation.topics.partitions.partition import log_of
from waystation.topics.topics import SHARE_TOPIC

TOO_OFTEN = "it was delivered more often than it may be"
TWICE = "a group got again what it had acknowledged"
NO_LETTER = "a dead record has no letter"
HIDDEN = "its transaction is open, or was aborted"
LIMIT = 4
STEPS = 40


class Story:
    """One seed's. A value is unique; `due` are those that must be seen, `over` those that must not come again."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.dice = random.Random(seed)
        self.folder = folder
        self.isolation = self.dice.choice(["read_committed", "read_uncommitted"])
        self.settings = {
            "share.partition.max.record.locks": str(self.dice.choice([1, 3, 7, 30])),
            "share.delivery.count.limit": str(LIMIT),
            "share.isolation.level": self.isolation,
        }
        if self.dice.random() < 0.5:  # or to the queue that is named after topic and group
            self.settings["waystation.dead.letter"] = "topic:dead"
        self.redriven: set[bytes | None] = set()
        self.limits: dict[bytes, int] = {}  # of messages that have their own
        self.numbers = itertools.count()
        self.due: set[bytes] = set()
        self.hidden: set[bytes] = set()  # of transactions that are open or aborted
        self.over: set[bytes] = set()
        self.killed: set[bytes] = set()
        self.seen: dict[bytes, int] = {}
        self.desks: list[Teller] = []
        self.copies = itertools.count()
        self.bystander: Desk
        self.elsewhere: set[bytes] = set()  # what it has acknowledged

    async def play(self) -> None:
        left = STEPS
        while left > 0:
            async with small_broker(self.folder) as broker:
                await self._stage(broker)
                for _ in range(self.dice.randint(3, left + 3)):
                    steps = [self.publish, self.publish, self.hear, self.settle, self.settle, self.join]
                    seldom = [self.move_leadership, self.visit, self.delete_records, self.redrive]
                    await self.dice.choice([*steps, *steps, *seldom])(broker)
                    left -= 1
                if left > 0:
                    self.folder = snapshot(self.folder, f"copy{next(self.copies)}")  # as kill -9 leaves it
                    self.desks.clear()
                else:
                    await self.finish(broker)

    async def _stage(self, broker: Broker) -> None:
        for name in ("t", "dead"):
            if name not in broker.topics:
                await broker.topics.create(name, 1)
        await broker.durable(broker.shared.change_settings("g", self.settings))
        await self.join(broker)
        self.bystander = await Teller().open(broker, "t", group="h", name="b")

    async def publish(self, broker: Broker) -> None:
        values = [b"%d" % next(self.numbers) for _ in range(self.dice.choice([1, 2, 9, 40]))]
        kind = self.dice.choice(["plain", "limited", "commit", "abort"])
        if kind == "limited":
            self.limits |= {value: self.dice.choice([1, 2, LIMIT + 3]) for value in values}
            made = [Message(value, max_deliveries=self.limits[value]) for value in values]
            await broker.durable(*broker.messages.publish("t", made).receipts)
        elif kind == "plain":
            appended = send(broker, "t", *values)
            await broker.commit.durable(log_of(broker.topics.get("t").partition(0)), appended.last_offset + 1)
        else:
            tx = await broker.transacting.begin("tx")
            self.hidden.update(values)
            await tx.publish("t", [Message(value) for value in values])
            await self.dice.choice([self.hear, self.visit])(broker)
            await self.hear(broker)
            if kind == "commit":
                self.hidden.difference_update(values)
            await tx.end(commit=kind == "commit")
        if kind != "abort":
            self.due.update(values)

    async def hear(self, broker: Broker) -> None:
        assert isinstance(broker.world.clock, HandClock)
        broker.world.clock.ms += 5
        for partition in broker.shared.get("g").partitions.values():
            partition.ring()
        for desk in self.desks:
            desk.feed.credit(self.dice.choice([0, 1, 5, 50]))
        await quiet()
        await self._look_at_the_bystander(broker)
        for partition in broker.shared.get("g").partitions.values():
            assert not partition.trouble, partition.trouble
        for desk in self.desks:
            for one in desk.got[len(desk.heard) :]:
                self._heard(desk, one)

    async def _look_at_the_bystander(self, broker: Broker) -> None:
        """What it got is acknowledged, durably, and must not come again."""
        got, self.bystander.got[:] = list(self.bystander.got), []
        if got:
            values = [one.message.payload for one in got]
            assert self.elsewhere.isdisjoint(values), TWICE
            self.elsewhere.update(values)
            self.bystander.feed.credit(len(got))
            await broker.durable(self.bystander.settle(Verdict.ACK, *got).receipt)

    def _heard(self, desk: Teller, one: Delivered) -> None:
        value = one.message.payload
        assert value not in self.hidden, HIDDEN
        assert one.deliveries <= self.limits.get(value, LIMIT), TOO_OFTEN
        assert value not in self.over, "it was acknowledged, or dead"
        assert one.source == "t"
        self.seen[value] = one.deliveries
        desk.heard.append(one)
        desk.in_flight.append(one)

    async def settle(self, broker: Broker) -> None:
        await self.hear(broker)
        for desk in self.desks:
            self.dice.shuffle(desk.in_flight)
            some = [desk.in_flight.pop() for _ in range(self.dice.randint(0, len(desk.in_flight)))]
            verdict = self.dice.choice([Verdict.ACK, Verdict.ACK, Verdict.RELEASE, Verdict.REJECT, Verdict.KILL])
            settled = desk.settle(verdict, *some)
            assert settled.unknown == []
            if self.dice.random() < 0.7 or verdict is not Verdict.ACK:
                await broker.durable(settled.receipt)
                self._over(verdict, some)

    def _over(self, verdict: Verdict, some: list[Delivered]) -> None:
        for one in some:
            if verdict is Verdict.ACK:
                self.over.add(one.message.payload)
            elif verdict is Verdict.KILL or one.deliveries >= self.limits.get(one.message.payload, LIMIT):
                self.over.add(one.message.payload)
                self.killed.add(one.message.payload)

    async def join(self, broker: Broker) -> None:
        if len(self.desks) >= 3:
            self.desks.pop(self.dice.randrange(3)).feed.close()
        teller = Teller()
        await teller.open(broker, "t", name="m", credit=0)
        self.desks.append(teller)

    async def redrive(self, broker: Broker) -> None:
        """What is dead is the group's again, as if it had never been delivered; the other group does not notice."""
        if "t.g.dead" not in broker.queues:
            return
        dead = [one.delivered.message.payload for one in broker.queues.peek("t.g.dead", 3)]
        assert (await broker.queues.redrive("t.g.dead", limit=len(dead) or 1)).moved == len(dead)
        self.over.difference_update(dead)
        self.killed.difference_update(dead)
        self.hidden.difference_update(dead)  # what Kafka's consumers gave up of a transaction that was aborted
        self.due.update(dead)
        self.redriven.update(dead)
        await self.hear(broker)

    async def delete_records(self, broker: Broker) -> None:
        """Up to somewhere, often in the middle of a batch. Who holds some of them has nothing to settle any more."""
        records = read(broker, "t")
        if not records:
            return
        offset = self.dice.choice(records[: len(records) // 3 + 1]).offset
        await broker.topics.get("t").partition(0).delete_records(offset)
        gone = {record.value for record in records if record.offset < offset}
        gone -= self.redriven  # which are elsewhere
        self.due -= gone
        self.killed -= gone  # unless its letter was written before
        await self.hear(broker)  # what had been sent before, too
        for desk in self.desks:
            desk.in_flight = [one for one in desk.in_flight if one.message.payload not in gone]

    async def visit(self, broker: Broker) -> None:
        """Kafka's consumers have the group for themselves, and see what its isolation level lets them see. What they
        hold when they leave is for whoever comes next."""
        await self.hear(broker)
        while self.desks:
            self.desks.pop().feed.close()
        one = broker.shared.get("g").partition(broker.topics.get("t").partition(0))
        one.acquire("kafka", self.dice.choice([1, 5, 50]), 30_000)
        if self.dice.random() < 0.5:
            one.release_all("kafka")
        await self.join(broker)
        one.release_all("kafka")

    async def move_leadership(self, broker: Broker) -> None:
        """Another broker coordinates the group for a moment. Members come back as after a crash, and nothing that was
        settled is forgotten, awaited or not."""
        await self.hear(broker)
        for desk in self.desks:
            some = [desk.in_flight.pop() for _ in range(self.dice.randint(0, len(desk.in_flight)))]
            assert desk.settle(Verdict.ACK, *some).unknown == []
            self._over(Verdict.ACK, some)
        [partition] = broker.topics.get(SHARE_TOPIC).partitions
        broker.shared.drop(partition.index)
        if self.dice.random() < 0.5:
            await quiet()
        broker.shared.lead(partition)
        assert all(len(desk.ends) == 1 for desk in self.desks)
        self.desks.clear()
        await self.join(broker)

    async def finish(self, broker: Broker) -> None:
        """Everything that is left is acknowledged; then all that was due was seen."""

        def done() -> bool:
            ends = [log_of(broker.topics.get(one.topic).partition(0)).written_offset for one in offsets()]
            return [one.start for one in offsets()] == ends

        def offsets() -> list[ShareOffset]:
            return broker.shared_admin.offsets("g")

        async def work() -> None:
            while not done():
                await self.hear(broker)
                for desk in self.desks:
                    if desk.in_flight:
                        desk.settle(Verdict.ACK, *desk.in_flight)
                        desk.in_flight.clear()
                for desk in self.desks:
                    desk.feed.credit(10)
                await asyncio.sleep(0)

        await asyncio.wait_for(work(), 30)
        letters = self._letters(broker)  # a record is done when its letter is written, not before
        assert self.killed <= letters, NO_LETTER
        assert self.due <= set(self.seen) | letters, NO_LETTER

    def _letters(self, broker: Broker) -> set[bytes | None]:
        if "waystation.dead.letter" in self.settings:
            return {record.value for record in read(broker, "dead")}
        if "t.g.dead" not in broker.queues:
            return set()
        return {one.delivered.message.payload for one in broker.queues.peek("t.g.dead", 10_000)}


class Teller(Desk):
    """A consumer that remembers what was looked at, and what is in flight to it."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Delivered] = []
        self.in_flight: list[Delivered] = []


SEEDS = range(25)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again soon."""
    monkeypatch.setattr(share_partition, "RETRY", RetryRule(base_ms=1, longest_ms=20))


def play(seed: int) -> None:
    with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder:
        story: Coroutine[Any, Any, None] = Story(seed, Path(folder) / "data").play()
        run(story)


def play_all() -> None:
    for seed in SEEDS:
        play(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_no_record_is_lost_and_none_comes_back(seed: int) -> None:
    play(seed)


def _follow_the_setting(patch: pytest.MonkeyPatch) -> None:
    """Our own members see what the group's isolation level says."""
    committed = property(lambda group: group.settings.isolation == "read_committed")
    patch.setattr(SharedGroup, "committed_only", committed)


def _ask_for_what_is_gone(patch: pytest.MonkeyPatch) -> None:
    """A batch is asked for by its first record, which may have been deleted."""
    patch.setattr(SharedWindow, "_there", lambda _, offset: offset)


def _drop_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Without a target that somebody chose, the dead are dropped."""
    patch.setattr(SharedGroup, "keeps_dead", property(lambda group: group.settings.dead_letter is not None))


def _ignore_own_limits(patch: pytest.MonkeyPatch) -> None:
    """Messages may be delivered as often as the group's limit says."""
    patch.setattr(SharedFeed, "_within_limits", lambda _, __, messages: messages)


def _redrive_to_all(patch: pytest.MonkeyPatch) -> None:
    """A dead letter is published to its topic again."""
    patch.setattr(redriving, "_origin", lambda message: failure_history_of(message)[0]["queue"])


def _leave_the_window(patch: pytest.MonkeyPatch) -> None:
    """What Kafka's consumers have seen of open transactions stays in the window when our own members come."""
    patch.setattr(SharedPartition, "hide_uncommitted", lambda _: None)


@pytest.mark.parametrize(
    ("bug", "found"),
    [
        (_follow_the_setting, HIDDEN),
        (_leave_the_window, HIDDEN),
        (_ask_for_what_is_gone, "is outside"),
        (_drop_the_dead, NO_LETTER),
        (_ignore_own_limits, TOO_OFTEN),
        (_redrive_to_all, TWICE),
    ],
)
def test_the_stories_find_a_bug(
    bug: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError, match=found):
        play_all()
