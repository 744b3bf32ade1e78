"""The real `confluent_kafka.ShareConsumer`: all members of a group have work, where there are partitions enough."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from confluent_kafka.admin import AdminClient

from tests.clients import kit
from tests.clients.share_kit import from_the_beginning, poll, share_consumer
from tests.clients.stage import NewTopicCall
from tests.protocols.kafka.pipeline import Pipeline
from tests.support.waiting import wait_for

EACH = 100


def test_two_members_of_four_partitions_have_two_each(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic(4)
    from_the_beginning(admin, group)
    got: list[Counter[int | None]] = [Counter(), Counter()]
    with Pipeline(bootstrap) as line, ExitStack() as open_members:
        members = [open_members.enter_context(share_consumer(bootstrap, group, [topic])) for _ in got]

        def read() -> None:
            for member, mine in zip(members, got, strict=True):
                for message in poll(member, 0.05):
                    member.acknowledge(message)
                    mine[message.partition()] += 1

        def settled() -> bool:
            read()
            (view,) = line.ask("share_group_describe", 1, group_ids=[group]).groups
            return len(view.members) == 2 and all(one.member_epoch == view.group_epoch for one in view.members)

        wait_for(settled, "both members know their partitions")
        for partition in range(4):
            kit.produce(bootstrap, topic, kit.numbered(EACH), partition=partition)

        def all_read() -> bool:
            read()
            return sum(one.total() for one in got) == 4 * EACH

        wait_for(all_read, "all records")
    assert [sorted(one.values()) for one in got] == [[EACH, EACH], [EACH, EACH]]
