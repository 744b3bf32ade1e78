"""A broker leads some shards of queues and not others: what it leads is what the log says, what it does not lead it
knows nothing of, and a shard that is led again goes on as after a crash."""

from __future__ import annotations

import asyncio
import gc
import logging
import weakref
from collections.abc import Awaitable, Callable

import pytest

from tests.broker.queue_kit import Inbox, Machine, consumer, on_a_machine, put
from waystation.admin.policy_rules import Policy
from waystation.broker.broker import Broker
from waystation.errors import NotFound, NotLeader, WaystationError
from waystation.health.census import Census
from waystation.message import Message
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.queues.shard import checkpoint, stragglers
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.shard import Shard
from waystation.topics.topics import QUEUES_TOPIC


def drop(broker: Broker, queue: str = "jobs") -> int:
    """Another broker leads the queue's shard."""
    index = broker.shards.of(queue).index
    broker.shards.drop(index)
    partition = broker.topics.get(QUEUES_TOPIC).partition(index)
    partition.follow(partition.epoch)
    return index


def lead(broker: Broker, index: int) -> None:
    partition = broker.topics.get(QUEUES_TOPIC).partition(index)
    partition.lead(partition.epoch)
    broker.shards.lead(partition)


def again(broker: Broker, queue: str = "jobs") -> None:
    lead(broker, drop(broker, queue))


def payloads(broker: Broker, queue: str = "jobs") -> list[bytes]:
    return [peeked.delivered.message.payload for peeked in broker.queues.peek(queue, 1000)]


async def raises_not_leader(*asked: Callable[[], Awaitable[object] | object]) -> None:
    async def answered(ask: Callable[[], Awaitable[object] | object]) -> None:
        answer = ask()
        if isinstance(answer, Awaitable):
            await answer

    for ask in asked:
        with pytest.raises(NotLeader):
            await answered(ask)


# -- not led -----------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_figures_go_on_when_a_queue_that_they_have_counted_is_not_led_any_more(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    broker.sampling.start()
    try:
        await broker.sampling.sample()
        await put(broker, "jobs", b"one")
        await broker.sampling.sample()
        assert "jobs" in dict(broker.meters.queues.items())
        index = drop(broker)
        await broker.sampling.sample()
        assert "jobs" not in dict(broker.meters.queues.items())
        lead(broker, index)
        await broker.sampling.sample()
    finally:
        await broker.sampling.stop()


@on_a_machine
async def test_what_is_asked_of_a_queue_that_is_not_led_is_refused_as_such_and_not_as_unknown(machine: Machine) -> None:
    broker = machine.broker
    queues = broker.queues
    await queues.declare("jobs")
    await put(broker, "jobs", b"one")
    drop(broker)
    await raises_not_leader(
        lambda: queues.put("jobs", [Message(b"")]),
        lambda: queues.put_each("jobs", [Message(b"")]),
        lambda: queues.put_durable("jobs", [Message(b"")], wait_ms=1000),
        lambda: queues.declare("jobs"),
        lambda: queues.declare("jobs", passive=True),
        lambda: queues.describe("jobs"),
        lambda: queues.delete("jobs"),
        lambda: queues.purge("jobs"),
        lambda: queues.peek("jobs", 1),
        lambda: queues.cancel("jobs", "id"),
        lambda: queues.redrive("jobs"),
        lambda: queues.getter("jobs", "me"),
        lambda: queues.open_reader("jobs", "me", on_end=lambda error: None),
        lambda: queues.open_feed("jobs", "me", lambda messages: None, on_end=lambda error: None),
        lambda: "jobs" in queues,
        lambda: broker.routing.put("", "jobs", [Message(b"")]),
    )
    assert (list(queues.names()), len(queues), queues.known("jobs")) == ([], 0, None)


@on_a_machine
async def test_queues_of_other_shards_go_on(machine: Machine) -> None:
    broker = machine.broker
    other = next(name for name in map(str, range(100)) if broker.shards.of(name) is not broker.shards.of("jobs"))
    for name in ("jobs", other):
        await broker.queues.declare(name)
    inbox = Inbox(broker, other)
    drop(broker)
    await put(broker, other, b"one")
    await asyncio.sleep(0.01)
    assert (inbox.payloads, inbox.ended) == ([b"one"], [])


