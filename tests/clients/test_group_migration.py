"""Clients that know nothing of KIP-848 beside a member that speaks it: they share a group while it changes over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiokafka import AIOKafkaConsumer
from kafka import KafkaConsumer

from tests.clients import kit
from tests.clients.members import Member, pump, spots_of
from tests.clients.stage import NewTopicCall
from tests.support.waiting import DEADLINE_S, wait_for

NEW = {"group.protocol": "consumer"}
POLL_MS = 100
LONG_POLL_MS = 1_500
"""Of kafka-python: a poll that ends in the middle of a join leaves it without an assignment (FINDINGS.md)."""


def owned_by(client: Any) -> set[tuple[str, int]]:
    return {(one.topic, one.partition) for one in client.assignment()}


def test_kafka_python_shares_a_group_with_a_member_of_the_new_protocol(
    bootstrap: str, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic(partitions=4)
    spots = spots_of(topic, 4)
    timing = {"session_timeout_ms": kit.SESSION_MS, "heartbeat_interval_ms": kit.HEARTBEAT_MS}
    old = KafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, **timing)

    def old_has(check: Callable[[set[tuple[str, int]]], bool]) -> bool:
        old.poll(LONG_POLL_MS)
        return check(owned_by(old))

    wait_for(lambda: old_has(lambda owned: owned == spots), "all partitions")
    new = Member(bootstrap, group, [topic], config=NEW)
    pump(
        [new],
        lambda: old_has(lambda owned: len(owned) == 2 and owned | new.owned == spots and not owned & new.owned),
        "two partitions each",
    )
    new.close()
    wait_for(lambda: old_has(lambda owned: owned == spots), "all partitions again")
    old.close()


def test_aiokafka_shares_a_group_with_a_member_of_the_new_protocol(
    bootstrap: str, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic(partitions=4)
    spots = spots_of(topic, 4)

    async def story() -> None:
        timing = {"session_timeout_ms": kit.SESSION_MS, "heartbeat_interval_ms": kit.HEARTBEAT_MS}
        old = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False, **timing)
        await old.start()

        async def until(check: Callable[[set[tuple[str, int]]], bool], step: Callable[[], object]) -> None:
            async with asyncio.timeout(DEADLINE_S):
                while not check(owned_by(old)):
                    await old.getmany(timeout_ms=POLL_MS)
                    await asyncio.to_thread(step)

        await until(lambda owned: owned == spots, lambda: None)
        new = Member(bootstrap, group, [topic], config=NEW)
        await until(lambda owned: len(owned) == 2 and owned | new.owned == spots and not owned & new.owned, new.step)
        await asyncio.to_thread(new.close)
        await until(lambda owned: owned == spots, lambda: None)
        await old.stop()

    asyncio.run(story())
