"""Log events: each has a name, a sentence for people, and fields for programs.

    logger = event_logger("waystation.queues")
    logger.info("queue.deleted", "queue {queue} is deleted: {reason}", queue=name, reason=why)

They go through Python's `logging`, so that whoever embeds a client or a broker handles them as any other record: its
message is the sentence, with those fields behind it that the sentence does not have. `waystation serve` writes the name
and the fields as such (`cli/server/logs.py`). Names, sentences and the names of fields are constants, which a test
checks: what a client sends is in values only. Everybody in `src` logs by this and by nothing else.
"""

from __future__ import annotations

import json
import logging
import sys
from string import Formatter

RESERVED = frozenset({"time", "level", "logger", "event", "text", "traceback"})
"""What every line has, or may have; no field is called so."""

Plain = str | int | float | bool | None

_formatter = Formatter()


class LogEvent:
    """The message of a record, spelled out when somebody wants to read it."""

    __slots__ = ("_text", "fields", "name")

    def __init__(self, name: str, text: str, fields: dict[str, object]) -> None:
        self.name = name
        self._text = text
        self.fields: dict[str, Plain] = {key: _plain(value) for key, value in fields.items()}

    @property
    def sentence(self) -> str:
        return self._text.format_map(self.fields)

    def __str__(self) -> str:
        told = {name for _, name, _, _ in _formatter.parse(self._text)}
        others = {name: value for name, value in self.fields.items() if name not in told}
        return f"{self.sentence} ({spell_fields(others)})" if others else self.sentence


class EventLogger:
    """A logger of Python's that takes events only."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, event: str, text: str, /, **fields: object) -> None:
        self._write(logging.DEBUG, event, text, fields, None)

    def info(self, event: str, text: str, /, **fields: object) -> None:
        self._write(logging.INFO, event, text, fields, None)

    def warning(self, event: str, text: str, /, **fields: object) -> None:
        self._write(logging.WARNING, event, text, fields, None)

    def error(self, event: str, text: str, /, **fields: object) -> None:
        self._write(logging.ERROR, event, text, fields, None)

    def exception(self, event: str, text: str, /, *, cause: BaseException | None = None, **fields: object) -> None:
        """An error with the traceback of its cause: the exception that is being handled, unless another is given. It is
        the field `error`, too."""
        cause = cause or sys.exception()
        self._write(logging.ERROR, event, text, {**fields, "error": cause}, cause)

    def log(
        self, level: int, event: str, text: str, /, *, cause: BaseException | None = None, **fields: object
    ) -> None:
        """At a level that depends on what happened; the traceback is that of `cause`."""
        self._write(level, event, text, fields, cause)

    def _write(self, level: int, event: str, text: str, fields: dict[str, object], cause: BaseException | None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, LogEvent(event, text, fields), exc_info=cause, stacklevel=3)


def event_logger(name: str) -> EventLogger:
    return EventLogger(name)


def spell_fields(fields: dict[str, Plain]) -> str:
    """`queue=jobs reason="nobody used it"`: a value with spaces, quotes or control characters is written as in JSON."""
    return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


def _plain(value: object) -> Plain:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, OSError) and value.strerror:
        return f"{value.strerror}: {value.filename}" if value.filename else value.strerror
    if isinstance(value, BaseException):
        return str(value) or type(value).__name__
    return str(value)


def _quoted(value: Plain) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    text = str(value)
    plain = text and text.isprintable() and not any(char in ' "=' for char in text)
    return text if plain else spell_json(text)


def spell_json(value: object) -> str:
    """On one line, without a character that could command a terminal."""
    readable = json.dumps(value, ensure_ascii=False)
    return readable if readable.isprintable() else json.dumps(value)
