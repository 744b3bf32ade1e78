"""`waystation topics`: create, list, describe, alter, delete; `topic_messages` has search and delete-records."""

from __future__ import annotations

import argparse
from typing import Any

from waystation.cli.shortening import agreed, topic_dangers
from waystation.cli.terminal.arguments import add_server, add_settings, parse_pairs, positive
from waystation.cli.terminal.native import all_of, open_client, topic_hint, topic_of
from waystation.cli.terminal.output import (
    bold,
    confirmed,
    print_json,
    print_table,
    spell_bytes,
    spell_count,
    spell_rate,
)
from waystation.cli.terminal.setting_units import plain, spelled
from waystation.cli.terminal.units import spell_about, spell_moment
from waystation.cli.topic_messages import configure_looking
from waystation.errors import AlreadyExists, Invalid

OWN = ("topic", "policy")
"""Where settings come from that are not those of every topic."""


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    create = verbs.add_parser("create", help="create topics")
    create.add_argument("topic", nargs="+", help="the topics")
    create.add_argument("--partitions", type=positive, metavar="N", help="default: the broker's num.partitions")
    create.add_argument(
        "--replication-factor",
        type=positive,
        metavar="N",
        help="in a cluster: on how many nodes each partition is (default: 3, or as many as there are)",
    )
    add_settings(create, "a setting of the topic, like retention.ms=7d or segment.bytes=64MiB; may be repeated")
    create.add_argument("--if-not-exists", action="store_true", help="succeed if it already exists")

    listing = verbs.add_parser("list", help="show all topics")
    listing.add_argument("--internal", action="store_true", help="also those of the broker itself")

    describe = verbs.add_parser("describe", help="show partitions, offsets and settings")
    describe.add_argument("topic", nargs="+", help="the topics")
    describe.add_argument("--all", action="store_true", help="all settings, not only the topic's own")

    alter = verbs.add_parser("alter", help="change settings, add partitions")
    alter.add_argument("topic", help="the topic")
    alter.add_argument("--partitions", type=positive, metavar="N", help="the new number, larger than now")
    add_settings(alter, "a setting to change, like retention.ms=7d; may be repeated")
    alter.add_argument("--yes", action="store_true", help="do not ask before retention is shortened")
    alter.add_argument("--unset", metavar="NAME", action="append", default=[], help="back to the broker's default")

    delete = verbs.add_parser("delete", help="delete topics with all their messages")
    delete.add_argument("topic", nargs="+", help="the topics")
    delete.add_argument("--yes", action="store_true", help="do not ask")

    for verb, run in ((create, _create), (listing, _list), (describe, _describe), (alter, _alter), (delete, _delete)):
        add_server(verb)
        verb.set_defaults(run=run)
    configure_looking(verbs)


def _settings(arguments: argparse.Namespace) -> dict[str, str]:
    return {name: plain(name, text) for name, text in parse_pairs(arguments.settings, "--set")}


