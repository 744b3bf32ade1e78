"""The pages of pipelines. The test writes what a running pipeline writes about itself: the records are the same."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import expect

import waystation as ws
from tests.browser.a11y import assert_accessible, assert_axe
from tests.browser.kit import Api, Visitor, desktop_only, row_of, spelled
from tests.browser.sample_pipeline import enriching
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.observe.pipeline_state import CONTROL, TOPIC, Control, PipelineState, SinkState, SourceState

FILE = """\
name = "{name}"

[source.ticks]
rate = 5

[sink.out]
from = "ticks"
console = true
"""


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of pipelines that the broker runs."""
    return tmp_path_factory.mktemp("pipelines")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, pipelines: Path) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("browser"), arguments=["--pipelines", str(pipelines)]) as server:
        yield server


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Runner:
    """What a pipeline's runner says on the topic, without Spark."""

    def __init__(self, mq: ws.Client, name: str) -> None:
        self.mq = mq
        self.state = PipelineState(
            name,
            f"run-{name}",
            phase="running",
            host=f"not-{socket.gethostname()}",
            pid=4711,
            started_ms=now_ms(),
            file="shop.py",
            checkpoint="/data/checkpoints",
            master="local[2]",
        )
        self.rows = 0

    def batch(self, number: int, rows: int, *, batch_ms: int = 250, lag: int = 0) -> None:
        """Says that a batch is done, by both sinks."""
        self.rows += rows
        totals = SinkState(
            "totals", "topic", "running", number, self.rows, rows_per_s=120.5, lag=lag, batch_ms=batch_ms
        )
        files = SinkState("files", "parquet", "running", number, self.rows * 2, rows_per_s=10, lag=lag, batch_ms=900)
        self.state.sinks = [totals, files]
        self.say()

    def say(self) -> None:
        self.state.updated_ms = now_ms()
        self.mq.publish(TOPIC, msgspec.json.encode(self.state), key=self.state.pipeline)

    def wish(self, api: Api) -> Control | None:
        """What somebody asked of this run."""
        for message in api.get(f"/v1/topics/{TOPIC}/history?count=100")["messages"]:
            if message["key"] == f"{self.state.pipeline}{CONTROL}":
                return msgspec.json.decode(message["payload"], type=Control)
        return None


def test_a_running_pipeline_is_shown_batch_by_batch_and_stopped(visitor: Visitor, mq: ws.Client) -> None:
    runner = Runner(mq, unique("shop"))
    name = runner.state.pipeline
    for number in range(4):
        runner.batch(number, 1500 + number, lag=42)
    page = visitor.go("/pipelines")
    page.get_by_label("Search").fill(name)
    row = row_of(page, "Pipelines", name)
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("42")
    assert visitor.fits()
    assert_accessible(page)
    row.get_by_role("link", name=name).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    batches = page.get_by_role("table", name="Batches, the latest first").locator("tbody").get_by_role("row")
    page.get_by_label("Sink", exact=True).select_option("totals")
    expect(batches).to_have_count(4)
    expect(batches.first.get_by_role("cell", name=spelled(1503))).to_be_visible()
    runner.batch(4, 77, batch_ms=333)
    expect(page.get_by_role("img", name="Rows per batch: rows 77")).to_be_visible()
    expect(page.get_by_role("img", name="Time per batch: batch 333 ms")).to_be_visible()
    page.get_by_label("Sink", exact=True).select_option("files")
    expect(page.get_by_role("img", name="Time per batch: batch 900 ms")).to_be_visible()
    expect(page.get_by_role("table", name="Sinks")).to_contain_text("parquet")
    expect(page.get_by_label("Facts")).to_contain_text("/data/checkpoints")
    assert visitor.fits()
    assert_accessible(page)

    page.get_by_role("button", name="Stop", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"Stop {name}?")
    dialog.get_by_role("button", name="Cancel").click()
    assert runner.wish(visitor.api) is None
    page.get_by_role("button", name="Stop", exact=True).click()
    dialog.get_by_role("button", name="Stop", exact=True).click()
    wish = wait_for(lambda: runner.wish(visitor.api), "the wish to stop")
    assert (wish.wish, wish.run) == ("stop", runner.state.run)
    runner.state.phase = "stopped"
    runner.say()
    expect(page.get_by_text("stopped", exact=True).first).to_be_visible()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_disabled()
    expect(page.get_by_role("button", name="Start", exact=True)).to_have_count(0)
    assert_axe(page)


def enriching_with_trouble(mq: ws.Client) -> Runner:
    """One sink has failed, and rows were lost."""
    runner = Runner(mq, unique("enrich"))
    runner.state = enriching(runner.state.pipeline)
    totals, files = runner.state.sinks
    totals.sources[0].lost, totals.sources[0].retries = 7, 3
    files.phase, files.error = "failed", "the disk is full"
    files.sources = [SourceState("topic orders", 400, lag=134, lag_ms=60_000, retries=1)]
    return runner


