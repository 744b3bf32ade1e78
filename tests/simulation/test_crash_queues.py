"""Thousands of power cuts under queues: puts, delays, acks, dead letters, ids and transactions are kept as told.

The same frame as `test_crash_broker.py`. To repeat a failure: `run_seed(SEED)`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest

from tests.simulation.catalog import DiskCatalog
from tests.simulation.disk import PowerCut, SimDisk
from tests.simulation.encryption import encrypting, some_keys
from tests.simulation.loop import VirtualTime
from tests.simulation.promises import Broken, expect
from tests.simulation.queue_machine import ROOT, QueueMachine
from tests.simulation.queue_promises import QueueClients
from tests.simulation.queue_trouble import Trouble, rot_newest_snapshot
from tests.simulation.world import EPOCH_MS, Complaint, Simulation
from waystation.errors import WaystationError
from waystation.log import log as log_module
from waystation.log.batches.batch import Header
from waystation.log.commit import GroupCommit
from waystation.log.log import Log
from waystation.message import Message, Run
from waystation.queues import dead_letters, redriving
from waystation.queues.dead_letter_targets import send
from waystation.queues.feed import Verdict
from waystation.queues.ledger.ledger import Ledger
from waystation.queues.ledger.states import States
from waystation.queues.queues import Queues
from waystation.queues.shard import checkpoint, shard_log, shards, snapshot, upkeep
from waystation.queues.shard import dispatcher as pump
from waystation.queues.shard import shard as shard_module
from waystation.queues.shard.commands import Bury, Command, Delay, Done, Enqueue, Stored, changes_of
from waystation.queues.shard.delivery_notes import DeliveryNotes
from waystation.queues.shard.open_transactions import OpenTransactions
from waystation.queues.shard.publish import make_blocks
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.queue_feed import QueueFeed
from waystation.queues.shard.replay import replay
from waystation.queues.shard.shard import PutResult, PutSame, Shard
from waystation.queues.shard.shard_log import Replayed, ShardLog, Written
from waystation.queues.shard.stragglers import Stragglers
from waystation.topics.dedup import DedupWindow
from waystation.topics.partitions.partition import Receipt
from waystation.transactions.transacting import Tx
from waystation.world import World
from waystation.world.alarm import CalendarAlarm
from waystation.world.clock import Clock, monotonic_ms

SEEDS = 12
SOAK_SEEDS = 5_000
GROUPS = 6
LIFE_LONGEST_S = 600.0
"""In virtual time. Who waits longer than this for an answer waits for ever."""
ENOUGH = 3
"""A deliberate bug is caught if it shows in more seeds than this."""


def run_seed(seed: int, *, faults: bool = False, kills: float = 0.3) -> QueueClients:
    """Some lives of one broker and its clients; raises Broken if a promise is not kept. `kills`: how many of the lives
    that end in the middle of something end by `kill -9`, the others by a power cut."""
    rng = random.Random(seed)
    clients = QueueClients(rng)
    clients.keys = some_keys(seed)
    disk = SimDisk(seed)
    time = VirtualTime()
    rotten = False  # two copies are kept: what rots twice is lost
    for life in range(rng.randint(2, 5)):
        disk.fail_at(disk.operations + 1 + int(rng.choice((150, 600, 3_000)) * rng.random()))
        kind = 0.5
        lasting = cut = False
        try:
            lasting = run_life(seed, life, disk, time, clients, faults=faults and rng.random() < 0.7)
        except PowerCut:
            kind, lasting, cut = kills, faults, True
        killed = rng.random() < kind and not lasting
        clients.life_ended(kept=killed, cut=cut)
        disk = disk.process_crash() if killed else disk.power_cut(rng)
        disk.leave_room(None)
        if not rotten and rng.random() < 0.3:
            rotten = rot_newest_snapshot(disk, rng)
    run_life(seed, 98, disk, time, clients)
    run_life(seed, 99, disk.process_crash(), time, clients)
    return clients


def run_life(
    seed: int,
    life: int,
    disk: SimDisk,
    time: VirtualTime,
    clients: QueueClients,
    *,
    faults: bool = False,
) -> bool:
    """True if a sync has failed: then only what a power cut leaves is to be believed."""
    simulation = Simulation(seed * 100 + life, disk, time=time)
    trouble: list[Trouble] = []

    async def main() -> None:
        world = encrypting(clients.keys, simulation.world)
        machine = QueueMachine(world, disk, DiskCatalog(disk, ROOT), clients, faults=faults)
        await machine.start()
        if machine.trouble is not None:
            trouble.append(machine.trouble)
        await machine.work(clients.rng.choice((0.1, 0.6)))
        await machine.broker.stop()
        expect(not disk.open_files, f"still open after a clean stop: {[*disk.open_files.values()]}")

    simulation.run(asyncio.wait_for(main(), LIFE_LONGEST_S))
    return any(one.lasting for one in trouble)


@pytest.fixture(autouse=True)
def _checkpoints_after_a_few_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CHECKPOINT_BYTES", 2_000)
    monkeypatch.setattr(checkpoint, "FIRST_BYTES", 2_000)
    monkeypatch.setattr(checkpoint, "SLICE_QUEUES", 2)


@pytest.mark.parametrize("group", range(GROUPS))
def test_queues_keep_what_was_acknowledged(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        _run_named(seed)


@pytest.mark.soak
@pytest.mark.parametrize("group", range(GROUPS))
def test_queues_keep_what_was_acknowledged_thousands_of_times(group: int) -> None:
    for seed in range(SEEDS + group, SOAK_SEEDS, GROUPS):
        _run_named(seed)


@pytest.mark.parametrize("group", range(GROUPS))
def test_queues_keep_what_was_acknowledged_on_a_disk_that_makes_trouble(group: int) -> None:
    for seed in range(group, SEEDS, GROUPS):
        _run_named(seed, faults=True)


@pytest.mark.soak
@pytest.mark.parametrize("group", range(GROUPS))
def test_queues_keep_what_was_acknowledged_on_a_disk_that_makes_trouble_thousands_of_times(group: int) -> None:
    for seed in range(SEEDS + group, SOAK_SEEDS, GROUPS):
        _run_named(seed, faults=True)


def _run_named(seed: int, *, faults: bool = False) -> None:
    try:
        run_seed(seed, faults=faults)
    except BaseException as error:
        error.add_note(f"seed {seed}")
        raise


def _caught(seeds: int, *, kills: float = 0.3) -> int:
    """In how many of these seeds a bug shows, as far as it matters: it stops when they are enough."""
    caught = 0
    for seed in range(seeds):
        try:
            run_seed(seed, kills=kills)
        except* (Broken, WaystationError, Complaint):
            caught += 1
        if caught > ENOUGH:
            break
    return caught


def test_a_broker_that_acknowledges_before_the_flush_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def too_early(self: GroupCommit, log: Log, offset: int) -> None:
        self.join()  # the deliberate bug: the flush is started, but nobody waits for it

    monkeypatch.setattr(GroupCommit, "durable", too_early)
    assert _caught(20) > ENOUGH


def test_a_shard_that_does_not_write_its_verdicts_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    write = ShardLog.write

    def forgetful(
        self: ShardLog, wanted: Sequence[Command], producer: tuple[int, int] | None = None, *, done: bool = False
    ) -> Written:
        kept = [command for command in wanted if not isinstance(command, Done | Delay | Bury)]
        return write(self, kept, producer, done=done)  # the deliberate bug

    monkeypatch.setattr(ShardLog, "write", forgetful)
    assert _caught(10) > ENOUGH


def test_a_checkpoint_that_frees_what_is_alive_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def blind(self: Stragglers, limit: int) -> int:
        return limit  # the deliberate bug

    monkeypatch.setattr(Stragglers, "oldest_living", blind)
    assert _caught(20) > ENOUGH


def test_a_replay_that_does_again_what_the_snapshot_knows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    parts_of = snapshot.parts_of

    def unstamped(queue: Queue, stamp: int) -> list[snapshot.Part]:
        return parts_of(queue, 0)  # the deliberate bug

    monkeypatch.setattr(snapshot, "parts_of", unstamped)
    assert _caught(20) > ENOUGH


def test_a_replay_that_knows_only_the_first_queue_of_a_fan_out_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_first(stored: Stored) -> Iterable[Command]:
        return list(changes_of(stored))[:1]  # the deliberate bug

    monkeypatch.setattr(shard_log, "changes_of", only_first)
    assert _caught(20) > ENOUGH


def test_a_replay_that_knows_only_the_first_queue_of_a_put_to_several_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replayed = ShardLog._replayed

    def only_first(self: ShardLog, data: bytes, header: Header) -> Replayed | None:
        found = replayed(self, data, header)
        puts = [(at, put) for at, put in found.commands if isinstance(put, Enqueue) and not put.moved] if found else []
        # The deliberate bug. What a fan-out says at one offset is not meant.
        others = [(at, put) for at, put in puts if at != puts[0][0] and put.queue != puts[0][1].queue]
        return found and found._replace(commands=[each for each in found.commands if each not in others])

    monkeypatch.setattr(ShardLog, "_replayed", only_first)
    assert _caught(20) > ENOUGH


def test_a_fan_out_of_a_transaction_that_counts_at_once_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    put_same = Shard.put_same

    def at_once(self: Shard, queues: Sequence[Queue], messages: Sequence[Message], producer: Any = None) -> PutSame:
        return put_same(self, queues, messages)  # the deliberate bug

    monkeypatch.setattr(Shard, "put_same", at_once)
    assert _caught(20) > ENOUGH


def test_dead_letters_that_are_taken_for_duplicates_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Shard.put

    def mistaken(
        self: Shard, queue: Queue, messages: Sequence[Message], producer: Any = None, *, moved: bool = False
    ) -> PutResult:
        return put(self, queue, messages, producer)  # the deliberate bug

    move = Shard.move

    def moved(self: Shard, queue: Queue, runs: Sequence[Run], letters: Mapping[Queue, Sequence[Message]]) -> Receipt:
        now_ms = self.world.clock.now_ms()
        fresh = {to: [one for one in sent if not to.id_used(one.id or "", now_ms)] for to, sent in letters.items()}
        return move(self, queue, runs, {to: sent for to, sent in fresh.items() if sent})  # the same within a shard

    def as_if_sent(*args: Any, moved: bool = False, **options: Any) -> Any:
        return make_blocks(*args, **options)

    monkeypatch.setattr(Shard, "put", mistaken)
    monkeypatch.setattr(Shard, "move", moved)
    monkeypatch.setattr(shard_module, "make_blocks", as_if_sent)
    assert _caught(30) > ENOUGH


def test_letters_to_several_queues_that_are_not_sent_together_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def apart(tx: Tx, target: str, messages: list[Message]) -> None:
        if target == "right":
            tx._broker.queues.put(target, messages)  # the deliberate bug
            await asyncio.sleep(0.1)
        else:
            await send(tx, target, messages)

    monkeypatch.setattr(dead_letters, "send", apart)
    assert _caught(30) > ENOUGH


def test_a_redrive_that_loses_what_returns_to_a_queue_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where that queue is deleted now and then, with what is really on its way to it."""

    async def losing(tx: Tx, target: str, messages: list[Message]) -> None:
        if target == "fleeting":
            return  # the deliberate bug: they are taken from where they were, and put nowhere
        await send(tx, target, messages)

    monkeypatch.setattr(redriving, "send", losing)
    assert _caught(100) > ENOUGH


