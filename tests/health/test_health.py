"""Health with reasons: each of them appears when it is so, says what to do, and goes away again."""

from __future__ import annotations

import asyncio
import errno

import msgspec
from msgspec.structs import replace

from tests.broker.queue_kit import Machine, on_a_machine
from tests.simulation.faults import Fault
from waystation.broker.broker import Broker
from waystation.errors import WaystationError
from waystation.groups.machines.calls import OffsetToCommit
from waystation.health.health import ABANDONED_LAG, Health, Reason, health_of
from waystation.message import Message
from waystation.observe.pipeline_state import TOPIC, PipelineState
from waystation.queues.feed import Verdict
from waystation.queues.settings import QueueSettings
from waystation.routing.namespace_names import prefix_of
from waystation.routing.namespaces import Limits

MIB = 1024 * 1024


class Used:
    """Memory that is in use."""

    used = 0

    def used_bytes(self) -> int:
        return self.used


def the_one(broker: Broker) -> Reason:
    (reason,) = health_of(broker).reasons
    assert reason.what.endswith(".") or ":" in reason.what
    assert reason.advice.endswith(".")
    return reason


@on_a_machine
async def test_a_broker_in_order_is_well(machine: Machine) -> None:
    machine.broker.sampling.start()
    await asyncio.sleep(20)
    assert health_of(machine.broker) == Health("ok", [])


@on_a_machine
async def test_a_log_whose_disk_fails_is_failing_and_named(machine: Machine) -> None:
    broker = machine.broker
    await broker.topics.create("orders", 1)
    machine.disk.inject(Fault("sync", "/orders.", errno.EIO, times=1))
    published = broker.messages.publish("orders", [Message(b"x")])
    try:
        await broker.durability.wait(*published.receipts)
    except WaystationError:
        pass
    reason = the_one(broker)
    assert reason.severity == "failing"
    assert "'orders-0'" in reason.what
    assert "Restart" in reason.advice
    assert health_of(broker).status == "failing"
    assert broker.meters.commit.failures == 1


@on_a_machine
async def test_a_disk_that_is_nearly_full_and_one_that_is(machine: Machine) -> None:
    broker = await machine.again({"waystation.disk.free.min.bytes": str(100 * MIB)})
    machine.disk.capacity = 1024 * MIB
    assert health_of(broker).status == "ok"
    broker = await machine.again({"waystation.disk.free.min.bytes": str(600 * MIB)})
    assert the_one(broker).severity == "warning"
    assert "nearly full" in the_one(broker).what
    broker = await machine.again({"waystation.disk.free.min.bytes": str(2000 * MIB)})
    reasons = health_of(broker).reasons
    assert reasons[0].severity == "failing"
    assert "waystation.disk.free.min.bytes" in reasons[0].advice


@on_a_machine
async def test_memory_near_its_limit_and_above_it(machine: Machine) -> None:
    used = Used()
    machine.simulation.world = replace(machine.simulation.world, memory=used)
    broker = await machine.again({"waystation.memory.max.bytes": str(100 * MIB)})
    used.used = 95 * MIB
    assert the_one(broker).severity == "warning"
    used.used = 101 * MIB
    await asyncio.sleep(2)  # pressure looks once a second
    first, second = health_of(broker).reasons
    assert (first.severity, second.severity) == ("failing", "warning")
    assert "101.0 MiB" in first.what
    assert "have to wait" in second.what


@on_a_machine
async def test_a_namespace_beyond_its_share_is_named(machine: Machine) -> None:
    broker = machine.broker
    await broker.namespaces.create("tenant", limits=Limits(max_bytes=100_000))
    name = f"{prefix_of('tenant')}jobs"
    await broker.queues.declare(name)
    await broker.queues.put_durable(name, [Message(b"x" * 200_000)])
    await asyncio.sleep(10)  # virtual, and pressure looks once a second
    reason = the_one(broker)
    assert reason.what.startswith("Publishers of namespace 'tenant' have to wait: ")
    assert reason.severity == "warning"