@on_a_machine
async def test_who_waits_when_leadership_goes_is_told_at_once(machine: Machine) -> None:
    broker = machine.broker
    for name, settings in (("jobs", QueueSettings()), ("read", None), ("full", QueueSettings(max_length=1))):
        await broker.queues.declare(name, settings)
    await put(broker, "full", b"one")
    inbox = Inbox(broker, "jobs")
    silent = broker.queues.getter("jobs", "silent", silent=True)
    ended: list[WaystationError] = []
    reader = broker.queues.open_reader("read", "spark", on_end=ended.append)
    waiting = [
        asyncio.ensure_future(broker.queues.getter("jobs", "getter").get(1, 60_000)),
        asyncio.ensure_future(reader.claim(1, 0, 60_000)),
        *(asyncio.ensure_future(broker.queues.put_durable("full", [Message(b"two")], wait_ms=60_000)) for _ in "ab"),
    ]
    await asyncio.sleep(0.01)
    assert not any(one.done() for one in waiting)
    before = asyncio.get_running_loop().time()
    for name in ("jobs", "read", "full"):
        again(broker, name)  # even if it is led again before they have their turn
    for one in waiting:
        with pytest.raises(NotLeader):
            await one
    assert asyncio.get_running_loop().time() - before < 1
    assert [type(error) for error in (*inbox.ended, *ended)] == [NotLeader, NotLeader]
    await raises_not_leader(lambda: silent.take(1), lambda: reader.claim(1, 0, 0), lambda: reader.claim_these([(0, 1)]))


# -- led again ---------------------------------------------------------------------------------------------------------


@on_a_machine
async def test_what_was_in_flight_is_delivered_again_and_what_was_acknowledged_is_not(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"acked", b"held", b"waits")
    inbox = Inbox(broker, "jobs", credit=2)
    await asyncio.sleep(0.01)
    await inbox.ack(inbox.got[0])
    index = drop(broker)
    assert inbox.feed.settle(Verdict.ACK, [(1, 1)]).unknown == [(1, 1)], "nobody is told that this was acknowledged"
    lead(broker, index)
    assert inbox.feed.settle(Verdict.ACK, [(1, 1)]).unknown == [(1, 1)]
    inbox.feed.close()
    async with consumer(broker, "jobs") as other:
        assert [(one.message.payload, one.deliveries) for one in other.got] == [(b"held", 2), (b"waits", 1)]
        await other.ack(*other.got)
    assert payloads(await machine.again()) == []


@on_a_machine
async def test_delays_ids_and_the_settings_of_queues_are_as_before(machine: Machine) -> None:
    broker = machine.broker
    settings = QueueSettings(dedup_window_ms=3_600_000, max_length=3)
    await broker.queues.declare("jobs", settings)
    due_ms = machine.now_ms + 10_000
    await put(broker, "jobs", b"later", delay_ms=10_000)
    await put(broker, "jobs", b"known", id="one")
    await broker.shards.checkpoint(force=True)
    index = drop(broker)
    await asyncio.sleep(5)
    lead(broker, index)
    await put(broker, "jobs", b"known", id="one")
    assert broker.queues.describe("jobs").settings == settings
    async with consumer(broker, "jobs") as inbox:
        assert inbox.payloads == [b"known"]
        await asyncio.sleep((due_ms - machine.now_ms) / 1000 - 0.1)
        assert inbox.payloads == [b"known"]
        await asyncio.sleep(0.2)
        assert inbox.payloads == [b"known", b"later"]


