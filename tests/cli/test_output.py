"""What people and programs get to see."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from waystation.cli.completion.tree import spots
from waystation.cli.main import COMMANDS, build_parser, main
from waystation.cli.server.logs import EventFormatter
from waystation.cli.terminal.output import print_table, spell_bytes


def test_a_table_fits_its_content(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("topic", "partitions", "member"), [("a", 12, None), ("longer", 3, None)])
    assert capsys.readouterr().out == (
        "TOPIC   PARTITIONS  MEMBER\n"
        "a               12  -\n"
        "longer           3  -\n"
    )  # fmt: skip


def test_a_name_does_not_command_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("queue",), [("a\033[2Jb",), ("a\nb\x9b31m",)])
    shown = capsys.readouterr().out
    assert shown == "QUEUE\na\\x1b[2Jb\na\\nb\\x9b31m\n"


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")])
def test_sizes_are_readable(count: int, text: str) -> None:
    assert spell_bytes(count) == text


def record(message: str, *values: object) -> logging.LogRecord:
    made = logging.LogRecord("waystation.log", logging.WARNING, __file__, 1, message, values, None)
    made.created = 1_772_366_400.123
    return made


def test_an_event_is_one_line() -> None:
    line = EventFormatter("text").format(record("cut %d bytes\nof %r", 3, "a b"))
    assert line == (
        "time=2026-03-01T12:00:00.123Z level=warning logger=waystation.log event=library.message"
        " text=\"cut 3 bytes\\nof 'a b'\""
    )


def test_a_traceback_stays_in_the_line() -> None:
    made = record("oops")
    try:
        raise ValueError("why")
    except ValueError:
        made.exc_info = sys.exc_info()
    assert "\n" not in EventFormatter("text").format(made)
    fields = json.loads(EventFormatter("json").format(made))
    assert fields["text"] == "oops"
    assert "ValueError: why" in fields["traceback"]


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_every_command_explains_itself(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 0
    assert "usage: waystation" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [[], ["nonsense"], ["topics"], ["topics", "create"], ["topics", "create", "t", "--partitions", "0"],
     ["consume", "t", "--count", "none"], ["consume", "t", "--timeout", "-1"], ["groups", "reset", "g"],
     ["publish", "t", "--compression", "zip"], ["serve", "--log-level", "loud"]],
)  # fmt: skip
def test_a_wrong_call_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_the_parser_of_all_commands_can_be_built() -> None:
    """The reference page is checked against it."""
    assert build_parser().parse_args(["consume", "t", "--from", "-10"]).start == "-10"


def test_every_command_that_ends_prints_json_for_programs() -> None:
    lacking = [
        " ".join(spot.path)
        for spot in spots(build_parser())
        if not spot.commands and "--json" not in {flag.name for flag in spot.flags}
    ]
    # The first two stay in the foreground, and have a ready file in JSON; the last prints a key, for a file.
    assert lacking == ["serve", "cluster up", "encryption key"]