def test_a_queue_that_should_not_last_but_does_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Queues, "remove_left_over", lambda self, shard: None)  # the deliberate bug
    assert _caught(5) > ENOUGH


def test_visibility_timeouts_that_go_by_the_wall_clock_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def wall_ms(clock: Clock) -> int:
        return clock.now_ms()  # the deliberate bug

    for module in (upkeep, pump, shard_module):
        monkeypatch.setattr(module, "monotonic_ms", wall_ms)
    monkeypatch.setattr(upkeep, "Alarm", CalendarAlarm)
    assert _caught(30) > ENOUGH


def test_a_receipt_that_settles_a_later_delivery_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def whichever(self: Ledger, runs: Sequence[Run], deliveries: int, stale: list[Run]) -> Sequence[Run]:
        return runs  # the deliberate bug

    monkeypatch.setattr(Ledger, "of_delivery", whichever)
    assert _caught(30) > ENOUGH


def test_a_consumer_that_acks_what_it_was_only_sent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    leave = QueueFeed.leave

    def greedy(self: QueueFeed) -> None:
        everything = (0, self.queue.open_ledger().newest + 1)
        self.shard.settle(self.queue, self.consumer, Verdict.ACK, [everything])  # the deliberate bug
        leave(self)

    monkeypatch.setattr(QueueFeed, "leave", greedy)
    assert _caught(30) > ENOUGH


