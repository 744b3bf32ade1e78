"""The broker's figures as Prometheus wants them: families of metrics, made when somebody scrapes.

Nothing is kept for Prometheus between two scrapes; the counters are the broker's own (`observe/meters.py`). Imports
prometheus-client, so it is imported by the first scrape. `docs/reference/metrics.md` lists every metric, and a test
compares it with a real scrape.

The number of series is bounded: by the calls and errors that protocols have, by the `MOST_LABELS` busiest topics and
queues, and by as many groups and pipelines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

from waystation.observe.meters import MOST_LABELS, OTHER
from waystation.version import __version__

if TYPE_CHECKING:
    from waystation.broker.access.administration.view_rows import Figures
    from waystation.broker.access.administration.views import ViewAccess
    from waystation.broker.access.node import Node
    from waystation.broker.access.types import GroupLag
    from waystation.observe.busiest import Busiest
    from waystation.observe.histogram import Histogram
    from waystation.observe.meters import ProtocolMeter

PREFIX = "waystation_"
HEALTH = {"ok": 0, "warning": 1, "failing": 2}


class _Made(Collector):
    """Families that were made already."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


async def scrape(broker: Node, views: ViewAccess, accept: str) -> tuple[bytes, str]:
    """The text and its content type: OpenMetrics if `accept` asks for it, else Prometheus' own."""
    figures = await views.figures()
    families = [family for make in FAMILIES for family in make(broker, figures)]
    families += _groups(figures.lags)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Made(families))
    encode, content_type = choose_encoder(accept)
    # Thousands of lines take some milliseconds, which the loop has better use for.
    return await broker.world.offload(encode, registry), content_type


# -- parts ------------------------------------------------------------------------------------------------------------


def _counter(name: str, about: str, labels: Sequence[str], values: Iterator[tuple[Sequence[str], float]]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, about, labels=labels)
    for named, value in values:
        family.add_metric(named, value)
    return family


def _gauge(name: str, about: str, labels: Sequence[str], values: Iterator[tuple[Sequence[str], float]]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, about, labels=labels)
    for named, value in values:
        family.add_metric(named, value)
    return family


def _number(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, about, value=value)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    return [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in histogram.cumulative()]


def _histogram(name: str, about: str, histogram: Histogram) -> Metric:
    return HistogramMetricFamily(PREFIX + name, about, buckets=_buckets(histogram), sum_value=histogram.sum)


# -- families ---------------------------------------------------------------------------------------------------------


def _about(broker: Node, figures: Figures) -> Iterator[Metric]:
    yield InfoMetricFamily(
        PREFIX + "build", "The broker that was scraped.", {"version": __version__, "cluster_id": broker.cluster_id}
    )
    yield _number("start_time_seconds", "When the broker was started, in seconds since 1970.", broker.started_ms / 1000)
    health = figures.overview.health
    yield _number("health", "0: well, 1: somebody should look, 2: failing.", HEALTH[health.status])
    severities = [reason.severity for reason in health.reasons]
    yield _gauge(
        "health_reasons",
        "How many reasons there are to look at the broker.",
        ["severity"],
        (((severity,), severities.count(severity)) for severity in ("warning", "failing")),
    )


_BY_PROTOCOL: tuple[tuple[str, str, Callable[[ProtocolMeter], int]], ...] = (
    ("messages_published", "Messages that clients published and the broker took.", lambda meter: meter.published),
    ("published_bytes", "Bytes of those messages.", lambda meter: meter.published_bytes),
    ("messages_delivered", "Messages delivered to consumers, redeliveries included.", lambda meter: meter.delivered),
    ("delivered_bytes", "Bytes of those messages.", lambda meter: meter.delivered_bytes),
    ("messages_acked", "Messages that consumers acknowledged, or got with automatic acks.", lambda meter: meter.acked),
    ("messages_rejected", "Messages that consumers refused.", lambda meter: meter.rejected),
    (
        "messages_released",
        "Messages that consumers released (requeued) without settling them.",
        lambda meter: meter.released,
    ),
    ("throttled", "Times that a client was made to wait for a quota.", lambda meter: meter.throttled),
)


