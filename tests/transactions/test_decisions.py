"""Many staged transactions, one decision: all of them are seen or none, each sequence once, wherever a crash falls."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from functools import partial

import pytest

from tests.transactions.kit import Broker, Disk, FakeMarkers, FakeStateLog, run
from waystation.errors import Conflict, Corrupt, Invalid, NewerFormat, ProducerEpochStale, StorageFailed, Unavailable
from waystation.transactions.decision_records import (
    Decision,
    Staged,
    decode_decision,
    decode_decision_key,
    encode_decision,
)
from waystation.transactions.errors import ConcurrentTransactions, ProducerFenced
from waystation.transactions.machine import LAST_USABLE_EPOCH, MAX_EPOCH, Producer
from waystation.transactions.records import decode_key
from waystation.transactions.settings import DECISIONS_KEPT_MS, MAX_STAGED

MINUTE = 60_000
NAMES = ("job/0", "job/1", "job/2", "job/3", "job/4")
PLACES = (("a", 0), ("a", 1), ("b", 0))


async def stage(broker: Broker, name: str, tag: object = None, timeout_ms: int = MINUTE) -> Staged:
    """An open transaction over two partitions, complete."""
    producer = await broker.transactions.init_producer_id(name, timeout_ms)
    number = sum(name.encode()) % 3
    places = [PLACES[number], PLACES[(number + 1) % 3]]
    await broker.transactions.add_partitions(name, producer, places)
    for place in places:
        assert broker.write(producer, *place, tag=tag or name)
    return Staged(name, *producer)


async def stage_all(broker: Broker, tag: str = "") -> list[Staged]:
    return [await stage(broker, name, tag + name) for name in NAMES]


def ends(broker: Broker) -> dict[object, set[bool | None]]:
    """What readers see of each transaction, over all partitions."""
    seen: dict[object, set[bool | None]] = {}
    for place in broker.disk.data:
        for tag, committed in broker.seen(*place):
            seen.setdefault(tag, set()).add(committed)
    return seen


def test_all_that_was_staged_is_seen_at_the_same_moment() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        watching = asyncio.create_task(watch(broker))
        assert await broker.transactions.commit_all("job", 7, staged)
        for seen in await watching:
            assert len(set(map(frozenset, seen.values()))) == 1, f"half of it was visible: {seen}"
        assert ends(broker) == {name: {True} for name in NAMES}
        decided = broker.transactions.decided("job")
        assert decided is not None
        assert decided.sequence == 7
        assert set(decided.staged) == set(staged)

    async def watch(broker: Broker) -> list[dict[object, set[bool | None]]]:
        pictures = []
        for _ in range(20):
            pictures.append(ends(broker))
            await asyncio.sleep(0)
        return pictures

    run(story)


def test_nothing_is_seen_before_the_decision_is_durable() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        broker.disk.gate = asyncio.Event()
        committing = asyncio.create_task(broker.transactions.commit_all("job", 1, staged))
        await asyncio.sleep(1)
        assert ends(broker) == {name: {None} for name in NAMES}
        broker.disk.gate.set()
        assert await committing
        assert ends(broker) == {name: {True} for name in NAMES}

    run(story)


def test_the_decision_is_one_record_in_one_log() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        before = {number: len(records) for number, records in broker.disk.state.items()}
        broker.disk.markers_failing = True  # so that nothing follows it
        assert await broker.transactions.commit_all("job", 1, staged)
        new = [r.key for number, records in broker.disk.state.items() for r in records[before.get(number, 0) :]]
        assert [decode_decision_key(key) for key in new] == ["job"]
        assert decode_key(new[0]) is None, "readers that know transactional ids only pass over it"

    run(story)


def test_a_repeated_request_is_answered_like_the_first() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        first, second = await asyncio.gather(
            broker.transactions.commit_all("job", 1, staged), broker.transactions.commit_all("job", 1, staged)
        )
        assert first
        assert second
        assert await broker.transactions.commit_all("job", 1, list(reversed(staged)))
        restarted = await broker.restarted()
        assert await restarted.transactions.commit_all("job", 1, staged)
        assert ends(restarted) == {name: {True} for name in NAMES}

    run(story)


@pytest.mark.parametrize("sequence", [5, 4, 0])
def test_a_sequence_that_was_decided_is_fenced_and_what_was_staged_for_it_is_aborted(sequence: int) -> None:
    async def story() -> None:
        broker = await Broker().start()
        assert await broker.transactions.commit_all("job", 5, await stage_all(broker))
        again = await stage_all(broker, "again ")
        assert not await broker.transactions.commit_all("job", sequence, again)
        seen = ends(broker)
        assert all(seen[name] == {True} for name in NAMES)
        assert all(seen["again " + name] == {False} for name in NAMES)
        broker = await broker.restarted()
        assert not await broker.transactions.commit_all("job", sequence, [])
        assert await broker.transactions.commit_all("job", 6, await stage_all(broker, "next "))
        assert await broker.transactions.commit_all("other", 0, []), "names are apart"

    run(story)


def test_one_transaction_that_is_not_open_any_more_stops_all_of_it() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        await broker.transactions.init_producer_id(NAMES[2], MINUTE)
        with pytest.raises(Conflict, match=NAMES[2]):
            await broker.transactions.commit_all("job", 1, staged)
        seen = ends(broker)
        assert seen.pop(NAMES[2]) == {False}
        assert set(map(frozenset, seen.values())) == {frozenset({None})}, "the others are as they were"
        assert broker.transactions.decided("job") is None
        assert await broker.transactions.abort_all(staged) == 4
        assert ends(broker) == {name: {False} for name in NAMES}

    run(story)


def test_who_staged_can_add_nothing_after_the_decision_and_an_abort_changes_nothing() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        broker.disk.gate = asyncio.Event()
        committing = asyncio.create_task(broker.transactions.commit_all("job", 1, staged))
        await asyncio.sleep(0)
        with pytest.raises(ProducerEpochStale):
            broker.write(staged[0].producer, *PLACES[0], tag="late")
        with pytest.raises(ProducerFenced):
            await broker.transactions.end(staged[0].transactional_id, staged[0].producer, False, bumps_epoch=False)
        assert await broker.transactions.abort_all(staged) == 0
        assert await broker.transactions.abort_prefix("job/") == 0
        with pytest.raises(ConcurrentTransactions):
            await broker.transactions.init_producer_id(NAMES[0], MINUTE)
        broker.disk.gate.set()
        assert await committing
        assert ends(broker) == {name: {True} for name in NAMES}
        assert await broker.transactions.abort_all(staged) == 0

    run(story)


def test_a_decided_transaction_is_not_timed_out_and_an_abandoned_one_is() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        await stage(broker, "left", timeout_ms=MINUTE)
        broker.disk.gate = asyncio.Event()
        committing = asyncio.create_task(broker.transactions.commit_all("job", 1, staged))
        await asyncio.sleep(10 * MINUTE / 1000)
        assert ends(broker) == {name: {None} for name in (*NAMES, "left")}, "its abort waits for the disk as well"
        broker.disk.gate.set()
        assert await committing
        await asyncio.sleep(1)
        assert ends(broker) == {name: {True} for name in NAMES} | {"left": {False}}

    run(story)


def test_what_nobody_will_ask_for_is_aborted_with_the_decision() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        await stage(broker, "job/zombie")
        await stage(broker, "jobs/other")
        assert await broker.transactions.commit_all("job", 1, staged, abandon="job/")
        assert ends(broker) == {name: {True} for name in NAMES} | {"job/zombie": {False}, "jobs/other": {None}}

    run(story)


def test_ids_are_used_again_for_the_next_sequence_and_a_zombie_of_the_last_one_is_fenced() -> None:
    async def story() -> None:
        broker = await Broker().start()
        zombies: list[Staged] = []
        for sequence in range(5):
            staged = await stage_all(broker, f"{sequence} ")
            for zombie in zombies:
                with pytest.raises(ProducerEpochStale):
                    broker.write(zombie.producer, *PLACES[0], tag="zombie")
            assert await broker.transactions.commit_all("job", sequence, staged)
            zombies += staged
            if sequence % 2:
                broker = await broker.restarted()
        assert ends(broker) == {f"{sequence} {name}": {True} for sequence in range(5) for name in NAMES}

    run(story)


def test_the_last_epoch_of_a_producer_id_can_be_decided_too() -> None:
    async def story() -> None:
        broker = await Broker().start()
        await broker.transactions.init_producer_id("job/0", MINUTE)
        entry = broker.transactions._table.get("job/0")
        entry.txn = entry.txn.__class__("job/0", Producer(0, LAST_USABLE_EPOCH - 1), MINUTE, entry.txn.updated_ms)
        staged = await stage(broker, "job/0")
        assert staged.epoch == LAST_USABLE_EPOCH
        assert await broker.transactions.commit_all("job", 0, [staged])
        assert broker.transactions.describe("job/0").producer == Producer(0, MAX_EPOCH)
        assert (await stage(broker, "job/0", "next")).producer_id != staged.producer_id

    run(story)


# -- when the disk refuses ---------------------------------------------------------------------------------------------


def test_a_decision_that_the_disk_refuses_has_not_happened() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        broker.disk.failing = True
        with pytest.raises(StorageFailed):
            await broker.transactions.commit_all("job", 1, staged)
        broker.disk.failing = False
        assert broker.transactions.decided("job") is None
        assert await broker.transactions.commit_all("job", 1, staged)
        assert ends(broker) == {name: {True} for name in NAMES}

    run(story)


def test_a_decision_whose_flush_fails_is_written_again_until_it_is_durable() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        broker.disk.gate = asyncio.Event()
        committing = asyncio.create_task(broker.transactions.commit_all("job", 1, staged))
        await asyncio.sleep(0.001)
        broker.disk.failing = True
        broker.disk.gate.set()
        with pytest.raises(StorageFailed):
            await committing
        await asyncio.sleep(5)
        assert ends(broker) == {name: {None} for name in NAMES}
        with pytest.raises(Unavailable):
            await broker.transactions.commit_all("job", 1, staged)
        with pytest.raises(Unavailable):
            await broker.transactions.commit_all("job", 2, [])
        broker.disk.failing = False
        await asyncio.sleep(20)
        assert ends(broker) == {name: {True} for name in NAMES}
        assert await broker.transactions.commit_all("job", 1, staged)
        assert await broker.transactions.commit_all("job", 2, [])

    run(story)


def test_a_partition_that_refuses_its_marker_gets_it_later_and_the_next_decision_waits_for_it() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        broker.disk.partitions_failing = {PLACES[1]}
        assert await broker.transactions.commit_all("job", 1, staged)
        assert (await stage(broker, "free")).epoch == 0
        with pytest.raises(ConcurrentTransactions):
            await broker.transactions.commit_all("job", 2, [])
        broker.disk.partitions_failing = set()
        await asyncio.sleep(20)
        assert await broker.transactions.commit_all("job", 2, [])
        assert ends(broker) == {name: {True} for name in NAMES} | {"free": {None}}

    run(story)


# -- crashes -----------------------------------------------------------------------------------------------------------


class Watched(Disk):
    """Keeps what a crash would leave, before and after every single thing that is done to it."""

    def __init__(self) -> None:
        super().__init__()
        self.left: list[Disk] = []
        self.watching = False

    def note(self) -> None:
        if self.watching:
            for state in (none, half, everything):
                for data in (none, everything):
                    for power in (True, False):
                        plain = Disk(self.state, self.state_kept, self.data)
                        self.left.append(copy.deepcopy(plain).crashed(state, data, power=power))

    def keep(self, partition: int, length: int) -> None:
        self.note()
        super().keep(partition, length)
        self.note()


def none(n: int) -> int:
    return 0


def half(n: int) -> int:
    return (n + 1) // 2


def everything(n: int) -> int:
    return n


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Watched]:
    """A disk whose every append is a step."""

    def noting(method: Callable[..., None]) -> Callable[..., None]:
        def noted(self: FakeStateLog | FakeMarkers, *args: object, **options: object) -> None:
            method(self, *args, **options)
            if isinstance(self.disk, Watched):
                self.disk.note()

        return noted

    monkeypatch.setattr(FakeStateLog, "append", noting(FakeStateLog.append))
    monkeypatch.setattr(FakeMarkers, "write_marker", noting(FakeMarkers.write_marker))
    return Watched


def test_wherever_the_crash_falls_all_of_it_is_seen_or_none(watched: Callable[[], Watched]) -> None:
    """Power cuts and killed processes, at every step of a decision; then a second power cut right after the start."""
    disk = watched()

    async def story() -> list[Staged]:
        broker = await Broker(disk).start()
        assert await broker.transactions.commit_all("job", 1, await stage_all(broker, "before "))
        staged = await stage_all(broker)
        await broker.transactions.init_producer_id("flush", MINUTE)  # what was staged is durable before it is decided
        disk.watching = True
        assert await broker.transactions.commit_all("job", 2, staged)
        disk.watching = False
        return staged

    staged = run(story)
    assert len(disk.left) > 200
    outcomes = [run(partial(after_crash, left, staged)) for left in disk.left]
    assert True in outcomes
    assert False in outcomes


async def after_crash(left: Disk, staged: list[Staged]) -> bool:
    """Whether the decision stands after the crash. Whatever it is: it is the same everywhere, and stays so."""
    broker = await Broker(left).start()
    stands = check_whole(broker)
    again = copy.deepcopy(broker.disk).crashed(none, none)
    second = await Broker(again).start()
    assert check_whole(second) is stands or not stands
    assert await second.transactions.commit_all("job", 2, staged), "the client repeats its request"
    assert check_whole(second)
    await asyncio.sleep(3 * MINUTE / 1000)
    assert check_whole(second)
    assert not await second.transactions.commit_all("job", 2, await stage_all(second, "replayed "))
    assert {frozenset(seen) for tag, seen in ends(second).items() if str(tag).startswith("replayed")} == {
        frozenset({False})
    }
    await broker.transactions.close()
    return stands


def check_whole(broker: Broker) -> bool:
    seen = ends(broker)
    assert all(seen["before " + name] == {True} for name in NAMES)
    (outcome,) = set().union(*(seen[name] for name in NAMES))
    assert outcome in (True, None), f"half of it or nothing of it: {seen}"
    decided = broker.transactions.decided("job")
    assert decided is not None
    assert decided.sequence == (2 if outcome else 1)
    return outcome is True


def test_an_undecided_stage_is_still_open_after_a_crash_and_can_be_committed() -> None:
    async def story() -> None:
        broker = await Broker().start()
        staged = await stage_all(broker)
        broker = await Broker(broker.disk.crashed(none, everything)).start()
        assert ends(broker) == {name: {None} for name in NAMES}
        assert await broker.transactions.commit_all("job", 0, staged)
        assert ends(broker) == {name: {True} for name in NAMES}

    run(story)


# -- what is refused, and what is forgotten ----------------------------------------------------------------------------


def test_nonsense_is_refused_in_words() -> None:
    async def story() -> None:
        broker = await Broker().start()
        commit_all = broker.transactions.commit_all
        one = Staged("job/a", 0, 0)
        for name, sequence, staged, word in (
            ("", 0, [], "name"),
            ("n" * 2000, 0, [], "name"),
            ("job", -1, [], "sequence"),
            ("job", 2**63, [], "sequence"),
            ("job", 0, [one, one], "staged"),
            ("job", 0, [one] * (MAX_STAGED + 1), "staged"),
            ("job", 0, [one, Staged("a", 0, 0)], "'a' is not one of 'job'"),
            ("job", 0, [Staged("job/run/a", 0, 0)], "'job/run/a' is not one of 'job'"),
        ):
            with pytest.raises(Invalid, match=word):
                await commit_all(name, sequence, staged)
        with pytest.raises(Conflict, match="'job/a'"):
            await commit_all("job", 0, [one])
        with pytest.raises(Invalid, match="prefix"):
            await broker.transactions.abort_prefix("")

    run(story)


def test_a_decision_outlives_its_transactional_ids_and_is_forgotten_after_a_year() -> None:
    async def story() -> None:
        broker = await Broker().start()
        assert await broker.transactions.commit_all("job", 3, await stage_all(broker))
        broker.clock.shift_ms = 30 * 86_400_000
        assert set(broker.transactions.expire_idle()) == set(NAMES)
        broker = await broker.restarted()
        assert not await broker.transactions.commit_all("job", 3, await stage_all(broker, "later "))
        broker.clock.shift_ms = DECISIONS_KEPT_MS + MINUTE
        broker.transactions.expire_idle()
        assert broker.transactions.decided("job") is None
        broker = await broker.restarted()
        assert broker.transactions.decided("job") is None

    run(story)


def test_the_record_of_a_decision_reads_as_it_was_written() -> None:
    decision = Decision("jöb", 2**62, 5, (Staged("ä/1", 2**40, 7), Staged("b", 0, MAX_EPOCH - 1)))
    key, value = encode_decision(decision)
    assert decode_decision_key(key) == "jöb"
    assert decode_decision("jöb", value) == decision
    assert decode_decision_key(b"\0\0\0\1a") is None
    with pytest.raises(NewerFormat):
        decode_decision("job", b"\0\1" + value[2:])
    for damaged in (value[:-1], value + b"x", b""):
        with pytest.raises(Corrupt):
            decode_decision("job", damaged)
    with pytest.raises(Corrupt):
        decode_decision_key(key[:-1])
