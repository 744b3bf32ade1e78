"""Who is held back when the disk, the memory or a namespace's share is nearly full, and who never is."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from tests.broker.queue_kit import Machine, on_a_machine
from waystation.broker.broker import Broker
from waystation.health import resource_alarms as module
from waystation.message import Message
from waystation.queues.shard.shards import Shards
from waystation.routing.namespaces import Limits

MIB = 1024 * 1024
PLENTY = 1024 * MIB


class Fixed:
    """Memory that is in use."""

    used = 0

    def used_bytes(self) -> int:
        return self.used


class Told:
    """What a protocol was told."""

    def __init__(self, broker: Broker) -> None:
        self.events: list[tuple[str, str | None]] = []
        self.end = broker.resource_alarms.subscribe(lambda namespace, reason: self.events.append((namespace, reason)))


async def store(broker: Broker, queue: str, size: int) -> None:
    await broker.queues.declare(queue)
    for _ in range(size // 100_000):
        await broker.queues.put_durable(queue, [Message(b"x" * 100_000)])


def reasons(broker: Broker) -> dict[str, str]:
    found = {name: broker.resource_alarms.reason(name) for name in broker.namespaces.names()}
    return {name: reason for name, reason in found.items() if reason is not None}


@on_a_machine
async def test_a_short_disk_holds_publishers_back_until_there_is_room(machine: Machine) -> None:
    broker = machine.broker
    told = Told(broker)
    assert reasons(broker) == {}
    machine.disk.leave_room(63 * MIB)
    await asyncio.sleep(2)
    assert reasons(broker) == {"/": "low on disk"}
    machine.disk.leave_room(66 * MIB)  # not yet a tenth more than the least
    await asyncio.sleep(2)
    assert reasons(broker) == {"/": "low on disk"}
    machine.disk.leave_room(PLENTY)
    await asyncio.sleep(2)
    assert reasons(broker) == {}
    assert told.events == [("/", "low on disk"), ("/", None)]
    told.end()
    told.end()
    machine.disk.leave_room(0)
    await asyncio.sleep(2)
    assert len(told.events) == 2


@on_a_machine
async def test_the_limit_can_be_set_and_switched_off_at_the_start(machine: Machine) -> None:
    machine.disk.leave_room(100 * MIB)
    broker = await machine.again({"waystation.disk.free.min.bytes": str(200 * MIB)})
    await asyncio.sleep(2)
    assert reasons(broker) == {"/": "low on disk"}
    broker = await machine.again({"waystation.disk.free.min.bytes": "0"})
    await asyncio.sleep(2)
    assert reasons(broker) == {}


@on_a_machine
async def test_of_several_namespaces_those_are_held_back_that_store_most(machine: Machine) -> None:
    broker = machine.broker
    for name in ("large", "small", "empty"):
        await broker.namespaces.create(name)
    await store(broker, "large/jobs", 3_000_000)
    await store(broker, "small/jobs", 200_000)
    await store(broker, "jobs", 400_000)
    told = Told(broker)
    machine.disk.leave_room(10 * MIB)
    await asyncio.sleep(3)
    assert reasons(broker) == {"large": "low on disk"}
    # What is stored is added up again while it stays short.
    await broker.queues.delete("large/jobs")
    await asyncio.sleep(10)
    assert reasons(broker) == {"/": "low on disk", "small": "low on disk"}
    machine.disk.leave_room(None)
    await asyncio.sleep(2)
    assert reasons(broker) == {}
    assert told.events[0] == ("large", "low on disk")
    assert set(told.events[1:]) == {
        ("large", None),
        ("/", "low on disk"),
        ("small", "low on disk"),
        ("/", None),
        ("small", None),
    }


@on_a_machine
async def test_topics_count_for_their_namespace(machine: Machine) -> None:
    broker = machine.broker
    await broker.namespaces.create("shop")
    await broker.topics.create("shop.clicks", 2)
    await broker.routing.publish("", "shop.clicks", [Message(b"x" * 100_000) for _ in range(5)])
    await store(broker, "jobs", 100_000)
    machine.disk.leave_room(10 * MIB)
    await asyncio.sleep(3)
    assert reasons(broker) == {"shop": "low on disk"}


@on_a_machine
async def test_never_all_of_several_are_held_back(machine: Machine) -> None:
    broker = machine.broker
    await broker.namespaces.create("shop")
    machine.disk.leave_room(0)  # by something that is not ours: nobody stores anything
    await asyncio.sleep(3)
    assert len(reasons(broker)) == 1


@on_a_machine
async def test_a_namespace_above_its_own_limit_is_held_back_alone(machine: Machine) -> None:
    broker = machine.broker
    await broker.namespaces.create("shop", limits=Limits(max_bytes=250_000))
    await store(broker, "shop/jobs", 200_000)
    await store(broker, "jobs", 1_000_000)
    await asyncio.sleep(10)
    assert reasons(broker) == {}
    await store(broker, "shop/mail", 100_000)
    await asyncio.sleep(10)
    assert reasons(broker) == {"shop": "namespace 'shop' stores 300000 bytes, its limit is 250000"}
    await broker.queues.purge("shop/jobs")
    await asyncio.sleep(10)
    assert reasons(broker) == {}
    await broker.namespaces.set_limits("/", Limits(max_bytes=1))
    await asyncio.sleep(10)
    assert list(reasons(broker)) == ["/"]
    await broker.namespaces.delete("shop")
    assert broker.resource_alarms.reason("shop") is None


@on_a_machine
async def test_sums_of_some_do_not_decide_who_stores_most(machine: Machine) -> None:
    broker = machine.broker
    await broker.namespaces.create("shop", limits=Limits(max_bytes=10_000_000))
    await store(broker, "shop/jobs", 100_000)
    await store(broker, "jobs", 1_000_000)
    await asyncio.sleep(10)  # what the shop stores is known by now, and it alone
    told = Told(broker)
    machine.disk.leave_room(0)
    await asyncio.sleep(10)
    assert told.events == [("/", "low on disk")]


@on_a_machine
async def test_memory_above_its_limit_holds_publishers_back(machine: Machine) -> None:
    memory = Fixed()
    await machine.broker.stop()
    machine.simulation.world = replace(machine.simulation.world, memory=memory)
    machine.settings = {"waystation.memory.max.bytes": str(100 * MIB)}
    broker = await machine.start()
    assert reasons(broker) == {}
    memory.used = 101 * MIB
    await asyncio.sleep(2)
    assert reasons(broker) == {"/": "low on memory"}
    memory.used = 99 * MIB
    await asyncio.sleep(2)
    assert reasons(broker) == {"/": "low on memory"}
    memory.used = 80 * MIB
    await asyncio.sleep(2)
    assert reasons(broker) == {}


@on_a_machine
async def test_a_broker_that_starts_on_a_short_disk_knows_it_at_once(machine: Machine) -> None:
    machine.disk.leave_room(20 * MIB)
    broker = await machine.again()
    assert reasons(broker) == {"/": "low on disk"}


@on_a_machine
async def test_queues_are_not_walked_while_nothing_is_short(machine: Machine) -> None:
    broker = machine.broker
    await broker.namespaces.create("shop")
    walks = 0

    class Watched(Shards):
        def __iter__(self):  # type: ignore[no-untyped-def]
            nonlocal walks
            walks += 1
            return super().__iter__()

    broker.shards.__class__ = Watched
    await asyncio.sleep(60)
    before = walks
    assert before == 0
    machine.disk.leave_room(0)
    await asyncio.sleep(61)
    assert 1 <= walks - before <= 61 / module.PAUSE_S + 1


@on_a_machine
async def test_the_next_walk_waits_twenty_times_as_long_as_the_last_took(machine: Machine) -> None:
    broker = machine.broker
    await broker.namespaces.create("shop")
    began: list[float] = []
    sums = broker.resource_alarms._sums

    async def slow(wanted: list[str]) -> dict[str, int]:
        began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(2)
        return await sums(wanted)

    broker.resource_alarms._sums = slow  # type: ignore[method-assign, assignment]
    machine.disk.leave_room(0)
    await asyncio.sleep(100)
    assert len(began) == 3
    assert began[1] - began[0] >= 42
