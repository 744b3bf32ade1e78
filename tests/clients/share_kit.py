"""Short words for tests with `confluent_kafka.ShareConsumer`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from tests.support.waiting import DEADLINE_S, NotInTime

ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT

Key = tuple[int | None, int | None]


def share_consumer(bootstrap: str, group: str, topics: Iterable[str], **config: Any) -> ShareConsumer:
    """A member that acknowledges each record itself."""
    base = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "share.acknowledgement.mode": "explicit",
        "log_level": 0,
    }
    client = ShareConsumer({**base, **{name.replace("_", "."): value for name, value in config.items()}})
    client.subscribe(list(topics))
    return client


def configure(admin: AdminClient, group: str, settings: Mapping[str, str]) -> None:
    """Sets settings of a share group, which need not be there yet."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(DEADLINE_S)


def from_the_beginning(admin: AdminClient, group: str, **settings: str) -> None:
    dotted = {name.replace("_", "."): value for name, value in settings.items()}
    configure(admin, group, {"share.auto.offset.reset": "earliest", **dotted})


def poll(client: ShareConsumer, timeout_s: float = 0.2) -> list[Message]:
    """What one poll gives; an error event ends the test."""
    got = []
    for message in client.poll(timeout_s):
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        got.append(message)
    return got


def work(
    clients: Iterable[ShareConsumer],
    done: Callable[[], bool],
    what: str,
    verdict: Callable[[Message], AcknowledgeType] = lambda _: ACCEPT,
    sink: Callable[[Message], object] = lambda _: None,
    *,
    within_s: float = DEADLINE_S,
) -> None:
    """Polls the clients in turn and settles what comes, until `done`; then what was settled is committed."""
    deadline = time.monotonic() + within_s
    members = list(clients)
    while not done():
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {within_s:g} s: {what}")
        for client in members:
            for message in poll(client):
                client.acknowledge(message, verdict(message))
                sink(message)
    for client in members:
        commit(client)


def commit(client: ShareConsumer) -> None:
    for failure in client.commit_sync(DEADLINE_S).values():
        if failure is not None:
            raise failure


def take(client: ShareConsumer, count: int, verdict: AcknowledgeType = ACCEPT) -> list[Message]:
    """So many records, settled in one way."""
    got: list[Message] = []
    work([client], lambda: len(got) >= count, f"{count} records", lambda _: verdict, got.append)
    return got


def hold(client: ShareConsumer, count: int) -> list[Message]:
    """At least so many records, taken and not settled: a poll gives what there is, so they have to be there."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        got = poll(client)
        if len(got) >= count:
            return got
        if got:
            raise AssertionError(f"{len(got)} records came, {count} should have been there")
    raise NotInTime(f"{count} records to hold")


def counts(messages: Iterable[Message]) -> dict[bytes | None, int | None]:
    """How often each was delivered."""
    return {message.value(): message.delivery_count() for message in messages}
