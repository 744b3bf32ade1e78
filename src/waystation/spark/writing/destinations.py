"""Rows that say themselves which topic or queue they go to: those that cannot go there are made dead letters.

The sink refuses a batch with a row that names no destination, two, or one that does not exist. Where such rows have a
dead letter, they are found before the sink: each destination is looked up once a task, topics are created where the
broker does that for every publisher, and a row without one goes to the dead letter, with headers that say why. Runs in
a task; for `pipelines/output/sinks.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from waystation.errors import Invalid, NotFound
from waystation.spark.links.broker_link import client_at, patiently
from waystation.spark.links.servers import Servers
from waystation.spark.options import DEFAULT_RETRY_S
from waystation.spark.pipelines.file.declared import DEAD_LETTER_HEADERS

DEAD = "_dead"
"""The column that tells dead letters from the others."""

Rows = Iterator[pa.RecordBatch]


def with_dead_letters(servers: Servers, kind: str, place: str, headers: dict[str, str]) -> Callable[[Rows], Rows]:
    """What `mapInArrow` calls. The dead letter is the topic or queue (`kind`) called `place`; `headers` are what its
    messages say besides the error. The batches have the columns `topic`, `queue`, `headers` and `_dead`."""

    def work(batches: Rows) -> Rows:
        wrong = _Destinations(servers)
        for batch in batches:
            errors = [
                wrong.reason(topic, queue)
                for topic, queue in zip(batch["topic"].to_pylist(), batch["queue"].to_pylist(), strict=True)
            ]
            if not any(errors):
                yield batch
                continue
            yield batch.filter(pa.array([error is None for error in errors]))
            bad = batch.filter(pa.array([error is not None for error in errors])).to_pylist()
            for row, error in zip(bad, filter(None, errors), strict=True):
                _bury(row, kind, place, {**headers, f"{DEAD_LETTER_HEADERS}error": error})
            yield pa.RecordBatch.from_pylist(bad, schema=batch.schema)

    return work


def _bury(row: dict[str, Any], kind: str, place: str, headers: dict[str, str]) -> None:
    row["topic"], row["queue"] = (place, None) if kind == "topic" else (None, place)
    told = [{"key": name, "value": text.encode()} for name, text in headers.items()]
    row["headers"] = [*(row["headers"] or ()), *told]
    row[DEAD] = True


class _Destinations:
    """What is wrong with a destination, looked up once."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._known: dict[tuple[str | None, str | None], str | None] = {}

    def reason(self, topic: str | None, queue: str | None) -> str | None:
        place = (topic, queue)
        if place not in self._known:
            self._known[place] = self._look(topic, queue)
        return self._known[place]

    def _look(self, topic: str | None, queue: str | None) -> str | None:
        if topic is None and queue is None:
            return "the row names neither a topic nor a queue"
        if topic is not None and queue is not None:
            return f"the row names a topic ({topic!r}) and a queue ({queue!r})"
        client = client_at(self._servers, DEFAULT_RETRY_S)
        try:
            if topic is not None:
                patiently(lambda: client.describe_topic(topic, create=True), self._servers, DEFAULT_RETRY_S)
            elif queue is not None:
                patiently(lambda: client.queue(queue, passive=True), self._servers, DEFAULT_RETRY_S)
        except (NotFound, Invalid) as error:
            return str(error)
        return None
