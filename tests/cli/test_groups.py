"""`waystation groups` against a running broker."""

from __future__ import annotations

import json
import signal

from tests.cli.kit import Cli
from tests.clients.share_kit import share_consumer
from tests.support.waiting import DEADLINE_S, wait_for


def read_some(cli: Cli, topic: str, group: str) -> None:
    cli("topics", "create", topic, "--partitions", "2")
    cli("publish", topic, "--partition", "0", stdin=b"a\nb\nc\n")
    cli("publish", topic, "--partition", "1", stdin=b"d\n")
    cli("consume", topic, "--group", group)


def offsets(cli: Cli, group: str) -> list[tuple[int, int, int]]:
    (described,) = cli("groups", "describe", group, "--json").objects
    return [(row["partition"], row["committed"], row["lag"]) for row in described["offsets"]]


def test_a_group_is_listed_and_described_with_its_lag(cli: Cli, topic: str, group: str) -> None:
    read_some(cli, topic, group)
    listed = {row["group"]: row for row in cli("groups", "list", "--json").objects}
    assert listed[group]["kind"] == "consumer"
    assert listed[group]["state"] == "Empty"
    cli("publish", topic, "--partition", "1", stdin=b"e\nf\n")
    shown = {line.split()[0]: line.split() for line in cli("groups", "list").lines}
    assert shown["GROUP"] == ["GROUP", "KIND", "STATE", "MEMBERS", "LAG", "TOPICS"]
    assert shown[group] == [group, "consumer", "Empty", "0", "2", topic]
    assert offsets(cli, group) == [(0, 3, 0), (1, 1, 2)]
    described = cli("groups", "describe", group, "--json").json
    assert (described["lag"], described["coordinator"]) == (2, 1)
    assert described["generation"] >= 0
    text = cli("groups", "describe", group).text
    assert group in text
    assert "generation" in text
    assert "coordinator 1" in text
    assert group not in {row["group"] for row in cli("groups", "list", "--state", "Stable", "--json").objects}


def test_offsets_are_moved_after_a_look(cli: Cli, topic: str, group: str) -> None:
    read_some(cli, topic, group)
    preview = cli("groups", "reset", group, "--to", "earliest", "--dry-run", "--json").json
    assert preview["done"] is False
    assert [(row["from"], row["to"]) for row in preview["offsets"]] == [(3, 0), (1, 0)]
    assert offsets(cli, group) == [(0, 3, 0), (1, 1, 0)]

    assert "--yes" in cli("groups", "reset", group, "--to", "earliest", code=1).err
    assert offsets(cli, group) == [(0, 3, 0), (1, 1, 0)]

    cli("groups", "reset", group, "--to", "2", "--topic", f"{topic}:0", "--yes")
    assert offsets(cli, group) == [(0, 2, 1), (1, 1, 0)]
    cli("groups", "reset", group, "--to", "1h", "--topic", topic, "--yes")
    assert offsets(cli, group) == [(0, 0, 3), (1, 0, 1)]
    cli("groups", "reset", group, "--to", "latest", "--yes")
    assert offsets(cli, group) == [(0, 3, 0), (1, 1, 0)]
    cli("groups", "reset", group, "--to", "-1", "--yes")
    assert sorted(cli("consume", topic, "--group", group).lines) == ["c", "d"]


def test_a_group_can_be_given_offsets_before_it_exists(cli: Cli, topic: str, group: str) -> None:
    cli("publish", topic, "a", "b")
    assert "--topic" in cli("groups", "reset", group, "--to", "1", "--yes", code=1).err
    cli("groups", "reset", group, "--to", "1", "--topic", topic, "--yes")
    assert cli("consume", topic, "--group", group).lines == ["b"]


def test_a_group_with_members_is_left_alone(cli: Cli, topic: str, group: str) -> None:
    cli("publish", topic, "a")
    member = cli.start("consume", topic, "--group", group, "--follow")
    assert member.stdout is not None
    try:
        assert member.stdout.readline() == b"a\n"
        (described,) = cli("groups", "describe", group, "--json").objects
        assert described["members"][0]["assigned"] == [{"topic": topic, "partition": 0}]
        assert "1 member" in cli("groups", "reset", group, "--to", "earliest", "--yes", code=1).err
        assert "members" in cli("groups", "delete", group, "--yes", code=1).err
    finally:
        member.send_signal(signal.SIGINT)
        member.communicate(timeout=DEADLINE_S)
    assert member.returncode == 0
    wait_for(lambda: not members(cli, group), "the member has left", every_s=0.2)
    assert offsets(cli, group) == [(0, 1, 0)]


