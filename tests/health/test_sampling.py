"""The broker looks at itself, under virtual time: sums that are right without counting, rates, the last hour."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import msgspec

from tests.broker.queue_kit import HOUR_MS, Machine, on_a_machine
from waystation.admin.pipelines_seen import MAX_POINTS
from waystation.admin.views.view_overview import HistoryQuery, history_view, overview_view
from waystation.broker.broker import Broker
from waystation.health.census import COUNT_REST_S
from waystation.message import Message
from waystation.observe.history import POINTS
from waystation.observe.pipeline_state import TOPIC, PipelineState, SinkState
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.queues.shard.queue_feed import Getter


def sums(broker: Broker) -> tuple[int, int, int]:
    found = broker.queues.stats()
    return found["ready"], found["parked"], found["held"]


def known(broker: Broker) -> tuple[int, int, int]:
    census = broker.sampling.census
    return census.ready, census.delayed, census.in_flight


@on_a_machine
async def test_nothing_is_sampled_unless_it_is_started(machine: Machine) -> None:
    await asyncio.sleep(60)
    assert not machine.broker.sampling.running
    assert len(machine.broker.sampling.history) == 0
    assert all(shard.notes is None for shard in machine.broker.shards)


@on_a_machine
async def test_a_point_is_added_every_five_seconds_and_the_hour_is_bounded(machine: Machine) -> None:
    broker = machine.broker
    broker.sampling.start()
    await asyncio.sleep(51)
    view = history_view(broker, HistoryQuery())
    assert len(view.times_ms) == 10
    assert {later - earlier for earlier, later in zip(view.times_ms, view.times_ms[1:], strict=False)} == {5_000}
    assert history_view(broker, HistoryQuery(view.times_ms[-2])).times_ms == view.times_ms[-1:]
    await asyncio.sleep(2 * HOUR_MS / 1000)
    assert len(broker.sampling.history) == POINTS


@on_a_machine
async def test_rates_are_of_the_last_five_seconds(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("busy")
    await broker.queues.declare("idle")
    await broker.topics.create("news", 2)
    broker.sampling.start()
    assert broker.meters.rates.queue("busy") is None
    broker.queues.put("busy", [Message(b"x")] * 50)
    getter = broker.queues.getter("busy", "test")
    taken = getter.take(30)
    getter.settle(Verdict.ACK, [(one.tag, 1) for one in taken[:20]])
    broker.messages.publish("news", [Message(b"abc")] * 10)
    await asyncio.sleep(5.5)
    busy = broker.meters.rates.queue("busy")
    assert busy is not None
    assert (busy.put, busy.deliver, busy.ack) == (10.0, 6.0, 4.0)
    assert broker.meters.rates.queue("idle") is not None
    news = broker.meters.rates.topic("news")
    assert news is not None
    assert news.publish == 2.0
    assert news.publish_bytes > 0
    shown = overview_view(broker)
    assert [one.name for one in shown.busiest.topics] == ["news"]
    assert [(one.name, one.ready) for one in shown.busiest.queues] == [("busy", 20)]
    assert (shown.totals.messages_ready, shown.totals.messages_held) == (20, 10)
    assert shown.totals.topic_messages == 10
    assert (shown.totals.topics, shown.totals.partitions, shown.totals.queues) == (1, 2, 2)
    await asyncio.sleep(5)
    after = broker.meters.rates.queue("busy")
    assert after is not None
    assert after.put == 0.0


@on_a_machine
async def test_the_sums_over_all_queues_are_right_whatever_happens_to_them(machine: Machine) -> None:
    """Between two counts of everything, they are kept by what changed; a count in the middle of it changes nothing."""
    broker = machine.broker
    dice = random.Random(11)
    names = [f"q{number}" for number in range(30)]
    retries = QueueSettings(max_deliveries=2, dead_letter="dead", ttl_ms=40_000, retry_base_ms=500)
    for name in names:
        await broker.queues.declare(name, dice.choice([None, retries, QueueSettings(max_length=20)]))
    broker.sampling.start()
    getters = {name: broker.queues.getter(name, "test") for name in names}
    for turn in range(300):
        await _something(broker, dice, getters)
        if dice.random() < 0.2:
            await asyncio.sleep(dice.choice([0, 0.1, 3, 12]))
        if dice.random() < 0.3:
            if turn % 50 == 49:
                broker.sampling.census._count_again_s = 0.0  # everything is counted again
            await broker.sampling.fold()
            assert known(broker) == sums(broker)
    await asyncio.sleep(2 * COUNT_REST_S)
    await broker.sampling.fold()
    assert known(broker) == sums(broker)


async def _something(broker: Broker, dice: random.Random, getters: dict[str, Getter]) -> None:
    name = dice.choice(list(getters))
    deed = dice.randrange(9)
    if name not in broker.queues:
        await broker.queues.declare(name)
        getters[name] = broker.queues.getter(name, "test")
        return
    getter = broker.queues.getter(name, "test") if dice.random() < 0.1 else getters[name]
    if deed <= 2:
        delay_ms = dice.choice([0, 0, 0, 8_000])
        broker.queues.put_each(name, [Message(b"x", delay_ms=delay_ms)] * dice.randrange(1, 9))
    elif deed == 3:
        await broker.queues.purge(name)
    elif deed == 4 and dice.random() < 0.3:
        await broker.queues.delete(name)
    elif not getter.closed:
        taken = getter.take(dice.randrange(1, 6))
        runs = [(one.tag, 1) for one in taken]
        if runs and dice.random() < 0.8:
            getter.settle(dice.choice(list(Verdict)), runs)
        elif dice.random() < 0.2:
            getter.close()
            getters[name] = broker.queues.getter(name, "test")


@on_a_machine
async def test_a_transaction_counts_when_it_commits(machine: Machine) -> None:
    broker = machine.broker
    await broker.queues.declare("q")
    broker.sampling.start()
    for commit in (True, False):
        tx = await broker.transacting.begin("writer")
        await tx.put("q", [Message(b"x")] * 7)
        await broker.sampling.fold()
        assert known(broker) == sums(broker)
        await tx.end(commit=commit)
        await broker.sampling.fold()
        assert known(broker) == sums(broker) == (7, 0, 0)
    assert broker.meters.queues.members["q"] == [7, 0, 0, 0]


@on_a_machine
async def test_pipelines_are_seen_when_somebody_asks_and_from_the_beginning(machine: Machine) -> None:
    broker = machine.broker
    assert await broker.pipelines_seen.states() == []
    await broker.topics.create(TOPIC, 1, {"cleanup.policy": "compact"})
    for batch in range(3):
        _report(broker, "etl", batch, rows=100 * (batch + 1))
    _report(broker, "other", 0, rows=5)
    states = await broker.pipelines_seen.states()
    await _until(lambda: len(broker.pipelines_seen.states_now()) == 2)
    states = broker.pipelines_seen.states_now()
    assert [(state.pipeline, state.rows, state.lag) for state in states] == [("etl", 300, 9), ("other", 5, 9)]
    points = await broker.pipelines_seen.timeline("etl")
    assert [(point.batch, point.rows) for point in points] == [(0, 100), (1, 100), (2, 100)]
    for batch in range(3, MAX_POINTS + 50):
        _report(broker, "etl", batch, rows=100 * (batch + 1))
    await _until(lambda: broker.pipelines_seen.states_now()[0].rows == 100 * (MAX_POINTS + 50))
    assert len(await broker.pipelines_seen.timeline("etl")) == MAX_POINTS
    broker.messages.publish(TOPIC, [Message(b"", key=b"etl", type="tombstone")])
    await _until(lambda: [state.pipeline for state in broker.pipelines_seen.states_now()] == ["other"])
    broker.messages.publish(TOPIC, [Message(b"no state at all", key=b"strange")])
    broker.messages.publish(TOPIC, [Message(b"{}", key=b"other/control")])
    await broker.topics.delete(TOPIC)
    await _until(lambda: broker.pipelines_seen.states_now() == [])


def _report(broker: Broker, name: str, batch: int, rows: int) -> None:
    sink = SinkState("out", batch=batch, rows=rows, lag=9, batch_ms=20, rows_per_s=50.0)
    state = PipelineState(name, "run-1", "running", updated_ms=1_000 * batch, sinks=[sink])
    broker.messages.publish(TOPIC, [Message(msgspec.json.encode(state), key=name.encode())])


async def _until(condition: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")
