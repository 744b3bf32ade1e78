"""A partition takes what is published only while this broker leads it; what is there is read all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.broker.kit import broker_on, run
from waystation.errors import NotLeader
from waystation.message import Message
from waystation.protocols.kafka.errors_map import code_of


def test_a_partition_that_is_not_led_refuses_and_stays_readable(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            topic = await broker.topics.create("t", 1)
            partition = topic.partition(0)
            broker.messages.publish("t", [Message(b"first")])
            assert partition.leads
            partition.follow(partition.epoch + 1)
            assert not partition.leads
            with pytest.raises(NotLeader) as refused:
                broker.messages.publish("t", [Message(b"second")])
            assert code_of(refused.value).name == "not_leader_or_follower"
            assert [one.message.payload for one in broker.messages.history("t", 10)] == [b"first"]
            assert partition.end_offset == 1

    run(main())


def test_what_is_appended_after_a_change_of_leaders_has_the_new_epoch(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path / "a") as broker:
            partition = (await broker.topics.create("t", 1)).partition(0)
            broker.messages.publish("t", [Message(b"first")])
            first = partition.epoch
            partition.follow(first + 1)
            partition.lead(first + 2)
            broker.messages.publish("t", [Message(b"second")])
            assert [header.leader_epoch for _, header in partition.batches_from(0)] == [first, first + 2]
            assert partition.epochs.end_offset_for(first, partition.end_offset) == (first, 1)

    run(main())
