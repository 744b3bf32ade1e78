"""The files that come with the broker for Grafana and Prometheus name only metrics that a real scrape has, and the
page that explains the metrics has all of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pika
import pytest

import waystation
from tests.observe.kit import Scrape
from tests.protocols.http.kit import Http
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.health.health import LOOKS
from waystation.observe.pipeline_state import TOPIC, ExpectationState, PipelineState, SinkState, SourceState

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy" / "grafana" / "waystation.json"
PROMETHEUS = ROOT / "deploy" / "prometheus"
PAGE = ROOT / "docs" / "reference" / "metrics.md"
NAME = re.compile(r"\bwaystation_[a-z_]+")
ROWS = ("Traffic", "Latency", "Disk sync", "Queues", "Groups", "Resources", "Pipelines")


@pytest.fixture(scope="module")
def scrape(server: Server, http: Http) -> Scrape:
    """Of a broker on which everything has happened once that has a metric of its own."""
    with waystation.connect(f"waystation://{server.bootstrap}") as mq:
        mq.queue("jobs", dead_letter="jobs.dead").put(b"x")
        message = mq.queue("jobs").get(timeout=30)
        message.kill("for the metrics")
        mq.publish("news", b"n")
        mq.commit_offsets("readers", [("news", 0, 0)])
        read = SourceState("topic news", rows=7, bytes=700, lag=3, lag_ms=1500, lost=1, retries=2)
        sink = SinkState("out", batch=1, rows=7, lag=3, sources=[read])
        state = PipelineState("etl", "run", "running", sinks=[sink])
        state.expectations = [ExpectationState("paid", "positive", passed=6, failed=1)]
        mq.publish(TOPIC, msgspec.json.encode(state), key="etl")
    host, _, port = server.addresses["amqp"].rpartition(":")
    connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port)))
    with pytest.raises(pika.exceptions.ChannelClosedByBroker):
        connection.channel().queue_declare("not there", passive=True)
    connection.close()

    def whole() -> Scrape | None:
        found = Scrape.of(http)
        return found if found.sum("waystation_pipeline_rows_total", pipeline="etl") == 7 else None

    return wait_for(whole, "the pipeline is seen")


def _expressions(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "expr" or (key == "query" and isinstance(inner, str)):
                yield inner
            else:
                yield from _expressions(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _expressions(inner)


def test_every_metric_of_the_dashboard_exists(scrape: Scrape) -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    named = {name for expression in _expressions(dashboard) for name in NAME.findall(expression)}
    assert len(named) > 30
    assert named <= scrape.samples(), named - scrape.samples()


def test_the_dashboard_has_its_rows_and_every_panel_its_place() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert {panel["title"] for panel in panels if panel["type"] == "row"} >= set(ROWS)
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
        for target in panel.get("targets", ()):
            assert target["expr"].count("(") == target["expr"].count(")"), target["expr"]
            assert target["expr"].count("{") == target["expr"].count("}"), target["expr"]


def test_every_metric_of_the_alerts_exists(scrape: Scrape) -> None:
    text = (PROMETHEUS / "alerts.yml").read_text()
    named = {
        name for line in text.splitlines() if not line.lstrip().startswith("advice") for name in NAME.findall(line)
    }
    assert len(named) > 8
    assert named <= scrape.samples(), named - scrape.samples()
    assert text.count("- alert:") == text.count("summary:") == text.count("advice:") == text.count("severity:")


def test_what_a_pipeline_says_of_its_sources_is_in_its_metrics(scrape: Scrape) -> None:
    found = {
        name: scrape.sum(f"waystation_pipeline_{name}", pipeline="etl")
        for name in (
            "lag_seconds",
            "read_bytes_total",
            "lost_rows_total",
            "retries_total",
            "sink_rows_total",
            "sink_lag",
        )
    }
    assert list(found.values()) == [1.5, 700, 1, 2, 7, 3]


def test_the_page_has_every_metric_with_its_kind_and_labels(scrape: Scrape) -> None:
    rows = re.findall(r"^\| `(waystation_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    told = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert len(told) == len(rows), "a metric is explained twice"
    found = {}
    for name, family in scrape.families.items():
        labels = {label for sample in family.samples for label in sample.labels if label != "le"}
        shown = f"{name}_total" if family.type == "counter" else name
        found[shown] = (family.type, tuple(sorted(labels)))
    assert told == found


def test_the_page_explains_every_kind_of_reason() -> None:
    text = PAGE.read_text()
    section = text.split("## Health", 1)[1].split("\n## ", 1)[0]
    assert section.count("\n| `") == len(LOOKS) + 2, "the disk, memory and logs have two each, a warning and worse"
