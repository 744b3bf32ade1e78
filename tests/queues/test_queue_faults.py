"""Queues on a disk that refuses or rots: what was refused has no effect, what was told stays, and the rest goes on."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import ROOT, Inbox, Machine, consumer, on_a_machine, put
from tests.simulation.faults import Fault
from waystation.broker.broker import Broker
from waystation.catalog.memory import MemoryCatalog
from waystation.errors import Corrupt, StorageFailed
from waystation.message import Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.topics.partitions.partition import log_of

SMALL = {"shards": "1", "cache_bytes": "0"}


async def _restart_with_rot(machine: Machine, content: bytes) -> Broker:
    """What this life of the broker wrote it believes to be there; the next one looks."""
    await machine.broker.stop()
    _rot(machine, content)
    return await machine.start()


def _rot(machine: Machine, content: bytes) -> None:
    """Flips a bit in the log where this is."""
    for path, data in machine.disk.content().items():
        at = data.find(content)
        if "__queues" in path and path.endswith(".log") and at >= 0:
            machine.disk.flip_bit(path, at)
            return
    raise AssertionError("it is not on the disk")


@on_a_machine
async def test_an_auto_acked_message_that_cannot_be_written_off_is_not_lost(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs")
    await put(machine.broker, "jobs", b"one")
    fault = machine.refuse()
    inbox = Inbox(machine.broker, "jobs", auto_ack=True)
    await asyncio.sleep(0.01)
    assert isinstance(inbox.ended[0], StorageFailed)
    machine.allow(fault)
    async with consumer(machine.broker, "jobs") as inbox:
        assert inbox.payloads == [b"one"]


@on_a_machine
async def test_a_refused_put_stores_nothing_and_uses_no_id(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(dedup_window_ms=60_000))
    fault = machine.refuse()
    with pytest.raises(StorageFailed):
        await put(broker, "jobs", b"one", id="a")
    with pytest.raises(StorageFailed):
        await broker.queues.declare("other")
    assert "other" not in broker.queues
    machine.allow(fault)
    await put(broker, "jobs", b"one", id="a")
    broker = await machine.again()
    assert [peeked.delivered.message.payload for peeked in broker.queues.peek("jobs", 5)] == [b"one"]


@on_a_machine
async def test_deliveries_are_counted_though_the_disk_refused_to_note_them_at_first(machine: Machine) -> None:
    await machine.broker.queues.declare("jobs", QueueSettings(hold_ms=1000))
    await put(machine.broker, "jobs", b"one")
    fault = machine.refuse()
    async with consumer(machine.broker, "jobs", credit=1):
        await asyncio.sleep(1)
    machine.allow(fault)
    await put(machine.broker, "jobs", b"two")
    await machine.broker.shards.checkpoint(force=True)
    broker = await machine.again()
    async with consumer(broker, "jobs") as inbox:
        assert [(one.message.payload, one.deliveries) for one in inbox.got] == [(b"one", 2), (b"two", 1)]


@on_a_machine
async def test_a_rotten_block_is_put_aside_and_its_neighbours_are_delivered(machine: Machine) -> None:
    broker = await machine.anew(**SMALL)
    await broker.queues.declare("jobs", QueueSettings(max_deliveries=2, hold_ms=5_000))
    for payload in (b"first", b"rotten", b"third"):
        await put(broker, "jobs", payload)
    broker = await _restart_with_rot(machine, b"rotten")
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(1)
    assert inbox.payloads == [b"first", b"third"]
    await inbox.ack(*inbox.got)
    await asyncio.sleep(600)
    info = broker.queues.describe("jobs")
    assert (info.ready, info.parked, info.held, info.bytes) == (0, 1, 0, 6), "it is kept for better times"
    assert broker.queues.peek("jobs", 10) == []
    assert broker.queues.find("jobs#1") is None
    _rot(machine, b"sotten")
    await asyncio.sleep(61)
    assert [(one.message.payload, one.deliveries) for one in inbox.got[2:3]] == [(b"rotten", 1)]


@on_a_machine
async def test_a_rotten_dead_letter_does_not_keep_the_others_waiting(machine: Machine) -> None:
    broker = await machine.anew(**SMALL)
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead"))
    for payload in (b"first", b"rotten", b"third"):
        await put(broker, "jobs", payload, ttl_ms=1000)
    broker = await _restart_with_rot(machine, b"rotten")
    await asyncio.sleep(10)
    assert [one.delivered.message.payload for one in broker.queues.peek("dead", 9)] == [b"first", b"third"]
    _rot(machine, b"sotten")
    await asyncio.sleep(60)
    assert len(broker.queues.peek("dead", 9)) == 3


@on_a_machine
async def test_what_is_described_and_listed_needs_no_readable_message(machine: Machine) -> None:
    broker = await machine.anew(**SMALL)
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"rotten")
    await put(broker, "jobs", b"last")
    broker = await _restart_with_rot(machine, b"rotten")
    assert broker.queues.list()[0].ready == 2
    await broker.queues.declare("jobs")
    assert [one.delivered.message.payload for one in broker.queues.peek("jobs", 9)] == [b"last"]


@on_a_machine
async def test_a_snapshot_that_cannot_be_written_leaves_nothing_behind_and_is_tried_again(machine: Machine) -> None:
    broker = await machine.anew(shards="1")
    await broker.queues.declare("jobs")
    for kind, part in (("write", ".queues"), ("sync", ".queues"), ("rename", ".queues"), ("create", ".queues")):
        await put(broker, "jobs", b"one")
        fault = machine.disk.inject(Fault(kind, part, 28))
        await broker.shards.checkpoint(force=True)
        assert fault.times == 0, f"{kind} did not happen"
        assert not [path for path in machine.disk.content() if path.endswith(".new")]
        await broker.shards.checkpoint(force=True)
        assert [path for path in machine.disk.content() if path.endswith(".queues")]
    broker = await machine.again()
    assert broker.queues.describe("jobs").ready == 4


@on_a_machine
async def test_a_damaged_snapshot_is_passed_over_for_the_one_before(machine: Machine) -> None:
    broker = await machine.anew(shards="1", segment_bytes="2000")
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead"))
    for turn in range(8):
        await put(broker, "jobs", *[b"%d.%d" % (turn, i) for i in range(20)])
        async with consumer(broker, "jobs") as inbox:
            await inbox.ack(*inbox.got[5:])
            await inbox.settle(Verdict.KILL, *inbox.got[3:5])
        await asyncio.sleep(1)
        await broker.shards.checkpoint(force=True)
    here = [one.delivered.message.payload for name in ("jobs", "dead") for one in broker.queues.peek(name, 1000)]
    await broker.stop()
    newest = max(path for path in machine.disk.content() if path.endswith(".queues"))
    machine.disk.flip_bit(newest, len(machine.disk.content()[newest]) // 2)
    broker = await machine.start()
    assert [
        one.delivered.message.payload for name in ("jobs", "dead") for one in broker.queues.peek(name, 1000)
    ] == here


@on_a_machine
async def test_an_end_that_was_not_noted_and_an_older_snapshot_leave_no_message_that_cannot_be_read(
    machine: Machine,
) -> None:
    """The message expired and its segment is freed, but the log does not say so, and the snapshot is lost."""
    broker = await machine.anew(shards="1", segment_bytes="2000")
    broker.shards[0].log._keep_waiting = lambda waiting: None  # type: ignore[method-assign]  # too much was waiting
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"victim")
    await broker.shards.checkpoint(force=True)
    async with consumer(broker, "jobs", credit=1):
        fault = machine.refuse()
        broker.shards[0].end_quietly(broker.queues.get("jobs")[1], [0])
        machine.allow(fault)
    for _ in range(3):
        await put(broker, "jobs", bytes(1500))
        async with consumer(broker, "jobs") as inbox:
            await inbox.ack(*inbox.got)
    (checkpointer,) = broker.shards.checkpointers
    await checkpointer.run(force=True)
    (shard,) = broker.shards
    assert log_of(shard.log.partition).start_offset > 0, "the victim's segment is gone"
    await put(broker, "jobs", b"last")
    snapshots = sorted(path for path in machine.disk.content() if path.endswith(".queues"))
    machine.disk.flip_bit(snapshots[-1], 30)
    log_of(shard.log.partition).failure = StorageFailed("no snapshot at the end")
    await broker.stop()
    broker = await machine.start()
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(20)
    assert inbox.payloads == [b"last"]
    assert broker.queues.describe("jobs").parked == 0


@on_a_machine
async def test_a_failed_sync_ends_writing_but_not_the_broker(machine: Machine) -> None:
    broker = await machine.anew(shards="2")
    await broker.queues.declare("jobs", QueueSettings(ttl_ms=1000, dead_letter="dead"))
    await put(broker, "jobs", b"kept")
    inbox = Inbox(broker, "jobs", credit=1)
    machine.disk.inject(Fault("sync", "/__queues.", times=1))
    with pytest.raises(StorageFailed):
        await put(broker, "jobs", b"lost")
    with pytest.raises(StorageFailed):
        broker.queues.put("jobs", [Message(b"refused")])
    with pytest.raises(StorageFailed):
        inbox.feed.settle(Verdict.ACK, [(0, 1)])
    await asyncio.sleep(100)
    broker = await machine.again()
    assert b"kept" in [
        one.delivered.message.payload
        for name in ("jobs", "dead")
        if name in broker.queues
        for one in broker.queues.peek(name, 9)
    ]


@on_a_machine
async def test_an_expired_queue_is_deleted_when_the_disk_has_room_again(machine: Machine) -> None:
    await machine.broker.queues.declare("idle", QueueSettings(expires_ms=5000))
    fault = machine.refuse()
    await asyncio.sleep(6)
    assert "idle" in machine.broker.queues
    machine.allow(fault)
    await asyncio.sleep(120)
    assert "idle" not in machine.broker.queues


@on_a_machine
async def test_a_snapshot_that_a_power_cut_brought_back_is_not_believed(machine: Machine) -> None:
    """Its removal was not durable, but the log that it goes on with is gone."""
    broker = await machine.anew(shards="1", segment_bytes="1024")
    await broker.queues.declare("jobs")
    (checkpointer,) = broker.shards.checkpointers
    kept: dict[str, bytes] = {}
    for turn in range(6):
        await put(broker, "jobs", bytes(800), b"%d" % turn)
        async with consumer(broker, "jobs") as inbox:
            await inbox.ack(*inbox.got)
        await checkpointer.run(force=True)
        kept |= {path: data for path, data in machine.disk.content().items() if path.endswith(".queues")}
    await put(broker, "jobs", b"last")
    await broker.stop()
    assert log_of(broker.shards[0].log.partition).start_offset > 0
    for path in machine.disk.content():
        if path.endswith(".queues"):
            machine.disk.flip_bit(path, 10)
    machine.disk.replace_file(min(kept), kept[min(kept)])
    with pytest.raises(Corrupt, match="restore the folder"):
        await machine.start()
    machine.catalog = MemoryCatalog()
    machine.disk.remove_tree(ROOT)
    await machine.start()


@on_a_machine
async def test_a_full_disk_keeps_nobody_from_starting_and_looking(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead", max_deliveries=5))
    await broker.queues.declare("mine", QueueSettings(exclusive=True), owner="me")
    await put(broker, "jobs", b"one", b"two")
    await put(broker, "jobs", b"dead", ttl_ms=1000)
    tx = await broker.transacting.begin("t", timeout_ms=5_000)
    inbox = Inbox(broker, "jobs", credit=1)
    await asyncio.sleep(0.01)
    await tx.settle(inbox.feed, [(0, 1)])
    await broker.stop()
    machine.disk.leave_room(-(1 << 40))
    broker = await machine.start()
    inbox = Inbox(broker, "jobs", credit=10)
    await asyncio.sleep(10)
    assert b"two" in inbox.payloads
    assert broker.queues.describe("jobs").held >= 1
    machine.disk.leave_room(None)
    await asyncio.sleep(60)
    assert "mine" in broker.queues, "it goes with the next start"
    assert b"one" in inbox.payloads, "its transaction was undone in the end"
    assert [one.delivered.message.payload for one in broker.queues.peek("dead", 5)] == [b"dead"]
    inbox.feed.close()
    broker = await machine.again()
    assert "mine" not in broker.queues
    assert sorted(one.delivered.message.payload for one in broker.queues.peek("jobs", 5)) == [b"one", b"two"]


@pytest.mark.parametrize("verdict", [Verdict.ACK, Verdict.KILL, Verdict.REJECT, Verdict.RELEASE])
@pytest.mark.parametrize(
    "settings",
    [
        QueueSettings(hold_ms=5_000, max_deliveries=1, dead_letter="dead"),
        QueueSettings(hold_ms=5_000, max_deliveries=1),
        QueueSettings(hold_ms=5_000, max_deliveries=9, retry_base_ms=100, retry_jitter=0.5),
    ],
)
def test_a_refused_verdict_has_no_effect(verdict: Verdict, settings: QueueSettings) -> None:
    """It is in flight as before: the same verdict may be given again, and its visibility timeout goes on."""

    @on_a_machine
    async def check(machine: Machine) -> None:
        broker = machine.broker
        await broker.queues.declare("jobs", settings)
        await put(broker, "jobs", *[b"%d" % i for i in range(6)])
        inbox = Inbox(broker, "jobs")
        await asyncio.sleep(1)
        before = broker.queues.describe("jobs")
        fault = machine.refuse()
        for runs in ([(0, 6)], [(0, 1), (2, 2)], [(5, 1)]):
            with pytest.raises(StorageFailed):
                inbox.feed.settle(verdict, runs, delay_ms=10 if verdict is Verdict.RELEASE else None, error="no")
        assert broker.queues.describe("jobs") == before
        machine.allow(fault)
        settled = inbox.feed.settle(verdict, [(0, 1), (2, 2)])
        assert settled.unknown == []
        assert inbox.feed.settle(verdict, [(0, 6)]).unknown == [(0, 1), (2, 2)]

    check()


@on_a_machine
async def test_what_could_not_be_acknowledged_is_redelivered_when_its_visibility_timeout_ends(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(hold_ms=5_000))
    await put(broker, "jobs", b"one")
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    fault = machine.refuse()
    with pytest.raises(StorageFailed):
        await inbox.ack(inbox.got[0])
    machine.allow(fault)
    await asyncio.sleep(4)
    assert [one.deliveries for one in inbox.got] == [1]
    await asyncio.sleep(2)
    assert [one.deliveries for one in inbox.got] == [1, 2]
    await inbox.ack(inbox.got[1])
    broker = await machine.again()
    assert len(broker.queues.peek("jobs", 5)) == 0


@on_a_machine
async def test_a_message_whose_ack_was_refused_is_still_there_after_a_restart(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"one")
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.1)
    fault = machine.refuse()
    with pytest.raises(StorageFailed):
        await inbox.ack(inbox.got[0])
    machine.allow(fault)
    await put(broker, "jobs", b"two")
    broker = await machine.again()
    assert [one.delivered.message.payload for one in broker.queues.peek("jobs", 5)] == [b"one", b"two"]
