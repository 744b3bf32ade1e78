"""`waystation topics` against a running broker."""

from __future__ import annotations

from tests.cli.kit import Cli, QuickCli


def test_a_topic_is_created_listed_described_and_deleted(cli: Cli, topic: str) -> None:
    assert f"created topic {topic} with 3 partitions" in cli("topics", "create", topic, "--partitions", "3").text
    cli("publish", topic, "a", "b", "--partition", "1")

    listed = {row["topic"]: row for row in cli("topics", "list", "--json").objects}
    assert listed[topic]["partitions"] == 3
    assert listed[topic]["offsets"] == 2

    (described,) = cli("topics", "describe", topic, "--json").objects
    assert [(p["partition"], p["start_offset"], p["end_offset"]) for p in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 2),
        (2, 0, 0),
    ]
    assert described["partitions"][1]["bytes"] > 0

    assert cli("topics", "delete", topic, "--yes").text == f"deleted topic {topic}\n"
    assert topic not in {row["topic"] for row in cli("topics", "list", "--json").objects}


def test_describe_shows_watermarks_leader_and_when_it_was_made(cli: Cli, topic: str) -> None:
    cli("topics", "create", topic)
    cli("publish", topic, "a", "b")
    (described,) = cli("topics", "describe", topic, "--json").objects
    (partition,) = described["partitions"]
    assert (partition["stable_offset"], partition["high_watermark"], partition["end_offset"]) == (2, 2, 2)
    assert (partition["leader"], partition["leader_epoch"]) == (1, 0)
    assert described["created_ms"] > 1_700_000_000_000
    shown = cli("topics", "describe", topic).text
    for word in ("created 20", "LEADER", "STABLE", "HIGH WATERMARK"):
        assert word in shown


def test_settings_are_set_shown_and_taken_back(cli: Cli, topic: str) -> None:
    cli("topics", "create", topic, "--set", "retention.ms=1000", "--set", "cleanup.policy=compact")
    cli("topics", "alter", topic, "--set", "retention.bytes=5000", "--unset", "retention.ms")
    (described,) = cli("topics", "describe", topic, "--json").objects
    own = {name: s["value"] for name, s in described["settings"].items() if s["source"] == "topic"}
    assert own == {"cleanup.policy": "compact", "retention.bytes": "5000"}
    shown = cli("topics", "describe", topic).text
    assert "retention.bytes" in shown
    assert "segment.bytes" not in shown
    assert "segment.bytes" in cli("topics", "describe", topic, "--all").text


def test_partitions_grow_and_never_shrink(cli: Cli, topic: str) -> None:
    cli("topics", "create", topic, "--partitions", "2")
    cli("topics", "alter", topic, "--partitions", "4")
    cli("topics", "alter", topic, "--partitions", "4")
    assert "3" in cli("topics", "alter", topic, "--partitions", "3", code=1).err
    (described,) = cli("topics", "describe", topic, "--json").objects
    assert len(described["partitions"]) == 4


def test_creating_twice_is_an_error_unless_expected(cli: Cli, topic: str) -> None:
    cli("topics", "create", topic)
    assert "exists already" in cli("topics", "create", topic, code=1).err
    assert cli("topics", "create", topic, "--if-not-exists", "--json").objects == []


def test_a_topic_that_is_not_there_is_named(cli: Cli, topic: str) -> None:
    for words in (("describe", topic), ("delete", topic, "--yes"), ("alter", topic, "--set", "retention.ms=1")):
        assert repr(topic) in cli("topics", *words, code=1).err


def test_a_bad_setting_or_name_is_refused_and_nothing_made(cli: Cli, topic: str) -> None:
    assert "retention.ms" in cli("topics", "create", topic, "--set", "retention.mz=1", code=1).err
    assert "retention.ms" in cli("topics", "create", topic, "--set", "retention.ms=soon", code=1).err
    assert "NAME=VALUE" in cli("topics", "create", topic, "--set", "retention.ms", code=1).err
    cli("topics", "create", "no/slash", code=1)
    assert "nothing to change" in cli("topics", "alter", topic, code=1).err
    assert topic not in {row["topic"] for row in cli("topics", "list", "--json").objects}


def test_nothing_is_deleted_without_a_yes(cli: Cli, topic: str) -> None:
    cli("topics", "create", topic)
    assert "--yes" in cli("topics", "delete", topic, code=1).err
    cli("topics", "describe", topic)


def test_the_list_has_what_an_operator_looks_for(quick: QuickCli, topic: str) -> None:
    quick("topics", "create", topic, "--partitions", "2", "--set", "retention.ms=3600000")
    quick("topics", "create", f"{topic}-kept", "--set", "cleanup.policy=compact", "--set", "retention.ms=60000")
    quick("topics", "create", f"{topic}-both", "--set", "cleanup.policy=compact,delete", "--set", "retention.ms=-1")
    quick("topics", "create", f"{topic}-size", "--set", "retention.bytes=1048576")
    quick("publish", topic, "--partition", "0", "a", "b")
    (listed,) = [row for row in quick("topics", "list", "--json").objects if row["topic"] == topic]
    assert (listed["partitions"], listed["offsets"], listed["retention_ms"]) == (2, 2, 3_600_000)
    assert (listed["bytes"] > 0, listed["cleanup_policy"], listed["subscribers"]) == (True, "delete", 0)
    shown = quick("topics", "list").lines
    assert shown[0].split() == ["TOPIC", "PARTITIONS", "OFFSETS", "SIZE", "RETENTION", "SUBSCRIBERS", "MESSAGES/S"]
    lines = {line.split()[0]: line for line in shown}
    assert "  1h " in lines[topic]
    assert "  compacted " in lines[f"{topic}-kept"]
    assert "  compacted, forever " in lines[f"{topic}-both"]
    assert "  7d or 1.0 MiB " in lines[f"{topic}-size"]


def test_a_long_list_is_asked_for_in_pages(quick: QuickCli, topic: str) -> None:
    """The broker answers with a thousand at most; the list has all of them, each once, in order."""
    made = [f"{topic}-{number:04}" for number in range(1_001)]
    quick("topics", "create", *made)
    try:
        listed = [row["topic"] for row in quick("topics", "list", "--json").objects if row["topic"].startswith(topic)]
        assert listed == made
    finally:
        quick("topics", "delete", *made, "--yes")
