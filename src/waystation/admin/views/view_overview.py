"""The broker at a glance, and its last hour: what the dashboard's first page and `waystation top` show.

Made from what sampling knows already, so that it costs next to nothing: rates, sums and the busiest are those of the
last sample, at most five seconds ago; connections, health and the disk are of this moment.
"""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.health.health import Health, disk_room, health_of
from waystation.observe.history import INTERVAL_MS
from waystation.observe.rates import ProtocolRates
from waystation.version import __version__
from waystation.world import MEMORY

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker


class BrokerOut(msgspec.Struct):
    version: str
    node_id: int
    cluster_id: str
    pid: int
    host: str
    data: Annotated[str, Meta(description="the data folder; `:memory:` if there is none")]
    persistent: Annotated[bool, Meta(description="false: all data is in memory, and nothing survives a restart")]
    started_ms: int
    now_ms: int
    uptime_ms: int


class TotalsOut(msgspec.Struct):
    topics: int
    partitions: int
    queues: int
    exchanges: int
    groups: int
    subscriptions: int
    messages_ready: Annotated[int, Meta(description="in all queues, as of the last sample")]
    messages_parked: int
    messages_held: int
    topic_messages: Annotated[int, Meta(description="offsets between the beginnings and the ends of all partitions")]
    pipelines: int


class ResourcesOut(msgspec.Struct):
    disk_free_bytes: int
    disk_total_bytes: int
    data_bytes: Annotated[int, Meta(description="in all logs")]
    memory_bytes: int
    memory_limit_bytes: Annotated[int, Meta(description="0: none")]
    cpu_share: Annotated[float, Meta(description="of one core")]
    loop_delay_ms: Annotated[float, Meta(description="the longest since the sample before")]
    fsync_ms: Annotated[float, Meta(description="the mean since the sample before")]


class BusyTopic(msgspec.Struct):
    name: str
    publish: float
    deliver: float
    publish_bytes: float


class BusyQueue(msgspec.Struct):
    name: str
    put: float
    deliver: float
    ack: float
    ready: int


class Busiest(msgspec.Struct):
    topics: list[BusyTopic]
    queues: list[BusyQueue]


class Overview(msgspec.Struct):
    broker: BrokerOut
    health: Health
    totals: TotalsOut
    connections: dict[str, int]
    rates: Annotated[ProtocolRates, Meta(description="per second, over the last sample")]
    resources: ResourcesOut
    busiest: Busiest


class OverviewQuery(msgspec.Struct):
    """Nothing to choose."""


class HistoryQuery(msgspec.Struct):
    since_ms: Annotated[int, Meta(ge=0, description="only points after this time")] = 0


class HistoryOut(msgspec.Struct):
    interval_ms: int
    times_ms: list[int]
    series: dict[str, list[float]]


def history_view(broker: ManagedBroker, query: HistoryQuery) -> HistoryOut:
    """The last hour, or what there is of it since a moment."""
    times, series = broker.sampling.history.since(query.since_ms)
    return HistoryOut(INTERVAL_MS, times, series)


def overview_view(broker: ManagedBroker, query: OverviewQuery | None = None) -> Overview:
    now_ms = broker.world.clock.now_ms()
    return Overview(
        BrokerOut(
            __version__,
            broker.node_id,
            broker.cluster_id,
            os.getpid(),
            socket.gethostname(),
            broker.root,
            broker.root != MEMORY,
            broker.started_ms,
            now_ms,
            now_ms - broker.started_ms,
        ),
        health_of(broker),
        _totals(broker),
        broker.connections.by_protocol(),
        broker.meters.rates.protocols,
        _resources(broker),
        Busiest(_busy_topics(broker), _busy_queues(broker)),
    )


def _totals(broker: ManagedBroker) -> TotalsOut:
    census = broker.sampling.census
    return TotalsOut(
        len(broker.topics) - census.own_topics,
        census.partitions,
        broker.queues.count_shown(),
        broker.routing.count_exchanges(),
        len(broker.groups.names()) + len(broker.shared.names()),
        census.subscriptions,
        census.ready,
        census.delayed,
        census.in_flight,
        census.topic_messages,
        len(broker.pipelines_seen.states_now()),
    )


def _resources(broker: ManagedBroker) -> ResourcesOut:
    free, total = disk_room(broker)
    sampling = broker.sampling
    return ResourcesOut(
        free,
        total,
        sampling.census.data_bytes,
        broker.world.memory.used_bytes(),
        broker.settings.integer("waystation.memory.max.bytes"),
        sampling.cpu_share,
        sampling.loop_delay_ms,
        sampling.fsync_ms,
    )


def _busy_topics(broker: ManagedBroker) -> list[BusyTopic]:
    rates = broker.meters.rates
    found: list[BusyTopic] = []
    for name in rates.topics.busiest if rates.topics is not None else ():
        one = rates.topic(name)
        if one is not None and name in broker.topics:
            found.append(BusyTopic(name, one.publish, one.deliver, one.publish_bytes))
    return found


def _busy_queues(broker: ManagedBroker) -> list[BusyQueue]:
    rates = broker.meters.rates
    found: list[BusyQueue] = []
    for name in rates.queues.busiest if rates.queues is not None else ():
        one = rates.queue(name)
        place = broker.queues.known(name)
        if one is not None and place is not None:
            ledger = place[1].ledger
            found.append(BusyQueue(name, one.put, one.deliver, one.ack, 0 if ledger is None else ledger.ready))
    return found
