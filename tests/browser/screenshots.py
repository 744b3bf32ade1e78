"""The pictures of the dashboard in the README and the docs: `python -m tests.browser.screenshots OUT` makes them.

A broker is started, the little shop of `waystation demo` trades through Kafka, AMQP and HTTP for a minute, and every
page is taken, some in dark too. A picture that is larger than `MAX_BYTES` is an error: they are in the repository.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from playwright.sync_api import ViewportSize, sync_playwright

from tests.browser.chromium import ARGUMENTS, CHROMIUM
from tests.browser.sample_pipeline import enriching
from tests.support.server import Server
from waystation.client.links.address import parse_address
from waystation.demo import shop as demo_shop
from waystation.observe.pipeline_state import PipelineState
from waystation.spark.pipelines.status.reporter import Reporter

MAX_BYTES = 150 * 1024
SIZE = ViewportSize(width=1280, height=800)
PHONE = ViewportSize(width=390, height=844)
TRADE_S = 75.0
PIPELINE = "enrich"
PAGES = {
    "dashboard": "/",
    "topics": "/topics",
    "topic-messages": f"/topics/{demo_shop.ORDERS}?tab=messages",
    "queues": "/queues",
    "queue": f"/queues/{demo_shop.PAYMENTS}",
    "groups": "/groups",
    "group": f"/groups/{demo_shop.BILLING}",
    "dead-letters": f"/dead-letters/{demo_shop.DEAD}",
    "routing": "/routing",
    "connections": "/connections",
    "pipeline": f"/pipelines/{PIPELINE}",
}
DARK = ("dashboard", "topic-messages", "routing")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots", description=__doc__)
    parser.add_argument("out", type=Path, help="the folder for the pictures")
    parser.add_argument("--seconds", type=float, default=TRADE_S, help="how long the shop trades before")
    asked = parser.parse_args(arguments)
    asked.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="waystation-screenshots-") as folder, Server(Path(folder)) as server:
        shop = open_shop(server)
        pipeline = Reporter(server.bootstrap, enriching(PIPELINE), print)
        pipeline.start()
        try:
            trade(asked.seconds, pipeline)
            sizes = take_all(f"http://{server.addresses['http']}", asked.out)
        finally:
            pipeline.close()
            shop.stop()
    for name, size in sizes.items():
        print(f"{size / 1024:6.1f} KiB  {name}")
    too_large = [name for name, size in sizes.items() if size > MAX_BYTES]
    if too_large:
        print(f"larger than {MAX_BYTES // 1024} KiB: {', '.join(too_large)}", file=sys.stderr)
    return 1 if too_large else 0


def trade(seconds: float, pipeline: Reporter) -> None:
    """Lets time pass, in which the pipeline has batches."""
    until, random = time.monotonic() + seconds, Random(1)

    def batch(state: PipelineState) -> None:
        for sink in state.sinks:
            rows = random.randint(900, 1400)
            sink.batch += 1
            sink.rows, sink.rows_read = sink.rows + rows, sink.rows_read + rows
            sink.batch_ms, sink.rows_per_s = random.randint(320, 480), rows / 1.5
        state.sinks[1].sources = state.sinks[0].sources
        state.sinks[1].lag = state.sinks[0].lag

    while time.monotonic() < until:
        pipeline.update(batch)
        time.sleep(1.5)


def open_shop(server: Server) -> demo_shop.Shop:
    """The shop of the demo, trading by itself on this broker."""
    kafka, amqp, http = (
        parse_address(server.addresses[protocol], default_port=0) for protocol in ("kafka", "amqp", "http")
    )
    shop = demo_shop.Shop(kafka, amqp, http)
    shop.open()
    for actor in (shop.order, shop.tell, shop.upload, shop.pay):
        shop.start(actor.__name__, actor)
    for worker in (shop.bill, shop.suspect, shop.mail, shop.collect, shop.resize):
        shop.start(worker.__name__, worker)
    return shop


def take_all(address: str, out: Path) -> dict[str, int]:
    """Takes every page; returns the sizes of the files."""
    sizes: dict[str, int] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for dark, names in ((False, tuple(PAGES)), (True, DARK)):
            context = browser.new_context(viewport=SIZE, color_scheme="dark" if dark else "light")
            page = context.new_page()
            for name in names:
                file = f"{name}-dark.png" if dark else f"{name}.png"
                sizes[file] = take(page, f"{address}/#{PAGES[name]}", out / file)
            context.close()
        context = browser.new_context(viewport=PHONE, color_scheme="light")
        sizes["phone.png"] = take(context.new_page(), f"{address}/#/", out / "phone.png")
        context.close()
        browser.close()
    return sizes


def take(page: Any, address: str, file: Path) -> int:
    """One picture; returns its size."""
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("main h1")
    page.wait_for_selector("#health .badge")
    page.wait_for_timeout(2500)  # one round of the live feed, so that rates are there
    page.screenshot(path=file, animations="disabled")
    return file.stat().st_size


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
