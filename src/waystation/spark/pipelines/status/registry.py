"""The topic of pipelines, read and written from outside: what runs, how it is doing, and the wish that it stop.

Used by the command line; `spark/progress.py` is the other side. Imports no Spark.
"""

from __future__ import annotations

import msgspec

from waystation.client.records.offsets import offsets_at
from waystation.client.records.publishing import OutgoingRecord, RecordPublisher
from waystation.client.records.reading import RecordReader
from waystation.client.sync.client import Client
from waystation.client.sync.connecting import connect
from waystation.errors import AlreadyExists, NotFound, near_matches
from waystation.observe.pipeline_state import CONTROL, TOPIC, TOPIC_SETTINGS, Control, PipelineState
from waystation.spark.links.broker_link import connect_once
from waystation.spark.links.servers import Servers

CLIENT_NAME = "waystation-pipeline"
POLL_MS = 500


def connect_any(servers: str | Servers) -> Client:
    """A client of the first of the servers that answers: those of a pipeline, or as an address is written down."""
    if isinstance(servers, Servers):
        return connect_once(servers, CLIENT_NAME)
    return connect(servers, name=CLIENT_NAME)


def ensure_topic(mq: Client) -> None:
    """Makes the topic, if it is not there."""
    try:
        mq.describe_topic(TOPIC)
    except NotFound:
        try:
            mq.create_topic(TOPIC, 1, TOPIC_SETTINGS)
        except AlreadyExists:
            pass  # another pipeline was faster


def known_pipelines(mq: Client) -> dict[str, PipelineState]:
    """The last word of every pipeline, by name."""
    found: dict[str, PipelineState] = {}
    try:
        bounds = {(TOPIC, number): one for number, one in offsets_at(mq, TOPIC).items()}
    except NotFound:
        return found
    reader = RecordReader(mq)
    reader.assign({place: one.start for place, one in bounds.items() if one.start < one.stable})
    while any(at < bounds[place].stable for place, at in reader.positions.items()):
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


def find_pipeline(mq: Client, name: str) -> PipelineState:
    """One of them; NotFound says what there is."""
    known = known_pipelines(mq)
    if name not in known:
        hint = near_matches(name, known) or "; `waystation pipeline list` shows those that ran on this broker"
        raise NotFound(f"no pipeline called {name!r} has run on this broker{hint}")
    return known[name]


def ask_to_stop(mq: Client, state: PipelineState) -> None:
    """Publishes the wish that this run of the pipeline stop."""
    wish = msgspec.json.encode(Control("stop", state.run))
    _publish(mq, f"{state.pipeline}{CONTROL}", wish)


def forget(mq: Client, name: str) -> None:
    """Takes a pipeline out of the list."""
    try:
        mq.describe_topic(TOPIC)
    except NotFound:
        return
    _publish(mq, name, None)
    _publish(mq, f"{name}{CONTROL}", None)


def _publish(mq: Client, key: str, value: bytes | None) -> None:
    ensure_topic(mq)
    publisher = RecordPublisher(mq, TOPIC)
    publisher.publish(OutgoingRecord(value, key.encode()))
    publisher.flush()
