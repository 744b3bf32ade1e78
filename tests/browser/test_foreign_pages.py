"""A page of another origin in a real browser, and a broker that is not on loopback for it: nothing changes.

The browser is told that the broker's name is a machine of the network. It does not trust plain HTTP there, so it sends
no `Sec-Fetch-Site`, as it would to a broker in an office or a cluster.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.browser.chromium import ARGUMENTS, CHROMIUM
from tests.browser.kit import WAIT_MS, Api
from tests.support.names import unique
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")

BROKER, EVIL = "broker", "evil.test"

ATTACK = """
<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>cats</title><script>
const over = [];
let forms = 0;
const wait = (thing, ...events) =>
  new Promise((done) => events.forEach((event) => thing.addEventListener(event, done)));
function image(path) {
  const one = new Image();
  over.push(wait(one, "load", "error"));
  one.src = AT + path;
}
function form(path, enctype) {
  const frame = document.createElement("iframe");
  frame.name = `f${forms++}`;
  document.body.appendChild(frame);
  const one = document.body.appendChild(document.createElement("form"));
  Object.assign(one, { method: "POST", action: AT + path, enctype, target: frame.name });
  const field = one.appendChild(document.createElement("input"));
  Object.assign(field, { name: '{"payload": "', value: '"}' });
  one.submit();
}
function socket(path) {
  const one = new WebSocket(AT.replace("http", "ws") + path);
  over.push(wait(one, "close", "message"));
}
const ask = (path, init) => over.push(fetch(AT + path, init).catch(() => null));
async function attack() {
  const take = `/v1/queues/${QUEUE}/take?auto_ack=true`, old = `/v1/queues/${QUEUE}/messages?auto_ack=true`;
  const stream = `/v1/queues/${QUEUE}/stream?auto_ack=true`, dequeue = `/queue/dequeue?queue=${QUEUE}`;
  [old, stream, dequeue].forEach(image);
  for (const path of [old, stream, dequeue, take]) ask(path, { mode: "no-cors" });
  for (const path of [take, stream, dequeue, `/v1/queues/${QUEUE}/messages`]) {
    ask(path, { method: "POST", mode: "no-cors", body: "text" });
    ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
    for (const enctype of ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
      form(path, enctype);
    navigator.sendBeacon(AT + path, "text");
  }
  ask(old, { headers: { "x-requested-with": "evil" } });
  ask(`/v1/queues/${QUEUE}`, { method: "DELETE" });
  ask(`/v1/queues/${QUEUE}/messages`, { method: "DELETE" });
  socket(stream);
  await Promise.all(over);
  return forms;
}
</script><body>
"""


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    names = f"--host-resolver-rules=MAP {BROKER} 127.0.0.1, MAP {EVIL} 127.0.0.1"
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS, names])
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        yield page
        browser.close()


@pytest.fixture
def queue(server: Server) -> str:
    api = Api(f"http://{server.addresses['http']}")
    queue = unique("q")
    api.put(f"/v1/queues/{queue}", {})
    api.post(f"/v1/queues/{queue}/messages", [{"payload": str(each)} for each in range(5)])
    return queue


@pytest.fixture
def evil(server: Server, queue: str) -> Iterator[str]:
    """The address of a page of somebody else."""
    at = f"http://{BROKER}:{split_address(server.addresses['http'])[1]}"
    text = f"<script>const AT = {at!r}, QUEUE = {queue!r}</script>{ATTACK}".encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    site = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=site.serve_forever, daemon=True).start()
    yield f"http://{EVIL}:{site.server_port}/"
    site.shutdown()
    site.server_close()


def counts(server: Server, queue: str) -> tuple[int, int, int]:
    found = Api(f"http://{server.addresses['http']}").get(f"/v1/queues/{queue}")
    return found["ready"], found["held"], found["consumers"]


def test_a_page_of_another_origin_neither_takes_nor_puts(server: Server, page: Any, queue: str, evil: str) -> None:
    sent: list[str] = []
    ended: list[str] = []
    statuses: set[int] = set()
    page.on("request", lambda request: sent.append(request.resource_type))
    page.on("response", lambda answer: statuses.add(answer.status))
    for event in ("requestfinished", "requestfailed"):  # an answer that cannot be shown is a failure to a browser
        page.on(event, lambda request: ended.append(request.resource_type))
    page.goto(evil)
    statuses.clear()
    forms = page.evaluate("attack()")
    deadline = time.monotonic() + DEADLINE_S
    while ended.count("document") <= forms and time.monotonic() < deadline:
        page.wait_for_timeout(20)
    assert {kind: sent.count(kind) for kind in ("image", "document")} == {"image": 3, "document": 1 + forms}
    assert sent.count("fetch") >= 15
    assert statuses <= {403, 405}
    assert counts(server, queue) == (5, 0, 0)


def test_a_page_of_the_brokers_own_goes_on_where_the_browser_says_nothing_of_the_site(
    server: Server, page: Any, queue: str
) -> None:
    page.goto(f"http://{BROKER}:{split_address(server.addresses['http'])[1]}/")
    put = page.evaluate(
        """async (queue) => (await fetch(`/v1/queues/${queue}/messages`,
        { method: "POST", headers: { "content-type": "application/json" }, body: '{"payload": "x"}' })).status""",
        queue,
    )
    assert put == 201
    took = page.evaluate("async (q) => (await fetch(`/v1/queues/${q}/take`, { method: 'POST' })).status", queue)
    assert took == 200
    wait_for(lambda: counts(server, queue)[:2] == (5, 1), "one was put and one is in flight")