@on_a_machine
async def test_a_put_that_is_not_durable_yet_is_answered_and_is_there(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    under_way = asyncio.ensure_future(broker.queues.put_durable("jobs", [Message(b"one")]))
    await asyncio.sleep(0)
    assert not under_way.done()
    again(broker)
    assert (await under_way).count == 1
    assert payloads(broker) == [b"one"] == payloads(await machine.again())


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("ends_while_not_led", [True, False])
def test_an_open_transaction_is_as_it_was(commit: bool, ends_while_not_led: bool) -> None:
    @on_a_machine
    async def story(machine: Machine) -> None:
        broker = machine.broker
        await broker.queues.declare("jobs")
        await put(broker, "jobs", b"taken")
        inbox = Inbox(broker, "jobs", credit=1)
        await asyncio.sleep(0.01)
        tx = await broker.transacting.begin("t")
        await tx.settle(inbox.feed, [(0, 1)])
        await tx.put("jobs", [Message(b"put")])
        index = drop(broker)
        if ends_while_not_led:  # its markers may come as soon as the log takes them
            partition = broker.topics.get(QUEUES_TOPIC).partition(index)
            partition.lead(partition.epoch)
            await tx.end(commit)
            lead(broker, index)
        else:
            lead(broker, index)
            async with consumer(broker, "jobs") as other:
                assert other.payloads == [], "what it took and what it puts is out of reach"
            await tx.end(commit)
        expected = [b"put"] if commit else [b"taken"]
        async with consumer(broker, "jobs") as other:
            assert other.payloads == expected
        assert payloads(await machine.again()) == expected

    story()


@on_a_machine
async def test_what_a_reader_had_claimed_can_be_claimed_again(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs", QueueSettings(max_deliveries=1))
    await put(broker, "jobs", b"one", b"two")
    reader = broker.queues.open_reader("jobs", "spark", on_end=lambda error: None)
    assert await reader.claim(2, 0, 0) == [(0, 2)]
    again(broker)
    assert reader.settle(Verdict.ACK, [(0, 2)]).unknown == [(0, 2)]
    reader = broker.queues.open_reader("jobs", "spark", on_end=lambda error: None)
    assert reader.claim_these([(0, 2)]) == [(0, 2)]


@on_a_machine
async def test_dead_letters_are_moved_by_who_leads(machine: Machine) -> None:
    broker = machine.broker
    target = next(name for name in map(str, range(100)) if broker.shards.of(name) is not broker.shards.of("jobs"))
    await broker.queues.declare(target, QueueSettings(max_length=1))
    await broker.queues.declare("jobs", QueueSettings(dead_letter=target))
    await put(broker, target, b"in the way")
    await put(broker, "jobs", b"dead")
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.01)
    await inbox.settle(Verdict.KILL, inbox.got[0])
    await asyncio.sleep(1)
    index = drop(broker)
    await broker.queues.purge(target)
    await asyncio.sleep(100)
    assert payloads(broker, target) == []
    lead(broker, index)
    await asyncio.sleep(60)  # the transaction of the first attempt ends first, which is tried again now and then
    assert (payloads(broker, target), payloads(broker)) == ([b"dead"], [])


def test_a_marker_that_a_moved_shard_refuses_is_a_warning_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "waystation")

    @on_a_machine
    async def story(machine: Machine) -> None:
        broker = machine.broker
        await broker.queues.declare("jobs")
        tx = await broker.transacting.begin("t", 60_000)
        await tx.put("jobs", [Message(b"x")])
        index = drop(broker)
        ending = asyncio.ensure_future(tx.end(True))
        await asyncio.sleep(10)
        lead(broker, index)
        await asyncio.sleep(60)
        await asyncio.gather(ending, return_exceptions=True)
        assert payloads(broker) == [b"x"], "it is carried out by who leads"

    story()
    told = [record for record in caplog.records if "cannot be ended yet" in record.getMessage()]
    assert told
    assert {record.levelno for record in told} == {logging.WARNING}
    assert not [record for record in caplog.records if record.exc_info]


@on_a_machine
async def test_a_dead_letter_target_that_is_not_led_is_tried_again(machine: Machine) -> None:
    broker = machine.broker
    target = next(name for name in map(str, range(100)) if broker.shards.of(name) is not broker.shards.of("jobs"))
    await broker.queues.declare("jobs", QueueSettings(dead_letter=target))
    await put(broker, "jobs", b"dead")
    index = drop(broker, target)
    inbox = Inbox(broker, "jobs")
    await asyncio.sleep(0.01)
    await inbox.settle(Verdict.KILL, inbox.got[0])
    await asyncio.sleep(10)
    lead(broker, index)
    await asyncio.sleep(60)
    assert payloads(broker, target) == [b"dead"]


@on_a_machine
async def test_messages_delayed_to_a_topic_are_published_by_who_leads(machine: Machine) -> None:
    broker = machine.broker
    await broker.messages.ensure("later")

    async def publish(payload: bytes) -> None:
        published = broker.messages.publish("later", [Message(payload, delay_ms=1000)])
        await broker.durable(*published.receipts)

    def there() -> list[bytes]:
        return [delivered.message.payload for delivered in broker.messages.history("later", 10)]

    await publish(b"one")
    for wait_s in (0.2, 2.0):
        index = drop(broker, "__delayed")
        await asyncio.sleep(wait_s)
        with pytest.raises(NotLeader):
            await publish(b"refused")
        assert there() == []
        lead(broker, index)
    await asyncio.sleep(0.1)
    assert there() == [b"one"]
    await publish(b"two")
    await asyncio.sleep(1.1)
    assert there() == [b"one", b"two"]


