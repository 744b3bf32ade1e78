"""One broker for all tests of crossings; all samples are sent once through every way and read by every other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from tests.crossing import page
from tests.crossing.amqp_way import AmqpWay
from tests.crossing.samples import Sample, name_of, samples_at, speakable
from tests.crossing.ways import Seen, Way, now_ms, open_ways
from tests.support.names import unique
from tests.support.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # Its connections live as long as the run of all tests, and may have nothing to do for most of it.
    settings = {"connections.max.idle.ms": 7_200_000}
    with Server(tmp_path_factory.mktemp("crossing"), settings=settings) as server:
        yield server


@pytest.fixture(scope="session")
def ways(server: Server) -> Iterator[dict[str, Way]]:
    ways = {**open_ways(server), "amqp": AmqpWay(server)}
    yield ways
    for way in ways.values():
        way.close()


@dataclass
class Crossed:
    """What was sent, by (writer, reader) or by the writer alone, and what the readers saw of it."""

    sent: dict[tuple[str, str], list[Sample]] = field(default_factory=dict)
    seen: dict[tuple[str, str], dict[str, Seen]] = field(default_factory=dict)
    began_ms: int = field(default_factory=now_ms)


@pytest.fixture(scope="session")
def topics(ways: dict[str, Way]) -> Crossed:
    """A topic for each writer; every reader reads them all."""
    crossed = Crossed()
    names: dict[str, str] = {}
    for writer, way in ways.items():
        names[writer] = topic = unique(f"from-{writer}")
        sent = speakable(writer, samples_at(now_ms()))
        way.publish(topic, sent)
        for reader in page.WAYS:
            crossed.sent[writer, reader] = sent
    for reader, way in ways.items():
        found = way.read(list(names.values()), sum(len(crossed.sent[writer, reader]) for writer in names))
        for writer, topic in names.items():
            here = [one for one in found if one.place == topic]
            crossed.seen[writer, reader] = {name_of(one.fields["payload"], one.fields.get("type")): one for one in here}
            assert len(here) == len(crossed.seen[writer, reader]) == len(crossed.sent[writer, reader])
    return crossed


@pytest.fixture(scope="session")
def queues(ways: dict[str, Way]) -> Crossed:
    """A queue for each writer and each reader, since a message goes to one reader only."""
    crossed = Crossed()
    there: dict[tuple[str, str], str] = {}
    for writer in page.QUEUE_WAYS:
        for reader in page.QUEUE_WAYS:
            there[writer, reader] = queue = unique(f"from-{writer}-to-{reader}")
            ways["lines"].lines.queue(queue)  # type: ignore[attr-defined]
            crossed.sent[writer, reader] = speakable(writer, speakable(reader, samples_at(now_ms())))
            ways[writer].put(queue, crossed.sent[writer, reader])
    for (writer, reader), queue in there.items():
        found = ways[reader].take(queue, len(crossed.sent[writer, reader]))
        crossed.seen[writer, reader] = {name_of(one.fields["payload"], one.fields.get("type")): one for one in found}
        assert len(found) == len(crossed.seen[writer, reader]) == len(crossed.sent[writer, reader])
    return crossed
