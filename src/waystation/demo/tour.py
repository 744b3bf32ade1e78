"""`waystation demo`: a broker, a small shop that uses all of it through every protocol, and a tour with the dashboard.

Without `--once` the shop runs until Ctrl-C and the tour tells what to look at. With it every part does a fixed
amount, and what went in is compared with what came out: the exit code says whether it agrees.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.cli.terminal.output import bold, note, print_json, print_table
from waystation.demo.broker import DemoBroker
from waystation.demo.shop import Shop
from waystation.errors import WaystationError

if TYPE_CHECKING:
    from waystation.client.sync.queue import Queue

ORDERS, EVENTS, PICTURES, PAYMENTS = 2_000, 600, 100, 300
WORK_S = 60.0
SPARK_S = 240.0
PIPELINE_LOG = "pipeline.log"
PAUSE_S = 12.0
REDRIVEN = 5
ENDS = (signal.SIGTERM, signal.SIGHUP)


def run(arguments: argparse.Namespace) -> int:
    """All of it; the exit code."""
    with _ending_as_by_ctrl_c():
        return _run(arguments)


@contextmanager
def _ending_as_by_ctrl_c() -> Iterator[None]:
    """SIGTERM and a terminal that is closed end the demo as Ctrl-C does: its broker is a session of its own, and would
    be left behind. Under nohup a closed terminal is none of our business."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, *ENDS)}
    for number in ENDS:
        if before[number] is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(arguments: argparse.Namespace) -> int:
    tour = Tour(quiet=arguments.json)
    broker = DemoBroker(arguments.data, free_ports=arguments.free_ports)
    try:
        shop = Shop(broker.address("kafka"), broker.address("amqp"), broker.address("http"))
        tour.say("A broker", f"started in {broker.started_s:.2f} s, data in {broker.data}")
        for protocol, address in broker.addresses.items():
            tour.line(f"  {protocol:<6} {address}")
        tour.line(f"  dashboard: {broker.dashboard}")
        shop.open()
        if not arguments.once:
            return _for_ever(arguments, tour, broker, shop)
        return _once(arguments, tour, broker, shop)
    finally:
        for number in (signal.SIGINT, *ENDS):
            signal.signal(number, signal.SIG_IGN)  # it ends already, and within STOP_S
        broker.close()


