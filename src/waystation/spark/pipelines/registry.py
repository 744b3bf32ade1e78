"""The topic of pipelines, read and written from outside: what runs, how it is doing, and the wish that it stop.

Used by the command line; `../progress.py` is the other side. Imports no Spark.
"""

from __future__ import annotations

import msgspec

from waystation.client.address import parse_address
from waystation.client.publisher import Outgoing, Publisher
from waystation.client.reader import Reader
from waystation.client.topics import EARLIEST, LATEST, create_topic, find_offsets, find_topic
from waystation.client.wire import Connection
from waystation.errors import AlreadyExists, NotFound, Unavailable, UnknownTopic, near_matches
from waystation.observe.pipeline_state import CONTROL, TOPIC, TOPIC_SETTINGS, Control, PipelineState

KAFKA_PORT = 9092
POLL_MS = 500


def connect_any(servers: str) -> Connection:
    """A connection to the first of the servers that answers."""
    failed: Unavailable | None = None
    for server in servers.split(","):
        try:
            return Connection(parse_address(server.strip(), default_port=KAFKA_PORT))
        except Unavailable as error:
            failed = error
    raise failed or Unavailable("no server was named")


def ensure_topic(connection: Connection) -> None:
    """Makes the topic, if it is not there."""
    try:
        find_topic(connection, TOPIC)
    except UnknownTopic:
        try:
            create_topic(connection, TOPIC, partitions=1, settings=TOPIC_SETTINGS)
        except AlreadyExists:
            pass  # another pipeline was faster


def known_pipelines(connection: Connection) -> dict[str, PipelineState]:
    """The last word of every pipeline, by name."""
    found: dict[str, PipelineState] = {}
    try:
        topic = find_topic(connection, TOPIC)
    except UnknownTopic:
        return found
    places = [(TOPIC, number) for number in topic.partitions]
    ends = {place: end.offset for place, end in find_offsets(connection, dict.fromkeys(places, LATEST)).items()}
    starts = find_offsets(connection, dict.fromkeys(places, EARLIEST))
    reader = Reader(connection)
    reader.assign({place: starts[place].offset for place in places if starts[place].offset < ends[place]})
    while any(at < ends[place] for place, at in reader.positions.items()):
        for incoming in reader.poll(POLL_MS):
            key = (incoming.record.key or b"").decode(errors="replace")
            if key.endswith(CONTROL):
                continue
            if incoming.record.value is None:
                found.pop(key, None)
                continue
            try:
                found[key] = msgspec.json.decode(incoming.record.value, type=PipelineState)
            except msgspec.DecodeError:
                continue  # of another version, or no record of ours
    return dict(sorted(found.items()))


def find_pipeline(connection: Connection, name: str) -> PipelineState:
    """One of them; NotFound says what there is."""
    known = known_pipelines(connection)
    if name not in known:
        hint = near_matches(name, known) or "; `waystation pipeline list` shows those that ran on this broker"
        raise NotFound(f"no pipeline called {name!r} has run on this broker{hint}")
    return known[name]


def ask_to_stop(connection: Connection, state: PipelineState) -> None:
    """Publishes the wish that this run of the pipeline stop."""
    wish = msgspec.json.encode(Control("stop", state.run))
    _publish(connection, f"{state.pipeline}{CONTROL}", wish)


def forget(connection: Connection, name: str) -> None:
    """Takes a pipeline out of the list."""
    try:
        find_topic(connection, TOPIC)
    except UnknownTopic:
        return
    _publish(connection, name, None)
    _publish(connection, f"{name}{CONTROL}", None)


def _publish(connection: Connection, key: str, value: bytes | None) -> None:
    ensure_topic(connection)
    publisher = Publisher(connection, find_topic(connection, TOPIC))
    publisher.publish(Outgoing(value, key.encode()))
    publisher.flush()
