"""`waystation publish` and `waystation consume` against a running broker."""

from __future__ import annotations

import json
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.cli.kit import Cli
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for


def test_what_is_published_is_consumed(cli: Cli, topic: str) -> None:
    assert cli("publish", topic, "first", "second").text == f"published 2 messages to {topic}: partition 0 offset 0–1\n"
    assert cli("consume", topic).lines == ["first", "second"]


def test_lines_of_standard_input_and_of_files_are_messages(cli: Cli, topic: str, tmp_path: Path) -> None:
    cli("publish", topic, stdin=b"one\ntwo\n\nfour")
    path = tmp_path / "lines"
    path.write_bytes(b"five\n\xff\n")
    cli("publish", topic, "--file", str(path))
    assert cli("consume", topic).out == b"one\ntwo\n\nfour\nfive\n\xff\n"


def test_key_header_and_partition_arrive(cli: Cli, topic: str) -> None:
    cli("topics", "create", topic, "--partitions", "3")
    cli("publish", topic, "v", "--key", "k", "--header", "a=1", "--header", "a=2", "--partition", "2")
    (line,) = cli("consume", topic, "--json").lines
    message = json.loads(line)
    assert (message["key"], message["value"], message["partition"], message["offset"]) == ("k", "v", 2, 0)
    assert message["headers"] == [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    shown = cli("consume", topic, "--format", r"{topic} {partition}/{offset} {key}={value} {headers}\n").text
    assert shown == f"{topic} 2/0 k=v a=1,a=2\n"


def test_json_copies_a_topic_byte_for_byte(cli: Cli, topic: str) -> None:
    cli("topics", "create", topic, "--partitions", "1")
    cli("publish", topic, "--key", "k", stdin=b"plain\n\xff\xfe\n")
    cli("publish", topic, "--key", "k", "--tombstone")
    original = cli("consume", topic, "--json")
    cli("publish", f"{topic}-copy", "--input", "json", stdin=original.out)
    copied = cli("consume", f"{topic}-copy", "--json")

    def content(lines: list[str]) -> list[tuple[object, ...]]:
        fields = [json.loads(line) for line in lines]
        return [(m["key"], m["value"], m.get("value_encoding"), m["headers"]) for m in fields]

    assert content(copied.lines) == content(original.lines)
    assert [m[1] for m in content(copied.lines)] == ["plain", "//4=", None]


@pytest.mark.parametrize("grouped", [False, True])
def test_a_message_whose_time_to_live_is_over_is_not_consumed(cli: Cli, topic: str, group: str, grouped: bool) -> None:
    options = ("--group", group) if grouped else ()
    cli("topics", "create", topic, "--partitions", "1")
    cli("publish", topic, "old", "--header", "x-ttl=1")
    cli("publish", topic, "new", "--header", "x-ttl=3600000")
    assert cli("consume", topic, *options).lines == ["new"]
    assert cli("consume", topic, "--expired").lines == ["old", "new"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read_back(cli: Cli, topic: str, codec: str) -> None:
    lines = b"".join(b"line %d\n" % n for n in range(2000))
    done = cli("publish", topic, "--compression", codec, "--json", stdin=lines)
    assert done.json["count"] == 2000
    assert cli("consume", topic).out == lines


@pytest.mark.parametrize("acks", ["all", "1", "0"])
def test_what_is_acknowledged_is_stored_in_its_order(cli: Cli, topic: str, acks: str) -> None:
    lines = b"".join(b"%06d %s\n" % (n, b"x" * 100) for n in range(20_000))
    done = cli("publish", topic, "--acks", acks, "--json", stdin=lines)
    assert done.json == {
        "topic": topic,
        "count": 20_000,
        "offsets": [{"partition": 0, "first_offset": 0, "last_offset": 19_999}],
    }
    assert cli("consume", topic).out == lines


def test_a_group_reads_records_as_they_are(cli: Cli, topic: str, group: str) -> None:
    """Header names twice, a value that is missing: what a message of the native protocol could not carry."""
    cli("publish", topic, "v", "--key", "k", "--header", "a=1", "--header", "a=2")
    cli("publish", topic, "--key", "k", "--tombstone")
    first, second = map(json.loads, cli("consume", topic, "--group", group, "--json").lines)
    assert first["headers"] == [{"name": "a", "value": "1"}, {"name": "a", "value": "2"}]
    assert (second["key"], second["value"]) == ("k", None)


def test_many_partitions_are_read_to_their_end(cli: Cli, topic: str, group: str) -> None:
    """More than the broker takes in one request, and a group that has all of them."""
    cli("topics", "create", topic, "--partitions", "1100")
    for partition in (0, 550, 1099):
        cli("publish", topic, f"in {partition}", "--partition", str(partition))
    expected = ["in 0", "in 1099", "in 550"]
    assert sorted(cli("consume", topic).lines) == expected
    assert sorted(cli("consume", topic, "--group", group).lines) == expected


def test_a_following_member_whose_connection_breaks_says_so_and_joins_again(cli: Cli, topic: str, group: str) -> None:
    cli("publish", topic, "a", "b")
    member = cli.start("consume", topic, "--group", group, "--follow")
    assert member.stdout is not None
    try:
        assert [member.stdout.readline(), member.stdout.readline()] == [b"a\n", b"b\n"]
        (connection,) = cli("connections", "list", "--search", topic, "--json").objects
        cli("connections", "close", connection["name"], "--yes")
        cli("publish", topic, "c")
        assert member.stdout.readline() == b"c\n", "what was printed is not printed again"
    finally:
        member.send_signal(signal.SIGTERM)
        _, err = member.communicate(timeout=DEADLINE_S)
    assert (member.returncode, b"reconnecting" in err, b"connected again" in err) == (0, True, True)
    assert cli("consume", topic, "--group", group).lines == []


def test_a_key_goes_to_one_partition_and_many_keys_to_many(cli: Cli, topic: str) -> None:
    cli("topics", "create", topic, "--partitions", "4")
    lines = b"".join(b"k%d:%d\n" % (n % 20, n) for n in range(200))
    cli("publish", topic, "--key-separator", ":", stdin=lines)
    messages = [json.loads(line) for line in cli("consume", topic, "--json").lines]
    homes: dict[str, set[int]] = {}
    for message in messages:
        homes.setdefault(message["key"], set()).add(message["partition"])
    assert len(messages) == 200
    assert all(len(home) == 1 for home in homes.values())
    assert len(set.union(*homes.values())) == 4


def test_reading_begins_where_asked(cli: Cli, topic: str) -> None:
    cli("publish", topic, stdin=b"0\n1\n2\n3\n4\n")
    assert cli("consume", topic, "--from", "3").lines == ["3", "4"]
    assert cli("consume", topic, "--from", "-1").lines == ["4"]
    assert cli("consume", topic, "--from", "99").lines == []
    assert cli("consume", topic, "--count", "2").lines == ["0", "1"]
    assert len(cli("consume", topic, "--from", "1h").lines) == 5
    assert cli("consume", topic, "--from", "2100-01-01").lines == []
    assert cli("consume", topic, "--from", "latest", "--timeout", "0.2").lines == []


def test_following_shows_new_messages_until_stopped(cli: Cli, topic: str) -> None:
    cli("publish", topic, "old")
    follower = cli.start("consume", topic, "--follow")
    assert follower.stdout is not None
    try:
        assert follower.stdout.readline() == b"old\n"
        cli("publish", topic, "new")
        assert follower.stdout.readline() == b"new\n"
    finally:
        follower.send_signal(signal.SIGTERM)
        follower.communicate(timeout=DEADLINE_S)
    assert follower.returncode == 0


def test_following_goes_on_after_the_broker_was_killed_and_has_started_again(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        cli = Cli(server.bootstrap)
        cli("publish", "followed", "old")
        follower = cli.start("consume", "followed", "--follow")
        assert follower.stdout is not None
        try:
            assert follower.stdout.readline() == b"old\n"
            server.kill()
            server.start()
            cli("publish", "followed", "new")
            assert follower.stdout.readline() == b"new\n"
        finally:
            follower.send_signal(signal.SIGTERM)
            follower.communicate(timeout=DEADLINE_S)
        assert follower.returncode == 0


def test_a_following_member_goes_on_after_the_broker_was_killed_and_has_started_again(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        cli = Cli(server.bootstrap)
        cli("topics", "create", "followed", "--partitions", "2")
        cli("publish", "followed", "a", "b", "--partition", "0")
        follower = cli.start("consume", "followed", "--group", "g", "--follow")
        assert follower.stdout is not None
        try:
            assert [follower.stdout.readline(), follower.stdout.readline()] == [b"a\n", b"b\n"]
            wait_for(lambda: committed(cli, "g") == 2, "what was printed is committed", every_s=0.2)
            server.kill()
            server.start()
            cli("publish", "followed", "c", "--partition", "1")
            assert follower.stdout.readline() == b"c\n", "within a session timeout: nobody waits for the old member"
            wait_for(lambda: committed(cli, "g") == 3, "it commits as the new member", every_s=0.2)
        finally:
            follower.send_signal(signal.SIGTERM)
            _, err = follower.communicate(timeout=DEADLINE_S)
        assert follower.returncode == 0
        assert [b"reconnecting" in err, b"waystation: connected again" in err] == [True, True]


@pytest.mark.parametrize("group", [(), ("--group", "g")])
def test_following_can_be_stopped_while_the_broker_is_away(tmp_path: Path, group: tuple[str, ...]) -> None:
    with Server(tmp_path) as server:
        cli = Cli(server.bootstrap)
        cli("publish", "followed", "a")
        follower = cli.start("consume", "followed", *group, "--follow")
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"a\n"
        server.kill()
        assert follower.stderr is not None
        assert b"reconnecting" in follower.stderr.readline()
        follower.send_signal(signal.SIGTERM)
        follower.communicate(timeout=10)
        assert follower.returncode == 0


def test_a_message_typed_at_a_pipe_goes_out_before_the_pipe_ends(cli: Cli, topic: str) -> None:
    typist = cli.start("publish", topic)
    assert typist.stdin is not None
    typist.stdin.write(b"typed\n")
    typist.stdin.flush()
    cli("topics", "create", topic, "--if-not-exists")
    wait_for(lambda: cli("consume", topic).lines == ["typed"], "the line is in the topic", every_s=0.2)
    typist.communicate(timeout=DEADLINE_S)
    assert typist.returncode == 0


def test_a_group_goes_on_where_it_stopped(cli: Cli, topic: str, group: str) -> None:
    cli("publish", topic, stdin=b"".join(b"%d\n" % n for n in range(10)))
    assert cli("consume", topic, "--group", group, "--count", "4").lines == ["0", "1", "2", "3"]
    assert cli("consume", topic, "--group", group).lines == ["4", "5", "6", "7", "8", "9"]
    assert cli("consume", topic, "--group", group, "--timeout", "0.5").lines == []


def test_two_members_share_a_topic_and_nothing_is_missed(cli: Cli, topic: str, group: str) -> None:
    cli("topics", "create", topic, "--partitions", "4")
    words = ("consume", topic, "--group", group, "--follow")
    members = [cli.start(*words), cli.start(*words)]
    try:
        wait_for(lambda: shares(cli, group) == [2, 2], "each member has two partitions", every_s=0.2)
        lines = [b"k%d:%d\n" % (n, n) for n in range(200)]
        cli("publish", topic, "--key-separator", ":", stdin=b"".join(lines))
        wait_for(lambda: committed(cli, group) == 200, "all is read and committed", every_s=0.2)
    finally:
        for member in members:
            member.send_signal(signal.SIGTERM)
        outputs = [member.communicate(timeout=DEADLINE_S)[0].split() for member in members]
    assert all(outputs), "each had something to read"
    assert sorted(int(line) for output in outputs for line in output) == list(range(200))


def describe(cli: Cli, group: str) -> Any:
    """The group, or None before its first member came."""
    out, _ = cli.start("groups", "describe", group, "--json").communicate(timeout=DEADLINE_S)
    return json.loads(out) if out else None


def shares(cli: Cli, group: str) -> list[int]:
    described = describe(cli, group)
    return sorted(len(member["assigned"]) for member in described["members"]) if described else []


def committed(cli: Cli, group: str) -> int:
    return sum(row["committed"] or 0 for row in describe(cli, group)["offsets"])


def test_a_reader_that_has_enough_is_no_error(cli: Cli, topic: str) -> None:
    cli("publish", topic, stdin=b"line\n" * 50_000)
    reader = cli.start("consume", topic)
    assert reader.stdout is not None
    assert reader.stdout.readline() == b"line\n"
    reader.stdout.close()
    assert reader.stderr is not None
    assert reader.stderr.read() == b""
    assert reader.wait(timeout=DEADLINE_S) == 0


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0\0\0\x01x", b"\xff\xff\xff\xff"])
def test_a_server_that_is_no_broker_is_told_apart(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        done = Cli(address)("topics", "list", code=1)
        thread.join()
    assert address in done.err


def test_what_cannot_be_done_is_said(cli: Cli, topic: str) -> None:
    assert "topics create" in cli("consume", topic, code=1).err
    cli("topics", "create", topic, "--set", "max.message.bytes=1000")
    assert "max.message.bytes" in cli("publish", topic, "x" * 2000, code=1).err
    assert "no partition 7" in cli("publish", topic, "x", "--partition", "7", code=1).err
    assert "no partition 7" in cli("consume", topic, "--partition", "7", code=1).err
    assert "--key" in cli("publish", topic, "--tombstone", code=1).err
    assert "no field" in cli("consume", topic, "--format", "{valu}", code=1).err
    assert "is not a position" in cli("consume", topic, "--from", "somewhen", code=1).err
    assert "0 messages acknowledged" in cli("publish", topic, "--input", "json", stdin=b"nonsense\n", code=1).err


def test_an_aborted_transaction_is_shown_only_when_asked_for(cli: Cli, topic: str) -> None:
    cli("topics", "create", topic)
    producer = Producer({"bootstrap.servers": cli.server, "transactional.id": topic, "log_level": 3})
    producer.init_transactions(DEADLINE_S)
    for word, commit in (("kept", True), ("dropped", False), ("kept too", True)):
        producer.begin_transaction()
        producer.produce(topic, word)
        producer.flush(DEADLINE_S)
        if commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
    assert cli("consume", topic).lines == ["kept", "kept too"]
    assert cli("consume", topic, "--uncommitted").lines == ["kept", "dropped", "kept too"]

    producer.begin_transaction()
    producer.produce(topic, "open")
    producer.flush(DEADLINE_S)
    assert cli("consume", topic).lines == ["kept", "kept too"]
    producer.abort_transaction(DEADLINE_S)
    assert cli("consume", topic, "--from", "0").lines == ["kept", "kept too"]
