"""Pipelines over HTTP: what they said of themselves, and starting and stopping them."""

from __future__ import annotations

import json
import socket
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.observe.kit import Scrape
from tests.protocols.http.kit import Http
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.observe.pipeline_state import TOPIC, ExpectationState, PipelineState, SinkState

TEXT = """\
name = "{name}"

[source.ticks]
rate = 5

[sink.out]
from = "ticks"
console = true
"""


def says(http: Http, state: PipelineState) -> None:
    """What a running pipeline does every few seconds."""
    if http("GET", f"/v1/topics/{TOPIC}", ok=False).status == 404:
        http("PUT", f"/v1/topics/{TOPIC}", {"settings": {"cleanup.policy": "compact"}})
    message = {"key": state.pipeline, "json": msgspec.to_builtins(state)}
    http("POST", f"/v1/topics/{TOPIC}/messages", message)


def running(name: str, batch: int = 0, **more: Any) -> PipelineState:
    sink = SinkState("out", "console", "running", batch=batch, rows=10 * (batch + 1), rows_per_s=5.0, lag=3, batch_ms=7)
    now_ms = time.time_ns() // 1_000_000
    fields: dict[str, Any] = {"phase": "running", "host": "elsewhere", "pid": 1, "started_ms": now_ms, **more}
    return PipelineState(name, "run-1", updated_ms=now_ms, sinks=[sink], **fields)


def described(http: Http, name: str) -> dict[str, Any]:
    return dict(http("GET", f"/v1/pipelines/{name}").json)


def test_a_pipeline_is_shown_with_a_timeline_of_its_batches(http: Http) -> None:
    name = unique("pipeline")
    for batch in range(3):
        says(http, running(name, batch))
    found = described(http, name)
    wanted = {"pipeline": name, "seen": "running", "phase": "running", "runnable": False, "rows": 30, "lag": 3}
    assert found.items() >= wanted.items()
    assert [(point["sink"], point["batch"], point["rows"]) for point in found["timeline"]] == [
        ("out", 0, 10),
        ("out", 1, 10),
        ("out", 2, 10),
    ]
    assert found["sinks"][0]["batch"] == 2
    (listed,) = http("GET", "/v1/pipelines", search=name).json["pipelines"]
    assert listed == {key: value for key, value in found.items() if key != "timeline"}


def test_expectations_are_shown_and_a_bounded_number_is_in_the_metrics(http: Http) -> None:
    name = unique("pipeline")
    rules = [ExpectationState("paid", f"rule_{n}", "amount > 0", "drop", passed=n, failed=2) for n in range(150)]
    says(http, running(name, expectations=rules))
    shown = described(http, name)["expectations"]
    assert len(shown) == 150
    assert shown[3] == {
        "table": "paid",
        "expectation": "rule_3",
        "rule": "amount > 0",
        "on_fail": "drop",
        "passed": 3,
        "failed": 2,
    }
    sample = "waystation_pipeline_expectation_rows_total"
    wait_for(lambda: Scrape.of(http).sum(sample, pipeline=name), "the pipeline to be in the metrics")
    scrape = Scrape.of(http)
    assert scrape.sum(sample, pipeline=name, table="paid", expectation="rule_3", result="passed") == 3
    assert len(scrape.labels(sample, "expectation")) <= 100


def test_what_can_be_concluded_is_told(http: Http) -> None:
    name = unique("pipeline")
    says(http, msgspec.structs.replace(running(name), updated_ms=1))
    assert described(http, name)["seen"] == "lost"
    says(http, running(name, host=socket.gethostname(), pid=2**22 + 1))
    assert described(http, name)["seen"] == "died"


def test_a_pipeline_elsewhere_is_told_to_stop_on_its_topic(http: Http) -> None:
    name = unique("pipeline")
    says(http, running(name))
    assert http("POST", f"/v1/pipelines/{name}/stop").json["pipeline"] == name
    (last,) = http("GET", f"/v1/topics/{TOPIC}/history", count=1).json["messages"]
    assert last["key"] == f"{name}/control"
    assert json.loads(last["payload"]) == {"wish": "stop", "run": "run-1"}
    says(http, running(name, phase="stopped"))
    wait_for(lambda: described(http, name)["seen"] == "stopped", "it says that it has stopped")
    assert http.refused("POST", f"/v1/pipelines/{name}/stop") == (409, "Conflict")


def test_what_is_not_there_is_not_found(http: Http) -> None:
    name = unique("pipeline")
    assert http.refused("GET", f"/v1/pipelines/{name}") == (404, "NotFound")
    assert http.refused("POST", f"/v1/pipelines/{name}/stop") == (404, "NotFound")


def test_a_broker_without_a_folder_says_what_to_do(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        http = Http(server.addresses["http"])
        says(http, running("somewhere"))
        answer = http("POST", "/v1/pipelines/somewhere/start", ok=False)
        assert (answer.status, answer.error) == (400, "Invalid")
        assert "--pipelines" in answer.json["detail"]
        assert http("GET", "/v1/pipelines").json["folder"] is False


def test_files_of_the_folder_are_listed_before_they_ever_ran(http: Http, pipelines: Path) -> None:
    (pipelines / "new.toml").write_text(TEXT.format(name="new"))
    (pipelines / "bad.toml").write_text("name = ")
    found = http("GET", "/v1/pipelines").json
    assert found["folder"] is True
    by_name = {one["pipeline"]: one for one in found["pipelines"]}
    assert (by_name["new"]["seen"], by_name["new"]["runnable"]) == ("never ran", True)
    assert (by_name["bad"]["runnable"], "bad.toml" in by_name["bad"]["error"]) == (False, True)
    assert http.refused("POST", "/v1/pipelines/bad/start") == (400, "Invalid")
    says(http, running("outsider"))
    assert http.refused("POST", "/v1/pipelines/outsider/start") == (400, "Invalid")
    assert http.refused("POST", "/v1/pipelines/nobody/start") == (404, "NotFound")
    says(http, running("new"))
    assert http.refused("POST", "/v1/pipelines/new/start") == (409, "Conflict")
    for file in ("new", "bad"):
        (pipelines / f"{file}.toml").unlink()


@pytest.mark.skipif(find_spec("pyspark") is not None, reason="with Spark it would run")
def test_a_process_that_ends_at_once_is_told_with_its_log(server: Server, http: Http, pipelines: Path) -> None:
    name = unique("dying")
    (pipelines / f"{name}.toml").write_text(TEXT.format(name=name))
    started = http("POST", f"/v1/pipelines/{name}/start").json
    assert started["pipeline"] == name
    failed = wait_for(
        lambda: found if (found := described(http, name))["seen"] == "failed" else None, "its end is noticed"
    )
    assert failed["log"] in failed["error"]
    assert "pyspark" in Path(failed["log"]).read_text()
    assert Path(failed["log"]).is_relative_to(server.data)


def test_a_folder_that_is_not_there_is_refused_before_the_data_is_touched(tmp_path: Path) -> None:
    server = Server(tmp_path, arguments=["--pipelines", str(tmp_path / "none")])
    with pytest.raises(AssertionError, match="none"):
        server.start()
    assert not server.data.exists()
