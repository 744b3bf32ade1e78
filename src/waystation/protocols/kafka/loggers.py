"""The broker's loggers as Kafka's BROKER_LOGGER resource: their levels, told and changed at run time.

Only loggers of this package are touched: the process may be somebody else's program with a broker inside. A level
changed here lasts until the process ends. Called by `configs.py` only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from waystation.errors import Invalid, InvalidSetting

ROOT = "waystation"

LEVELS = {
    "TRACE": 5,
    "DEBUG": logging.DEBUG,
    "INFO": logging.INFO,
    "WARN": logging.WARNING,
    "ERROR": logging.ERROR,
    "FATAL": logging.CRITICAL,
}
"""Kafka's names, least severe first. Python has no TRACE; half of DEBUG is the usual stand-in."""


def names() -> list[str]:
    """The loggers that exist by now."""
    found = [name for name in logging.root.manager.loggerDict if name.startswith(f"{ROOT}.")]
    return [ROOT, *sorted(found)]


def level_of(name: str) -> str:
    """The level that holds for a logger, its own or an ancestor's."""
    effective = logging.getLogger(name).getEffectiveLevel()
    for label, level in LEVELS.items():
        if effective <= level:
            return label
    return "FATAL"


def check(name: str, label: str | None) -> None:
    """Raises unless the logger exists and can be given this level; None takes its own level away."""
    if name not in names():
        raise InvalidSetting(f"there is no logger {name!r}")
    if label is None and name == ROOT:
        raise Invalid(f"the level of {ROOT!r} cannot be taken away; set another one")
    if label is not None and label not in LEVELS:
        raise InvalidSetting(f"logger {name!r} cannot have the level {label!r}: expected one of {', '.join(LEVELS)}")


def change(levels: Iterable[tuple[str, str | None]]) -> None:
    """Sets levels that were checked before."""
    for name, label in levels:
        logging.getLogger(name).setLevel(logging.NOTSET if label is None else LEVELS[label])