@on_a_machine
async def test_dead_letters_that_come_are_worth_a_word_for_some_minutes(machine: Machine) -> None:
    broker = machine.broker
    broker.sampling.start()
    await broker.queues.declare("work", QueueSettings(dead_letter="dead"))
    await broker.queues.put_durable("work", [Message(b"x")] * 12)
    getter = broker.queues.getter("work", "test")
    getter.settle(Verdict.KILL, [(one.tag, 1) for one in getter.take(12)])
    await asyncio.sleep(6)
    assert "12 messages became dead letters" in the_one(broker).what
    await asyncio.sleep(400)
    assert health_of(broker).status == "ok"


@on_a_machine
async def test_a_group_that_is_far_behind_and_has_no_members_is_named(machine: Machine) -> None:
    broker = machine.broker
    await broker.topics.create("events", 1)
    broker.messages.publish("events", [Message(b"e")] * (ABANDONED_LAG + 5))
    await broker.groups.commit_offsets("abandoned", [OffsetToCommit("events", 0, 5)])
    health_of(broker)
    await broker.lags.fresh()
    reason = the_one(broker)
    assert "'abandoned'" in reason.what
    assert f"{ABANDONED_LAG:,}" in reason.what
    await broker.groups.commit_offsets("abandoned", [OffsetToCommit("events", 0, 100)])
    await asyncio.sleep(20)
    health_of(broker)
    await broker.lags.fresh()
    assert health_of(broker).status == "ok"


@on_a_machine
async def test_a_pipeline_that_is_being_restarted_is_named(machine: Machine) -> None:
    broker = machine.broker
    await broker.topics.create(TOPIC, 1)
    state = PipelineState("etl", "run-1", "restarting", host="elsewhere", error="boom\nmore of it", restarts=3)
    state.updated_ms = broker.world.clock.now_ms()
    broker.messages.publish(TOPIC, [Message(msgspec.json.encode(state), key=b"etl")])
    await broker.pipelines_seen.states()
    await asyncio.sleep(0.1)
    reason = the_one(broker)
    assert reason.what == "Pipeline 'etl' is being restarted after a failure (3 restarts): boom."
    assert "by itself" in reason.advice


@on_a_machine
async def test_a_pipeline_that_failed_is_named_with_its_error(machine: Machine) -> None:
    broker = machine.broker
    await broker.topics.create(TOPIC, 1)
    state = PipelineState("etl", "run-1", "failed", log="/var/log/etl.log", error="boom\nmore of it")
    broker.messages.publish(TOPIC, [Message(msgspec.json.encode(state), key=b"etl")])
    await broker.pipelines_seen.states()
    await asyncio.sleep(0.1)
    reason = the_one(broker)
    assert reason.what == "Pipeline 'etl' has failed: boom."
    assert "/var/log/etl.log" in reason.advice


@on_a_machine
async def test_a_disk_and_a_loop_that_stay_slow_are_worth_a_word(machine: Machine) -> None:
    sampling = machine.broker.sampling
    sampling.fsyncs_ms.extend((180.0, 190.0, 200.0))
    assert "180 ms or longer to sync" in the_one(machine.broker).what
    sampling.fsyncs_ms.append(0.0)
    sampling.loop_delays_ms.extend((900.0, 950.0, 1_000.0))
    assert "900 ms or longer at a time" in the_one(machine.broker).what


@on_a_machine
async def test_what_was_slow_once_is_not(machine: Machine) -> None:
    sampling = machine.broker.sampling
    for samples in (sampling.fsyncs_ms, sampling.loop_delays_ms):
        samples.extend((5_000.0, 5_000.0))
        assert health_of(machine.broker).status == "ok"
        samples.append(1.0)
        assert health_of(machine.broker).status == "ok"
