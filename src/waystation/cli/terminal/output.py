"""What commands print: tables for people, lines of JSON for programs.

A table has no colour unless it goes to a terminal. JSON is one object a line, whatever the command; it keeps every
byte: what is not UTF-8 is written in base64, and a field beside it says so.
"""

from __future__ import annotations

import json
import os
import sys
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence

Cell = str | int | None


def print_table(headings: Sequence[str], rows: Sequence[Sequence[Cell]]) -> None:
    """Columns as wide as they need; numbers to the right, the rest to the left."""
    texts = [[_spell(cell) for cell in row] for row in rows]
    widths = [max([len(heading), *(len(row[i]) for row in texts)]) for i, heading in enumerate(headings)]
    right = [{type(row[i]) for row in rows} - {type(None)} == {int} for i in range(len(headings))]

    def line(cells: Sequence[str]) -> str:
        fitted = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(fitted).rstrip()

    print(bold(line([heading.upper() for heading in headings])))
    for row in texts:
        print(line(row))


def _spell(cell: Cell) -> str:
    if cell is None:
        return "-"
    return visible(cell) if isinstance(cell, str) else str(cell)


def visible(text: str, *, lines: bool = False) -> str:
    """The text with control characters spelled out, so that nobody's name of a queue commands a terminal; with `lines`,
    line feeds and tabs stay."""
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(
        char if char.isprintable() or char in kept else char.encode("unicode_escape").decode() for char in text
    )


def bold(text: str) -> str:
    """Bold on a terminal, plain elsewhere and where NO_COLOR is set."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def print_json(found: Mapping[str, object] | Iterable[Mapping[str, object]]) -> None:
    """Objects for programs, one a line: a report, or each thing of several. Nothing else is printed with `--json`."""
    for one in [found] if isinstance(found, Mapping) else found:
        print(json_line(one))


def json_line(one: Mapping[str, object]) -> str:
    return json.dumps(one, ensure_ascii=False)


def put_bytes(target: dict[str, object], name: str, data: bytes | None) -> None:
    """Sets `name` to the text of `data`; if it is not UTF-8, to base64, with `name_encoding` beside it."""
    if data is None:
        target[name] = None
        return
    try:
        target[name] = data.decode()
    except UnicodeDecodeError:
        target[name] = b64encode(data).decode()
        target[f"{name}_encoding"] = "base64"


def spell_bytes(count: int) -> str:
    """A size as people read it: 1.5 MiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def spell_rate(rate: float) -> str:
    """4, 12.5, 1,234."""
    return f"{rate:,.0f}" if rate >= 100 or rate == int(rate) else f"{rate:.1f}"


def spell_count(count: int, noun: str) -> str:
    """ "1 message", "2 messages"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def note(sentence: str) -> None:
    """Something a person should know, kept out of the output that a program reads."""
    print(f"waystation: {sentence}", file=sys.stderr)


def confirmed(question: str, *, yes: bool) -> bool:
    """Whether to go on: `--yes` was given, or the person at the terminal says so. Never without either."""
    if yes:
        return True
    if not sys.stdin.isatty():
        note("nothing changed: standard input is not a terminal, so pass --yes to confirm")
        return False
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
