"""Puts to several queues that come together: one batch for a shard, and to each queue what a put of its own does."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import pytest

from tests.broker.queue_kit import DAY_MS, Inbox, Machine, consumer, on_a_machine, put
from waystation.broker.broker import Broker
from waystation.errors import Full, Invalid, NotFound, NotLeader, StorageFailed, WaystationError
from waystation.log.batches import batch as batches
from waystation.message import Message
from waystation.queues.settings import QueueSettings
from waystation.queues.shard import shard as shard_module
from waystation.queues.shard.shard import PutEach, PutEachOutcome, PutOutcome, PutResult

Puts = Sequence[tuple[str, Sequence[Message]]]


def together(broker: Broker, puts: Puts) -> list[PutOutcome]:
    outcomes: dict[int, PutOutcome] = {}
    for step in broker.queues.put_several(puts):
        assert not step.keys() & outcomes.keys()
        outcomes.update(step)
    return [outcomes[index] for index in range(len(puts))]


def one_by_one(broker: Broker, puts: Puts) -> list[PutOutcome]:
    outcomes: list[PutOutcome] = []
    for name, messages in puts:
        try:
            outcomes.append(broker.queues.put(name, messages))
        except WaystationError as error:
            outcomes.append(error)
    return outcomes


def told(outcomes: Sequence[PutOutcome], prefix: str = "") -> list[object]:
    """What a client hears of each."""
    return [
        (one.first, one.count, one.duplicates, one.bytes)
        if isinstance(one, PutResult)
        else (type(one), str(one).replace(f"'{prefix}", "'"))
        for one in outcomes
    ]


def payloads(broker: Broker, name: str) -> list[bytes]:
    return [peeked.delivered.message.payload for peeked in broker.queues.peek(name, 1_000)]


def batch_count(broker: Broker, since: int) -> int:
    """Batches behind `since` in the log of the only shard."""
    (shard,) = broker.shards
    partition = shard.log.partition
    data = partition.read(since, 1 << 24, partition.end_offset)
    return sum(header.base_offset >= since for _, header in batches.scan(data))


def end(broker: Broker) -> int:
    (shard,) = broker.shards
    return shard.log.partition.end_offset


async def declared(broker: Broker, count: int) -> list[str]:
    names = [f"jobs.{number}" for number in range(count)]
    for name in names:
        await broker.queues.declare(name)
    return names


@on_a_machine
async def test_they_are_one_batch_and_each_queue_has_its_own(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    names = await declared(broker, 20)
    before = end(broker)
    outcomes = together(broker, [(name, [Message(name.encode()), Message(b"more")]) for name in names])
    assert told(outcomes) == [(0, 2, [], len(name) + 4) for name in names]
    assert batch_count(broker, before) == 1
    assert {one.receipt.offset for one in outcomes if isinstance(one, PutResult)} == {end(broker)}
    for _ in range(2):
        for name in names:
            assert payloads(broker, name) == [name.encode(), b"more"]
            assert (broker.queues.describe(name).ready, broker.queues.describe(name).bytes) == (2, len(name) + 4)
        broker = await machine.again()


@on_a_machine
async def test_a_batch_has_not_too_many_of_them_nor_too_much(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    names = await declared(broker, 2 * shard_module.MAX_TOGETHER + 1)
    before = end(broker)
    together(broker, [(name, [Message(b"x")]) for name in names])
    assert batch_count(broker, before) == 3
    before = end(broker)
    half = bytes(shard_module.MAX_TOGETHER_BYTES // 2)
    together(broker, [(name, [Message(half)]) for name in names[:5]])
    assert batch_count(broker, before) == 3
    broker = await machine.again()
    assert [payloads(broker, name) for name in names[:5]] == [[b"x", half]] * 5
    assert [payloads(broker, name) for name in names[5:]] == [[b"x"]] * (len(names) - 5)
    before = end(broker)
    large = bytes(shard_module.MAX_TOGETHER_BYTES + 1)
    outcomes = together(broker, [(name, [Message(large if name == names[5] else b"y")]) for name in names[3:8]])
    assert told(outcomes) == [*[(2, 1, [], 1)] * 2, (1, 1, [], len(large)), *[(1, 1, [], 1)] * 2]
    assert batch_count(broker, before) == 3, "nobody reads the large one for the sake of a small one"


@on_a_machine
async def test_one_that_is_refused_is_told_what_it_would_be_told_alone_and_harms_no_other(machine: Machine) -> None:
    broker = await machine.again({"waystation.queue.message.max.bytes": "1000"})
    await declared(broker, 3)
    await broker.queues.declare("full", QueueSettings(max_length=1))
    await put(broker, "full", b"there")
    puts: Puts = [
        ("jobs.0", [Message(b"a")]),
        ("full", [Message(b"b")]),
        ("nowhere", [Message(b"c")]),
        ("__own", [Message(b"d")]),
        ("jobs.1", []),
        ("jobs.1", [Message(b"e", priority=777)]),
        ("jobs.1", [Message(bytes(1001))]),
        ("jobs.1", [Message(b"f", key="\ud800")]),  # type: ignore[arg-type]
        ("jobs.2", [Message(b"g")]),
        ("full", [Message(b"h"), Message(b"i")]),
    ]
    refused = [index for index in range(len(puts)) if index not in (0, 8)]
    outcomes = together(broker, puts)
    assert told([outcomes[index] for index in refused]) == told(one_by_one(broker, [puts[index] for index in refused]))
    assert told([outcomes[0], outcomes[8]]) == [(0, 1, [], 1)] * 2
    for _ in range(2):
        found = [payloads(broker, name) for name in ("jobs.0", "full", "jobs.1", "jobs.2")]
        assert found == [[b"a"], [b"there"], [], [b"g"]]
        broker = await machine.again()


KINDS = {
    "plain": QueueSettings(),
    "once": QueueSettings(dedup_window_ms=DAY_MS),
    "brief": QueueSettings(ttl_ms=1_000, dead_letter="dead"),
    "ranked": QueueSettings(max_priority=9),
    "last": QueueSettings(max_length=2, overflow="drop-oldest"),
    "moving": QueueSettings(max_length=2, overflow="dead-letter", dead_letter="dead"),
    "bounded": QueueSettings(max_length=3),
    "small": QueueSettings(max_bytes=6),
}


@on_a_machine
async def test_they_do_what_puts_one_after_another_do(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    for side in "ab":
        for name, settings in KINDS.items():
            if settings.dead_letter is not None:
                settings = msgspec.structs.replace(settings, dead_letter=f"{side}.dead")
            await broker.queues.declare(f"{side}.{name}", settings)
    rounds: list[list[tuple[str, bytes, dict[str, Any]]]] = [
        [("plain", b"0", {}), ("once", b"1", {"id": "x"}), ("brief", b"2", {}), ("moving", b"3", {})],
        [("once", b"4", {"id": "x"}), ("once", b"5", {"id": "y"}), ("last", b"6", {}), ("plain", b"7", {})],
        [("ranked", b"8", {"priority": 2}), ("ranked", b"9", {"priority": 7}), ("moving", b"10", {})],
        [("plain", b"11", {"delay_ms": 3_000}), *(("last", b"%d" % i, {}) for i in (12, 13, 14))],
        [("bounded", b"16", {}), ("bounded", b"17", {}), ("bounded", b"18", {}), ("once", b"19", {})],
        [("bounded", b"20", {}), ("small", b"21", {}), ("small", b"2222", {}), ("small", b"23", {"id": "z"})],
        [("plain", b"24", {"ttl_ms": 90}), ("brief", b"25", {"ttl_ms": 5_000}), ("moving", b"26", {})],
    ]  # fmt: skip
    for each in rounds:
        both = []
        for side, how in (("a", together), ("b", one_by_one)):
            puts = [(f"{side}.{name}", [Message(payload, **fields)]) for name, payload, fields in each]
            both.append(told(how(broker, puts), f"{side}."))
        assert both[0] == both[1]
    for wait_s in (0.05, 2, 5):
        await asyncio.sleep(wait_s)
        for name in (*KINDS, "dead"):
            infos = []
            for side in "ab":
                info = msgspec.to_builtins(broker.queues.describe(f"{side}.{name}"))
                for field in ("queue", "settings", "oldest_ms"):
                    info.pop(field, None)
                infos.append(info)
            assert infos[0] == infos[1], name
            assert sorted(payloads(broker, f"a.{name}")) == sorted(payloads(broker, f"b.{name}")), name
        broker = await machine.again()
    async with consumer(broker, "a.ranked") as inbox:
        assert inbox.payloads == [b"9", b"8"]


@on_a_machine
async def test_a_queue_that_comes_again_finds_what_was_put_before(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    await broker.queues.declare("once", QueueSettings(dedup_window_ms=DAY_MS))
    await broker.queues.declare("bounded", QueueSettings(max_length=1))
    outcomes = together(
        broker,
        [
            ("once", [Message(b"a", id="x")]),
            ("bounded", [Message(b"b")]),
            ("once", [Message(b"c"), Message(b"a", id="x")]),
            ("bounded", [Message(b"d")]),
        ],
    )
    assert told(outcomes[:3]) == [(0, 1, [], 1), (0, 1, [], 1), (1, 1, [1], 1)]
    assert isinstance(outcomes[3], Full)
    broker = await machine.again()
    assert (payloads(broker, "once"), payloads(broker, "bounded")) == ([b"a", b"c"], [b"b"])


@on_a_machine
async def test_consumers_of_all_of_them_are_woken(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    names = await declared(broker, 5)
    inboxes = [Inbox(broker, name) for name in names]
    together(broker, [(name, [Message(name.encode())]) for name in names])
    await asyncio.sleep(0.01)
    assert [inbox.payloads for inbox in inboxes] == [[name.encode()] for name in names]
    for inbox in inboxes:
        await inbox.ack(*inbox.got)
        inbox.feed.close()
    broker = await machine.again()
    assert [payloads(broker, name) for name in names] == [[]] * 5


@on_a_machine
async def test_what_a_full_queue_refuses_is_its_dead_letter_when_it_is_put_by_itself(machine: Machine) -> None:
    broker = machine.broker
    settings = QueueSettings(max_length=1, overflow="reject-dead-letter", dead_letter="dead")
    await broker.queues.declare("proud", settings)
    await put(broker, "proud", b"there")
    messages = [Message(b"refused")]
    (outcome,) = together(broker, [("proud", messages)])
    assert isinstance(outcome, Full)
    await asyncio.sleep(1)
    assert "dead" not in broker.queues
    with pytest.raises(Full):
        broker.queues.put("proud", messages)
    await asyncio.sleep(1)
    assert payloads(broker, "dead") == [b"refused"]


@on_a_machine
async def test_messages_that_stand_alone_are_refused_singly_and_are_dead_letters_at_once(machine: Machine) -> None:
    broker = machine.broker
    settings = QueueSettings(max_length=2, overflow="reject-dead-letter", dead_letter="dead")
    await declared(broker, 2)
    await broker.queues.declare("proud", settings)
    three = [Message(b"%d" % number) for number in range(3)]
    puts: Puts = [("jobs.0", three), ("proud", three), ("nowhere", three), ("jobs.1", []), ("jobs.1", three)]
    outcomes: dict[int, PutEachOutcome] = {}
    for step in broker.queues.put_each_several(puts):
        outcomes.update(step)
    in_order = [outcomes[index] for index in range(len(puts))]
    refused = [one.refused if isinstance(one, PutEach) else type(one) for one in in_order]
    assert refused == [[], [2], NotFound, Invalid, []]
    await asyncio.sleep(1)
    broker = await machine.again()
    found = [payloads(broker, name) for name in ("jobs.0", "proud", "jobs.1", "dead")]
    assert found == [[b"0", b"1", b"2"], [b"0", b"1"], [b"0", b"1", b"2"], [b"2"]]


@on_a_machine
async def test_what_is_refused_stays_nowhere(machine: Machine) -> None:
    """Not even until garbage is collected: who is refused tries again at once, with megabytes."""
    broker = await machine.anew(shards="1")
    await broker.queues.declare("full", QueueSettings(max_length=1))
    await broker.queues.declare("jobs")
    await put(broker, "full", b"there")
    payloads_of = {name: bytes(100_000) for name in ("full", "jobs", "nowhere", "__own")}
    gc.collect()
    gc.disable()
    try:
        ways: list[Callable[[Puts], Iterator[object]]] = [broker.queues.put_several, broker.queues.put_each_several]
        for way in ways:
            before = [sys.getrefcount(payload) for payload in payloads_of.values()]
            fault = machine.refuse()
            assert list(way([(name, [Message(payload)]) for name, payload in payloads_of.items()]))
            machine.allow(fault)
            assert [sys.getrefcount(payload) for payload in payloads_of.values()] == before
    finally:
        gc.enable()


@on_a_machine
async def test_room_that_a_transaction_will_need_is_kept(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    await broker.queues.declare("bounded", QueueSettings(max_length=2, dedup_window_ms=DAY_MS))
    await broker.queues.declare("other")
    tx = await broker.transacting.begin("t")
    await tx.put("bounded", [Message(b"a", id="x")])
    others = ("other", [Message(b"b")])
    refused, _ = together(broker, [("bounded", [Message(b"c"), Message(b"d")]), others])
    assert isinstance(refused, Full)
    taken, _ = together(broker, [("bounded", [Message(b"e")]), others])
    assert isinstance(taken, PutResult)
    await tx.end(True)
    broker = await machine.again()
    assert (payloads(broker, "bounded"), payloads(broker, "other")) == ([b"e", b"a"], [b"b", b"b"])


@on_a_machine
async def test_the_disk_refuses_and_no_queue_has_them(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    names = await declared(broker, 3)
    puts: Puts = [*((name, [Message(b"x")]) for name in names), ("nowhere", [Message(b"y")]), (names[0], [])]
    fault = machine.refuse()
    kinds = [type(outcome) for outcome in together(broker, puts)]
    machine.allow(fault)
    assert kinds == [StorageFailed, StorageFailed, StorageFailed, NotFound, Invalid]
    assert [payloads(broker, name) for name in names] == [[]] * 3
    assert told(together(broker, puts)[:3]) == [(0, 1, [], 1)] * 3
    broker = await machine.again()
    assert [payloads(broker, name) for name in names] == [[b"x"]] * 3


@on_a_machine
async def test_a_queue_that_is_deleted_between_two_steps_has_nothing(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    names = await declared(broker, shard_module.MAX_TOGETHER + 2)
    steps = broker.queues.put_several([(name, [Message(b"x")]) for name in names])
    next(steps)
    await broker.queues.delete(names[-1])
    await broker.queues.declare(names[-1])  # another one of this name
    last = next(steps)
    assert isinstance(last[len(names) - 2], PutResult)
    assert isinstance(last[len(names) - 1], NotFound)
    assert list(steps) == []
    broker = await machine.again()
    assert [payloads(broker, name) for name in names] == [[b"x"]] * (len(names) - 1) + [[]]


@on_a_machine
async def test_a_shard_that_is_dropped_between_two_steps_takes_no_more(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    names = await declared(broker, shard_module.MAX_TOGETHER + 2)
    steps = broker.queues.put_several([(name, [Message(b"x")]) for name in names])
    next(steps)
    (shard,) = broker.shards
    broker.shards.drop(0)
    assert [type(outcome) for outcome in next(steps).values()] == [NotLeader, NotLeader]
    broker.shards.lead(shard.log.partition)
    assert [payloads(broker, name) for name in names] == [[b"x"]] * (len(names) - 2) + [[]] * 2