@on_a_machine
async def test_queues_that_end_with_their_broker_are_deleted_and_others_keep_their_bindings(machine: Machine) -> None:
    broker = machine.broker
    await broker.routing.declare_exchange("spread", "fanout")
    await broker.queues.declare("jobs", QueueSettings(auto_delete=True))
    index = broker.shards.of("jobs").index
    near = (name for name in map(str, range(1000)) if broker.shards.of(name).index == index)
    passing, exclusive = next(near), next(near)
    await broker.queues.declare(passing, QueueSettings(durable=False))
    await broker.queues.declare(exclusive, QueueSettings(exclusive=True), owner="me")
    await broker.routing.bind("spread", "queue:jobs")
    inbox = Inbox(broker, "jobs")
    drop(broker)
    assert [type(error) for error in inbox.ended] == [NotLeader]
    with pytest.raises(NotLeader):
        broker.routing.put("spread", "", [Message(b"refused")])
    broker.queues.release_owner("me")
    lead(broker, index)
    for name in (passing, exclusive):
        with pytest.raises(NotFound):
            broker.queues.get(name)
    broker.routing.put("spread", "", [Message(b"one")])
    broker.routing.put("", "jobs", [Message(b"two")])
    assert payloads(broker) == [b"one", b"two"]


# -- nothing stays behind ----------------------------------------------------------------------------------------------


