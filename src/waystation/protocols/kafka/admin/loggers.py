"""The broker's loggers as Kafka's BROKER_LOGGER resource: their levels in Kafka's words.

A level that is changed lasts until the process ends. Called by `configs.py` only.
"""

from __future__ import annotations

import logging
from collections.abc import Container

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


def label_of(effective: int) -> str:
    for label, level in LEVELS.items():
        if effective <= level:
            return label
    return "FATAL"


def level_for(name: str, label: str | None, known: Container[str]) -> int:
    """The level to set; raises unless it is one that the logger can have. None takes its own level away."""
    if name not in known:
        raise InvalidSetting(f"there is no logger {name!r}")
    if label is None and name == ROOT:
        raise Invalid(f"the level of {ROOT!r} cannot be taken away; set another one")
    if label is not None and label not in LEVELS:
        raise InvalidSetting(f"logger {name!r} cannot have the level {label!r}: expected one of {', '.join(LEVELS)}")
    return logging.NOTSET if label is None else LEVELS[label]
