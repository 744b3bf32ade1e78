"""Every verb of Access and its facets asks whether the principal may, before it has any effect.

The verbs are walked, not listed: one that is added without the question fails here. The broker is a real one behind a
glass that notes which of its parts is touched.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.broker.queue_kit import Machine
from tests.simulation.world import Simulation
from tests.support.permissions import RefusesEverything
from waystation.broker.access import Access
from waystation.broker.access.exchanges import ExchangeAccess
from waystation.broker.access.inboxes import InboxAccess
from waystation.broker.access.namespaces import NamespaceAccess
from waystation.broker.access.policies import PolicyAccess
from waystation.broker.access.queue_figures import QueueFigureAccess
from waystation.broker.access.stream_queues import StreamQueueAccess
from waystation.broker.access.topic_queues import TopicQueueAccess
from waystation.broker.access.types import ANONYMOUS, DEFAULT, Policy, TopicQueueSettings
from waystation.broker.broker import Broker
from waystation.errors import NotAllowed
from waystation.message import Message

FACETS = (
    ExchangeAccess,
    InboxAccess,
    NamespaceAccess,
    PolicyAccess,
    QueueFigureAccess,
    StreamQueueAccess,
    TopicQueueAccess,
)

NOT_ASKED = {
    "InboxAccess.close": "gives up what the session itself has opened",
}

POLICY = Policy("/", "limits", "^jobs", {"max-length": 1})
ARGUMENTS: dict[str, dict[str, Any]] = {
    "PolicyAccess.set": {"policy": POLICY},
    "PolicyAccess.set_all": {"policies": [POLICY]},
    "TopicQueueAccess.declare": {"settings": TopicQueueSettings(topic="orders")},
}
"""Where a name is not what is asked for."""

VERBS_OF_VHOSTS = (
    *("declare_queue", "delete_queue", "purge_queue", "describe_queue", "queue_exists", "look_up_queue"),
    *("consume", "getter", "declare_exchange", "delete_exchange", "bind", "unbind", "describe_exchange"),
    "resolve",
)


class Watched:
    """A broker whose parts nobody touches without being seen."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.touched: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.touched.add(name)
        return getattr(self._broker, name)


def with_watched(work: Callable[[Any], Any]) -> None:
    simulation = Simulation(1)

    async def main() -> None:
        machine = Machine(simulation)
        broker = await machine.start()
        try:
            broker.permissions = RefusesEverything()
            await work(Watched(broker))
        finally:
            await broker.stop()

    simulation.run(main())


def verbs(cls: type) -> Iterator[str]:
    return (name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_"))


async def call(target: Any, name: str) -> None:
    """With something for every argument that has to be there; what it is, nobody comes to look."""
    verb = getattr(target, name)
    given = dict(ARGUMENTS.get(f"{type(target).__name__}.{name}", {}))
    for parameter in inspect.signature(verb).parameters.values():
        needed = parameter.default is inspect.Parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if needed and parameter.name not in given:
            given[parameter.name] = Message(b"x") if parameter.name == "message" else "jobs"
    found = verb(**given)
    if asyncio.iscoroutine(found):
        await found


@pytest.mark.parametrize(
    ("facet", "name"),
    [
        pytest.param(facet, name, id=f"{facet.__name__}.{name}")
        for facet in FACETS
        for name in verbs(facet)
        if f"{facet.__name__}.{name}" not in NOT_ASKED
    ],
)
def test_a_verb_of_a_facet_asks_before_it_touches_anything(facet: type, name: str) -> None:
    async def work(broker: Any) -> None:
        with pytest.raises(NotAllowed):
            await call(facet(broker, ANONYMOUS), name)
        assert broker.touched == {"permissions"}

    with_watched(work)


@pytest.mark.parametrize("name", VERBS_OF_VHOSTS)
def test_a_verb_that_virtual_hosts_use_asks_before_it_touches_anything(name: str) -> None:
    async def work(broker: Any) -> None:
        access = Access(broker, ANONYMOUS, DEFAULT, broker.meters.amqp)
        broker.touched.clear()
        with pytest.raises(NotAllowed):
            await call(access, name)
        assert broker.touched == set()

    with_watched(work)


def test_the_walk_sees_a_verb_that_does_not_ask() -> None:
    class Forgetful(InboxAccess):
        def waiting(self) -> int:
            return len(self._broker.inboxes)

    async def work(broker: Any) -> None:
        await call(Forgetful(broker, ANONYMOUS), "waiting")
        assert broker.touched == {"inboxes"}

    assert "waiting" in verbs(Forgetful)
    with_watched(work)
