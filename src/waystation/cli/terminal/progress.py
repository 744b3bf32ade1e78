"""How far a long piece of work is: one line on standard error, for a person who waits.

At a terminal it is a line with a bar, written again and again, gone at the end. Elsewhere nothing is said, unless
`--progress` asks for it: then it is a plain line every few seconds. `--quiet` means never. Standard output is left
alone, so that what a program reads is never touched.

    with Progress.of(arguments, "orders", total=1000) as progress:
        for message in messages:
            ...
            progress.advance()

For one thread. Time and the stream can be handed in, for tests.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import TextIO

from waystation.cli.terminal.units import spell_about

REDRAW_S = 0.1
LINE_S = 5.0
"""How often a plain line is written where nobody looks at a terminal."""
BAR = 24
SMALLEST_BAR = 8
_CLEAR = "\r\033[K"


def add_progress(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="do not show progress")
    parser.add_argument(
        "--progress",
        action="store_true",
        help="show progress every few seconds even if standard error is not a terminal",
    )


class Progress:
    """What is done so far, and the line that says so."""

    def __init__(
        self,
        what: str,
        total: int | None = None,
        *,
        unit: str = "message",
        quiet: bool = False,
        lines: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.what = what
        self.total = total
        self.done = 0
        self.share: float | None = None  # how much of the work that is, where it is known better than by `total`
        self._unit = unit
        self._stream = sys.stderr if stream is None else stream
        self._terminal = not quiet and self._stream.isatty()
        self._lines = lines and not quiet and not self._terminal
        self._clock = clock
        self._began = self._shown = clock()
        self._drawn = False

    @classmethod
    def of(
        cls, arguments: argparse.Namespace, what: str, total: int | None = None, *, unit: str = "message"
    ) -> Progress:
        """As `--quiet` and `--progress` say."""
        return cls(what, total, unit=unit, quiet=arguments.quiet, lines=arguments.progress)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def visible(self) -> bool:
        """Whether somebody gets to see it: else there is no need to count."""
        return self._terminal or self._lines

    def advance(self, count: int = 1, share: float | None = None) -> None:
        """So many more are done; `share` is how much of all the work that is now, from 0 to 1."""
        self.set(self.done + count, share)

    def set(self, done: int, share: float | None = None) -> None:
        """So many are done in all."""
        self.done = done
        if share is not None:
            self.share = share
        if not self.visible:
            return
        now = self._clock()
        if now - self._shown < (REDRAW_S if self._terminal else LINE_S):
            return
        self._shown = now
        if self._terminal:
            self._write(f"{_CLEAR}{self._fitting(now, _width(self._stream) - 1)}")
            self._drawn = True
        else:
            self._write(f"waystation: {self.text(now, bar=0)}\n")

    def close(self) -> None:
        """Takes the line away; what follows is the report of whoever did the work."""
        if self._drawn:
            self._write(_CLEAR)
            self._drawn = False

    def text(self, now: float, bar: int = BAR) -> str:
        """`orders [#####·····] 42 %  420 of 1,000 messages  105/s  about 5s left`."""
        passed = max(1e-9, now - self._began)
        share = self._share()
        head = self.what
        if share is not None:
            filled = int(share * bar)
            head += f" [{'#' * filled}{'·' * (bar - filled)}]" if bar else ""
            head += f" {int(share * 100)} %"
        of = f" of {self.total:,}" if self.total is not None else ""
        many = self.done if self.total is None else self.total
        parts = [head, f"{self.done:,}{of} {self._unit}{'' if many == 1 else 's'}"]
        if self.done:
            parts.append(f"{_spell_rate(self.done / passed)}/s")
        if share is not None and 0 < share < 1:
            parts.append(f"about {spell_about(int(passed * (1 - share) / share * 1000) + 999)} left")
        return "  ".join(parts)

    def _fitting(self, now: float, width: int) -> str:
        """The line must not wrap: it could not be taken back."""
        room = width - len(self.text(now, bar=0)) - len(" []")
        return self.text(now, bar=min(BAR, room) if room >= SMALLEST_BAR else 0)[:width]

    def _share(self) -> float | None:
        if self.share is not None:
            return min(1.0, max(0.0, self.share))
        if self.total is None:
            return None
        return min(1.0, self.done / self.total) if self.total else 1.0

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()
        except (OSError, ValueError):  # nobody is there any more; the work goes on
            self._terminal = self._lines = False


def _width(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _spell_rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