def _create(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    made: list[dict[str, object]] = []
    with open_client(arguments) as mq:
        for name in arguments.topic:
            try:
                topic = mq.create_topic(
                    name, arguments.partitions, settings, replication_factor=arguments.replication_factor
                )
                partitions = len(topic.partitions)
            except AlreadyExists:
                if not arguments.if_not_exists:
                    raise AlreadyExists(
                        f"topic {name!r} exists already; `waystation topics alter` changes it"
                    ) from None
                continue
            made.append({"topic": name, "partitions": partitions})
            if not arguments.json:
                print(f"created topic {name} with {spell_count(partitions, 'partition')}")
    if arguments.json:
        print_json(made)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    with open_client(arguments) as mq:
        topics = all_of(mq, "topics", internal=arguments.internal)
    if arguments.json:
        same = ("bytes", "retention_ms", "retention_bytes", "cleanup_policy", "subscribers", "rate", "internal", "id")
        print_json(
            {"topic": one["topic"], "partitions": len(one["partitions"]), "offsets": one["messages"]}
            | {field: one[field] for field in same}
            for one in topics
        )
    elif topics:
        rows = [
            (
                one["topic"],
                len(one["partitions"]),
                one["messages"],
                spell_bytes(one["bytes"]),
                _spell_retention(one),
                one["subscribers"],
                None if one["rate"] is None else spell_rate(one["rate"]),
            )
            for one in topics
        ]
        print_table(("topic", "partitions", "offsets", "size", "retention", "subscribers", "messages/s"), rows)
    else:
        print("no topics yet; create one with `waystation topics create NAME`")
    return 0


def _spell_retention(topic: dict[str, Any]) -> str:
    """`7d`, `7d or 1.0 GiB`, `forever`, `compacted`, `compacted, 7d`."""
    policies = topic["cleanup_policy"].split(",")
    limits = [spell_about(topic["retention_ms"])] if topic["retention_ms"] >= 0 else []
    if topic["retention_bytes"] >= 0:
        limits.append(spell_bytes(topic["retention_bytes"]))
    deletes = [" or ".join(limits) or "forever"] if "delete" in policies else []
    return ", ".join(["compacted"] * ("compact" in policies) + deletes)


def _describe(arguments: argparse.Namespace) -> int:
    described = []
    with open_client(arguments) as mq:
        for name in arguments.topic:
            with topic_hint(name):
                topic = mq.view("topic", topic=name)
                settings = mq.view("topic-settings", topic=name)["settings"]
            if arguments.json:
                described.append(_as_json(topic, settings))
            else:
                _print_topic(topic, [one for one in settings if one["source"] in OWN or arguments.all])
    if arguments.json:
        print_json(described)
    return 0


def _as_json(topic: dict[str, Any], settings: list[dict[str, Any]]) -> dict[str, object]:
    return {
        "topic": topic["topic"],
        "id": topic["id"],
        "internal": topic["internal"],
        "created_ms": topic["created_ms"],
        "dropped": topic["dropped"],
        "partitions": topic["partitions"],
        "settings": {one["name"]: {"value": one["value"], "source": one["source"]} for one in settings},
    }


def _print_topic(topic: dict[str, Any], settings: list[dict[str, Any]]) -> None:
    created = "" if topic["created_ms"] is None else f"  created {spell_moment(topic['created_ms'])}"
    print(bold(topic["topic"]) + f"  id {topic['id']}{created}" + ("  internal" if topic["internal"] else ""))
    if topic["dropped"]:
        print(f"live subscribers missed {topic['dropped']} offsets since the broker was started")
    print_table(
        ("partition", "leader", "start", "stable", "high watermark", "end", "offsets", "size"),
        [
            (
                one["partition"],
                one["leader"],
                one["start_offset"],
                one["stable_offset"],
                one["high_watermark"],
                one["end_offset"],
                one["end_offset"] - one["start_offset"],
                spell_bytes(one["bytes"]),
            )
            for one in topic["partitions"]
        ],
    )
    if settings:
        print_table(
            ("setting", "value", "set by"),
            [(one["name"], spelled(one["name"], one["value"]), one["source"]) for one in settings],
        )
    print()


def _alter(arguments: argparse.Namespace) -> int:
    changed = _settings(arguments)
    both = changed.keys() & set(arguments.unset)
    if both:
        raise Invalid(f"{sorted(both)[0]} cannot be set and unset at once")
    if not changed and not arguments.unset and arguments.partitions is None:
        raise Invalid("nothing to change: give --set NAME=VALUE, --unset NAME or --partitions N")
    settings = {**changed, **dict.fromkeys(arguments.unset)}
    with open_client(arguments) as mq, topic_hint(arguments.topic):
        if not agreed(topic_dangers(mq, arguments.topic, settings), yes=arguments.yes):
            return 1
        mq.act("alter-topic", topic=arguments.topic, settings=settings, partitions=arguments.partitions)
    done = {"topic": arguments.topic, "set": changed, "unset": arguments.unset, "partitions": arguments.partitions}
    if arguments.json:
        print_json(done)
    else:
        print(f"altered topic {arguments.topic}")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    names: list[str] = arguments.topic
    with open_client(arguments) as mq:
        for name in names:
            topic_of(mq, name)  # a misspelt name is found before anything is deleted
        if not confirmed(f"delete {', '.join(names)} with all messages?", yes=arguments.yes):
            return 1
        for name in names:
            mq.delete_topic(name)
            if not arguments.json:
                print(f"deleted topic {name}")
    if arguments.json:
        print_json([{"topic": name} for name in names])
    return 0