def _by_protocol(broker: Node, figures: Figures) -> Iterator[Metric]:
    meters = list(broker.meters.protocols)
    for name, about, value in _BY_PROTOCOL:
        yield _counter(name, about, ["door"], (((meter.name,), value(meter)) for meter in meters))
    requests = HistogramMetricFamily(
        PREFIX + "request_seconds", "From a request's arrival to its answer.", labels=["door", "call"]
    )
    for meter in meters:
        for call, histogram in sorted(meter.calls.items()):
            requests.add_metric([meter.name, call], _buckets(histogram), histogram.sum)
    yield requests
    yield _counter(
        "errors",
        "Requests that were answered with an error, by the protocol's name for it.",
        ["door", "kind"],
        (((meter.name, kind), count) for meter in meters for kind, count in sorted(meter.errors.items())),
    )
    present = broker.connections.by_protocol()
    yield _gauge(
        "connections", "Open connections.", ["door"], (((protocol,), count) for protocol, count in present.items())
    )
    opened = broker.connections.opened
    yield _counter("connections_opened", "Connections accepted.", ["door"], (((d,), opened[d]) for d in present))
    admission = broker.admission
    yield _gauge("connections_max", "Connections that all ports together take.", [], iter([((), admission.most)]))
    refused = (((port,), admission.refused[port]) for port in admission.by_port)
    yield _counter("connections_refused", "Connections that were one too many.", ["port"], refused)


def _deaths(broker: Node, figures: Figures) -> Iterator[Metric]:
    deaths = broker.meters.deaths
    fates = (("dead-lettered", deaths.kept), ("dropped", deaths.dropped))
    yield _counter(
        "messages_dead",
        "Messages that died in queues and shared subscriptions: expired, rejected, too many deliveries, overflow.",
        ["reason", "fate"],
        (((reason, fate), count) for fate, counts in fates for reason, count in sorted(counts.items())),
    )


def _logins(broker: Node, figures: Figures) -> Iterator[Metric]:
    logins = broker.meters.logins
    results = (("success", logins.successes), ("failure", logins.failures))
    yield _counter(
        "logins",
        "Logins, by protocol and result. Those with a certificate alone, and by a session's cookie, are not counted.",
        ["protocol", "result"],
        (((protocol, result), count) for result, counts in results for protocol, count in counts.items()),
    )


def _dropped(broker: Node, figures: Figures) -> Iterator[Metric]:
    yield _counter(
        "messages_dropped",
        'Offsets that live subscribers missed: skipped by slow="drop", or removed by retention before they read them.',
        [],
        iter([((), broker.meters.dropped)]),
    )


def _commit(broker: Node, figures: Figures) -> Iterator[Metric]:
    meter = broker.meters.commit
    yield _histogram("fsync_seconds", "How long a flush of the group commit took.", meter.seconds)
    yield _histogram("fsync_appends", "How many appends one flush served.", meter.appends)
    yield _histogram("fsync_bytes", "How many bytes one flush made durable.", meter.bytes)
    yield _counter("fsync_failures", "Logs whose sync failed.", [], iter([((), meter.failures)]))
    yield _histogram(
        "loop_delay_seconds", "How late the event loop was, asked twice a second.", broker.meters.loop_delay
    )


def _busy(busiest: Busiest, kind: str, columns: Sequence[tuple[str, str]]) -> Iterator[Metric]:
    rows = [*sorted(busiest.items()), (OTHER, busiest.other)]
    for index, (name, about) in enumerate(columns):
        yield _counter(name, about, [kind], (((label,), counts[index]) for label, counts in rows))


def _topics(broker: Node, figures: Figures) -> Iterator[Metric]:
    columns = (
        ("topic_messages_published", "Records appended to a topic since the start; `other`: all without a label."),
        ("topic_published_bytes", "Bytes appended to a topic since the start."),
        ("topic_messages_delivered", "Records of a topic that consumers were given."),
    )
    yield from _busy(broker.meters.topics, "topic", columns)


def _queues(broker: Node, figures: Figures) -> Iterator[Metric]:
    columns = (
        ("queue_messages_put", "Messages put into a queue since the start; `other`: all without a label."),
        ("queue_messages_delivered", "Messages of a queue that consumers were given."),
        ("queue_messages_acked", "Messages of a queue that are done."),
        ("queue_messages_dead", "Messages that died in a queue."),
    )
    yield from _busy(broker.meters.queues, "queue", columns)
    family = GaugeMetricFamily(
        PREFIX + "queue_messages", "Messages in one of the busiest queues, by state.", labels=["queue", "state"]
    )
    for one in figures.queues:
        for state, count in (("ready", one.ready), ("parked", one.delayed), ("held", one.in_flight)):
            family.add_metric([one.queue, state], count)
    yield family


