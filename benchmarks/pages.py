"""`python -m benchmarks.pages`: how long the requests of every page of the dashboard take on a broker that has much.

A broker with 1,000 topics, 100,000 queues, groups, bindings, delayed messages and dead letters, in its own process;
each request is made several times by one connection, first page, page in the middle and search. The aim is 200 ms.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from urllib.parse import urlencode

import waystation as ws
from benchmarks.cli import say
from waystation.demo.broker import DemoBroker

AIM_MS = 200.0
TIMES = 20
LETTERS = 20_000
PAGES: tuple[tuple[str, str, dict[str, str | int]], ...] = (
    ("overview", "/v1/overview", {}),
    ("overview's history", "/v1/history", {}),
    ("topics", "/v1/topics", {}),
    ("topics, in the middle", "/v1/topics", {"after": "topic-00500"}),
    ("topics, search", "/v1/topics", {"search": "99"}),
    ("a topic", "/v1/topics/topic-00007", {}),
    ("a topic's messages", "/v1/topics/topic-00007/messages", {"count": 50}),
    ("search in a topic", "/v1/topics/topic-00000/search", {"text": "no such thing"}),
    ("queues", "/v1/queues", {}),
    ("queues, in the middle", "/v1/queues", {"after": "queue-050000"}),
    ("queues, a thousand", "/v1/queues", {"limit": 1000}),
    ("queues, search", "/v1/queues", {"search": "9999"}),
    ("a queue", "/v1/queues/queue-000007", {}),
    ("a queue's messages", "/v1/queues/dead/peek", {"count": 50}),
    ("which queues have delayed messages", "/v1/delayed", {}),
    ("delayed messages of a queue", "/v1/delayed", {"queue": "later"}),
    ("groups", "/v1/groups", {}),
    ("a group", "/v1/groups/group-007", {}),
    ("dead letters", "/v1/dead-letters", {}),
    ("dead letters by reason", "/v1/dead-letters/dead/summary", {}),
    ("dead letters of a queue", "/v1/dead-letters/dead", {"count": 50}),
    ("routing", "/v1/routing", {}),
    ("connections", "/v1/connections", {}),
    ("pipelines", "/v1/pipelines", {}),
    ("settings", "/v1/settings", {}),
    ("metrics (a scrape)", "/metrics", {}),
)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pages", description=__doc__.splitlines()[0])
    parser.add_argument("--topics", type=int, default=1_000)
    parser.add_argument("--queues", type=int, default=100_000)
    parser.add_argument("--times", type=int, default=TIMES, help="of each request (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    return parser.parse_args(arguments)


def fill(server: str, topics: int, queues: int) -> None:
    """What the pages have to show."""
    with ws.connect(server) as mq:
        for number in range(topics):
            mq.create_topic(f"topic-{number:05d}", 2)
        for number in range(200):
            mq.commit_offsets(f"group-{number:03d}", [(f"topic-{number % topics:05d}", 0, 0)])
        for number in range(0, topics, 10):
            mq.publish_many(f"topic-{number:05d}", [b"x" * 100] * 100, partition=0)
        mq.publish_many("topic-00000", [b"y" * 100] * 20_000, partition=0)
        mq.queue("dead")
        for number in range(queues):
            mq.queue(f"queue-{number:06d}", dead_letter="dead" if number % 10 == 0 else None, max_deliveries=1)
            if number % 20_000 == 19_999:
                say(f"{number + 1} queues")
        mq.queue("later").put_many([b"z"] * LETTERS, delay=3_600)
        source = mq.queue("queue-000000")
        source.put_many([b"w" * 100] * LETTERS)
        taken = 0
        while taken < LETTERS:
            batch = source.get_many(1000, 5)
            source.reject_many(batch, "refused")
            taken += len(batch)
        exchange = mq.exchange("news", "topic")
        for number in range(min(500, queues)):
            exchange.bind(f"queue:queue-{number:06d}", f"a.{number}.*")


def measure(address: str, times: int) -> list[tuple[str, float, float, int]]:
    """Name, median, worst (ms) and bytes of every request."""
    host, _, port = address.rpartition(":")
    client = http.client.HTTPConnection(host, int(port), timeout=60)
    found = []
    for name, path, query in PAGES:
        target = f"{path}?{urlencode(query)}" if query else path
        taken, size = [], 0
        for _ in range(times):
            began = time.perf_counter()
            client.request("GET", target)
            answer = client.getresponse()
            size = len(answer.read())
            taken.append((time.perf_counter() - began) * 1000)
            if answer.status != 200:
                raise RuntimeError(f"{target} answered {answer.status}")
        found.append((name, statistics.median(taken), max(taken), size))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    with closing(DemoBroker(None, free_ports=True)) as broker:
        say(f"{options.topics} topics and {options.queues} queues")
        fill(broker.server, options.topics, options.queues)
        found = measure(broker.addresses["http"], options.times)
    print("| page | median ms | worst ms | bytes |\n| --- | ---: | ---: | ---: |")
    for name, median, worst, size in found:
        print(f"| {name} | {median:.1f} | {worst:.1f} | {size:,} |")
    late = [name for name, _, worst, _ in found if worst > AIM_MS]
    print(f"\naim: {AIM_MS:.0f} ms at the worst: " + ("met" if not late else f"not met by {', '.join(late)}"))
    if options.out is not None:
        options.out.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
