"""What ready-made pipelines are made of: their arguments, and pieces of TOML. Pure; for this package."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from waystation.errors import Invalid

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Argument:
    """One `--option`; `many`: it may be given several times, or with commas."""

    name: str
    help: str
    default: str | None = None
    needed: bool = False
    many: bool = False
    metavar: str = "TEXT"

    @property
    def option(self) -> str:
        return self.name.replace("_", "-")


def _nothing(values: Values) -> dict[str, dict[str, str]]:
    return {}


@dataclass(frozen=True, slots=True)
class Ready:
    """A ready-made pipeline. `topics`: those that it needs, with the settings that they are made with."""

    name: str
    help: str
    arguments: tuple[Argument, ...]
    make: Callable[[Values], str]
    topics: Callable[[Values], dict[str, dict[str, str]]] = field(default=_nothing)


TOPICS = Argument("topics", "the topics to read, by name", many=True, metavar="TOPIC")
PATTERN = Argument("pattern", "or all topics that match, now and later: orders.* or orders.#", metavar="PATTERN")
STARTING = Argument("starting", "where a new pipeline begins: earliest or latest", default="earliest", metavar="WHERE")


def source(name: str, values: Values, *more: str) -> str:
    """The source table for topics by name or by pattern."""
    topics, pattern = texts(values.get("topics")), values.get("pattern")
    if bool(topics) == bool(pattern):
        raise Invalid("say what to read by either --topics or --pattern")
    what = f"topics = {text(topics)}" if topics else f"pattern = {text(pattern)}"
    starting = f"startingOffsets = {text(values.get('starting') or 'earliest')}"
    return "\n".join([f"[source.{name}]", what, starting, *more]) + "\n"


def texts(value: Any) -> list[str]:
    """Names that were given one by one or with commas between them."""
    given = [value] if isinstance(value, str) else list(value or ())
    return [name.strip() for part in given for name in part.split(",") if name.strip()]


def text(value: Any) -> str:
    """A value as TOML writes it: its basic strings are JSON's, and so are its lists."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def sql_text(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def block(sql: str) -> str:
    """SQL as TOML's text of several lines. What is in it comes from names that were quoted for SQL."""
    return f'"""\n{escaped(sql.strip())}\n"""'


def escaped(sql: str) -> str:
    return sql.replace("\\", "\\\\").replace('"""', '""\\"')


def place(path: str) -> str:
    """A path as the user means it: from where they are, unless it is an address."""
    return path if re.match(r"[a-z0-9+.-]+:/", path) else str(Path(path).absolute())


def chosen_name(ready: str, values: Values) -> str:
    """A pipeline's name: what it does, and to what."""
    what = texts(values.get("topics")) or texts(values.get("pattern")) or texts(values.get("queue"))
    what = what or texts(values.get("topic")) or texts(values.get("to"))
    spelled = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join([ready, *what])).strip("-.")
    return spelled[:100].rstrip("-.")
