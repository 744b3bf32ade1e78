"""docs/reference/crossing.md as data: its tables, and where each cell says that a field is.

Everything that the tests of this folder write or look for is found through these cells; so a cell that says something
else than the broker does fails its tests.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "crossing.md"

WAYS = ("kafka", "frames", "client", "lines", "http", "amqp")
"""The ways in and out that the tests go: Kafka's client, msgpack frames, the Python client, JSON lines, HTTP, pika."""
QUEUE_WAYS = WAYS[1:]
WAYS_OF_COLUMN = {
    "Kafka": ("kafka",),
    "AMQP 0-9-1": ("amqp",),
    "JSON lines, HTTP": ("lines", "http"),
    "native msgpack": ("frames", "client"),
}
"""Whose ways a column is about. A column that is not here has no tests yet, and that is an error."""


@dataclass(frozen=True)
class Table:
    """A table: rows and columns by their names."""

    columns: tuple[str, ...]
    rows: dict[str, dict[str, str]]

    def cells(self) -> set[tuple[str, str]]:
        return {(row, column) for row in self.rows for column in self.columns}


def tables() -> list[Table]:
    """All tables of the page, in their order."""
    found: list[Table] = []
    for block in re.findall(r"(?:^\|.*\|\n)+", PAGE.read_text(), re.MULTILINE):
        head, _, *lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        columns = tuple(name.partition(":")[0].removesuffix(" record") for name in head[1:])
        found.append(
            Table(columns, {line[0].replace("`", ""): dict(zip(columns, line[1:], strict=True)) for line in lines})
        )
    return found


FIELDS, BESIDES, DEEDS = tables()


def ways_of(column: str) -> tuple[str, ...]:
    return WAYS_OF_COLUMN[column]


# -- where a field is --------------------------------------------------------------------------------------------------


def kafka_header(field: str) -> str | None:
    """The header that a field is in a Kafka record; None if it has a place of its own."""
    found = re.match(r"header `([^`]+)`", FIELDS.rows[field]["Kafka"])
    return found[1] if found else None


def kafka_place(field: str) -> str:
    """value, key, timestamp or headers."""
    return re.split(r"[ ,;]", FIELDS.rows[field]["Kafka"])[0]


def amqp_place(field: str) -> tuple[str, str]:
    """(body, method, property or header; its name)."""
    where, _, name = re.split(r"[;]", FIELDS.rows[field]["AMQP 0-9-1"])[0].partition(" ")
    return where, name.strip("`")


def amqp_milliseconds() -> str:
    """The header that has what the timestamp lacks."""
    names: list[str] = re.findall(r"header `([^`]+)`", FIELDS.rows["timestamp_ms"]["AMQP 0-9-1"])
    return names[0]


def json_names(field: str) -> list[str]:
    """The names of a field in JSON: the usual one, and those for what is not text."""
    return re.findall(r"`([a-z0-9_]+)`", FIELDS.rows[field]["JSON lines, HTTP"])


def msgpack_place(field: str) -> tuple[int, type]:
    """The field's index in the message's array, and its type."""
    index, kind = FIELDS.rows[field]["native msgpack"].split(", ")
    return int(index), {"bin": bytes, "str": str, "int": int, "map": dict}[kind]


HEADER_FIELDS = {name: field for field in FIELDS.rows if (name := kafka_header(field)) is not None}
"""Kafka's header → field."""
