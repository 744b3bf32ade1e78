"""Lists by HTTP: topics, queues, their consumers, exchanges and bindings; page by page, complete, at a large scale."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

TOPICS, QUEUES = 1_000, 20_000


def pages(http: Http, path: str, **query: Any) -> Iterator[dict[str, Any]]:
    while True:
        answer = http("GET", path, **query).json
        yield answer
        if answer["next"] is None:
            return
        query["after"] = answer["next"]


def listed(http: Http, what: str, name: str, **query: Any) -> list[str]:
    """All names of a list, and that every page says how many they are."""
    found: list[str] = []
    totals = set()
    for answer in pages(http, f"/v1/{what}", **query):
        found += [each[name] for each in answer[what]]
        totals.add(answer["total"])
    assert totals == {len(found)}
    return found


# -- topics ------------------------------------------------------------------------------------------------------------


def test_topics_are_found_by_a_part_of_their_name_and_shown_with_what_they_keep(http: Http) -> None:
    prefix = unique("Listed")
    for n in range(5):
        settings = {"retention.ms": "5000", "retention.bytes": "70000", "cleanup.policy": "compact,delete"}
        http("PUT", f"/v1/topics/{prefix}.{n}", {"partitions": 2, "settings": settings})
    http("POST", f"/v1/topics/{prefix}.3/messages", [{"payload": "x", "key": str(n)} for n in range(10)])
    names = [f"{prefix}.{n}" for n in range(5)]
    for limit in (1, 2, 5, 1000):
        assert listed(http, "topics", "topic", search=prefix.upper(), limit=limit) == names
    assert listed(http, "topics", "topic", pattern=f"{prefix}.*", limit=2) == names
    (one,) = http("GET", "/v1/topics", search=f"{prefix}.3").json["topics"]
    assert (one["messages"], one["retention_ms"], one["retention_bytes"]) == (10, 5000, 70000)
    assert (one["cleanup_policy"], one["internal"]) == ("compact,delete", False)
    assert one["bytes"] == sum(partition["bytes"] for partition in one["partitions"]) > 0
    assert one == http("GET", f"/v1/topics/{prefix}.3").json
    own = "__consumer_offsets"
    assert listed(http, "topics", "topic", search=own) == []
    (shown,) = http("GET", "/v1/topics", search=own, internal="true").json["topics"]
    assert (shown["topic"], shown["internal"]) == (own, True)


@pytest.mark.parametrize("path", ["/v1/topics", "/v1/queues", "/v1/exchanges", "/v1/routing", "/v1/dead-letters"])
def test_a_page_that_makes_no_sense_is_refused(http: Http, path: str) -> None:
    for query in ({"limit": 0}, {"limit": 1001}, {"limit": "x"}, {"serch": "x"}):
        assert http.refused("GET", path, **query) == (400, "Invalid")


# -- queues ------------------------------------------------------------------------------------------------------------


def test_queues_are_found_by_a_part_of_their_name(http: Http) -> None:
    prefix = unique("Found")
    names = [f"{prefix}/ä{n}" for n in range(5)]
    for each in names:
        http("PUT", f"/v1/queues/{each.replace('/', '%2F').replace('ä', '%C3%A4')}")
    for limit in (1, 2, 5, 1000):
        assert listed(http, "queues", "queue", search=f"{prefix}/Ä".upper(), limit=limit) == names
        assert listed(http, "queues", "queue", prefix=f"{prefix}/", limit=limit) == names
    assert listed(http, "queues", "queue", prefix=prefix, search="ä3") == [names[3]]
    assert listed(http, "queues", "queue", search=f"{prefix}/x") == []
    assert listed(http, "queues", "queue", prefix="__") == []
    assert http("GET", "/v1/queues", prefix=prefix, after=names[-1]).json["queues"] == []


def test_a_queue_says_how_old_its_oldest_message_is(http: Http, queue: str) -> None:
    shown = http.queue(queue)
    assert (shown["oldest_ms"], shown["age_ms"]) == (None, None)
    assert "rates" in shown
    http.put(queue, "x")
    wait_for(lambda: http.queue(queue)["age_ms"] > 1, "it grows older")
    (listed_one,) = http("GET", "/v1/queues", prefix=queue).json["queues"]
    assert listed_one["oldest_ms"] == http.queue(queue)["oldest_ms"]


def test_consumers_of_a_queue_are_shown_with_what_they_hold(http: Http, queue: str) -> None:
    http.put(queue, *(f"m{n}" for n in range(10)))
    path = f"/v1/queues/{queue}/consumers"
    assert http("GET", path).json == {"consumers": [], "next": None, "total": 0}
    with http.socket(f"/v1/queues/{queue}/stream", prefetch=3) as one, http.socket(f"/v1/queues/{queue}/stream") as two:
        one.messages(3)
        two.messages(7)
        answer = http("GET", path).json
        assert answer["total"] == 2
        held = {(each["prefetch"], each["held"], each["active"]) for each in answer["consumers"]}
        assert held == {(3, 3, True), (100, 7, True)}
        first = http("GET", path, limit=1).json
        second = http("GET", path, limit=1, after=first["next"]).json
        assert first["consumers"] + second["consumers"] == answer["consumers"]
        assert second["next"] is None
    wait_for(lambda: http("GET", path).json["total"] == 0, "they are gone")
    assert http.refused("GET", path, after=first["next"]) == (400, "Invalid")
    assert http.refused("GET", "/v1/queues/not-there/consumers") == (404, "NotFound")


def test_consumers_of_other_protocols_name_their_connection(http: Http, server: Server, queue: str) -> None:
    import pika

    host, port = server.addresses["amqp"].rsplit(":", 1)
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    try:
        channel = connection.channel()
        channel.basic_qos(prefetch_count=5)
        channel.basic_consume(queue, lambda *_: None, consumer_tag="a/tag")
        (shown,) = http("GET", f"/v1/queues/{queue}/consumers").json["consumers"]
        assert (shown["tag"], shown["door"], shown["prefetch"]) == ("a/tag", "amqp", 5)
        assert shown["connection"]
        assert shown["since_ms"] > 0
    finally:
        connection.close()


# -- routing -----------------------------------------------------------------------------------------------------------


def test_the_whole_routing_is_read_page_by_page(http: Http) -> None:
    prefix = unique("Map")
    queues = [f"{prefix}-q{n}" for n in range(7)]
    for each in queues:
        http("PUT", f"/v1/queues/{each}")
    for n, size in enumerate((3, 0, 7)):
        http("PUT", f"/v1/exchanges/{prefix}-x{n}", {"kind": "topic"})
        for each in queues[:size]:
            http("POST", f"/v1/exchanges/{prefix}-x{n}/bindings", {"target": f"queue:{each}", "key": "a.#"})
    wanted = [(f"{prefix}-x0", f"queue:{each}") for each in queues[:3]]
    wanted += [(f"{prefix}-x2", f"queue:{each}") for each in queues]
    for limit in (1, 2, 4, 1000):
        answers = list(pages(http, "/v1/routing", search=prefix.lower(), limit=limit))
        bindings = [(each["exchange"], each["target"]) for answer in answers for each in answer["bindings"]]
        assert bindings == wanted
        exchanges = {each["name"]: each["bindings"] for answer in answers for each in answer["exchanges"]}
        assert exchanges == {f"{prefix}-x0": 3, f"{prefix}-x1": 0, f"{prefix}-x2": 7}
        assert {(answer["total"], answer["total_exchanges"]) for answer in answers} == {(10, 3)}
    everything = [
        (each["exchange"], each["target"])
        for answer in pages(http, "/v1/routing", limit=5)
        for each in answer["bindings"]
    ]
    assert [each for each in everything if each[0].startswith(prefix)] == wanted
    only = http("GET", "/v1/routing", exchange=f"{prefix}-x2", limit=3).json
    assert (len(only["bindings"]), only["total"], len(only["exchanges"])) == (3, 7, 1)
    by_target = http("GET", "/v1/routing", search=queues[5]).json
    assert [each["exchange"] for each in by_target["bindings"]] == [f"{prefix}-x2"]
    assert http.refused("GET", "/v1/routing", exchange="not-there") == (404, "NotFound")
    assert http.refused("GET", "/v1/routing", after="nonsense") == (400, "Invalid")


def test_exchanges_and_bindings_come_in_pages(http: Http, queue: str) -> None:
    prefix = unique("Paged")
    names = [f"{prefix}-{n}" for n in range(4)]
    for each in names:
        http("PUT", f"/v1/exchanges/{each}", {"kind": "direct"})
    for limit in (1, 3, 1000):
        assert listed(http, "exchanges", "exchange", search=prefix, limit=limit) == names
    every = listed(http, "exchanges", "exchange", limit=1)
    assert every[0] == "", "the default exchange"
    assert set(names) < set(every)
    for n in range(5):
        http("POST", f"/v1/exchanges/{names[0]}/bindings", {"target": f"queue:{queue}", "key": f"k{n}"})
    found = list(pages(http, f"/v1/exchanges/{names[0]}/bindings", limit=2))
    assert [each["key"] for answer in found for each in answer["bindings"]] == [f"k{n}" for n in range(5)]
    assert [(answer["next"], answer["total"]) for answer in found] == [(2, 5), (4, 5), (None, 5)]
    assert http("GET", f"/v1/exchanges/{names[0]}").json["binding_count"] == 5
    assert http("GET", "/v1/exchanges", search=names[0]).json["exchanges"][0]["bindings"] == 5


# -- at scale ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """A broker of its own with a thousand topics and twenty thousand queues."""
    with Server(Path(tmp_path_factory.mktemp("crowded"))) as server:
        http = Http(server.addresses["http"])
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        for first in range(0, TOPICS, 100):
            wanted = [NewTopic(f"topic-{n:05d}", 1) for n in range(first, first + 100)]
            for done in admin.create_topics(wanted, request_timeout=120).values():
                done.result(120)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda share: declare(http, share), range(8)))
        yield http


def queue_name(number: int) -> str:
    """In no order."""
    return f"queue-{number * 7_919 % QUEUES:06d}"


def declare(http: Http, share: int) -> None:
    """By one connection: twenty thousand of them would take longer than the queues."""
    connection = http.connect()
    for number in range(share, QUEUES, 8):
        settings = b'{"dead_letter": "pit"}' if number % 2 else b"{}"
        connection.request("PUT", f"/v1/queues/{queue_name(number)}", settings, {"content-type": "application/json"})
        assert connection.getresponse().read()
    connection.close()


def test_lists_of_a_crowded_broker_are_complete(crowded: Http) -> None:
    assert listed(crowded, "topics", "topic", limit=300) == [f"topic-{n:05d}" for n in range(TOPICS)]
    every = [f"queue-{n:06d}" for n in range(QUEUES)]
    assert listed(crowded, "queues", "queue", limit=1000) == every
    assert listed(crowded, "queues", "queue", search="E-0123", limit=7) == [n for n in every if "e-0123" in n]
    (place,) = crowded("GET", "/v1/dead-letters").json["dead_letters"]
    assert (place["target"], place["source_count"], len(place["sources"])) == ("pit", QUEUES // 2, 100)


def test_pages_are_complete_while_others_come_and_go(crowded: Http) -> None:
    """What is there all the time is on exactly one page."""
    stop = threading.Event()

    def come_and_go() -> None:
        number = 0
        while not stop.is_set():
            each = f"/v1/queues/queue-{number * 131 % QUEUES:06d}-passing"
            crowded("PUT", each)
            crowded("DELETE", each)
            number += 1

    passing = threading.Thread(target=come_and_go)
    passing.start()
    try:
        found = [each["queue"] for answer in pages(crowded, "/v1/queues", limit=500) for each in answer["queues"]]
    finally:
        stop.set()
        passing.join()
    assert found == sorted(found)
    assert [each for each in found if "passing" not in each] == [f"queue-{n:06d}" for n in range(QUEUES)]
