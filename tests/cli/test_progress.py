"""How far a long piece of work is, as a person gets to see it."""

from __future__ import annotations

import io
import os
import pty

import pytest

from waystation.cli.terminal.progress import BAR, Progress


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def made(stream: io.StringIO, clock: Clock, total: int | None = None, *, lines: bool = False) -> Progress:
    return Progress("orders", total, stream=stream, clock=clock, lines=lines)


def test_a_terminal_gets_a_bar_that_goes_away() -> None:
    stream, clock = Terminal(), Clock()
    with made(stream, clock, 1000) as progress:
        clock.now += 4
        progress.advance(420)
    drawn, left = stream.getvalue().rsplit("\r\033[K", 1)
    head, rest = drawn.split("] ")
    assert rest == "42 %  420 of 1,000 messages  105/s  about 6s left"
    assert set(head.removeprefix("\r\033[Korders [")) == {"#", "·"}
    assert len(drawn.removeprefix("\r\033[K")) == 79, "as wide as fits"
    assert left == ""


def test_a_bar_that_is_too_small_to_say_something_is_left_out() -> None:
    progress = made(Terminal(), clock := Clock(), 1000)
    clock.now += 1
    progress.done = 500
    assert (
        progress.text(clock.now)
        == f"orders [{'#' * (BAR // 2)}{'·' * (BAR // 2)}] 50 %  500 of 1,000 messages  500/s  about 1s left"
    )
    assert progress.text(clock.now, bar=0) == "orders 50 %  500 of 1,000 messages  500/s  about 1s left"


def test_without_a_total_there_is_no_share() -> None:
    stream, clock = Terminal(), Clock()
    progress = made(stream, clock)
    clock.now += 1
    progress.advance()
    assert stream.getvalue() == "\r\033[Korders  1 message  1.0/s"


def test_the_share_may_be_known_better() -> None:
    stream, clock = Terminal(), Clock()
    progress = made(stream, clock)
    clock.now += 1
    progress.advance(10, share=0.5)
    assert "50 %" in stream.getvalue()
    assert "10 messages" in stream.getvalue()


def test_it_is_not_drawn_for_every_message() -> None:
    stream, clock = Terminal(), Clock()
    progress = made(stream, clock, 1000)
    for _ in range(1000):
        clock.now += 0.001
        progress.advance()
    assert 5 <= stream.getvalue().count("\r") <= 10


def test_elsewhere_nothing_is_said_unless_asked() -> None:
    for lines, expected in (
        (False, []),
        (True, ["waystation: orders 50 %  500 of 1,000 messages  83/s  about 6s left"]),
    ):
        stream, clock = io.StringIO(), Clock()
        with made(stream, clock, 1000, lines=lines) as progress:
            assert progress.visible == lines
            clock.now += 1
            progress.set(100)
            clock.now += 5
            progress.set(500)
        assert stream.getvalue().splitlines() == expected


def test_quiet_means_never() -> None:
    stream, clock = Terminal(), Clock()
    progress = Progress("orders", 10, stream=stream, clock=clock, quiet=True, lines=True)
    clock.now += 100
    progress.set(5)
    progress.close()
    assert stream.getvalue() == ""
    assert not progress.visible


@pytest.mark.parametrize("total", [0, 1])
def test_nothing_to_do_is_all_done(total: int) -> None:
    stream, clock = Terminal(), Clock()
    progress = made(stream, clock, total)
    clock.now += 1
    progress.set(total)
    assert "100 %" in stream.getvalue()


def test_a_line_never_wraps() -> None:
    ours, theirs = pty.openpty()
    try:
        with os.fdopen(theirs, "w") as stream:
            progress = Progress("a-name-that-is-long" * 10, 1000, stream=stream, clock=(clock := Clock()))
            clock.now += 1
            progress.set(500)
            text = os.read(ours, 4096).decode().removeprefix("\r\033[K")
    finally:
        os.close(ours)
    assert len(text) <= 79


def test_a_terminal_that_is_gone_stops_nothing() -> None:
    clock = Clock()
    stream = Terminal()
    progress = made(stream, clock, 10)
    stream.close()
    clock.now += 1
    progress.set(5)
    assert not progress.visible
    progress.close()