def test_an_ack_that_is_in_force_only_later_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge = Shard._acknowledge

    def late(self: Shard, queue: Queue, consumer: str, held: Sequence[Run]) -> Receipt | None:
        asyncio.get_running_loop().call_later(0.01, acknowledge, self, queue, consumer, held)  # the deliberate bug
        return None

    monkeypatch.setattr(Shard, "_acknowledge", late)
    assert _caught(20) > ENOUGH


def test_an_id_of_an_aborted_transaction_that_counts_as_used_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DedupWindow, "_used", lambda self, id: id in self._seen)  # the deliberate bug
    assert _caught(20) > ENOUGH


def test_a_topic_that_takes_an_id_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DedupWindow, "_used", lambda self, id: False)  # the deliberate bug
    assert _caught(20) > ENOUGH


def test_delays_that_do_not_notice_a_clock_that_was_set_back_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    let_pass = upkeep.Upkeep._let_pass

    def mistaken(self: upkeep.Upkeep, queue: Queue, now_ms: int) -> None:
        let_pass(self, queue, max(now_ms, EPOCH_MS + monotonic_ms(self.world.clock)))  # the deliberate bug

    monkeypatch.setattr(upkeep.Upkeep, "_let_pass", mistaken)
    assert _caught(30) > ENOUGH