@on_a_machine
async def test_who_has_hold_of_a_shard_that_was_dropped_can_write_nothing_to_it(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    await put(broker, "jobs", b"one")
    shard, queue = broker.queues.get("jobs")
    again(broker)
    end = shard.log.partition.end_offset
    await raises_not_leader(
        lambda: shard.put(queue, [Message(b"")]),
        lambda: shard.put(queue, [Message(b"")], (1, 0)),
        lambda: shard.end(queue, [(0, 1)]),
        lambda: shard.declare("new", QueueSettings()),
    )
    shard.end_quietly(queue, [0])
    assert shard.log.partition.end_offset == end
    assert payloads(broker) == [b"one"]


@on_a_machine
async def test_nothing_of_a_dropped_shard_stays_in_memory(machine: Machine) -> None:
    broker, name = machine.broker, "that no other test has"
    loop = asyncio.get_running_loop()
    await asyncio.sleep(1)
    tasks, timers = len(asyncio.all_tasks()), _timers(loop)
    settings = QueueSettings(hold_ms=1000, max_deliveries=2, dead_letter="nowhere/else", expires_ms=60_000, ttl_ms=5000)
    await broker.queues.declare(name, settings)
    await put(broker, name, *[b"%d" % i for i in range(20)])
    await put(broker, name, b"later", delay_ms=1000)
    held = Inbox(broker, name, credit=5)
    tx = await broker.transacting.begin("t")
    await tx.put(name, [Message(b"staged")])
    await asyncio.sleep(0.01)
    await held.settle(Verdict.KILL, held.got[0])
    await asyncio.sleep(0.5)
    shard: weakref.ref[Shard] = weakref.ref(broker.shards.of(name))
    index = drop(broker, name)
    held.feed.close()
    await asyncio.sleep(40)  # nothing of it happens any more: what would, would write, and the log refuses
    assert held.feed.queue.ledger is None, "who is slow to let go keeps little"
    assert held.feed.shard.queues == {}
    del held
    gc.collect()
    assert shard() is None
    assert [one.name for one in gc.get_objects() if isinstance(one, Queue) and one.name == name] == []
    del tx
    assert len(asyncio.all_tasks()) == tasks
    assert _timers(loop) <= timers + 1  # the transaction's own
    lead(broker, index)
    await asyncio.sleep(0.1)
    assert broker.queues.describe(name).settings == settings


def _timers(loop: asyncio.AbstractEventLoop) -> int:
    return sum(not handle.cancelled() for handle in loop._scheduled)  # type: ignore[attr-defined]


def test_a_checkpoint_that_is_under_way_leaves_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the moment: a snapshot of half of the queues is never named, and no log is freed for its sake."""
    monkeypatch.setattr(checkpoint, "SLICE_QUEUES", 1)
    monkeypatch.setattr(stragglers, "STEP_CHUNKS", 1)
    under_way_at_drop = 0
    for turn in range(0, 90, 3):

        @on_a_machine
        async def story(machine: Machine, turn: int = turn) -> None:
            nonlocal under_way_at_drop
            broker = await machine.anew(shards="1", segment_bytes="2000")
            names = [f"queue-{i}" for i in range(5)]
            for name in names:
                await broker.queues.declare(name)
            for _ in range(3):
                await broker.shards.checkpoint(force=True)
                for name in names:
                    await put(broker, name, bytes(300))
            [checkpointer] = broker.shards.checkpointers
            under_way = asyncio.ensure_future(checkpointer.run(force=True, forward=True))
            for _ in range(turn):
                await asyncio.sleep(0)
            again(broker, "queue-0")
            under_way_at_drop += not under_way.done()
            await asyncio.gather(under_way, return_exceptions=True)
            for name in names:
                assert len(payloads(broker, name)) == 3
            again(broker, "queue-0")
            for name in names:
                assert len(payloads(broker, name)) == 3
            await broker.shards.checkpoint(force=True)
            broker = await machine.again()
            for name in names:
                assert len(payloads(broker, name)) == 3

        story()
    assert under_way_at_drop > 20, "it was over before"


@on_a_machine
async def test_a_checkpoint_that_finds_no_living_messages_because_of_a_drop_frees_nothing(machine: Machine) -> None:
    broker = await machine.anew(shards="1", segment_bytes="2000")
    await broker.queues.declare("jobs")
    for _ in range(4):
        await put(broker, "jobs", *[bytes(300)] * 10)
        await broker.shards.checkpoint(force=True)
    [partition] = broker.topics.get(QUEUES_TOPIC).partitions
    await put(broker, "jobs", b"last")
    start = partition.start_offset
    [checkpointer] = broker.shards.checkpointers

    async def dropped_meanwhile(limit: int) -> int:
        drop(broker)
        return limit

    checkpointer._stragglers.oldest_living = dropped_meanwhile  # type: ignore[method-assign]
    with pytest.raises(NotLeader):
        await checkpointer.run(force=True)
    assert partition.start_offset == start
    lead(broker, 0)
    assert len(payloads(broker)) == 41


@on_a_machine
async def test_a_policy_that_changed_meanwhile_is_in_force_when_the_shard_is_led(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("jobs")
    index = drop(broker)
    await broker.policies.set(Policy("/", "short", "^jobs", {"max-length": 7}))
    lead(broker, index)
    await asyncio.sleep(0.1)
    assert broker.queues.describe("jobs").settings.max_length == 7


@on_a_machine
async def test_a_binding_to_a_queue_that_is_not_led_is_not_taken_for_one_to_a_deleted_queue(machine: Machine) -> None:
    broker = machine.broker
    await broker.routing.declare_exchange("spread", "fanout")
    await broker.queues.declare("jobs")
    await broker.routing.bind("spread", "queue:jobs")
    index = drop(broker)
    broker.routing.load()
    assert len(list(broker.catalog.bindings())) == 1
    lead(broker, index)
    broker.routing.put("spread", "", [Message(b"one")])
    assert payloads(broker) == [b"one"]


@on_a_machine
async def test_sums_and_counts_are_those_of_the_shards_that_are_led(machine: Machine) -> None:
    broker = machine.broker
    await broker.namespaces.create("team")
    await broker.queues.declare("team/jobs")
    await put(broker, "team/jobs", b"one", b"two")
    census = Census(broker)
    census.start()
    await census.fold_queues()
    assert (census.ready, broker.namespaces.queue_count("team")) == (2, 1)
    index = drop(broker, "team/jobs")
    await census.fold_queues()
    assert (census.ready, broker.namespaces.queue_count("team")) == (0, 0)
    lead(broker, index)
    await put(broker, "team/jobs", b"three")
    await census.fold_queues()
    assert (census.ready, broker.namespaces.queue_count("team")) == (3, 1)
    await put(broker, "team/jobs", b"four")
    grown = await census.fold_queues()
    assert census.ready == 4
    assert grown is not None
    assert grown["team/jobs"][0] == 1
    census.stop()