class Tour:
    """What the visitor reads."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._step = 0

    def say(self, title: str, text: str = "") -> None:
        self._step += 1
        self.line("")
        self.line(bold(f"{self._step}. {title}") + (f": {text}" if text else ""))

    def line(self, text: str) -> None:
        if not self._quiet:
            print(text, flush=True)


# -- once --------------------------------------------------------------------------------------------------------------


def _once(arguments: argparse.Namespace, tour: Tour, broker: DemoBroker, shop: Shop) -> int:
    checks: list[tuple[str, int, int]] = []
    counts = shop.counts
    _do_kafka(tour, shop)
    checks += [("orders billed", ORDERS, counts["billed"]), ("orders checked", ORDERS, counts["checked"])]
    _do_amqp(tour, shop)
    checks.append(("mails", counts["mails sent"], counts["mailed"]))
    _do_http(tour, shop)
    checks.append(("pictures", PICTURES, counts["resized"]))
    checks += _do_payments(tour, shop)
    if _spark_wanted(arguments):
        checks.append(("orders in the pipeline's totals", ORDERS, _do_spark(tour, broker)))
    else:
        _say_without_spark(tour)
    _do_dashboard(tour, broker)
    shop.stop()
    return _report(arguments, checks, shop.errors)


def _report(arguments: argparse.Namespace, checks: list[tuple[str, int, int]], errors: list[str]) -> int:
    agreed = not errors and all(went_in == came_out for _, went_in, came_out in checks)
    if arguments.json:
        told = [{"what": what, "in": went_in, "out": came_out} for what, went_in, came_out in checks]
        print_json({"checks": told, "errors": errors, "agreed": agreed})
    else:
        print()
        print_table(["what", "in", "out"], checks)
        print("everything that went in came out" if agreed else "what went in and what came out do not agree")
    for error in errors:
        note(error)
    return 0 if agreed else 1


def _together(shop: Shop, senders: list[Callable[[], None]], workers: list[Callable[[], None]]) -> None:
    """Runs senders and workers beside each other until all are done."""
    threads = [shop.start(work.__name__, work) for work in (*senders, *workers)]
    deadline = time.monotonic() + WORK_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _do_kafka(tour: Tour, shop: Shop) -> None:
    from waystation.demo.shop import BILLING, FRAUD
    from waystation.demo.shop import ORDERS as TOPIC

    tour.say("A log", f"{ORDERS} orders into the topic {TOPIC}, read by two who do not share")
    counts = shop.counts

    def send() -> None:
        shop.order(ORDERS)

    def bill() -> None:
        shop.bill(until=lambda: counts["billed"] >= ORDERS)

    def suspect() -> None:
        shop.suspect(until=lambda: counts["checked"] >= ORDERS)

    _together(shop, [send], [bill, suspect])
    tour.line(f"  the consumer group {BILLING} read {counts['billed']}")
    tour.line(f"  the subscription {FRAUD}, which acks every message by itself, {counts['checked']}")


def _do_amqp(tour: Tour, shop: Shop) -> None:
    from waystation.demo.shop import AUDIT
    from waystation.demo.shop import EVENTS as EXCHANGE

    tour.say("RabbitMQ's protocol", f"{EVENTS} events to the exchange {EXCHANGE}, with confirms; a worker acks mails")
    counts = shop.counts

    def tell() -> None:
        shop.tell(EVENTS)

    def mail() -> None:
        shop.mail(until=lambda: counts["events"] >= EVENTS and counts["mailed"] >= counts["mails sent"])

    _together(shop, [tell], [mail])
    tour.line(f"  {counts['mailed']} of them were mails, and are done; all are in the queue {AUDIT}")


def _do_http(tour: Tour, shop: Shop) -> None:
    tour.say("HTTP", f"{PICTURES} pictures to resize, some urgent, every fifth one 1.5 s later")
    counts = shop.counts

    def upload() -> None:
        shop.upload(PICTURES)

    def resize() -> None:
        shop.resize(until=lambda: counts["resized"] >= PICTURES)

    _together(shop, [upload], [resize])
    tour.line(f"  {counts['resized']} resized")


def _do_payments(tour: Tour, shop: Shop) -> list[tuple[str, int, int]]:
    """Payments that fail three times are dead; some are sent back, and die again."""
    import waystation as ws
    from waystation.demo.shop import DEAD
    from waystation.demo.shop import PAYMENTS as QUEUE

    tour.say("A work queue", f"{PAYMENTS} payments; some cards are refused, tried three times, and become dead letters")
    counts = shop.counts
    with ws.connect(str(shop.kafka), name="demo") as mq:
        queue, dead = mq.queue(QUEUE, passive=True), mq.queue(DEAD, passive=True)

        def pay() -> None:
            shop.pay(PAYMENTS)

        def settled() -> bool:
            return counts["payments"] >= PAYMENTS and counts["paid"] + len(dead) >= PAYMENTS and not len(queue)

        def collect() -> None:
            shop.collect(until=settled)

        _together(shop, [pay], [collect])
        died = len(dead)
        tour.line(f"  {counts['paid']} paid, {died} dead; failure history of one: {_failure_history(dead)}")
        back = dead.redrive(limit=REDRIVEN)
        tour.line(f"  {back.moved} redriven to the queue they died in")
        return [
            ("payments", PAYMENTS, counts["paid"] + died),
            ("dead letters redriven", min(REDRIVEN, died), back.moved),
        ]


def _failure_history(dead: Queue) -> str:
    first = dead.peek(1)
    if not first:
        return "none"
    death = next(iter(first[0].deaths), None)
    return "none" if death is None else f"{death['reason']} in {death['queue']}, {death.get('error', 'no error')}"


def _do_dashboard(tour: Tour, broker: DemoBroker) -> None:
    from http.client import HTTPConnection

    tour.say("The dashboard", broker.dashboard)
    address = broker.address("http")
    client = HTTPConnection(address.host, address.port, timeout=20)
    for path, accept in (("/", "text/html"), ("/v1/overview", "application/json"), ("/metrics", "text/plain")):
        client.request("GET", path, headers={"accept": accept})
        answer = client.getresponse()
        size = len(answer.read())
        if answer.status != 200:
            raise WaystationError(f"{path} answered {answer.status}")
        tour.line(f"  {path}: {size} bytes")
    client.close()


# -- Spark -------------------------------------------------------------------------------------------------------------


def _spark_wanted(arguments: argparse.Namespace) -> bool:
    return not arguments.no_spark and find_spec("pyspark") is not None


def _say_without_spark(tour: Tour) -> None:
    if find_spec("pyspark") is not None:
        tour.say("No pipeline", "--no-spark leaves it out")
        return
    tour.say("No pipeline", "it runs on Spark, and PySpark is not installed here")
    tour.line("  `pip install 'waystation[spark]'` brings it, and Java; in a checkout, `make run-demo` does all of it")


PIPELINE = """\
name = "demo-totals"
servers = "{servers}"
trigger = "{trigger}"
checkpoint = "{folder}/checkpoint"

[source.orders]
topics = "shop.orders"
schema = "id STRING, customer STRING, country STRING, goods STRING, amount DOUBLE, paid BOOLEAN"

[step.totals]
from = "orders"
group = "value.country"
aggregate = {{ orders = "count(*)", total = "round(sum(value.amount), 2)" }}

