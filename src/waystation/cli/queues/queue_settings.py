"""A queue's settings as options of the command line and as people read them.

The names are those of `QueueSettings` without their units: `ttl_ms` is `--ttl 30s`. Only `hold_ms` has another one, the
field's: `--visibility-timeout`.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal import setting_units
from waystation.cli.terminal.arguments import not_negative, positive
from waystation.cli.terminal.units import duration, fraction, size
from waystation.durations import spell_ms
from waystation.errors import Invalid, near_matches

if TYPE_CHECKING:
    from waystation.client.options.queue_options import QueueOptions
    from waystation.queues.settings import QueueSettings

OVERFLOWS = ("reject", "drop-oldest", "dead-letter", "reject-dead-letter")

_OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("max_deliveries", {"type": not_negative, "metavar": "N", "help": "failures until a message is dead (0: never)"}),
    ("retry_base", {"type": duration, "metavar": "TIME", "help": "delay of the first retry (default: 1s)"}),
    ("retry_factor", {"type": fraction, "metavar": "F", "help": "factor of the backoff (default: 2)"}),
    ("retry_max", {"type": duration, "metavar": "TIME", "help": "maximum delay of a retry (default: 1h)"}),
    ("retry_jitter", {"type": fraction, "metavar": "F", "help": "0.2 spreads it from 80 to 120 percent (default: 0)"}),
    (
        "dead_letter",
        {"metavar": "QUEUE", "help": "dead-letter queue, or topic:NAME (default: dead messages are deleted)"},
    ),
    ("dead_letter_exchange", {"metavar": "EXCHANGE", "help": "or the exchange that they are published to"}),
    ("dead_letter_key", {"metavar": "KEY", "help": "with this routing key (default: their own)"}),
    (
        "hold",
        {"type": duration, "metavar": "TIME", "help": "redelivered if not settled within this time (default: 30s)"},
    ),
    ("ttl", {"type": duration, "metavar": "TIME", "help": "messages expire after this time"}),
    ("max_length", {"type": positive, "metavar": "N", "help": "maximum number of messages"}),
    ("max_bytes", {"type": size, "metavar": "SIZE", "help": "maximum size, like 64MiB"}),
    ("overflow", {"choices": OVERFLOWS, "help": "what a full queue does (default: reject)"}),
    (
        "dedup_window",
        {"type": duration, "metavar": "TIME", "help": "how long an id is remembered (default: it is not)"},
    ),
    ("max_priority", {"type": not_negative, "metavar": "0-255", "help": "priorities it tells apart (default: 9)"}),
    ("expires", {"type": duration, "metavar": "TIME", "help": "the queue is deleted when unused for this time"}),
)
_SWITCHES = (
    ("single_active", "one consumer at a time gets messages"),
    ("auto_delete", "the queue is deleted with its last consumer"),
    ("durable", "the queue survives a restart of the broker (default)"),
)
NAMES = tuple(name for name, _ in (*_OPTIONS, *_SWITCHES))
_SPELLED = {"hold": "visibility-timeout"}
RETRY = ("retry_base", "retry_factor", "retry_max", "retry_jitter")
_IN_MS = ("retry_base", "retry_max", "hold", "ttl", "dedup_window", "expires")


def add_queue_settings(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("settings (times like 30s, 5m, 2h, 7d)")
    for name, how in _OPTIONS:
        group.add_argument(f"--{spelled(name)}", dest=name, default=None, **how)
    group.add_argument("--hold", dest="hold", type=duration, help=argparse.SUPPRESS)
    for name, help_text in _SWITCHES:
        group.add_argument(f"--{spelled(name)}", action=argparse.BooleanOptionalAction, default=None, help=help_text)


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that were said, by name."""
    return {name: getattr(arguments, name) for name in NAMES if getattr(arguments, name) is not None}


def setting_name(text: str) -> str:
    """Reads what `--unset` takes."""
    name = text.removeprefix("--").replace("-", "_").removesuffix("_ms")
    name = {said.replace("-", "_"): known for known, said in _SPELLED.items()}.get(name, name)
    if name not in NAMES:
        known = [spelled(one) for one in NAMES]
        hint = near_matches(text.removeprefix("--"), known) or f"; there are {', '.join(known)}"
        raise Invalid(f"--unset {text}: there is no such setting{hint}")
    return name


def spelled(name: str) -> str:
    return _SPELLED.get(name) or name.replace("_", "-")


def queue_options(said: dict[str, Any]) -> QueueOptions:
    """As the client takes them."""
    from waystation.client.options.queue_options import Retry

    options: Any = {name: value for name, value in said.items() if name not in RETRY}
    retry = {name.removeprefix("retry_"): value for name, value in said.items() if name in RETRY}
    if retry:
        options["retry"] = Retry(**retry)
    return options  # type: ignore[no-any-return]  # NAMES are its keys, which a test compares


def changed(before: QueueSettings, options: QueueOptions) -> QueueSettings:
    """What a queue's settings are after a change."""
    from msgspec.structs import replace

    from waystation.client.options.queue_options import changed_settings

    wanted, fields = changed_settings(options)
    return replace(before, **{field: getattr(wanted, field) for field in fields})


def values_of(settings: QueueSettings) -> dict[str, Any]:
    """All settings of a queue as the command line says them; `None` is none."""
    values: dict[str, Any] = {}
    for name in NAMES:
        value = getattr(settings, f"{name}_ms" if name in _IN_MS else name)
        values[name] = value / 1000 if name in _IN_MS and value is not None else value
    return values


def spell_settings(settings: QueueSettings, *, every: bool) -> list[tuple[str, str]]:
    """Names and values to read: those that differ from the default, or all."""
    default = values_of(type(settings)())
    return [
        (spelled(name), _spell(name, value))
        for name, value in values_of(settings).items()
        if every or value != default[name]
    ]


def _spell(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name in _IN_MS:
        ms = round(value * 1000)
        return f"{spell_ms(ms)} ({ms} ms)"
    if name == "max_bytes":
        return setting_units.spelled("max.bytes", str(value))
    return f"{value:g}" if isinstance(value, float) else str(value)