def _totals(broker: Node, figures: Figures) -> Iterator[Metric]:
    totals = figures.overview.totals
    states = {"ready": totals.messages_ready, "parked": totals.messages_parked, "held": totals.messages_held}
    yield _gauge(
        "queued_messages",
        "Messages in all queues: `ready`, `parked` (delayed or waiting for retry), `held` (in flight).",
        ["state"],
        (((state,), count) for state, count in states.items()),
    )
    yield _number(
        "stored_messages", "Offsets between the beginnings and the ends of all partitions.", totals.topic_messages
    )
    for name in ("topics", "partitions", "queues", "exchanges", "groups", "subscriptions", "pipelines"):
        yield _number(name, f"How many {name} there are.", getattr(totals, name))


def _resources(broker: Node, figures: Figures) -> Iterator[Metric]:
    found = figures.overview.resources
    yield _number("data_bytes", "Bytes in all logs.", found.data_bytes)
    yield _number("disk_free_bytes", "Room on the disk with the data.", found.disk_free_bytes)
    yield _number("disk_size_bytes", "Size of the disk with the data.", found.disk_total_bytes)
    yield _number("memory_bytes", "Memory that the broker uses.", found.memory_bytes)
    limit = found.memory_limit_bytes
    yield _number("memory_limit_bytes", "Memory at which publishers have to wait; 0: no limit.", limit)
    yield _counter("cpu_seconds", "Processor time that the broker has used.", [], iter([((), time.process_time())]))


def _groups(lags: list[GroupLag]) -> list[Metric]:
    lags = sorted(lags, key=lambda one: -one.lag)
    shown, rest = lags[:MOST_LABELS], lags[MOST_LABELS:]
    lag = GaugeMetricFamily(
        PREFIX + "group_lag", "Records that a group has yet to consume; `other`: all without a label.", labels=["group"]
    )
    members = GaugeMetricFamily(PREFIX + "group_members", "Members of a group.", labels=["group"])
    for one in shown:
        lag.add_metric([one.group], one.lag)
        members.add_metric([one.group], one.members)
    lag.add_metric([OTHER], sum(one.lag for one in rest))
    members.add_metric([OTHER], sum(one.members for one in rest))
    return [lag, members]


def _pipelines(broker: Node, figures: Figures) -> Iterator[Metric]:
    states = figures.pipelines[:MOST_LABELS]
    now_ms = broker.world.clock.now_ms()
    yield _counter(
        "pipeline_rows",
        "Rows that a pipeline has written in its present run.",
        ["pipeline"],
        (((state.pipeline,), state.rows) for state in states),
    )
    yield _gauge(
        "pipeline_rows_per_second",
        "Rows that a pipeline processes per second, as it says.",
        ["pipeline"],
        (((state.pipeline,), state.rows_per_s) for state in states),
    )
    yield _gauge(
        "pipeline_lag",
        "Records that a pipeline's slowest sink has yet to read.",
        ["pipeline"],
        (((state.pipeline,), state.lag) for state in states if state.lag is not None),
    )
    yield _gauge(
        "pipeline_lag_seconds",
        "Age of the oldest record that a pipeline's slowest sink has yet to read.",
        ["pipeline"],
        (((state.pipeline,), state.lag_ms / 1000) for state in states if state.lag_ms is not None),
    )
    yield _counter(
        "pipeline_read_bytes",
        "Bytes that a pipeline has read from topics in its present run, about.",
        ["pipeline"],
        (((state.pipeline,), state.bytes) for state in states),
    )
    yield _counter(
        "pipeline_lost_rows",
        "Rows that were deleted before a pipeline had read them, where it goes on without them.",
        ["pipeline"],
        (((state.pipeline,), state.lost) for state in states),
    )
    yield _counter(
        "pipeline_retries",
        "Requests of a pipeline's driver that were sent again, since the broker was away.",
        ["pipeline"],
        (((state.pipeline,), state.retries) for state in states),
    )
    yield _counter(
        "pipeline_restarts",
        "Restarts after failures, since the pipeline's process was started.",
        ["pipeline"],
        (((state.pipeline,), state.restarts) for state in states),
    )
    yield _counter(
        "pipeline_skipped_runs",
        "Times of a pipeline's schedule that passed while a run was under way.",
        ["pipeline"],
        (((state.pipeline,), state.skipped_runs) for state in states),
    )
    sinks = [(state.pipeline, sink) for state in states for sink in state.sinks][:MOST_LABELS]
    yield _counter(
        "pipeline_sink_rows",
        "Rows that were written to one sink of a pipeline in its present run.",
        ["pipeline", "sink"],
        (((pipeline, sink.sink), sink.rows) for pipeline, sink in sinks),
    )
    yield _gauge(
        "pipeline_sink_lag",
        "Records that one sink of a pipeline has yet to read.",
        ["pipeline", "sink"],
        (((pipeline, sink.sink), sink.lag) for pipeline, sink in sinks if sink.lag is not None),
    )
    yield _gauge(
        "pipeline_state",
        "1 for the state that a pipeline is in.",
        ["pipeline", "state"],
        (((state.pipeline, state.seen(now_ms)), 1) for state in states),
    )
    yield _gauge(
        "pipeline_reported_timestamp_seconds",
        "When a pipeline last said how it is, in seconds since 1970.",
        ["pipeline"],
        (((state.pipeline,), state.updated_ms / 1000) for state in states),
    )


