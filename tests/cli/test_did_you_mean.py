"""What is mistyped is answered with what was meant: commands, options, choices, and names that the broker knows."""

from __future__ import annotations

import pytest

from tests.cli.kit import QuickCli
from waystation.cli.completion.tree import spots
from waystation.cli.main import build_parser

offline = QuickCli("127.0.0.1:1")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topic list", "did you mean 'topics'?"),
        ("topics lst", "did you mean 'list'?"),
        ("queues rm jobs", "did you mean 'delete'?"),
        ("queues show jobs", "did you mean 'describe'?"),
        ("queues desc jobs", "did you mean 'describe'?"),
        ("nonsense", "there are serve, topics,"),
        ("topics nonsense", "there are create, list,"),
        ("topics list --jsn", "`waystation topics list` has no option --jsn; did you mean '--json'?"),
        ("consume orders --parition 1", "did you mean '--partition'?"),
        ("consume orders --parition=1", "has no option --parition; did you mean '--partition'?"),
        ("serve --kafa 9093", "did you mean '--kafka'?"),
        ("publish orders --compression zsdt", "did you mean 'zstd'?"),
        ("groups list --state Stabel", "did you mean 'Stable'?"),
        ("--timeout 5 topics list", "write it after the command it is for, `waystation COMMAND … --timeout`"),
        ("topics --timeout 5 list", "write it after the command it is for, `waystation topics COMMAND … --timeout`"),
        ("--server there:9092 --timeout 5", "only --server, --context and --json may come before it"),
        ("--server there:9092", "a command is missing: `waystation --server … COMMAND`"),
        ("--json", "a command is missing: `waystation --json COMMAND`"),
        ("topics --json", "a command is missing: `waystation topics --json COMMAND`"),
        ("--server there:9092 serve", "`waystation serve` has no option --server"),
        ("--server there:9092 topcs list", "did you mean 'topics' or"),
        ("consume orders --from-beginning", "has no option --from-beginning; did you mean '--from'?"),
        ("consume orders --bootstrap-server there:9092", "did you mean '--server'?"),
        ("consume orders --max-messages 5", "did you mean '--count'?"),
        ("consume orders -f", "did you mean '--follow'?"),
        ("consume --topic orders", "the topic is no option of `waystation consume`: write its name alone"),
        ("topics create --topic orders", "write its name alone, without --topic"),
        ("topics create orders --config retention.ms=1", "did you mean '--set'?"),
        ("exchanges create events --type topic", "did you mean '--kind'?"),
        ("serve --port 9093", "did you mean '--kafka'?"),
        ("users add bob --password secret", "argument --password: everybody on this machine can see"),
        ("topics list orders", "too many arguments: orders"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(line: str, said: str) -> None:
    assert said in offline(*line.split(), code=2).err


def test_a_dead_letter_queue_that_is_not_there_yet_is_explained(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue, "--dead-letter", f"{queue}.dead")
    for words in (("show",), ("redrive",), ("delete", "--all", "--yes")):
        said = quick("dead-letters", words[0], f"{queue}.dead", *words[1:], code=1).err
        assert "created with its first message" in said or f"did you mean '{queue}'" in said
    said = quick("dead-letters", "show", "nothing-like-it", code=1).err
    assert "created with its first message, `waystation dead-letters list` shows for whom" in said


def test_settings_and_policies_that_are_not_there_are_answered_with_what_there_is(quick: QuickCli) -> None:
    assert "`waystation config show` lists all of them" in quick("config", "set", "zzz=2", code=1).err
    said = quick("policies", "set", "p", "^jobs", "mesage-ttl=1", code=1).err
    assert "did you mean 'message-ttl'" in said
    assert "there are message-ttl, expires" in quick("policies", "set", "p", "^jobs", "zzz=1", code=1).err


def test_every_command_is_found_by_a_slip_of_it() -> None:
    for spot in spots(build_parser()):
        if len(spot.path) == 1:
            misspelt = spot.path[0][:-1] + "x" + spot.path[0][-1]
            assert f"did you mean {spot.path[0]!r}" in offline(misspelt, code=2).err


@pytest.mark.parametrize(
    "line",
    [
        "topics describe {}", "topics alter {} --partitions 2", "topics delete {} --yes", "topics search {} --key k",
        "topics delete-records {} --partition 0 --before 1 --yes", "consume {}", "export {}", "delayed list --topic {}",
        "groups reset g --to earliest --topic {}",
    ],
)  # fmt: skip
def test_a_topic_that_is_not_there_is_answered_with_the_near_one(quick: QuickCli, topic: str, line: str) -> None:
    quick("topics", "create", topic)
    said = quick(*line.format(f"x{topic}").split(), code=1).err
    assert f"there is no topic 'x{topic}'; did you mean '{topic}'" in said


@pytest.mark.parametrize(
    "line",
    [
        "queues describe {}", "queues alter {} --ttl 1h", "queues delete {} --yes", "queues purge {} --yes",
        "queues put {} m", "queues get {}", "queues peek {}", "queues cancel {} m", "queues find m --queue {}",
        "dead-letters list {}", "dead-letters show {}", "dead-letters redrive {}", "delayed list {}",
        "delayed cancel {} m", "export --queue {}", "exchanges bind amq.topic {}", "request {} 1 --timeout 1s",
    ],
)  # fmt: skip
def test_a_queue_that_is_not_there_is_answered_with_the_near_one(quick: QuickCli, queue: str, line: str) -> None:
    quick("queues", "create", queue)
    said = quick(*line.format(f"x{queue}").split(), code=1).err
    assert f"there is no queue 'x{queue}'; did you mean '{queue}'" in said


@pytest.mark.parametrize("line", ["describe {}", "delete {} --yes", "reset {} --to earliest"])
def test_a_group_that_is_not_there_is_answered_with_the_near_one(
    quick: QuickCli, topic: str, group: str, line: str
) -> None:
    quick("topics", "create", topic)
    quick("groups", "reset", group, "--topic", topic, "--to", "earliest", "--yes")
    said = quick("groups", *line.format(f"x{group}").split(), code=1).err
    assert f"there is no group 'x{group}'; did you mean '{group}'" in said


@pytest.mark.parametrize(
    "line", ["list {}", "delete {} --yes", "bind {} queue", "unbind {} queue", "route {} --routing-key k"]
)
def test_an_exchange_that_is_not_there_is_answered_with_the_near_one(quick: QuickCli, line: str) -> None:
    assert "did you mean 'amq.fanout'" in quick("exchanges", *line.format("amq.fanuot").split(), code=1).err


def test_other_names_are_answered_with_the_near_one(quick: QuickCli, queue: str, topic: str) -> None:
    quick("queues", "create", queue)
    assert "did you mean 'ttl'?" in quick("queues", "alter", queue, "--unset", "ttll", code=1).err
    assert "'retention.ms'?" in quick("topics", "create", topic, "--set", "retention.sm=1", code=1).err
    assert "did you mean 'num.partitions'?" in quick("config", "set", "num.partition=3", code=1).err


def test_options_may_stand_between_arguments(quick: QuickCli, topic: str) -> None:
    quick("publish", topic, "--key", "k", "a", "--header", "h=1", "b")
    assert quick("consume", topic, "--format", "{key} {value} {headers}\\n").lines == ["k a h=1", "k b h=1"]
    assert "did you mean '--header'?" in offline("publish", topic, "--key", "k", "a", "--haeder", "b", code=2).err