def test_a_shard_that_is_led_again_from_its_snapshot_alone_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    led: set[tuple[World, int]] = set()

    def forgetful(shard: Shard, offset: int) -> None:
        if (shard.world, shard.index) not in led:  # else the deliberate bug: what the log says behind it is forgotten
            led.add((shard.world, shard.index))
            replay(shard, offset)

    monkeypatch.setattr(shards, "replay", forgetful)
    assert _caught(20) > ENOUGH


def test_a_shard_that_works_on_when_it_was_dropped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep.Upkeep, "drop", lambda self: None)  # the deliberate bug
    assert _caught(20) > ENOUGH


def test_a_shard_that_is_led_again_without_its_open_transactions_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    led: set[tuple[World, int]] = set()

    def forgetful(shard: Shard, offset: int) -> None:
        replay(shard, offset)
        if (shard.world, shard.index) in led:
            shard.open = OpenTransactions()  # the deliberate bug
        led.add((shard.world, shard.index))

    monkeypatch.setattr(shards, "replay", forgetful)
    assert _caught(30) > ENOUGH


def test_a_checkpoint_that_goes_on_when_its_shard_was_dropped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ShardLog, "check_led", lambda self: None)  # the deliberate bug
    assert _caught(40) > ENOUGH


def test_a_shard_that_is_cut_back_without_snapshots_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hasty(self: checkpoint.Checkpointer) -> None:
        await self._free_before(self._partition.end_offset)  # the deliberate bug: a replay needs what is removed

    monkeypatch.setattr(checkpoint.Checkpointer, "_cut_back", hasty)
    assert _caught(40) > ENOUGH


def test_a_snapshot_that_forgets_how_high_priorities_are_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(States, "_dump_above", lambda self: None)  # the deliberate bug
    assert _caught(40) > ENOUGH


def test_deliveries_that_are_only_noted_in_memory_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeliveryNotes, "write", lambda self, offset, queue, runs: True)  # the deliberate bug
    assert _caught(40, kills=1.0) > ENOUGH


def test_deliveries_that_are_counted_again_at_each_start_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = DeliveryNotes.missing

    def all_of_them(self: DeliveryNotes, from_offset: int, end_offset: int) -> dict[int, list[Run]]:
        return missing(self, 0, end_offset)  # the deliberate bug: most are in the log

    monkeypatch.setattr(DeliveryNotes, "missing", all_of_them)
    assert _caught(40) > ENOUGH


def test_a_dead_letter_that_is_ended_and_put_in_two_batches_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def apart(self: Shard, queue: Queue, runs: Sequence[Run], letters: Mapping[Queue, Sequence[Message]]) -> Receipt:
        for target, messages in letters.items():
            later = partial(self.put, target, messages, moved=True)
            asyncio.get_running_loop().call_later(0.01, later)  # the deliberate bug
        return self.end(queue, runs) or Receipt(self.log.partition, 0)

    monkeypatch.setattr(Shard, "move", apart)
    assert _caught(80) > ENOUGH
