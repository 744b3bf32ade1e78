"""A dashboard that is left open on a busy broker: what it costs the broker, and whether the page grows.

Windows with the page open and without take turns under the same traffic, so that whatever else the machine does falls
on both; the page's heap is read after a forced collection. `WAYSTATION_LEFT_OPEN_MINUTES` makes it longer.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka as ck
import psutil
import pytest

from tests.browser.kit import PAGES, Visitor
from tests.support.names import unique
from tests.support.server import Server

MINUTES = float(os.environ.get("WAYSTATION_LEFT_OPEN_MINUTES", "3"))
WINDOW_S = 15.0
PER_S = 2_000
MAX_SHARE = 0.02
MAX_GROWTH_BYTES = 512 * 1024
"""What the heap may differ by between two forced collections: a page that kept its old elements would pass it soon."""


def traffic(server: Server, stop: threading.Event) -> None:
    """So many messages a second, whatever the machine's load, in steps of 50 ms."""
    topic = unique("busy")
    producer = ck.Producer({"bootstrap.servers": server.bootstrap, "linger.ms": 5})
    next_s = time.monotonic()
    while not stop.is_set():
        for _ in range(PER_S // 20):
            producer.produce(topic, b"x" * 200)
        producer.poll(0)
        next_s += 0.05
        stop.wait(max(0.0, next_s - time.monotonic()))
    producer.flush(30)


def share_of_a_core(process: psutil.Process, within: Callable[[], None]) -> float:
    before, began_s = process.cpu_times(), time.monotonic()
    within()
    after = process.cpu_times()
    return (after.user + after.system - before.user - before.system) / (time.monotonic() - began_s)


class Gauge:
    """The page's heap, nodes and listeners, after a forced collection."""

    def __init__(self, page: Any) -> None:
        self._cdp = page.context.new_cdp_session(page)
        self._cdp.send("Performance.enable")

    def read(self) -> dict[str, float]:
        for _ in range(2):
            self._cdp.send("HeapProfiler.collectGarbage")
        found = {one["name"]: one["value"] for one in self._cdp.send("Performance.getMetrics")["metrics"]}
        return {name: found[name] for name in ("JSHeapUsedSize", "Nodes", "JSEventListeners")}


@pytest.mark.soak
@pytest.mark.timeout(300 + MINUTES * 60 * 3)
def test_a_page_that_is_left_open_is_cheap_and_does_not_grow(chromium: Any, tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        stop = threading.Event()
        thread = threading.Thread(target=traffic, args=(server, stop))
        thread.start()
        try:
            context = chromium.new_context(viewport={"width": 1280, "height": 900})
            visitor = Visitor(context, f"http://{server.addresses['http']}", "desktop")
            page = visitor.go()
            gauge = Gauge(page)
            readings: list[dict[str, float]] = []
            shares: dict[bool, list[float]] = {True: [], False: []}
            for _ in range(max(2, round(MINUTES * 60 / (2 * WINDOW_S)))):
                visitor.go()
                page.wait_for_timeout(2_000)
                shares[True].append(share_of_a_core(process, lambda: page.wait_for_timeout(WINDOW_S * 1000)))
                page.goto("about:blank")
                shares[False].append(share_of_a_core(process, lambda: time.sleep(WINDOW_S)))
            visitor.go()
            page.wait_for_timeout(10_000)
            for _ in range(max(4, round(MINUTES * 60 / WINDOW_S))):
                readings.append(gauge.read())
                page.wait_for_timeout(WINDOW_S * 1000)
            readings.append(gauge.read())
            context.close()
        finally:
            stop.set()
            thread.join()
    cost = statistics.median(shares[True]) - statistics.median(shares[False])
    print(f"share of a core, open: {[round(one, 4) for one in shares[True]]}")
    print(f"share of a core, not: {[round(one, 4) for one in shares[False]]}")
    print(f"the page costs {cost:.2%} of a core")
    print(f"heap: {[round(one['JSHeapUsedSize'] / 1024) for one in readings]} KiB, last {readings[-1]}")
    visitor.check()
    assert cost < MAX_SHARE
    assert readings[-1]["JSHeapUsedSize"] - readings[0]["JSHeapUsedSize"] < MAX_GROWTH_BYTES
    assert readings[-1]["JSEventListeners"] <= readings[0]["JSEventListeners"] + 5
    assert readings[-1]["Nodes"] <= readings[0]["Nodes"] * 1.2


@pytest.mark.soak
def test_going_from_page_to_page_leaves_nothing_behind(chromium: Any, tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        context = chromium.new_context(viewport={"width": 1280, "height": 900})
        visitor = Visitor(context, f"http://{server.addresses['http']}", "desktop")
        visitor.api.publish("orders", {"payload": "1"})
        page = visitor.go()
        gauge = Gauge(page)

        def round_trip() -> dict[str, float]:
            for place in (*PAGES.values(), "/topics/orders?tab=messages", "/topics/orders?tab=settings", "/"):
                page.evaluate("place => { location.hash = `#${place}`; }", place)
                page.wait_for_timeout(300)
            return gauge.read()

        round_trip()
        first = round_trip()
        for _ in range(5):
            last = round_trip()
        print(f"after two rounds {first}, after seven {last}")
        visitor.check()
        context.close()
    assert last["JSEventListeners"] <= first["JSEventListeners"] + 5
    assert last["Nodes"] <= first["Nodes"] * 1.2
    assert last["JSHeapUsedSize"] - first["JSHeapUsedSize"] < MAX_GROWTH_BYTES
