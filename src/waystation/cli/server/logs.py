"""The broker's own log on standard error: one event a line, without message payloads.

For programs, as `name=value` or as JSON objects; every line has time, level, logger, event and text:

    time=2026-03-01T12:00:00.123Z level=info logger=waystation.queues event=queue.deleted text="queue jobs …" queue=jobs

For a person at a terminal: the time, the level and the text.
"""

from __future__ import annotations

import logging
import os
import sys
import time

from waystation.cli.terminal.output import visible
from waystation.observe.events import LogEvent, Plain, spell_fields, spell_json

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("auto", "human", "text", "json")
"""`auto` is `human` on a terminal, else `text`."""

FOREIGN = "library.message"
"""The event of a line that a library wrote, like asyncio."""

_COLOURS = {logging.WARNING: "\033[33m", logging.ERROR: "\033[31m", logging.CRITICAL: "\033[31m"}
_PLAIN = "\033[0m"


class EventFormatter(logging.Formatter):
    """For programs: one line per record; a traceback becomes a field of it."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self._json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, Plain] = {
            "time": _moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        event = record.msg
        if isinstance(event, LogEvent):
            fields |= {"event": event.name, "text": event.sentence, **event.fields}
        else:
            fields |= {"event": FOREIGN, "text": record.getMessage()}
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return spell_json(fields) if self._json else spell_fields(fields)


class HumanFormatter(logging.Formatter):
    """For people: the time of day, the level, what happened; a traceback below it."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        level = f"{record.levelname:<7}"
        if self._colour and record.levelno in _COLOURS:
            level = f"{_COLOURS[record.levelno]}{level}{_PLAIN}"
        line = f"{moment} {level} {visible(record.getMessage())}"
        if record.exc_info:
            line += "\n" + visible(self.formatException(record.exc_info), lines=True)
        return line


def _moment(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created * 1000) % 1000:03d}Z"


def formatter_of(style: str, *, terminal: bool) -> logging.Formatter:
    """For a style of FORMATS, and whether a person looks on."""
    if style == "human" or (style == "auto" and terminal):
        return HumanFormatter(colour=terminal and not os.environ.get("NO_COLOR"))
    return EventFormatter(style)


def start_logging(level: str, style: str) -> None:
    """Sends what the broker logs to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(formatter_of(style, terminal=sys.stderr is not None and sys.stderr.isatty()))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # standard error may be closed; that is no reason to stop
