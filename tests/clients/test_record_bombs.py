"""A small batch with millions of records in it: whoever reads it gets what they asked for, and the broker stays small.

The topic does without the check of records; otherwise such a batch would not be there.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

import waystation
from tests.clients import kit
from tests.clients.raw_produce import batch_of, produce, tiny_records
from tests.clients.stage import create_topic
from tests.support.server import Server
from tests.support.waiting import wait_for

RECORDS = 1_000_000
MOST_MIB = 250
"""The opened batch twice (one for a reader, one kept), what is decoded at a time, and room for the allocator."""


class Watch:
    """The most memory that the broker had, and the longest that anybody else had to wait."""

    def __init__(self, server: Server) -> None:
        assert server.process is not None
        self._process = psutil.Process(server.process.pid)
        self._url = f"http://{server.addresses['http']}/healthz"
        self.before_mib = self._mib()
        self.grown_mib = 0.0
        self.longest_s = 0.0
        self.answers = 0
        self._over = threading.Event()

    def _mib(self) -> float:
        return float(self._process.memory_info().rss) / 2**20

    def _ask(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            urllib.request.urlopen(self._url, timeout=60).read()
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            self.answers += 1
            self._over.wait(0.005)

    def _sample(self) -> None:
        """Beside the asking: a broker that is blocked answers nobody, and that is when it grows."""
        while not self._over.wait(0.01):
            self.grown_mib = max(self.grown_mib, self._mib() - self.before_mib)

    @contextmanager
    def watching(self) -> Iterator[None]:
        threads = [threading.Thread(target=self._ask), threading.Thread(target=self._sample)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()


def get(server: Server, path: str) -> Any:
    with urllib.request.urlopen(f"http://{server.addresses['http']}/v1{path}", timeout=120) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def bombed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two bombs: one with offsets as they should be, one that is nothing but the same record again and again."""
    now_ms = int(time.time() * 1000)
    with Server(tmp_path_factory.mktemp("bombed")) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for topic, body in (("bombed", tiny_records(RECORDS)), ("repeated", tiny_records(1) * RECORDS)):
            create_topic(admin, topic, 1, {"waystation.validate.records": "crc"})
            assert produce(server.bootstrap, topic, batch_of(body, RECORDS, now_ms, 4)).error == 0
            kit.produce(server.bootstrap, topic, [b"behind"])
        yield server


def offsets(messages: list[Any]) -> list[int]:
    return [one["offset"] for one in messages]


def read(server: Server) -> None:
    answer = get(server, "/topics/bombed/messages?offset=0&count=10")
    assert offsets(answer["messages"]) == list(range(10))
    assert answer["next_offset"] == 10


def read_at_the_end(server: Server) -> None:
    answer = get(server, f"/topics/bombed/messages?offset={RECORDS - 5}&count=10")
    assert offsets(answer["messages"]) == list(range(RECORDS - 5, RECORDS + 1))


def history(server: Server) -> None:
    for count in (1, 3):
        found = get(server, f"/topics/bombed/history?count={count}")["messages"]
        assert offsets(found) == list(range(RECORDS + 1 - count, RECORDS + 1))


def search(server: Server) -> None:
    cursor: str | None = ""
    found: list[Any] = []
    while cursor is not None:
        answer = get(server, f"/topics/bombed/search?text=behind&cursor={cursor}")
        found += answer["messages"]
        cursor = answer["cursor"]
    assert offsets(found) == [RECORDS]


def find(server: Server) -> None:
    assert get(server, "/topics/bombed/messages/bombed-0@777")["offset"] == 777


def consume(server: Server, **options: Any) -> list[int]:
    found: list[int] = []
    with waystation.connect(server.bootstrap) as client, client.subscribe("bombed", **options) as subscription:

        def enough() -> bool:
            found.extend(one.offset for one in subscription.poll(timeout=0.5, max=50 - len(found)))
            return len(found) >= 50

        wait_for(enough, "messages of the bomb come")
    return found


def stream(server: Server) -> None:
    assert consume(server, group="s", mode="stream", start="earliest", prefetch=50) == list(range(50))


def shared(server: Server) -> None:
    assert sorted(consume(server, group="g", mode="shared", start="earliest", prefetch=50)) == list(range(50))


def live(server: Server) -> None:
    assert consume(server, history=50) == list(range(RECORDS - 49, RECORDS + 1))


def repeated(server: Server) -> None:
    """Offsets that do not ascend are no records: the batch is passed over."""
    assert offsets(get(server, "/topics/repeated/history?count=1")["messages"]) == [RECORDS]
    answer = get(server, "/topics/repeated/messages?offset=0&count=10")
    assert offsets(answer["messages"]) == [RECORDS]


WAYS = {way.__name__: way for way in (read, read_at_the_end, history, search, find, stream, shared, live, repeated)}


@pytest.mark.parametrize("way", WAYS)
def test_a_reader_gets_what_it_asked_for_and_the_broker_stays_small(bombed: Server, way: str) -> None:
    watch = Watch(bombed)
    with watch.watching():
        WAYS[way](bombed)
    print(f"{way}: {watch.grown_mib:.0f} MiB, longest {watch.longest_s:.3f} s, {watch.answers} answers")
    assert watch.answers
    assert watch.grown_mib < MOST_MIB
