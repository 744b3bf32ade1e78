"""The broker's own log on standard error: one event a line, machine-readable, no message payloads.

    time=2026-03-01T12:00:00.123Z level=info logger=waystation.log event="cut 12 bytes of an unfinished write …"

Values with spaces or quotes are quoted as in JSON, so a line never breaks. With `json` each line is a JSON object.
"""

from __future__ import annotations

import json
import logging
import time

LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")


class EventFormatter(logging.Formatter):
    """One line per record; a traceback becomes a field of it."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self._json = style == "json"

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": _moment(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        if self._json:
            return json.dumps(fields, ensure_ascii=False)
        return " ".join(f"{name}={_quoted(value)}" for name, value in fields.items())


def _moment(created: float) -> str:
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(created))
    return f"{whole}.{int(created * 1000) % 1000:03d}Z"


def _quoted(value: str) -> str:
    plain = value and value.isprintable() and not any(c in ' "=' for c in value)
    return value if plain else json.dumps(value, ensure_ascii=False)


def start_logging(level: str, style: str) -> None:
    """Sends what the broker logs to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(EventFormatter(style))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.raiseExceptions = False  # standard error may be closed; that is no reason to stop
