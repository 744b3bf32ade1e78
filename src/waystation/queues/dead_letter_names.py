"""Where the dead of a group of subscribers go if nobody has said it: a queue that is named after topic and group.

`orders` and the group `billing` make `orders.billing.dead`; in a namespace the queue is in it, too: `shop.orders` and
`shop/billing` make `shop/orders.billing.dead`. The queue is created with the first dead letter. Pure; for shared and
stream subscriptions.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from waystation.queues.settings import MAX_NAME_BYTES
from waystation.routing.namespace_names import DEFAULT, prefix_of, split_full_name, topic_prefix_of

SUFFIX = ".dead"
_DIGITS = 16


def default_dead_letter(topic: str, group: str) -> str:
    """The queue's name. One that would be too long, or that no queue can have, ends with a digest of the group's."""
    name = f"{_queue_of(topic, group)}{SUFFIX}"
    if group.isprintable() and len(name.encode()) <= MAX_NAME_BYTES:
        return name
    digest = sha256(f"{topic}\0{group}".encode(errors="replace")).hexdigest()[:_DIGITS]
    return f"{topic[: MAX_NAME_BYTES - len(SUFFIX) - _DIGITS - 1]}.{digest}{SUFFIX}"


def _queue_of(topic: str, group: str) -> str:
    namespace, local = split_full_name(group)
    prefix = topic_prefix_of(namespace)
    if namespace == DEFAULT or not topic.startswith(prefix):
        return f"{topic}.{group}"
    return f"{prefix_of(namespace)}{topic.removeprefix(prefix)}.{local}"


def topics_and_groups(queue: str) -> Iterator[tuple[str, str]]:
    """Whose dead may be in a queue of this name: each topic and group that make it. One with a digest tells nothing."""
    if not queue.endswith(SUFFIX):
        return
    name = queue.removesuffix(SUFFIX)
    namespace, local = split_full_name(name)
    if namespace != DEFAULT:
        topics, prefix = topic_prefix_of(namespace), prefix_of(namespace)
        at = local.find(".")
        while at >= 0:
            yield topics + local[:at], prefix + local[at + 1 :]
            at = local.find(".", at + 1)
    at = name.find(".")
    while at >= 0:
        yield name[:at], name[at + 1 :]
        at = name.find(".", at + 1)
