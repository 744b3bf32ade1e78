"""`waystation dead-letters` against a running broker."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
from typing import Any

import pytest

from tests.cli.kit import QuickCli, command, environment
from tests.support.waiting import DEADLINE_S, wait_for


@pytest.fixture
def dead(quick: QuickCli, queue: str) -> str:
    """A dead-letter queue with three letters of `queue`: one rejected, one killed, one expired."""
    target = f"{queue}.dead"
    quick("queues", "create", target)
    quick("queues", "create", queue, "--dead-letter", target, "--max-deliveries", "1")
    quick("queues", "put", queue, '{"total": 5}', "--id", "small", "--header", "by=ada")
    quick("queues", "put", queue, '{"total": 500}', "--id", "large")
    quick("queues", "get", queue, "--then", "reject", "--error", "ValueError: too\nsmall")
    quick("queues", "get", queue, "--then", "kill", "--error", "too large")
    quick("queues", "put", queue, "--ttl", "1ms", stdin=b"\x00\xff late\n")
    wait_for(lambda: len(letters(quick, target)) == 3, "all three are dead", every_s=0.1)
    return target


def letters(quick: QuickCli, target: str) -> list[Any]:
    return quick("dead-letters", "show", target, "--json").objects


def test_dead_letters_are_counted_by_source_and_reason(quick: QuickCli, queue: str, dead: str) -> None:
    listed = {row["queue"]: row for row in quick("dead-letters", "list", "--json").objects}[dead]
    assert (listed["messages"], listed["counted"], listed["sources"]) == (3, 3, [queue])
    counts = {row["reason"]: (row["source"], row["messages"]) for row in listed["counts"]}
    assert counts == {"delivery-limit": (queue, 1), "rejected": (queue, 1), "expired": (queue, 1)}
    rows = [line.split() for line in quick("dead-letters", "list", dead).lines]
    assert [dead, "1", queue, "expired"] in [row[:4] for row in rows]
    some = quick("dead-letters", "list", dead, "--scan", "2")
    assert "1 more message not looked at" in some.err


def test_targets_that_are_empty_or_topics_are_listed_too(quick: QuickCli, queue: str, topic: str) -> None:
    quick("queues", "create", f"{queue}-a", "--dead-letter", f"{queue}-not-yet")
    quick("queues", "create", f"{queue}-b", "--dead-letter", f"topic:{topic}", "--max-deliveries", "1")
    quick("queues", "put", f"{queue}-b", "x")
    quick("queues", "get", f"{queue}-b", "--then", "reject")

    def listed() -> dict[str, Any]:
        return {row["queue"]: row for row in quick("dead-letters", "list", "--json").objects}

    wait_for(lambda: listed()[f"topic:{topic}"]["messages"], "the topic has a letter", every_s=0.1)
    assert listed()[f"{queue}-not-yet"] | {"counts": []} == {
        "queue": f"{queue}-not-yet",
        "messages": 0,
        "counted": 0,
        "counts": [],
        "sources": [f"{queue}-a"],
    }
    assert f"topic:{topic}" in quick("dead-letters", "list").text


def test_the_letters_of_a_queue_are_shown_and_filtered(quick: QuickCli, queue: str, dead: str) -> None:
    shown = quick("dead-letters", "show", dead).text
    assert "ValueError: too\\nsmall" in shown
    assert "0x00ff20" in shown
    one = quick("dead-letters", "show", dead, "--filter", "headers.x-death[0].error like '%small'", "--json").objects
    assert [letter["id"] for letter in one] == ["small"]
    assert (
        quick("dead-letters", "show", dead, "--filter", "json.total > 1000").text
        == f"no messages in {dead} that match\n"
    )
    first = quick("dead-letters", "show", dead, "--count", "1", "--json").objects
    assert [letter["id"] for letter in first] == ["small"]
    rest = quick("dead-letters", "show", dead, "--after", str(first[0]["tag"]), "--json").objects
    assert [letter["deaths"][0]["reason"] for letter in rest] == ["rejected", "expired"]


def test_the_story_of_one_message_is_told(quick: QuickCli, queue: str, dead: str) -> None:
    (letter,) = quick("dead-letters", "show", dead, "small", "--json").objects
    (death,) = letter["deaths"]
    del death["time"]
    assert death == {
        "queue": queue,
        "reason": "delivery-limit",
        "count": 1,
        "deliveries": 1,
        "error": "ValueError: too\nsmall",
    }
    told = quick("dead-letters", "show", dead, "small").text
    assert "DIED" in told
    assert "by = ada" in told
    assert '{\n  "total": 5\n}' in told
    assert told.count("x-death") == 0, "it is a table, not a header"
    assert '{"total": 5}' in quick("dead-letters", "show", dead, "small", "--payload", "text").text
    assert "7b 22 74 6f" in quick("dead-letters", "show", dead, "small", "--payload", "hex").text
    late = letters(quick, dead)[2]["id"]
    assert "00000000  00 ff 20 6c 61 74 65" in quick("dead-letters", "show", dead, late).text
    assert "not JSON" in quick("dead-letters", "show", dead, late, "--payload", "json", code=1).err
    assert "not UTF-8" in quick("dead-letters", "show", dead, late, "--payload", "text", code=1).err


def test_letters_go_back_after_a_look(quick: QuickCli, queue: str, dead: str) -> None:
    preview = quick("dead-letters", "redrive", dead, "--filter", "json.total < 100", "--dry-run")
    assert preview.text == f"would move 1 message of {dead} back to where it died (--dry-run)\n"
    assert len(letters(quick, dead)) == 3
    (done,) = quick("dead-letters", "redrive", dead, "--filter", "json.total < 100", "--json").objects
    assert done == {"queue": dead, "to": None, "dry_run": False, "matched": 1, "moved": 1, "skipped": 0}
    (back,) = quick("queues", "get", queue, "--json").objects
    assert (back["id"], back["headers"]["x-death"][0]["reason"]) == ("small", "delivery-limit")
    assert quick("dead-letters", "redrive", dead, "--limit", "1").text.startswith("moved 1 message ")
    assert [letter["deaths"][0]["reason"] for letter in letters(quick, dead)] == ["expired"]
    assert quick("dead-letters", "redrive", dead, "--filter", "json.total = 1").text.endswith("has none that match\n")


def test_letters_go_elsewhere_by_id(quick: QuickCli, queue: str, dead: str) -> None:
    quick("queues", "create", f"{queue}-careful")
    quick("dead-letters", "redrive", dead, "--id", "large", "--id", "small", "--to", f"{queue}-careful")
    moved = quick("queues", "get", f"{queue}-careful", "--count", "9", "--json").objects
    assert [message["id"] for message in moved] == ["small", "large"]
    assert "1 of the ids" in quick("dead-letters", "redrive", dead, "--id", "small", code=1).err
    assert len(letters(quick, dead)) == 1


def test_what_has_nowhere_to_go_stays_and_is_told(quick: QuickCli, queue: str, dead: str) -> None:
    quick("queues", "put", dead, "put by hand")
    assert "no failure history: it was put here directly" in quick("dead-letters", "show", dead, f"{dead}#3").text
    done = quick("dead-letters", "redrive", dead, code=1)
    assert done.text == f"moved 3 messages of {dead} back to where they died\n"
    assert "1 message stay" in done.err
    assert [letter["payload"] for letter in letters(quick, dead)] == ["put by hand"]
    quick("dead-letters", "redrive", dead, "--to", queue)
    assert quick("dead-letters", "redrive", dead).text == f"nothing to redrive: {dead} is empty\n"


def test_mistakes_are_explained_and_nothing_is_sent(quick: QuickCli, queue: str, dead: str) -> None:
    for words in (("show", f"{dead}d"), ("redrive", f"{dead}d"), ("list", f"{dead}d")):
        assert f"did you mean '{dead}'" in quick("dead-letters", *words, code=1).err
    for verb in ("show", "redrive"):
        err = quick("dead-letters", verb, dead, "--filter", "json.total >> 5", code=1).err.splitlines()
        assert err[1].index(">> 5") + 1 == err[2].index("^")
    assert "no message with the id 'no'" in quick("dead-letters", "show", dead, "no", code=1).err
    assert f"did you mean '{queue}'" in quick("dead-letters", "redrive", dead, "--to", f"{queue}x", code=1).err
    assert "there already" in quick("dead-letters", "redrive", dead, "--to", dead, code=1).err
    assert "topic" in quick("dead-letters", "redrive", dead, "--to", f"topic:{queue}-none", code=1).err
    assert "per second" in quick("dead-letters", "redrive", dead, "--rate", "fast", code=2).err
    assert "per second" in quick("dead-letters", "redrive", dead, "--rate", "0", code=2).err
    assert len(letters(quick, dead)) == 3


def at_a_terminal(quick: QuickCli, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    """A command whose standard error is a terminal; the other end of it."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*words),
        env=environment({"WAYSTATION_SERVER": quick.server}),
        stdout=subprocess.PIPE,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
    )
    os.close(theirs)
    return process, ours


