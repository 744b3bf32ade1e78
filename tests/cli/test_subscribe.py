"""`waystation subscribe` against a running broker."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.cli.kit import QuickCli
from tests.support.waiting import DEADLINE_S


def line_of(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()


def begun(process: subprocess.Popen[bytes]) -> bytes:
    """Waits until it has subscribed; what it says of it."""
    assert process.stderr is not None
    return process.stderr.readline()


def stopped(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGINT) -> tuple[int | None, bytes]:
    process.send_signal(how)
    _, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, err


def test_messages_are_printed_as_they_come_also_of_topics_that_come_later(quick: QuickCli, topic: str) -> None:
    listener = quick.start("subscribe", f"{topic}.*", "--format", r"{topic} {value}\n")
    try:
        assert b"no topic matches" in begun(listener)
        quick("publish", f"{topic}.eu", "first")
        quick("publish", f"{topic}.us", "second")
        assert {line_of(listener), line_of(listener)} == {
            f"{topic}.eu first\n".encode(),
            f"{topic}.us second\n".encode(),
        }
        quick("publish", f"{topic}.eu.north", "two words")
        quick("publish", f"{topic}.eu", "third")
        assert line_of(listener) == f"{topic}.eu third\n".encode()
    finally:
        ended = stopped(listener)
    assert ended == (0, b"")


def test_history_comes_first_and_count_stops(quick: QuickCli, topic: str) -> None:
    quick("publish", topic, "1", "2", "3", "4")
    done = quick("subscribe", topic, "--history", "2", "--count", "2")
    assert done.lines == ["3", "4"]
    assert f"subscribed to 1 topic: {topic}" in done.err
    assert quick("subscribe", topic, "--history", "3", "--count", "3").lines == ["2", "3", "4"]


def test_a_group_goes_on_where_it_was_and_begins_where_asked(quick: QuickCli, topic: str, group: str) -> None:
    quick("publish", topic, "1", "2", "3", "4")
    words = ("subscribe", topic, "--group", group)
    assert quick(*words, "--from", "earliest", "--count", "2").lines == ["1", "2"]
    assert quick(*words, "--count", "2").lines == ["3", "4"]
    assert quick(*words, "--timeout", "300ms").lines == []
    assert quick("subscribe", topic, "--group", f"{group}2", "--from", "1h", "--count", "4").lines == [
        "1",
        "2",
        "3",
        "4",
    ]
    late = ("--group", f"{group}3", "--from", "2100-01-01", "--timeout", "300ms")
    assert quick("subscribe", topic, *late).lines == []


def test_looking_without_ack_leaves_everything_to_the_group(quick: QuickCli, topic: str, group: str) -> None:
    quick("publish", topic, "1", "2", "3")
    words = ("subscribe", topic, "--group", group, "--from", "earliest")
    assert quick(*words, "--no-ack", "--count", "2").lines == ["1", "2"]
    assert quick(*words, "--count", "3").lines == ["1", "2", "3"]


def test_a_stream_is_read_in_order_by_a_regular_expression(quick: QuickCli, topic: str, group: str) -> None:
    quick("publish", f"{topic}-a", "1", "2", "3")
    words = ("subscribe", f"{topic}-[ab]", "--regex", "--group", group, "--mode", "stream", "--from", "earliest")
    first = quick(*words, "--count", "2", "--json").objects
    assert [(m["payload"], m["source"], m["partition"], m["offset"]) for m in first] == [
        ("1", f"{topic}-a", 0, 0),
        ("2", f"{topic}-a", 0, 1),
    ]
    assert quick(*words, "--count", "1").lines == ["3"]


def test_a_filter_lets_through_what_matches(quick: QuickCli, topic: str, group: str) -> None:
    quick("publish", topic, '{"total": 5}', '{"total": 500}', "--header", "region=eu")
    quick("publish", topic, '{"total": 600}', "--header", "region=us")
    quick("publish", topic, '{"total": 700}', "--header", "region=eu")
    words = ("--group", group, "--from", "earliest", "--filter", "json.total > 100 and headers.region = 'eu'")
    assert quick("subscribe", topic, *words, "--count", "2").lines == ['{"total": 500}', '{"total": 700}']


def test_a_reader_that_has_enough_is_no_error(quick: QuickCli, topic: str, group: str) -> None:
    quick("publish", topic, stdin=b"a line that is a little longer than the others\n" * 20_000)
    reader = quick.start("subscribe", topic, "--group", group, "--from", "earliest")
    begun(reader)
    assert line_of(reader).startswith(b"a line")
    assert reader.stdout is not None
    reader.stdout.close()
    assert reader.stderr is not None
    assert reader.stderr.read() == b""
    assert reader.wait(timeout=DEADLINE_S) == 0


@pytest.mark.parametrize(
    ("words", "code", "part"),
    [
        (("--filter", "json.a >> 1"), 1, "\n  json.a >> 1\n          ^"),
        (("a(b", "--regex"), 1, "closing parenthesis"),
        (("--from", "earliest"), 1, "--history"),
        (("--group", "g", "--history", "5"), 1, "--from"),
        (("--no-ack",), 1, "--group"),
        (("--mode", "shared"), 1, "needs a group"),
        (("--mode", "live", "--group", "g"), 1, "leave out the group"),
        (("--from", "yesterday", "--group", "g"), 2, "an age like 15m"),
        (("--timeout", "soon"), 2, "30s"),
        (("--format", "{valu}"), 1, "no field 'valu'"),
        (("--format", "x", "--json"), 1, "not both"),
        (("--server", "127.0.0.1:1"), 1, "is `waystation serve` running there?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_mistakes_are_explained(quick: QuickCli, words: tuple[str, ...], code: int, part: str) -> None:
    assert part in quick("subscribe", "cli.nothing.here", *words, code=code).err
