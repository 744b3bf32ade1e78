"""What becomes of a message that died in a queue: which dead letters, to whom.

To the queue or topic that its queue names (`dead_letter`), or wherever an exchange sends it (`dead_letter_exchange`):
with the queue's `dead_letter_key`, or with the message's own routing keys. The bindings that count are those of the
moment of the move. A dead letter that would go round in a circle is left out, and so is one that nobody takes: then the
message ends.

Only the mover of dead letters calls this (`dead_letters.py`), and `redriving.py`, which sends what is dead already.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from waystation.errors import Invalid, NotAllowed, NotFound
from waystation.message import Message
from waystation.queues.failure_history import TOPIC_TARGET, X_DEATH, brief, copied_to, cycles, with_death
from waystation.queues.shard.queue import Death, Queue
from waystation.routing.exchanges.binding import QUEUE, TOPIC
from waystation.routing.namespace_names import prefix_of

if TYPE_CHECKING:
    from waystation.core import Core
    from waystation.transactions.transacting import Tx

COPIES = ("CC", "BCC")

AddressedDeadLetter = tuple[str, Message]
"""(a queue's name, or "topic:" and a topic's; what it gets)."""


def dead_letters_of(
    broker: Core, queue: Queue, entry: int, message: Message, death: Death
) -> list[AddressedDeadLetter]:
    """All that is to be sent, perhaps nothing."""
    if not queue.settings.keeps_dead:  # it did when this one died
        return []
    deliveries = queue.open_ledger().deliveries_of(entry)
    history = with_death(message, queue.name, death.reason, death.at_ms, deliveries, death.error)
    target = queue.settings.dead_letter
    if target is not None:
        known = message.id if message.id is not None else f"{queue.name}#{entry}"
        dead_letter = _reborn(message, {**message.headers, X_DEATH: history}, id=known)
        found = [target]
    else:
        dead_letter, found = _through_exchange(broker, queue, message, history)
    return [(to, dead_letter) for to in found if not cycles(message, queue.name, to, death.reason)]


async def send(tx: Tx, target: str, messages: list[Message]) -> None:
    """In a transaction, to a queue or a topic."""
    if target.startswith(TOPIC_TARGET):
        await tx.publish(target.removeprefix(TOPIC_TARGET), messages)
    else:
        await tx.put(target, messages, moved=True)


def _reborn(message: Message, headers: dict[str, Any], **changes: str | None) -> Message:
    """It can wait: its delay and its time to live were of its last life."""
    return msgspec.structs.replace(message, headers=headers, delay_ms=0, deliver_at_ms=None, ttl_ms=None, **changes)


def _through_exchange(broker: Core, queue: Queue, message: Message, history: list[Any]) -> tuple[Message, list[str]]:
    """The dead letter, and where the queue's exchange sends it."""
    exchange, key = queue.settings.dead_letter_exchange or "", queue.settings.dead_letter_key
    namespace = broker.namespaces.of(queue.name)
    prefix = prefix_of(namespace)
    headers = {**message.headers, **brief(history, message), X_DEATH: history}
    if key is not None:
        keys = [key]
        for name in COPIES:
            headers.pop(name, None)
    else:
        # What came without a routing key, by another protocol, was sent to the queue by its name.
        own = message.routing_key if message.routing_key is not None else queue.name.removeprefix(prefix)
        keys = [own, *copied_to(message, *COPIES)]
    dead_letter = _reborn(message, headers, exchange=exchange.removeprefix(prefix), routing_key=keys[0])
    found: dict[str, None] = {}
    for routing_key in keys:
        if not exchange and broker.namespaces.of(prefix + routing_key) != namespace:
            continue  # the default exchange of a namespace reaches that namespace's queues alone
        for target in _route(broker, exchange, dead_letter, routing_key if exchange else prefix + routing_key):
            found[target] = None
    return dead_letter, list(found)


def _route(broker: Core, exchange: str, dead_letter: Message, key: str) -> list[str]:
    """Where it goes with one key; nowhere, if there is no such exchange."""
    try:
        targets = broker.routing.route(exchange, dead_letter, key)
    except (NotFound, Invalid):
        return []
    return [
        name if kind == QUEUE else f"{TOPIC_TARGET}{name}"
        for kind, _, name in (target.partition(":") for target in targets)
        if _takes_dead_letters(broker, kind, name)
    ]


def _takes_dead_letters(broker: Core, kind: str, name: str) -> bool:
    if kind == TOPIC:
        return name in broker.topics and not broker.topics.get(name).internal
    try:
        broker.queues.of_users(name)
    except (NotFound, NotAllowed):
        return False
    return True
