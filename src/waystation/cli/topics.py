"""`waystation topics`: create, list, describe, alter, delete; `topic_messages` has search and delete-records."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from waystation.cli.arguments import add_server, add_settings, connect, parse_pairs, positive
from waystation.cli.output import bold, confirmed, print_json, print_table, spell_bytes, spell_count
from waystation.cli.topic_messages import configure_looking
from waystation.errors import AlreadyExists, Invalid

if TYPE_CHECKING:
    from waystation.client.topics import Found, Place, SettingInfo, TopicInfo
    from waystation.client.wire import Connection


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    create = verbs.add_parser("create", help="make a topic")
    create.add_argument("topic", nargs="+")
    create.add_argument("--partitions", type=positive, metavar="N", help="default: the broker's num.partitions")
    add_settings(create, "a setting of the topic, like retention.ms=86400000; may be repeated")
    create.add_argument("--if-not-exists", action="store_true", help="fine if it is there already")

    listing = verbs.add_parser("list", help="show all topics")
    listing.add_argument("--internal", action="store_true", help="also those of the broker itself")

    describe = verbs.add_parser("describe", help="show partitions, offsets and settings")
    describe.add_argument("topic", nargs="+")
    describe.add_argument("--all", action="store_true", help="all settings, not only the topic's own")

    alter = verbs.add_parser("alter", help="change settings, add partitions")
    alter.add_argument("topic")
    alter.add_argument("--partitions", type=positive, metavar="N", help="the new number, larger than now")
    add_settings(alter, "a setting to change; may be repeated")
    alter.add_argument("--unset", metavar="NAME", action="append", default=[], help="back to the broker's default")

    delete = verbs.add_parser("delete", help="remove topics with all their messages")
    delete.add_argument("topic", nargs="+")
    delete.add_argument("--yes", action="store_true", help="do not ask")

    for verb, run in ((create, _create), (listing, _list), (describe, _describe), (alter, _alter), (delete, _delete)):
        add_server(verb)
        verb.set_defaults(run=run)
    configure_looking(verbs)


def _create(arguments: argparse.Namespace) -> int:
    from waystation.client.topics import create_topic

    settings = dict(parse_pairs(arguments.settings, "--set"))
    made: list[dict[str, object]] = []
    with connect(arguments) as connection:
        for name in arguments.topic:
            try:
                partitions = create_topic(connection, name, partitions=arguments.partitions, settings=settings)
            except AlreadyExists:
                if not arguments.if_not_exists:
                    raise
                continue
            made.append({"topic": name, "partitions": partitions})
            if not arguments.json:
                print(f"created topic {name} with {spell_count(partitions, 'partition')}")
    if arguments.json:
        print_json(made)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    from waystation.client.topics import EARLIEST, LATEST, find_offsets, list_topics

    with connect(arguments) as connection:
        topics = [topic for topic in list_topics(connection) if arguments.internal or not topic.internal]
        places = [place for topic in topics for place in _places(topic)]
        starts = find_offsets(connection, dict.fromkeys(places, EARLIEST)) if places else {}
        ends = find_offsets(connection, dict.fromkeys(places, LATEST)) if places else {}
    counts = [sum(ends[place].offset - starts[place].offset for place in _places(topic)) for topic in topics]
    if arguments.json:
        print_json(
            [
                {"topic": t.name, "partitions": len(t.partitions), "offsets": count, "internal": t.internal, "id": t.id}
                for t, count in zip(topics, counts, strict=True)
            ]
        )
    elif topics:
        rows = [(t.name, len(t.partitions), count) for t, count in zip(topics, counts, strict=True)]
        print_table(("topic", "partitions", "offsets"), rows)
    else:
        print("no topics yet; `waystation topics create NAME` makes one")
    return 0


def _describe(arguments: argparse.Namespace) -> int:
    from waystation.client.topics import EARLIEST, LATEST, find_offsets, find_topic, partition_sizes, topic_settings

    described = []
    with connect(arguments) as connection:
        for name in arguments.topic:
            topic = find_topic(connection, name)
            places = _places(topic)
            starts = find_offsets(connection, dict.fromkeys(places, EARLIEST))
            ends = find_offsets(connection, dict.fromkeys(places, LATEST))
            sizes = partition_sizes(connection, places)
            settings = topic_settings(connection, name)
            if arguments.json:
                described.append(_as_json(topic, starts, ends, sizes, settings))
            else:
                _print_topic(topic, starts, ends, sizes, [s for s in settings if s.own or arguments.all])
    if arguments.json:
        print_json(described)
    return 0


def _as_json(
    topic: TopicInfo,
    starts: dict[Place, Found],
    ends: dict[Place, Found],
    sizes: dict[Place, int],
    settings: list[SettingInfo],
) -> dict[str, object]:
    return {
        "topic": topic.name,
        "id": topic.id,
        "internal": topic.internal,
        "partitions": [
            {
                "partition": place[1],
                "start_offset": starts[place].offset,
                "end_offset": ends[place].offset,
                "bytes": sizes.get(place),
            }
            for place in _places(topic)
        ],
        "settings": {setting.name: {"value": setting.value, "source": setting.source} for setting in settings},
    }


def _print_topic(
    topic: TopicInfo,
    starts: dict[Place, Found],
    ends: dict[Place, Found],
    sizes: dict[Place, int],
    settings: list[SettingInfo],
) -> None:
    print(bold(topic.name) + f"  id {topic.id}" + ("  internal" if topic.internal else ""))
    print_table(
        ("partition", "start", "end", "offsets", "size"),
        [
            (
                place[1],
                starts[place].offset,
                ends[place].offset,
                ends[place].offset - starts[place].offset,
                spell_bytes(sizes[place]) if place in sizes else None,
            )
            for place in _places(topic)
        ],
    )
    if settings:
        print_table(("setting", "value", "set by"), [(s.name, s.value, s.source) for s in settings])
    print()


def _alter(arguments: argparse.Namespace) -> int:
    from waystation.client.topics import alter_topic

    changed = dict(parse_pairs(arguments.settings, "--set"))
    both = changed.keys() & set(arguments.unset)
    if both:
        raise Invalid(f"{sorted(both)[0]} cannot be set and unset at once")
    if not changed and not arguments.unset and arguments.partitions is None:
        raise Invalid("nothing to change: give --set NAME=VALUE, --unset NAME or --partitions N")
    with connect(arguments) as connection:
        if changed or arguments.unset:
            alter_topic(connection, arguments.topic, changed, arguments.unset)
        if arguments.partitions is not None:
            _grow(connection, arguments.topic, arguments.partitions)
    done = {"topic": arguments.topic, "set": changed, "unset": arguments.unset, "partitions": arguments.partitions}
    if arguments.json:
        print_json(done)
    else:
        print(f"altered topic {arguments.topic}")
    return 0


def _grow(connection: Connection, name: str, partitions: int) -> None:
    from waystation.client.topics import find_topic, grow_topic

    if len(find_topic(connection, name).partitions) != partitions:  # the number that it has is no change, no error
        grow_topic(connection, name, partitions)


def _delete(arguments: argparse.Namespace) -> int:
    from waystation.client.topics import delete_topic, find_topic

    names: list[str] = arguments.topic
    with connect(arguments) as connection:
        for name in names:
            find_topic(connection, name)  # a misspelt name is found before anything is gone
        if not confirmed(f"delete {', '.join(names)} with all messages?", yes=arguments.yes):
            return 1
        for name in names:
            delete_topic(connection, name)
            if not arguments.json:
                print(f"deleted topic {name}")
    if arguments.json:
        print_json([{"topic": name} for name in names])
    return 0


def _places(topic: TopicInfo) -> list[Place]:
    return [(topic.name, number) for number in topic.partitions]