def test_the_picture_of_a_pipeline_has_its_parts_with_rates_lag_and_failures(visitor: Visitor, mq: ws.Client) -> None:
    runner = enriching_with_trouble(mq)
    runner.say()
    page = visitor.go(f"/pipelines/{runner.state.pipeline}")
    picture = page.get_by_label("Picture of the pipeline").get_by_role("img")
    expect(picture).to_have_accessible_name(
        f"{runner.state.pipeline}: source orders, 812/s, about 1.2 MiB, 134 behind (60 s), 7 lost; "
        "source customers; step paid; step named; "
        "sink totals, 812/s, 500 written, 34 behind; "
        "sink files, failed, 0/s, 400 written, 134 behind"
    )
    expect(picture.locator("g.node")).to_have_count(6)
    expect(picture.locator("g.node.sink.failed")).to_contain_text("files")
    expect(picture.locator("g.edge")).to_have_count(5)
    link = page.get_by_role("link", name="Spark UI")
    expect(link).to_have_attribute("href", "http://worker-3:4040")
    runner.state.sinks[0].rows_per_s = 55.0
    runner.state.phase, runner.state.restarts = "restarting", 2
    runner.state.next_start_ms = now_ms() + 60_000
    runner.say()
    expect(picture).to_have_accessible_name(re.compile("sink totals, 55/s"))
    expect(page.get_by_text("Restart 2 after a failure: ")).to_be_visible()
    assert visitor.fits()
    assert_accessible(page)
    assert_axe(page)
    runner.state.phase = "stopped"
    runner.say()
    expect(link).to_have_count(0)


def test_a_query_started_by_hand_and_a_schedule_are_told_apart(visitor: Visitor, mq: ws.Client) -> None:
    runner = Runner(mq, unique("hand"))
    runner.state.by_hand, runner.state.ui_url = True, "javascript:alert(1)"
    runner.batch(0, 10)
    page = visitor.go(f"/pipelines?search={runner.state.pipeline}")
    row = row_of(page, "Pipelines", runner.state.pipeline)
    expect(row.get_by_role("cell", name="query", exact=True)).to_be_visible()
    row.get_by_role("link", name=runner.state.pipeline).click()
    expect(page.get_by_label("Facts")).to_contain_text("a query that was started by hand")
    expect(page.locator("a[href^='javascript']")).to_have_count(0)
    runner.state.phase, runner.state.schedule, runner.state.next_start_ms = "waiting", "0 3 * * *", now_ms() + 60_000
    runner.state.runs, runner.state.skipped_runs = 4, 1
    runner.say()
    expect(page.get_by_text("Next run (0 3 * * *): ")).to_be_visible()
    expect(page.get_by_text("1 skipped")).to_be_visible()


def test_the_error_of_a_failed_pipeline_is_shown(visitor: Visitor, mq: ws.Client) -> None:
    runner = Runner(mq, unique("broken"))
    runner.state.phase = "failed"
    runner.state.error = "ValueError: no such column: totl\n  at line 12 of shop.py"
    runner.say()
    page = visitor.go(f"/pipelines?search={runner.state.pipeline}")
    row = row_of(page, "Pipelines", runner.state.pipeline)
    expect(row).to_contain_text("failed")
    expect(row).to_contain_text("no such column: totl")
    row.get_by_role("link", name=runner.state.pipeline).click()
    expect(page.get_by_role("alert")).to_contain_text("at line 12 of shop.py")
    expect(page.get_by_text("It has not reported any sinks.")).to_be_visible()
    assert visitor.fits()


@desktop_only
def test_a_pipeline_of_the_brokers_folder_is_started(visitor: Visitor, pipelines: Path) -> None:
    name = unique("ticks")
    (pipelines / f"{name}.toml").write_text(FILE.format(name=name))
    page = visitor.go(f"/pipelines?search={name}")
    row = row_of(page, "Pipelines", name)
    expect(row).to_contain_text("never ran")
    row.get_by_role("link", name=name).click()
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_disabled()
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.get_by_text(f"{name} is starting.")).to_be_visible()
    expect(page.get_by_text("never ran", exact=True)).to_have_count(0)

    def seen() -> str:
        return str(visitor.api.get(f"/v1/pipelines/{name}")["seen"])

    assert seen() in ("starting", "running", "failed")
    # Where there is no Spark its process ends at once, and the page says where the reason is written.
    state = wait_for(lambda: seen() if seen() in ("running", "failed") else None, "it runs, or has failed")
    expect(page.get_by_text(state, exact=True).first).to_be_visible()
    if state == "failed":
        expect(page.get_by_role("alert")).to_contain_text(f"{name}.log")
