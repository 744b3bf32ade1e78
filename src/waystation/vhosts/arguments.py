"""A queue's settings as AMQP says them: flags and `x-` arguments, checked, translated, compared and given back.

Texts of refusals are RabbitMQ's, down to its way of writing values, since people look for them by their wording. What a
declaration says and what is there are compared as arguments, both in the form that `arguments_of` gives them, so that
two ways to say the same are the same. Arguments that say where or how RabbitMQ keeps a queue are checked and mean
nothing; unknown ones are passed over, as there. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any

from waystation.broker.access.types import DEFAULT, NamespaceNames, Overflow, QueueSettings, declared
from waystation.message import HIGHEST_PRIORITY, MAX_HORIZON_MS
from waystation.wire.amqp.errors import PRECONDITION_FAILED, AmqpError
from waystation.wire.amqp.template import AT_ONCE_MS

QUEUE_TYPE = "x-queue-type"
EXPIRES = "x-expires"
MESSAGE_TTL = "x-message-ttl"
DEAD_LETTER_EXCHANGE = "x-dead-letter-exchange"
DEAD_LETTER_KEY = "x-dead-letter-routing-key"
MAX_LENGTH = "x-max-length"
MAX_LENGTH_BYTES = "x-max-length-bytes"
MAX_PRIORITY = "x-max-priority"
OVERFLOW = "x-overflow"
SINGLE_ACTIVE = "x-single-active-consumer"
DELIVERY_LIMIT = "x-delivery-limit"
CONSUMER_TIMEOUT = "x-consumer-timeout"
QUEUE_MODE = "x-queue-mode"
QUEUE_VERSION = "x-queue-version"

CLASSIC, QUORUM = "classic", "quorum"
COMPARED = (
    EXPIRES, MESSAGE_TTL, DEAD_LETTER_EXCHANGE, DEAD_LETTER_KEY, MAX_LENGTH, MAX_LENGTH_BYTES, MAX_PRIORITY, OVERFLOW,
    SINGLE_ACTIVE, DELIVERY_LIMIT, CONSUMER_TIMEOUT, QUEUE_TYPE,
)  # fmt: skip
"""What has to agree when a queue is declared again, in this order."""

OVERFLOWS: dict[str, Overflow] = {
    "drop-head": "drop-oldest",
    "reject-publish": "reject",
    "reject-publish-dlx": "reject-dead-letter",
}
_OVERFLOW_NAMES = {ours: theirs for theirs, ours in OVERFLOWS.items()} | {"dead-letter": "reject-publish-dlx"}
_UNFIT = {
    CLASSIC: ("x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes"),
    QUORUM: ("x-max-age", "x-stream-max-segment-size-bytes", "x-stream-filter-size-bytes", MAX_PRIORITY, QUEUE_MODE,
             QUEUE_VERSION),
}  # fmt: skip
"""Arguments that mean something to another type of queue alone."""

MAX_TEXT_BYTES = 255
"""Of an exchange's name and of a routing key."""
_MOST = 2**53
_MOST_DELIVERIES = 2**31 - 2

Check = Callable[[Any], str | None]
"""What is wrong with a value, as RabbitMQ writes it; None: nothing."""


# -- values ------------------------------------------------------------------------------------------------------------


def type_of(value: object) -> str:
    """The AMQP type of a value, by RabbitMQ's name for it."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "signedint" if -(2**31) <= value < 2**31 else "long"
    for kind, name in _TYPES:
        if isinstance(value, kind):
            return name
    return "void"


_TYPES: tuple[tuple[type, str], ...] = (
    (str, "longstr"),
    (bytes, "binary"),
    (bytearray, "binary"),
    (float, "double"),
    (Decimal, "decimal"),
    (datetime, "timestamp"),
    (dict, "table"),
    (list, "array"),
)


def shown(value: object) -> str:
    """A value as RabbitMQ writes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def inequivalent(name: str, where: str, received: object, current: object) -> AmqpError:
    """406: it is there, and it is another. None stands for an argument that is not given."""
    if received is None or current is None:
        texts = [_with_type(received), _with_type(current)]
    else:
        texts = [f"'{shown(received)}'", f"'{shown(current)}'"]
    text = f"inequivalent arg '{name}' for {where}: received {texts[0]} but current is {texts[1]}"
    return AmqpError(PRECONDITION_FAILED, text)


def _with_type(value: object) -> str:
    return "none" if value is None else f"the value '{shown(value)}' of type '{type_of(value)}'"


