"""`waystation queues` against a running broker."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta

import msgspec
import pytest

from tests.cli.kit import Cli, QuickCli
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.cli.queues.queue_settings import NAMES, OVERFLOWS
from waystation.client.options.queue_options import QueueOptions
from waystation.queues.settings import Overflow, QueueSettings

# -- the queues --------------------------------------------------------------------------------------------------------


def test_a_queue_is_created_listed_described_and_deleted(quick: QuickCli, queue: str) -> None:
    made = quick("queues", "create", queue, "--visibility-timeout", "5m", "--dead-letter", "the.dead")
    assert made.text == f"created queue {queue}\n"
    quick("queues", "put", queue, "one", "two")
    (listed,) = quick("queues", "list", queue, "--json").objects
    assert (listed["queue"], listed["ready"], listed["held"], listed["bytes"]) == (queue, 2, 0, 6)
    assert "the.dead" in quick("queues", "list", queue).text
    (described,) = quick("queues", "describe", queue, "--json").objects
    assert described["settings"]["hold_ms"] == 300_000
    shown = quick("queues", "describe", queue).text
    assert "5m" in shown
    assert "retry-base" not in shown
    assert "retry-base" in quick("queues", "describe", queue, "--all").text
    assert quick("queues", "delete", queue, "--yes").text == f"deleted queue {queue} with 2 messages\n"
    assert quick("queues", "list", queue, "--json").objects == []
    assert "no queue's name" in quick("queues", "list", queue).text


def test_every_setting_can_be_said(quick: QuickCli, queue: str) -> None:
    words = (
        "--max-deliveries=5 --retry-base=250ms --retry-factor=1.5 --retry-max=1h30m --retry-jitter=0.2"
        " --visibility-timeout=2m --dead-letter=d --ttl=7d --max-length=1000 --max-bytes=1.5MiB --overflow=dead-letter"
        " --dedup-window=10m --expires=2w --single-active --auto-delete --max-priority=20 --no-durable"
    )
    (made,) = quick("queues", "create", queue, *words.split(), "--json").objects
    assert made["settings"] == {
        "max_deliveries": 5,
        "retry_base_ms": 250,
        "retry_factor": 1.5,
        "retry_max_ms": 5_400_000,
        "retry_jitter": 0.2,
        "dead_letter": "d",
        "hold_ms": 120_000,
        "ttl_ms": 604_800_000,
        "max_length": 1000,
        "max_bytes": 1_572_864,
        "overflow": "dead-letter",
        "dedup_window_ms": 600_000,
        "single_active": True,
        "expires_ms": 1_209_600_000,
        "auto_delete": True,
        "exclusive": False,
        "durable": False,
        "max_priority": 20,
        "dead_letter_exchange": None,
        "dead_letter_key": None,
        "queue_type": None,
        "policy": None,
        "own": [],
    }
    assert made["created"] is True
    quick("queues", "create", f"{queue}.2", "--dead-letter-exchange", "amq.direct", "--dead-letter-key", "dead")
    described = quick("queues", "describe", f"{queue}.2").text
    assert "amq.direct" in described
    assert "dead-letter-key" in described


def test_the_settings_are_those_of_a_queue() -> None:
    """All but some: an exclusive queue would go with the command, and others say what a protocol or a policy did."""
    others = {"exclusive", "queue_type", "policy", "own"}
    assert {name.removesuffix("_ms") for name in QueueSettings.__struct_fields__} == {*NAMES, *others}
    retry = {name for name in NAMES if name.startswith("retry_")}
    assert QueueOptions.__annotations__.keys() == {*NAMES, "retry", "exclusive"} - retry
    assert Overflow.__args__ == OVERFLOWS  # type: ignore[attr-defined]


def test_altering_changes_what_is_named_and_nothing_else(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--ttl", "4s35ms", "--max-length", "10", "--single-active", "--retry-base", "2s")
    shown = quick(
        "queues", "alter", queue, "--visibility-timeout", "1h", "--unset", "max-length", "--no-single-active"
    ).text
    assert "visibility-timeout  30s (30000 ms)  1h (3600000 ms)" in shown.splitlines()
    (described,) = quick("queues", "describe", queue, "--json").objects
    default = msgspec.structs.asdict(QueueSettings()) | {"own": []}
    changed = {name: value for name, value in described["settings"].items() if value != default[name]}
    assert changed == {"ttl_ms": 4035, "hold_ms": 3_600_000, "retry_base_ms": 2000}


def test_creating_twice_is_an_error_unless_expected(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--max-length", "5")
    assert "exists already" in quick("queues", "create", queue, code=1).err
    (again,) = quick("queues", "create", queue, "--if-not-exists", "--json").objects
    assert again["created"] is False
    other = quick("queues", "create", queue, "--if-not-exists", "--max-length", "6", code=1).err
    assert "max_length is 5, not 6" in other


def test_nothing_is_thrown_away_without_a_yes(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    quick("queues", "put", queue, "a", "b")
    assert "--yes" in quick("queues", "purge", queue, code=1).err
    assert "--yes" in quick("queues", "delete", queue, code=1).err
    assert "not empty" in quick("queues", "delete", queue, "--yes", "--if-empty", code=1).err
    assert len(quick("queues", "peek", queue, "--json").objects) == 2
    assert quick("queues", "purge", queue, "--yes").text == f"purged queue {queue} of 2 messages\n"
    assert quick("queues", "peek", queue).text == f"no messages in {queue}\n"
    quick("queues", "delete", queue, "--yes", "--if-empty")


@pytest.mark.parametrize(
    "words",
    [
        ("describe",),
        ("alter", "--visibility-timeout", "1s"),
        ("delete", "--yes"),
        ("purge", "--yes"),
        ("peek",),
        ("put", "x"),
        ("get",),
        ("cancel", "some-id"),
    ],
    ids=lambda words: words[0],
)
def test_an_unknown_queue_is_told_with_names_that_are_near(quick: QuickCli, queue: str, words: tuple[str, ...]) -> None:
    quick("queues", "create", queue)
    err = quick("queues", words[0], f"{queue}x", *words[1:], code=1).err
    assert f"there is no queue '{queue}x'; did you mean '{queue}'" in err


def test_what_is_written_wrongly_is_explained(quick: QuickCli, queue: str) -> None:
    assert "write 250ms, 30s, 5m, 2h, 7d" in quick("queues", "create", queue, "--ttl", "soon", code=2).err
    assert "write 250ms, 30s, 5m, 2h, 7d" in quick("queues", "create", queue, "--visibility-timeout=-5s", code=2).err
    assert "64KiB" in quick("queues", "create", queue, "--max-bytes", "lots", code=2).err
    assert "drop-oldest" in quick("queues", "create", queue, "--overflow", "burst", code=2).err
    assert "ttl_ms: 0 is below 1" in quick("queues", "create", queue, "--ttl", "0", code=1).err
    assert "needs a dead_letter target" in quick("queues", "create", queue, "--overflow", "dead-letter", code=1).err
    assert "queues list" in quick("queues", "describe", "there-is-nothing-like-this", code=1).err
    quick("queues", "create", queue)
    assert "nothing to change" in quick("queues", "alter", queue, code=1).err
    assert "single-active" in quick("queues", "alter", queue, "--unset", "nothing", code=1).err
    assert "both set and unset" in quick("queues", "alter", queue, "--ttl", "1s", "--unset", "ttl", code=1).err


# -- their messages ----------------------------------------------------------------------------------------------------


def test_what_is_put_is_got_once(cli: Cli, queue: str) -> None:
    cli("queues", "create", queue)
    assert cli("queues", "put", queue, "first").text == f"put 1 message into {queue}: {queue}#0\n"
    cli("queues", "put", queue, stdin=b"second\n\xff\xfe\n")
    assert cli("queues", "get", queue).lines == ["first"]
    assert cli("queues", "get", queue, "--count", "10").out == b"second\n\xff\xfe\n"
    assert f"no message is ready in queue {queue}" in cli("queues", "get", queue, code=1).err
    (described,) = cli("queues", "describe", queue, "--json").objects
    assert (described["ready"], described["held"]) == (0, 0)


def test_a_message_has_all_that_was_said_of_it(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    words = "--id=i --key=k --header=a=b --header=n:=[1] --priority=7 --ttl=1h --type=event --correlation-id=c"
    words += " --reply-to=r --max-deliveries=3 --content-type=application/json --header=twice=1 --header=twice=2"
    quick("queues", "put", queue, '{"x": 1}', *words.split())
    (message,) = quick("queues", "get", queue, "--json").objects
    said = {name: message[name] for name in ("id", "key", "headers", "priority", "ttl_ms", "type", "payload")}
    assert said == {
        "id": "i",
        "key": "k",
        "headers": {"a": "b", "n": [1], "twice": ["1", "2"]},
        "priority": 7,
        "ttl_ms": 3_600_000,
        "type": "event",
        "payload": '{"x": 1}',
    }
    assert (message["correlation_id"], message["reply_to"], message["max_deliveries"]) == ("c", "r", 3)
    assert (message["content_type"], message["deliveries"], message["queue"]) == ("application/json", 1, queue)


def test_priorities_come_first_and_a_format_is_filled_in(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    quick("queues", "put", queue, "low")
    quick("queues", "put", queue, "high", "--priority", "9", "--key", "k")
    shown = quick("queues", "get", queue, "--count", "2", "--format", r"{queue} {priority} {key} {value}\n").lines
    assert shown == [f"{queue} 9 k high", f"{queue} 0  low"]
    assert "no field 'valu'" in quick("queues", "get", queue, "--format", "{valu}", code=1).err


def test_delayed_messages_are_seen_found_and_cancelled(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    quick("queues", "put", queue, "later", "--delay", "2h", "--id", "m1")
    tomorrow = (datetime.now() + timedelta(days=1)).isoformat(timespec="seconds")
    quick("queues", "put", queue, "tomorrow", "--deliver-at", tomorrow, "--id", "m2")
    quick("queues", "get", queue, code=1)
    rows = quick("queues", "peek", queue, "--state", "delayed").lines
    assert rows[1].split()[1:4] == ["m1", "delayed", "2h"] or "1h59m" in rows[1]
    first, second = quick("queues", "peek", queue, "--json").objects
    assert 7_200_000 <= first["ready_at_ms"] - first["taken_ms"] <= 7_200_001
    assert quick("queues", "peek", queue, "--after", str(first["tag"]), "--json").objects == [second]
    shown = quick("queues", "find", "m1", "--queue", queue).text
    assert f"queue:{queue}, delayed" in shown
    assert shown.endswith("\nlater\n")
    assert quick("queues", "find", "m2", "--json").objects == [second]
    done = quick("queues", "cancel", queue, "m1", "never-was", code=1)
    assert (done.text, "never-was was not cancelled: it is not in" in done.err) == ("cancelled m1\n", True)
    assert "no message with the id 'm1'" in quick("queues", "find", "m1", code=1).err


def test_the_list_says_what_state_a_queue_is_in(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--max-length", "1", "--ttl", "1h")
    headings, idle = quick("queues", "list", queue).lines
    assert headings.split()[:3] == ["QUEUE", "STATE", "READY"]
    assert idle.split()[:3] == [queue, "idle", "0"]
    assert "  1h " in idle
    quick("queues", "put", queue, "one")
    (full,) = quick("queues", "list", queue, "--json").objects
    assert (full["state"], full["ready"]) == ("full", 1)
    (described,) = quick("queues", "describe", queue, "--json").objects
    assert described.keys() == full.keys()
    assert described["state"] == "full"


def test_options_have_the_words_of_the_field_and_the_older_names_keep_working(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--dead-letter", f"{queue}.dead")
    quick("queues", "create", f"{queue}.dead")
    for name in ("visibility-timeout", "hold"):
        (altered,) = quick("queues", "alter", queue, f"--{name}", "1h", "--json").objects
        assert altered["settings"]["hold_ms"] == 3_600_000
        (altered,) = quick("queues", "alter", queue, "--unset", name, "--json").objects
        assert altered["settings"]["hold_ms"] == 30_000
    quick("queues", "put", queue, "later", "--delay", "2h", "--id", "later")
    for then in ("dead-letter", "kill"):
        quick("queues", "put", queue, "now", "--id", then)
        quick("queues", "get", queue, "--visibility-timeout", "1m", "--then", then, "--error", "broken")
    wait_for(lambda: len(quick("queues", "peek", f"{queue}.dead", "--json").objects) == 2, "both are dead letters")
    states = [quick("queues", "peek", queue, "--state", state, "--json").out for state in ("delayed", "parked")]
    assert states[0] == states[1] != b""
    for state in ("in-flight", "held"):
        assert quick("queues", "peek", queue, "--state", state).text == f"no in flight messages in {queue}\n"
    assert "'delayed', 'in-flight'" in quick("queues", "peek", queue, "--state", "asleep", code=2).err
    for verb in ("create", "get", "peek"):
        shown = quick("queues", verb, "--help").text
        assert not [old for old in ("--hold", "parked", "held", "kill") if old in shown]


def test_a_message_can_be_given_back_and_comes_again(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--retry-base", "0")
    quick("queues", "put", queue, "a", "b")
    shape = ("--count", "5", "--format", r"{value}{deliveries}\n")
    assert quick("queues", "get", queue, *shape, "--then", "release").lines == ["a1", "b1"]
    assert quick("queues", "get", queue, *shape, "--then", "reject", "--error", "not today").lines == ["a2", "b2"]
    assert quick("queues", "get", queue, *shape, "--timeout", "5s", "--count", "2").lines == ["a3", "b3"]
    assert "--then reject" in quick("queues", "get", queue, "--error", "x", code=1).err


def test_json_copies_a_queue_byte_for_byte(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, f"{queue}-copy")
    quick("queues", "put", queue, "--key", "k", "--header", "h:=null", "--priority", "3", stdin=b"plain\n\xff\xfe\n")
    peeked = quick("queues", "peek", queue, "--json")
    got = quick("queues", "get", queue, "--count", "9", "--json")
    for source in (peeked, got):
        quick("queues", "put", f"{queue}-copy", "--input", "json", stdin=source.out)
        copied = quick("queues", "get", f"{queue}-copy", "--count", "9", "--json").objects
        content = ("payload", "encoding", "key", "headers", "priority", "content_type")
        assert [[m.get(name) for name in content] for m in copied] == [
            [m.get(name) for name in content] for m in got.objects
        ]


def test_an_id_that_was_used_is_refused_or_left_out(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--dedup-window", "1h")
    quick("queues", "put", queue, "a", "--id", "once")
    assert "once" in quick("queues", "put", queue, "a", "--id", "once", code=1).err
    lines = b'{"payload": "a", "id": "once"}\n{"payload": "b"}\n'
    (again,) = quick("queues", "put", queue, "--input", "json", "--json", stdin=lines).objects
    assert (again["count"], again["duplicates"]) == (1, 1)


def test_a_full_queue_says_so_and_what_was_stored_before(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--max-length", "2")
    err = quick("queues", "put", queue, "a", "b", "c", code=1).err
    assert queue in err
    assert quick("queues", "peek", queue, "--json").objects == []
    broken = quick("queues", "put", queue, "--input", "json", stdin=b"oops\n", code=1)
    assert "0 messages stored before this" in broken.err


def test_what_makes_no_sense_is_refused_before_anything_is_sent(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    for words, part in (
        (("x", "--priority", "256"), "priority: 256"),
        (("x", "y", "--id", "i"), "one message"),
        (("x", "--delay", "1s", "--deliver-at", "2030-01-01"), "not both"),
        (("x", "--file", "f"), "not both"),
        (("{", "--content-type", "application/json"), "not JSON"),
        (("x", "--header", "a:={"), "not JSON"),
        (("x", "--header", "a"), "NAME=VALUE"),
        (("--input", "json", "--key", "k"), "each line says itself"),
        (("--file", "/there/is/no/file"), "/there/is/no/file: No such file"),
    ):
        assert part in quick("queues", "put", queue, *words, code=1).err
    assert "2026-03-01T12:00" in quick("queues", "put", queue, "x", "--deliver-at", "noon", code=2).err
    assert quick("queues", "peek", queue, "--json").objects == []


def test_following_a_queue_goes_on_until_stopped(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    quick("queues", "put", queue, "old")
    follower = quick.start("queues", "get", queue, "--follow")
    assert follower.stdout is not None
    try:
        assert follower.stdout.readline() == b"old\n"
        quick("queues", "put", queue, "new")
        assert follower.stdout.readline() == b"new\n"
        wait_for(lambda: quick("queues", "describe", queue, "--json").objects[0]["held"] == 0, "both are acked")
    finally:
        follower.send_signal(signal.SIGINT)
        _, err = follower.communicate(timeout=DEADLINE_S)
    assert (follower.returncode, err) == (0, b"")


def test_a_reader_that_has_enough_is_no_error(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    quick("queues", "put", queue, stdin=b"a line that is a little longer than the others\n" * 5_000)
    reader = quick.start("queues", "peek", queue, "--count", "5000", "--json")
    assert reader.stdout is not None
    assert reader.stdout.readline().startswith(b"{")
    reader.stdout.close()
    assert reader.stderr is not None
    assert reader.stderr.read() == b""
    assert reader.wait(timeout=DEADLINE_S) == 0
