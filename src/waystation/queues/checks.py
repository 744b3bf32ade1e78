"""What may be declared: a queue of this name with these settings, and how it differs from one that is there."""

from __future__ import annotations

from waystation.errors import Invalid
from waystation.queues.failure_history import TOPIC_TARGET
from waystation.queues.names import check_not_internal
from waystation.queues.settings import QueueSettings, check_queue_name, check_settings, declared
from waystation.queues.shard.queue import Queue
from waystation.routing.exchanges.binding import check_key
from waystation.routing.table import check_exchange_name
from waystation.topics.topics import check_name as check_topic_name


def check_declaration(name: str, settings: QueueSettings) -> None:
    """Raises, naming the field, unless a queue of this name can have these settings."""
    check_queue_name(name)
    check_settings(settings)
    target = settings.dead_letter
    if target == name:
        raise Invalid(f"dead_letter: queue {name!r} cannot be its own")
    if target is not None:
        topic = target.removeprefix(TOPIC_TARGET)
        check_not_internal(topic, "dead_letter")
        if topic == target:
            check_queue_name(target, "dead_letter")
        else:
            try:
                check_topic_name(topic)
            except Invalid as error:
                raise Invalid(f"dead_letter: {error}") from error
    _check_exchange(settings)


def _check_exchange(settings: QueueSettings) -> None:
    """It need not be there, but there must be such a name. The default exchange has none."""
    try:
        if settings.dead_letter_exchange:
            check_exchange_name(settings.dead_letter_exchange)
    except Invalid as error:
        raise Invalid(f"dead_letter_exchange: {error}") from error
    try:
        check_key(settings.dead_letter_key or "")
    except Invalid as error:
        raise Invalid(f"dead_letter_key: {error}") from error


def difference(queue: Queue, settings: QueueSettings) -> str:
    present = declared(queue.settings)
    fields = [name for name in settings.__struct_fields__ if getattr(settings, name) != getattr(present, name)]
    shown = ", ".join(f"{name} is {getattr(present, name)!r}, not {getattr(settings, name)!r}" for name in fields)
    return f"queue {queue.name!r} exists with other settings: {shown}; declare it with the same settings, or alter it"