# -- checks ------------------------------------------------------------------------------------------------------------


def _whole(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f'"expected integer, got {type_of(value)}"'
    return None


def _number(lowest: int, highest: int | None, exceeded: str = "value_too_large") -> Check:
    def check(value: Any) -> str | None:
        wrong = _whole(value)
        if wrong is not None:
            return wrong
        if value < lowest:
            return f"{{{'value_zero' if value == 0 else 'value_negative'},{value}}}"
        return f"{{{exceeded},{value}}}" if highest is not None and value > highest else None

    return check


def _text(value: Any) -> str | None:
    if not isinstance(value, str):
        return f"{{unacceptable_type,{type_of(value)}}}"
    size = len(value.encode(errors="replace"))
    return f'"it has {size} bytes, the limit is {MAX_TEXT_BYTES}"' if size > MAX_TEXT_BYTES else None


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else f"{{unacceptable_type,{type_of(value)}}}"


def _one_of(names: Mapping[str, Any] | tuple[str, ...], refusal: str) -> Check:
    def check(value: Any) -> str | None:
        if not isinstance(value, str):
            return f"{{unacceptable_type,{type_of(value)}}}"
        return None if value in names else refusal.format(value[:60])

    return check


def _version(value: Any) -> str | None:
    wrong = _whole(value)
    return wrong if wrong is not None or value in (1, 2) else f"\"unsupported queue version '{value}'\""


_CHECKS: dict[str, Check] = {
    QUEUE_TYPE: _one_of((CLASSIC, QUORUM), "\"unsupported queue type '{}'\""),
    EXPIRES: _number(1, MAX_HORIZON_MS),
    MESSAGE_TTL: _number(0, MAX_HORIZON_MS),
    DEAD_LETTER_EXCHANGE: _text,
    DEAD_LETTER_KEY: _text,
    MAX_LENGTH: _number(0, None),
    MAX_LENGTH_BYTES: _number(0, None),
    MAX_PRIORITY: _number(0, HIGHEST_PRIORITY, "max_value_exceeded"),
    OVERFLOW: _one_of(OVERFLOWS, "invalid_overflow"),
    SINGLE_ACTIVE: _flag,
    DELIVERY_LIMIT: _number(-1, _MOST_DELIVERIES),
    CONSUMER_TIMEOUT: _number(1, MAX_HORIZON_MS),
    QUEUE_MODE: _one_of(("default", "lazy"), "\"unsupported queue mode '{}'\""),
    QUEUE_VERSION: _version,
}


def check_arguments(arguments: Mapping[str, Any], where: str) -> None:
    """Raises 406, naming the argument. `where`: the queue, as texts call it."""
    exchange = arguments.get(DEAD_LETTER_EXCHANGE, "")
    if not isinstance(exchange, str):
        wrong = f"invalid type '{type_of(exchange)}' for arg '{DEAD_LETTER_EXCHANGE}' in {where}"
        raise AmqpError(PRECONDITION_FAILED, wrong)
    for name, check in _CHECKS.items():
        if name in arguments:
            reason = check(arguments[name])
            if reason is None and name == DEAD_LETTER_KEY and DEAD_LETTER_EXCHANGE not in arguments:
                reason = "routing_key_but_no_dlx_defined"
            if reason is not None:
                raise AmqpError(PRECONDITION_FAILED, f"invalid arg '{name}' for {where}: {reason}")
    queue_type = arguments.get(QUEUE_TYPE, CLASSIC)
    for name in _UNFIT[queue_type]:
        if name in arguments:
            wrong = f"invalid arg '{name}' for {where} of queue type rabbit_{queue_type}_queue"
            raise AmqpError(PRECONDITION_FAILED, wrong)


def _check_quorum(where: str, *, durable: bool, exclusive: bool, auto_delete: bool) -> None:
    for wrong, name in ((not durable, "non-durable"), (auto_delete, "auto-delete"), (exclusive, "exclusive-owner")):
        if wrong:
            raise AmqpError(PRECONDITION_FAILED, f"invalid property '{name}' for {where}")


# -- to settings and back ----------------------------------------------------------------------------------------------


def settings_of(
    arguments: Mapping[str, Any],
    names: NamespaceNames,
    where: str,
    *,
    durable: bool = True,
    exclusive: bool = False,
    auto_delete: bool = False,
) -> QueueSettings:
    """What a declaration asks for; 406 if it makes no sense."""
    check_arguments(arguments, where)
    queue_type = arguments.get(QUEUE_TYPE, CLASSIC)
    if queue_type == QUORUM:
        _check_quorum(where, durable=durable, exclusive=exclusive, auto_delete=auto_delete)
    exchange = arguments.get(DEAD_LETTER_EXCHANGE)
    return QueueSettings(
        max_deliveries=arguments.get(DELIVERY_LIMIT, -1) + 1,
        retry_base_ms=0,
        hold_ms=arguments.get(CONSUMER_TIMEOUT, MAX_HORIZON_MS),
        ttl_ms=AT_ONCE_MS if arguments.get(MESSAGE_TTL) == 0 else _at_least_one(arguments.get(MESSAGE_TTL)),
        max_length=_at_least_one(arguments.get(MAX_LENGTH)),
        max_bytes=_at_least_one(arguments.get(MAX_LENGTH_BYTES)),
        overflow=OVERFLOWS[arguments.get(OVERFLOW, "drop-head")],
        single_active=arguments.get(SINGLE_ACTIVE, False),
        expires_ms=arguments.get(EXPIRES),
        auto_delete=auto_delete,
        exclusive=exclusive,
        durable=durable,
        max_priority=arguments.get(MAX_PRIORITY, 0),
        dead_letter_exchange=names.full(exchange) if exchange else exchange,
        dead_letter_key=arguments.get(DEAD_LETTER_KEY),
        queue_type=queue_type,
    )


def _at_least_one(value: int | None) -> int | None:
    """Queues know no limit of nothing; what comes nearest to it is one."""
    return None if value is None else min(max(value, 1), _MOST)


def arguments_of(settings: QueueSettings, names: NamespaceNames | None = None) -> dict[str, Any]:
    """What a declaration of a queue with these settings says, without what policies have put in their place.

    What is usual for an AMQP client is left out. `names`: the virtual host's, for the names of exchanges.
    """
    names = names or NamespaceNames(DEFAULT)
    settings = declared(settings)
    found: dict[str, Any] = {
        EXPIRES: settings.expires_ms,
        MESSAGE_TTL: settings.ttl_ms,
        MAX_LENGTH: settings.max_length,
        MAX_LENGTH_BYTES: settings.max_bytes,
        MAX_PRIORITY: settings.max_priority or None,
        OVERFLOW: _overflow_of(settings),
        SINGLE_ACTIVE: settings.single_active or None,
        DELIVERY_LIMIT: settings.max_deliveries - 1 if settings.max_deliveries else None,
        CONSUMER_TIMEOUT: settings.hold_ms if settings.hold_ms != MAX_HORIZON_MS else None,
        QUEUE_TYPE: settings.queue_type if settings.queue_type != CLASSIC else None,
    }
    if settings.dead_letter_exchange is not None:
        found[DEAD_LETTER_EXCHANGE] = names.local(settings.dead_letter_exchange)
        found[DEAD_LETTER_KEY] = settings.dead_letter_key
    elif settings.dead_letter is not None and not settings.dead_letter.startswith("topic:"):
        found[DEAD_LETTER_EXCHANGE] = ""
        found[DEAD_LETTER_KEY] = names.local(settings.dead_letter)
    return {name: found[name] for name in COMPARED if found.get(name) is not None}


def _overflow_of(settings: QueueSettings) -> str | None:
    """Of a queue of another protocol it is worth a word only if the queue can overflow."""
    if settings.overflow == "drop-oldest":
        return None
    if settings.queue_type is None and settings.max_length is None and settings.max_bytes is None:
        return None
    return _OVERFLOW_NAMES[settings.overflow]


def check_same(
    present: QueueSettings, asked: QueueSettings, arguments: Mapping[str, Any], names: NamespaceNames, where: str
) -> None:
    """Raises 406 if the queue that is there is another than the declaration wants.

    One that an AMQP client declared has to agree in everything; one that another protocol declared, in what the
    declaration names, since the client cannot know the rest.
    """
    foreign = present.queue_type is None
    for flag in ("durable", "auto_delete"):
        there, wanted = getattr(present, flag), getattr(asked, flag)
        if there != wanted and (wanted or not foreign):
            raise inequivalent(flag, where, wanted, there)
    there_now, wanted_now = arguments_of(present, names), arguments_of(asked, names)
    for name in COMPARED:
        if foreign and (name not in arguments or name == QUEUE_TYPE):
            continue
        if wanted_now.get(name) != there_now.get(name):
            raise inequivalent(name, where, arguments.get(name, wanted_now.get(name)), there_now.get(name))
