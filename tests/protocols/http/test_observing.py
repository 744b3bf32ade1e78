"""Watching the broker by HTTP: the overview, the last hour, the live feed, what Prometheus gets, health checks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.observe.kit import OPENMETRICS, Scrape
from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.observe.history import SERIES
from waystation.observe.meters import MOST_LABELS, OTHER


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Http]:
    """A broker with 300 topics and 300 queues, all of them used."""
    with Server(tmp_path_factory.mktemp("crowded")) as server:
        http = Http(server.addresses["http"])
        for number in range(300):
            http("POST", f"/v1/topics/t{number}/messages", [{"payload": "x"}] * (1 + number % 7))
            http("PUT", f"/v1/queues/q{number}")
            http("POST", f"/v1/queues/q{number}/messages", [{"payload": "x"}] * (1 + number % 5))
        yield http


def test_labels_are_bounded_and_their_sum_is_exact(crowded: Http) -> None:
    scrape = Scrape.of(crowded)
    for kind, total in (
        ("topic", sum(1 + number % 7 for number in range(300))),
        ("queue", sum(1 + number % 5 for number in range(300))),
    ):
        name = f"waystation_{kind}_messages_{'published' if kind == 'topic' else 'put'}_total"
        labels = scrape.labels(name, kind)
        assert OTHER in labels
        assert len(labels) == MOST_LABELS + 1
        assert scrape.sum(name) == total
        assert scrape.sum(name, **{kind: OTHER}) > 0
    assert len(scrape.labels("waystation_queue_messages", "queue")) == MOST_LABELS
    assert scrape.sum("waystation_queued_messages", state="ready") == sum(1 + number % 5 for number in range(300))
    assert scrape.sum("waystation_topics") == scrape.sum("waystation_queues") == 300
    assert scrape.sum("waystation_stored_messages") == sum(1 + number % 7 for number in range(300))


def test_the_busiest_topic_gets_a_label_however_late_it_comes(crowded: Http) -> None:
    Scrape.of(crowded)
    late = unique("late")
    crowded("POST", f"/v1/topics/{late}/messages", [{"payload": "x"}] * 500)
    scrape = Scrape.of(crowded)
    assert scrape.sum("waystation_topic_messages_published_total", topic=late) == 500
    crowded("DELETE", f"/v1/topics/{late}")
    assert late not in Scrape.of(crowded).labels("waystation_topic_messages_published_total", "topic")


def test_the_overview_shows_the_busiest_and_what_there_is(crowded: Http) -> None:
    crowded("POST", "/v1/queues/q7/messages", [{"payload": "x"}] * 400)

    def busiest() -> dict[str, object] | None:
        found = [one for one in crowded("GET", "/v1/overview").json["busiest"]["queues"] if one["name"] == "q7"]
        return found[0] if found else None

    shown = wait_for(busiest, "a sample was taken")
    assert shown["put"] > 0  # type: ignore[operator]
    assert shown["ready"] >= 400  # type: ignore[operator]
    overview = crowded("GET", "/v1/overview").json
    assert len(overview["busiest"]["topics"]) <= 8
    assert overview["totals"]["topics"] == overview["totals"]["queues"] == 300
    assert overview["totals"]["messages_ready"] >= 400
    assert overview["connections"]["http"] >= 1
    assert overview["health"]["status"] in ("ok", "warning")
    assert overview["resources"]["disk_total_bytes"] >= overview["resources"]["disk_free_bytes"] > 0
    assert overview["resources"]["memory_bytes"] > 0
    assert overview["resources"]["data_bytes"] > 0
    assert overview["broker"]["uptime_ms"] == overview["broker"]["now_ms"] - overview["broker"]["started_ms"]


def test_the_history_grows_and_can_be_asked_for_from_a_moment_on(crowded: Http) -> None:
    wait_for(lambda: len(crowded("GET", "/v1/history").json["times_ms"]) >= 2, "there are two points")
    history = crowded("GET", "/v1/history").json
    assert history["interval_ms"] == 5000
    assert sorted(history["series"]) == sorted(SERIES)
    assert {len(values) for values in history["series"].values()} == {len(history["times_ms"])}
    assert max(history["series"]["publish"]) > 0
    assert max(history["series"]["messages_ready"]) > 0
    assert min(history["series"]["memory_bytes"]) > 0
    last = history["times_ms"][-1]
    later = crowded("GET", "/v1/history", since_ms=history["times_ms"][0]).json
    assert later["times_ms"][0] == history["times_ms"][1]
    assert crowded("GET", "/v1/history", since_ms=last + 3_600_000).json["times_ms"] == []
    assert crowded.refused("GET", "/v1/history", since_ms=-1) == (400, "Invalid")


def test_the_live_feed_sends_the_overview_and_every_new_point(crowded: Http) -> None:
    with crowded.events("/v1/live") as events, crowded.events("/v1/live") as others:
        kinds: dict[str, dict[str, object]] = {}
        while len(kinds) < 2:
            kind, value = events.next()
            kinds[kind] = value
        assert set(kinds) == {"overview", "sample"}
        assert set(kinds["overview"]) == set(crowded("GET", "/v1/overview").json)
        assert set(kinds["sample"]) == {"time_ms", "values"}
        assert sorted(kinds["sample"]["values"]) == sorted(SERIES)  # type: ignore[call-overload]
        assert others.next()[0] == "overview"
        watching = crowded("GET", "/v1/overview").json["connections"]["http"]
        assert watching >= 2


def test_the_live_feed_goes_by_websocket_too(crowded: Http) -> None:
    with crowded.socket("/v1/live") as socket:
        first = socket.receive()
        assert first["kind"] == "overview"
        assert "health" in first["data"]
        assert socket.ask(action="anything")["problem"]["error"] == "Invalid"
        while socket.receive()["kind"] != "sample":
            pass


def test_nobody_is_looked_for_when_nobody_watches(crowded: Http) -> None:
    with crowded.events("/v1/live") as events:
        events.next()
        times = "waystation_connections"
        assert Scrape.of(crowded).sum(times, door="http") >= 2
    wait_for(lambda: Scrape.of(crowded).sum(times, door="http") == 1, "the viewers are gone")


def test_prometheus_gets_its_text_and_openmetrics_if_it_asks(http: Http) -> None:
    plain = http("GET", "/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert b"# EOF" not in plain.body
    openmetrics = http("GET", "/metrics", headers={"accept": OPENMETRICS})
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text")
    assert openmetrics.body.endswith(b"# EOF\n")
    first, second = Scrape.of(http), Scrape.of(http, openmetrics=True)
    assert {name.removesuffix("_total") for name in first.samples()} == {
        name.removesuffix("_total") for name in second.samples()
    }
    assert http("HEAD", "/metrics").body == b""


def test_histograms_are_whole(http: Http) -> None:
    """Buckets ascend, and the last one is the count."""
    for _ in range(3):
        http("GET", "/v1/overview")
    scrape = Scrape.of(http)
    found = 0
    for family in scrape.families.values():
        if family.type != "histogram":
            continue
        rows: dict[tuple[tuple[str, str], ...], list[float]] = {}
        counts: dict[tuple[tuple[str, str], ...], float] = {}
        for sample in family.samples:
            key = tuple(sorted((name, value) for name, value in sample.labels.items() if name != "le"))
            if sample.name.endswith("_bucket"):
                rows.setdefault(key, []).append(sample.value)
            elif sample.name.endswith("_count"):
                counts[key] = sample.value
        for key, values in rows.items():
            found += 1
            assert values == sorted(values)
            assert values[-1] == counts[key]
    assert found >= 5
    call = "GET /v1/overview"
    assert scrape.sum("waystation_request_seconds_count", door="http", call=call) >= 3


def test_the_health_checks_answer_with_reasons(http: Http) -> None:
    alive = http("GET", "/healthz").json
    assert alive["status"] in ("ok", "warning")
    assert alive["version"]
    assert isinstance(alive["reasons"], list)
    ready = http("GET", "/readyz").json
    assert ready["status"] == "ready"
    assert Scrape.of(http).sum("waystation_health") in (0, 1)


def test_a_reason_appears_on_every_page_that_shows_health(tmp_path: Path) -> None:
    with Server(tmp_path, settings={"waystation.disk.free.min.bytes": 2**60}) as server:
        http = Http(server.addresses["http"])
        shown = http("GET", "/healthz").json
        assert shown["status"] == "failing"
        assert "The disk is full" in shown["reasons"][0]["what"]
        assert shown["reasons"][0]["advice"]
        assert http("GET", "/readyz").json["reasons"][0] == shown["reasons"][0]
        assert http("GET", "/v1/overview").json["health"]["status"] == "failing"
        assert Scrape.of(http).sum("waystation_health") == 2
        assert Scrape.of(http).sum("waystation_health_reasons", severity="failing") == 1


def test_with_a_token_health_is_told_and_reasons_are_not(tmp_path: Path) -> None:
    settings: dict[str, str | int | bool] = {
        "waystation.disk.free.min.bytes": 2**60,
        "waystation.http.token": "secret",
    }
    with Server(tmp_path, settings=settings) as server:
        http = Http(server.addresses["http"])
        assert http("GET", "/healthz").json["reasons"] == []
        known = {"authorization": "Bearer secret"}
        assert http("GET", "/healthz", headers=known).json["reasons"]
        for path in ("/metrics", "/v1/overview", "/v1/history", "/v1/live"):
            assert http("GET", path, ok=False).status == 401
        assert http("GET", "/metrics", headers=known).status == 200
