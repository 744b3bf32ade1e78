"""Dead letters and their way back: each is moved once, to where its queue says, whatever stands in the way."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Inbox, Machine, consumer, on_a_machine, put, turns
from waystation.broker.broker import Broker
from waystation.errors import Conflict, Full, Invalid, NotAllowed, NotFound
from waystation.message import Message
from waystation.queues.failure_history import failure_history_of
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings


def _payloads(broker: Broker, queue: str) -> list[bytes]:
    return [peeked.delivered.message.payload for peeked in broker.queues.peek(queue, 10_000)]


async def _kill_all(broker: Broker, queue: str) -> None:
    async with consumer(broker, queue) as inbox:
        await inbox.settle(Verdict.KILL, *inbox.got)
    await asyncio.sleep(1)


# -- targets -----------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_small_target_takes_what_it_can_and_the_rest_when_it_has_room(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead", QueueSettings(max_length=3))
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead"))
    await put(broker, "jobs", *[b"%d" % i for i in range(7)])
    await _kill_all(broker, "jobs")
    await asyncio.sleep(60)
    assert _payloads(broker, "dead") == [b"0", b"1", b"2"]
    for rest in (1, 0):
        await broker.queues.purge("dead")
        await asyncio.sleep(120)
        assert len(broker.queues.peek("jobs", 10)) == rest
    assert _payloads(broker, "dead") == [b"6"]


@on_a_machine
async def test_a_dead_letter_that_stays_on_its_shard_needs_no_transaction(machine: Machine) -> None:
    """One batch of the log is enough, all or nothing; over shards it is a transaction."""
    broker = machine.broker
    names = [f"dead-{number}" for number in range(100)]
    near = [name for name in names if broker.shards.of(name) is broker.shards.of("jobs")][:2]
    far = next(name for name in names if broker.shards.of(name) is not broker.shards.of("jobs"))
    await broker.queues.declare("jobs", QueueSettings(dead_letter=near[0]))
    await put(broker, "jobs", b"first")
    await _kill_all(broker, "jobs")  # now the mover knows that nothing is left of an earlier life
    await broker.queues.purge(near[0])
    fault = machine.refuse(path_part="__transaction_state")
    await put(broker, "jobs", b"0", b"1")
    rounds = broker.commit.rounds
    await _kill_all(broker, "jobs")
    assert broker.commit.rounds - rounds <= 2, "of the verdict, and of the move"
    assert _payloads(broker, near[0]) == [b"0", b"1"]
    for name in (near[1], far):
        await broker.queues.declare("jobs", QueueSettings(dead_letter=name), alter=True)
        await put(broker, "jobs", name.encode())
        await _kill_all(broker, "jobs")
    assert _payloads(broker, near[1]) == [near[1].encode()]
    assert _payloads(broker, far) == [], "this one waits"
    machine.allow(fault)
    broker = await machine.again()
    await asyncio.sleep(60)
    assert [_payloads(broker, name) for name in (*near, far)] == [[b"0", b"1"], [near[1].encode()], [far.encode()]]
    assert _payloads(broker, "jobs") == []
    (letter, _) = broker.queues.peek(near[0], 10)
    assert [death["reason"] for death in failure_history_of(letter.delivered.message)] == ["rejected"]


@on_a_machine
async def test_a_target_that_is_full_keeps_no_other_queue_waiting(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("full", QueueSettings(max_length=1))
    await put(broker, "full", b"there")
    await broker.queues.declare("a", QueueSettings(dead_letter="full"))
    await broker.queues.declare("b", QueueSettings(dead_letter="free"))
    await put(broker, "a", b"a")
    await put(broker, "b", b"b")
    await _kill_all(broker, "a")
    await _kill_all(broker, "b")
    assert _payloads(broker, "free") == [b"b"]
    await broker.queues.delete("full")
    await asyncio.sleep(40)
    assert _payloads(broker, "full") == [b"a"], "a target that was deleted comes into being again"


@on_a_machine
async def test_impossible_targets_are_refused_when_the_queue_is_declared_or_altered(machine: Machine) -> None:
    queues = machine.broker.queues
    await queues.declare("jobs")
    for target in ("", "x" * 256, "a\nb", "topic:", "topic:a b", "topic:" + "x" * 300, "__delayed", "topic:__queues"):
        with pytest.raises((Invalid, NotAllowed), match=r"^dead_letter"):
            await queues.declare("other", QueueSettings(dead_letter=target))
        with pytest.raises((Invalid, NotAllowed), match=r"^dead_letter"):
            await queues.declare("jobs", QueueSettings(dead_letter=target), alter=True)
    with pytest.raises(Invalid, match="its own"):
        await queues.declare("jobs", QueueSettings(dead_letter="jobs"), alter=True)
    assert "other" not in queues


@on_a_machine
async def test_dead_letters_are_moved_after_the_disk_has_room_again(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead", ttl_ms=1000))
    await put(broker, "jobs", *[b"%d" % i for i in range(300)])
    fault = machine.refuse()
    await asyncio.sleep(10)
    machine.allow(fault)
    await asyncio.sleep(60)
    assert sorted(_payloads(broker, "dead"), key=int) == [b"%d" % i for i in range(300)]
    broker = await machine.again()
    assert (len(_payloads(broker, "dead")), len(_payloads(broker, "jobs"))) == (300, 0)


@on_a_machine
async def test_a_mistake_in_the_mover_does_not_end_it(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead"))
    ensure = broker.queues.declare

    async def broken(*_: object, **__: object) -> None:
        raise KeyError("a mistake of ours")

    broker.queues.declare = broken  # type: ignore[assignment,method-assign]
    await put(broker, "jobs", b"one")
    await _kill_all(broker, "jobs")
    broker.queues.declare = ensure  # type: ignore[method-assign]
    await asyncio.sleep(60)
    assert _payloads(broker, "dead") == [b"one"]


# -- ids and cycles ----------------------------------------------------------------------------------------------------


@on_a_machine
async def test_a_window_of_ids_swallows_no_dead_letter_and_no_redriven_one(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead", QueueSettings(dedup_window_ms=3_600_000))
    await broker.queues.declare("jobs", QueueSettings(dead_letter="dead", dedup_window_ms=3_600_000))
    await put(broker, "jobs", b"one", id="a")
    for _ in range(3):
        await _kill_all(broker, "jobs")
        assert _payloads(broker, "dead") == [b"one"]
        assert (await broker.queues.redrive("dead")).moved == 1
        assert _payloads(broker, "jobs") == [b"one"]
        broker = await machine.again()
        assert (_payloads(broker, "jobs"), _payloads(broker, "dead")) == ([b"one"], [])
    assert (await broker.queues.put_durable("jobs", [Message(b"again", id="a")])).duplicates == [0]


@on_a_machine
async def test_what_a_consumer_rejects_again_may_go_the_same_way_again(machine: Machine) -> None:
    """The usual way to try again after an hour: a queue for waiting whose dead letters go back."""
    broker = machine.broker
    await broker.queues.declare("work", QueueSettings(dead_letter="wait"))
    await broker.queues.declare("wait", QueueSettings(dead_letter="work", ttl_ms=3_600_000))
    await put(broker, "work", b"one")
    for _ in range(4):
        await _kill_all(broker, "work")
        assert _payloads(broker, "wait") == [b"one"]
        await asyncio.sleep(3_601)
        assert _payloads(broker, "work") == [b"one"]
    (peeked,) = broker.queues.peek("work", 2)
    story = failure_history_of(peeked.delivered.message)
    assert [(death["queue"], death["reason"], death["count"]) for death in story] == [
        ("wait", "expired", 4), ("work", "rejected", 4)
    ]  # fmt: skip


@on_a_machine
async def test_a_long_cycle_ends_too(machine: Machine) -> None:
    broker = machine.broker
    for i in range(30):
        await broker.queues.declare(f"q{i}", QueueSettings(dead_letter=f"q{(i + 1) % 30}", ttl_ms=100))
    await put(broker, "q0", b"one")
    await asyncio.sleep(60)
    assert all(not _payloads(broker, f"q{i}") for i in range(30))


# -- back again --------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_redrive_names_what_it_cannot_do(machine: Machine) -> None:
    queues = machine.broker.queues
    await queues.declare("dead")
    await put(machine.broker, "dead", b"one")
    with pytest.raises(Invalid, match=r"^to"):
        await queues.redrive("dead", to="dead")
    with pytest.raises(NotFound):
        await queues.redrive("dead", to="nowhere")
    with pytest.raises(NotFound):
        await queues.redrive("dead", to="topic:nowhere")
    with pytest.raises(NotAllowed):
        await queues.redrive("dead", to="__delayed")
    for rate in (-1.0, float("nan"), float("inf")):
        with pytest.raises(Invalid, match=r"^rate"):
            await queues.redrive("dead", to="x", rate=rate)
    with pytest.raises(Invalid, match=r"^limit"):
        await queues.redrive("dead", to="x", limit=-1)
    answer = await queues.redrive("dead")
    assert (answer.matched, answer.moved, answer.skipped) == (1, 0, 1), "nobody knows where it came from"
    assert _payloads(machine.broker, "dead") == [b"one"]


@on_a_machine
async def test_a_redrive_to_a_full_queue_says_so_and_loses_nothing(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead")
    await broker.queues.declare("small", QueueSettings(max_length=1))
    await put(broker, "dead", b"0", b"1")
    with pytest.raises(Full):
        await broker.queues.redrive("dead", to="small")
    broker = await machine.again()
    assert (_payloads(broker, "dead"), _payloads(broker, "small")) == ([b"0", b"1"], [])
    async with consumer(broker, "dead") as inbox:
        assert inbox.payloads == [b"0", b"1"]


@on_a_machine
async def test_a_redrive_leaves_what_waits_for_its_time(machine: Machine) -> None:
    """Were it taken out and given back, it would be early."""
    broker = machine.broker
    await broker.queues.declare("dead")
    await broker.queues.declare("small", QueueSettings(max_length=1))
    await put(broker, "dead", b"later", delay_ms=60_000)
    await put(broker, "dead", b"0", b"1")
    with pytest.raises(Full):
        await broker.queues.redrive("dead", to="small")
    async with consumer(broker, "dead") as inbox:
        assert inbox.payloads == [b"0", b"1"]


@on_a_machine
async def test_two_redrives_of_one_queue_do_not_undo_each_other(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead")
    await broker.queues.declare("jobs")
    await put(broker, "dead", *[b"%d" % i for i in range(50)])
    first = asyncio.ensure_future(broker.queues.redrive("dead", to="jobs", rate=10.0))
    await asyncio.sleep(1.5)
    with pytest.raises(Conflict):
        await broker.queues.redrive("dead", to="jobs")
    assert (await first).moved == 50
    assert (await broker.queues.redrive("dead", to="jobs")).moved == 0


@on_a_machine
async def test_a_redrive_that_is_given_up_leaves_everything_in_reach(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead")
    await broker.queues.declare("jobs")
    for pause in (0.0, 0.0001, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05):
        await put(broker, "dead", *[b"%d" % i for i in range(1000)])
        task = asyncio.ensure_future(broker.queues.redrive("dead", to="jobs"))
        await asyncio.sleep(pause)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(1)
        dead, jobs = broker.queues.describe("dead"), broker.queues.describe("jobs")
        assert dead.ready + jobs.ready == 1000
        await broker.queues.purge("dead")
        await broker.queues.purge("jobs")


@on_a_machine
async def test_a_redrive_that_finds_nothing_in_a_deep_queue_lets_others_work(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead")
    for _ in range(20):
        await put(broker, "dead", *[b"x"] * 1000)
    before = turns()
    assert (await broker.queues.redrive("dead", filter="headers.n = 1", dry_run=True)).matched == 0
    assert before - turns() > 20


@on_a_machine
async def test_a_redrive_takes_no_message_from_a_consumers_hands(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("dead")
    await broker.queues.declare("jobs")
    await put(broker, "dead", b"0", b"1", b"2")
    inbox = Inbox(broker, "dead", credit=1)
    await asyncio.sleep(0.01)
    assert (await broker.queues.redrive("dead", to="jobs")).moved == 2
    await inbox.ack(inbox.got[0])
    assert _payloads(broker, "jobs") == [b"1", b"2"]