def _pipeline_rules(broker: Node, figures: Figures) -> Iterator[Metric]:
    """What became of rows that were not as expected."""
    states = figures.pipelines[:MOST_LABELS]
    sinks = [(state.pipeline, sink) for state in states for sink in state.sinks][:MOST_LABELS]
    yield _counter(
        "pipeline_sink_malformed_values",
        "Values that did not fit the schema of their source, by the sinks whose queries read them.",
        ["pipeline", "sink"],
        (((pipeline, sink.sink), sink.malformed) for pipeline, sink in sinks),
    )
    yield _counter(
        "pipeline_sink_dead_letters",
        "Rows of a sink that are dead letters.",
        ["pipeline", "sink"],
        (((pipeline, sink.sink), sink.dead_letters) for pipeline, sink in sinks),
    )
    rules = [(state.pipeline, one) for state in states for one in state.expectations][:MOST_LABELS]
    yield _counter(
        "pipeline_expectation_rows",
        "Rows that met an expectation (passed) and that did not (failed).",
        ["pipeline", "table", "expectation", "result"],
        (
            ((pipeline, one.table, one.expectation, result), getattr(one, result))
            for pipeline, one in rules
            for result in ("passed", "failed")
        ),
    )


def _cluster(broker: Node, figures: Figures) -> Iterator[Metric]:
    """Of a broker alone, too: it is a cluster of one."""
    cluster, meter = figures.cluster, broker.meters.cluster
    alive = sum(node.alive for node in cluster.nodes)
    yield _gauge(
        "cluster_nodes",
        "Nodes of the cluster, as this one knows them.",
        ["state"],
        (((state,), count) for state, count in (("alive", alive), ("away", len(cluster.nodes) - alive))),
    )
    yield _number(
        "under_replicated_partitions",
        "Partitions of the cluster with replicas that are not in sync, as this node knows it.",
        cluster.under_replicated,
    )
    yield _number(
        "offline_partitions",
        "Partitions of the cluster without a leader that lives, as this node knows it.",
        cluster.offline,
    )
    for name, about, value in (
        ("leader_changes", "Partitions that this node began to lead.", meter.led),
        ("in_sync_shrinks", "Times that an in-sync set got smaller, of partitions that this node led.", meter.shrunk),
        ("in_sync_expansions", "Times that an in-sync set grew, of partitions that this node led.", meter.grown),
    ):
        yield CounterMetricFamily(PREFIX + name, about, value=value)
    yield _gauge(
        "replication_lag",
        "Records that a node has yet to copy from this one.",
        ["node"],
        (((str(node.id),), figures.replication_lags.get(node.id, 0)) for node in cluster.nodes),
    )


FAMILIES: tuple[Callable[[Node, Figures], Iterator[Metric]], ...] = (
    _about,
    _by_protocol,
    _deaths,
    _logins,
    _dropped,
    _commit,
    _topics,
    _queues,
    _totals,
    _resources,
    _cluster,
    _pipelines,
    _pipeline_rules,
)