def shown_on(terminal: int, until: bytes = b"") -> bytes:
    """What was written there, to the end or until this came."""
    seen = b""
    while not until or until not in seen:
        try:
            more = os.read(terminal, 4096)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        seen += more
    return seen


def test_a_slow_redrive_shows_how_far_it_is_and_can_be_stopped(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, f"{queue}-to")
    quick("queues", "put", queue, stdin=b"x\n" * 200)
    words = ("dead-letters", "redrive", queue, "--to", f"{queue}-to", "--rate")
    process, terminal = at_a_terminal(quick, *words, "10/s")
    try:
        assert b"redriven" in shown_on(terminal, b"0 of 200 messages")
        process.send_signal(signal.SIGINT)
        rest = shown_on(terminal)
    finally:
        process.kill() if process.poll() is None and not rest else None
        process.communicate(timeout=DEADLINE_S)
        os.close(terminal)
    assert b"stopped: the messages that were redriven stay so" in rest
    assert b"Traceback" not in rest
    assert process.returncode == 130

    def counts() -> tuple[int, int]:
        first, second = quick("queues", "describe", queue, f"{queue}-to", "--json").objects
        return first["ready"], second["ready"]

    wait_for(lambda: sum(counts()) == 200, "each message is in one of the two queues", every_s=0.1)
    assert counts()[1] < 200, "the broker stopped as well"
    process, terminal = at_a_terminal(quick, *words, "1000")
    try:
        shown_on(terminal)
        out, _ = process.communicate(timeout=DEADLINE_S)
    finally:
        os.close(terminal)
    assert (process.returncode, b"to " + f"{queue}-to".encode() in out) == (0, True)
    assert counts() == (0, 200)