[sink.totals]
from = "totals"
topic = "shop.totals"
key = "country"
mode = "update"
"""


def _do_spark(tour: Tour, broker: DemoBroker) -> int:
    """Runs the pipeline over all orders; returns how many orders its totals have."""
    tour.say("A pipeline", "orders by country, on Spark, into the topic shop.totals, exactly once")
    file = _write_pipeline(broker, "available-now")
    done = subprocess.run(
        [sys.executable, "-m", "waystation", "pipeline", "run", str(file), "--once"],
        capture_output=True,
        text=True,
        timeout=SPARK_S,
        check=False,
    )
    if done.returncode:
        tour.line(f"  it failed: {done.stderr.strip().splitlines()[-1:]}")
        return 0
    totals = _totals(broker)
    for country, (orders, total) in sorted(totals.items()):
        tour.line(f"  {country}: {orders} orders, {total:.2f} in all")
    return sum(orders for orders, _ in totals.values())


def _write_pipeline(broker: DemoBroker, trigger: str) -> Path:
    folder = broker.log.parent
    file = folder / "totals.toml"
    file.write_text(PIPELINE.format(servers=broker.server, trigger=trigger, folder=folder))
    return file


def _totals(broker: DemoBroker) -> dict[str, tuple[int, float]]:
    """The last word on every country."""
    import json

    import waystation as ws
    from waystation.client.records.offsets import offsets_at
    from waystation.client.records.reading import RecordReader

    totals: dict[str, tuple[int, float]] = {}
    with ws.connect(broker.server, name="demo") as mq:
        bounds = {("shop.totals", number): found for number, found in offsets_at(mq, "shop.totals").items()}
        reader = RecordReader(mq)
        reader.assign({place: found.start for place, found in bounds.items()})
        while any(reader.positions[place] < found.stable for place, found in bounds.items()):
            for incoming in reader.poll(500):
                record = incoming.record
                found = json.loads(record.value or b"{}")
                totals[(record.key or b"").decode()] = (found["orders"], found["total"])
    return totals


# -- until Ctrl-C ------------------------------------------------------------------------------------------------------

SIGHTS = (
    ("A log", "orders are published to a topic; the consumer group `billing` reads them", "topics/shop.orders"),
    ("A group", "its members, and how far each partition is behind", "groups/billing"),
    ("RabbitMQ's protocol", "an exchange sends events to queues by their routing keys", "routing"),
    ("A work queue", "payments: delivered, acked, retried, dead-lettered after three refusals", "queues/payments"),
    ("Dead letters", "why they failed, and a button that redrives them", "dead-letters/payments.dead"),
    ("Delayed messages", "pictures that are due later", "delayed"),
    ("Who is connected", "and with which protocol", "connections"),
)


def _for_ever(arguments: argparse.Namespace, tour: Tour, broker: DemoBroker, shop: Shop) -> int:
    actors: list[Callable[[], None]] = [shop.order, shop.tell, shop.upload, shop.pay]
    actors += [shop.bill, shop.suspect, shop.mail, shop.collect, shop.resize]
    pipeline: subprocess.Popen[bytes] | None = None
    try:
        for actor in actors:
            shop.start(actor.__name__, actor)
        if _spark_wanted(arguments):
            pipeline = _start_pipeline(tour, broker)
        else:
            _say_without_spark(tour)
        if not arguments.no_browser:
            import webbrowser

            webbrowser.open(broker.dashboard)
        for title, text, place in SIGHTS:
            tour.say(title, text)
            tour.line(f"  {broker.dashboard}#/{place}")
            shop.stopping.wait(PAUSE_S)
        tour.say("The rest is yours", "the shop runs until Ctrl-C")
        while not shop.errors:
            time.sleep(1)
            if pipeline is not None and pipeline.poll() is not None:
                tour.say("The pipeline has ended", _last_line(broker.log.parent / PIPELINE_LOG))
                pipeline = None
        raise WaystationError(shop.errors[0])
    except KeyboardInterrupt:
        tour.line("\nclosing the shop")
        return 0
    finally:
        shop.stop()
        if pipeline is not None:
            pipeline.terminate()
            pipeline.wait()


def _start_pipeline(tour: Tour, broker: DemoBroker) -> subprocess.Popen[bytes]:
    tour.say("A pipeline", "orders by country, on Spark; it takes some seconds to start")
    tour.line(f"  {broker.dashboard}#/pipelines/demo-totals")
    file = _write_pipeline(broker, "5s")
    command = [sys.executable, "-m", "waystation", "pipeline", "run", str(file)]
    with (broker.log.parent / PIPELINE_LOG).open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)


def _last_line(log: Path) -> str:
    return next(iter(reversed(log.read_text(errors="replace").strip().splitlines())), "it said nothing")
