"""Moments and sizes as people write them."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.cli.messages.received import preview, spell_payload
from waystation.cli.terminal.output import visible
from waystation.cli.terminal.units import moment, size, spell_about


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1000", 1000),
        ("64KiB", 65536),
        ("10MB", 10**7),
        ("1.5GiB", 1610612736),
        ("2k", 2000),
        ("1tib", 2**40),
        ("7b", 7),
    ],
)
def test_a_size_is_read(text: str, count: int) -> None:
    assert size(text) == count


@pytest.mark.parametrize("text", ["", "lots", "-1", "5ib", "5PB", "1,5MB"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="64KiB"):
        size(text)


def test_a_time_is_read() -> None:
    assert moment("2026-03-01T12:00:00Z") == 1772366400 == moment("@1772366400000")
    for text in ("noon", "@", "@1.5", "2026-13-01", ""):
        with pytest.raises(ArgumentTypeError, match="2026-03-01"):
            moment(text)


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0s"), (999, "0s"), (61_000, "1m1s"), (3_600_000, "1h"), (90_061_000, "1d1h")]
)
def test_an_age_is_told_roughly(ms: int, text: str) -> None:
    assert spell_about(ms) == text


@pytest.mark.parametrize(
    "read", [visible, lambda text: preview(text.encode()), lambda text: spell_payload(text.encode())]
)
def test_a_message_cannot_move_the_cursor(read: Callable[[str], str]) -> None:
    assert "\x1b" not in read("\x1b[2Jgone")
    assert "\x9b" not in read("\x9b2Jgone")


@given(st.binary(max_size=400))
def test_any_payload_has_a_preview_of_one_line(payload: bytes) -> None:
    shown = preview(payload)
    assert len(shown) <= 48
    assert shown.isprintable() or not shown
    assert spell_payload(payload) is not None


def test_a_preview_cut_in_the_middle_of_a_character_stays_text() -> None:
    assert preview("\u20ac".encode() * 1000) == "\u20ac" * 47 + "\u2026"