def members(cli: Cli, group: str) -> list[object]:
    out, _ = cli.start("groups", "describe", group, "--json").communicate(timeout=DEADLINE_S)
    return list(json.loads(out)["members"])


def test_groups_and_their_offsets_are_deleted(cli: Cli, topic: str, group: str) -> None:
    read_some(cli, topic, group)
    assert "--yes" in cli("groups", "delete", group, code=1).err
    cli("groups", "delete", group, "--topic", topic, "--yes")
    (described,) = cli("groups", "describe", group, "--json").objects
    assert described["offsets"] == []
    assert repr(topic) in cli("groups", "delete", group, "--topic", topic, "--yes", code=1).err
    cli("groups", "delete", group, "--yes")
    for verb in ("describe", "delete"):
        assert "no group" in cli("groups", verb, group, *(["--yes"] if verb == "delete" else []), code=1).err


def test_a_place_that_a_topic_does_not_have_is_refused(cli: Cli, topic: str, group: str) -> None:
    read_some(cli, topic, group)
    assert "partitions 0 to 1" in cli("groups", "reset", group, "--to", "0", "--topic", f"{topic}:0,5", code=1).err
    assert "partitions 0 to 1" in cli("groups", "reset", group, "--to", "0", "--topic", f"{topic}:x", code=1).err
    assert "no topic" in cli("groups", "reset", group, "--to", "0", "--topic", f"{topic}-not", code=1).err


def test_a_shared_group_is_listed_described_moved_and_deleted_like_any_other(cli: Cli, topic: str, group: str) -> None:
    cli("topics", "create", topic, "--partitions", "1")
    member = cli.start("subscribe", topic, "--group", group, "--from", "earliest")
    assert member.stdout is not None
    try:
        wait_for(lambda: group in names(cli), "the group is there", every_s=0.2)
        cli("publish", topic, "a", "b")
        assert member.stdout.readline() == b"a\n"
        (described,) = cli("groups", "describe", group, "--json").objects
        assert described["kind"] == "shared"
        assert len(described["members"]) == 1
        assert "1 member" in cli("groups", "reset", group, "--to", "earliest", "--yes", code=1).err
        assert "members" in cli("groups", "delete", group, "--yes", code=1).err
    finally:
        member.send_signal(signal.SIGINT)
        member.communicate(timeout=DEADLINE_S)
    wait_for(lambda: not members(cli, group), "the member has left", every_s=0.2)
    assert f"{group}  shared" in cli("groups", "describe", group).text
    moved = cli("groups", "reset", group, "--to", "earliest", "--yes", "--json").json
    assert [(row["topic"], row["partition"], row["to"]) for row in moved["offsets"]] == [(topic, 0, 0)]
    assert offsets(cli, group) == [(0, 0, 2)]
    cli("groups", "delete", group, "--yes")
    assert group not in names(cli)


def names(cli: Cli) -> list[str]:
    return [row["group"] for row in cli("groups", "list", "--json").objects]


def test_a_share_group_of_kafka_clients_is_described(cli: Cli, topic: str, group: str) -> None:
    cli("topics", "create", topic, "--partitions", "1")
    cli("publish", topic, "a")
    member = share_consumer(cli.server, group, [topic])
    try:
        member.poll(0.1)
        wait_for(lambda: group in names(cli) and members(cli, group), "the member is there", every_s=0.2)
        (described,) = cli("groups", "describe", group, "--json").objects
        assert (described["kind"], len(described["members"])) == ("share", 1)
        assert {row["group"]: row["protocol"] for row in cli("groups", "list", "--json").objects}[group] == "share"
        assert f"{group}  share" in cli("groups", "describe", group).text
        assert "share group" in cli("groups", "delete", group, "--topic", topic, "--yes", code=1).err
    finally:
        member.close()
