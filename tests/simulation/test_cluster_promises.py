"""What the simulation of a cluster takes for a broken promise of a queue, and what not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

from tests.simulation.cluster_clients import epoch_at, open_consumer, put
from tests.simulation.cluster_machine import ClusterMachine
from tests.simulation.cluster_promises import Letter, Promises
from tests.simulation.promises import Broken
from waystation.message import Message
from waystation.queues.feed import Verdict
from waystation.topics.topics import QUEUES_TOPIC


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_only_a_leader_before_the_one_that_wrote_down_an_ack_may_deliver_once_more() -> None:
    promises = Promises()
    letter = promises.letters[1] = Letter("jobs")
    for epoch in (1, 2, 3):
        promises.delivered("jobs", 1, 0, epoch, 0.0, 0)
    letter.done, letter.done_in = True, 2
    promises.delivered("jobs", 1, 0, 1, 0.0, 0)
    for epoch in (2, 3):
        with pytest.raises(Broken, match="after its ack"):
            promises.delivered("jobs", 1, 0, epoch, 0.0, 0)


class _PausedLeader(ClusterMachine):
    """Of the queues: another leads meanwhile. When it goes on, it answers a consumer, and is told of the other right
    after that, before the consumer has the answer."""

    async def _main(self, seconds: float) -> None:
        await self.begin()
        clients = self.clients
        old = clients.leader(QUEUES_TOPIC)
        letter = clients.promises.letters[1] = Letter("jobs")
        await old.ask(lambda broker: put(broker, "jobs", Message(b"1")))
        consumer = await old.ask(lambda broker: open_consumer(broker, "jobs"))
        assert old.life is not None
        self.loop.pause(old.life)
        asked = asyncio.ensure_future(clients.get(old, consumer, 1))
        await self.until(lambda: any(one.leads for _, one in clients.replicas(QUEUES_TOPIC)), "another one leads")

        new = clients.leader(QUEUES_TOPIC)
        other = await new.ask(lambda broker: open_consumer(broker, "jobs"))
        (one,) = await clients.get(new, other, 1)
        await clients.settle(new, new.broker, other, one, Verdict.ACK)
        assert letter.done

        self.loop.resume(old.life)
        (again,) = await asked
        assert again.message.payload == b"1"
        assert old.broker is not None
        assert consumer.epoch < epoch_at(old.broker, QUEUES_TOPIC)


def test_a_leader_may_learn_of_its_successor_before_its_answer_arrives() -> None:
    _PausedLeader(1, faults=[], work=["queues"], nodes=3).run()
