"""What is measured, in one piece, for whoever scrapes the broker: figures of this moment, which nobody else keeps.

The counters of protocols are not among them: those are plain data that every protocol has (`observe/meters.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from waystation.admin.views.view_cluster import ClusterOut, cluster_view
from waystation.admin.views.view_overview import Overview, overview_view
from waystation.health.lags import GroupLag
from waystation.observe.pipeline_state import PipelineState

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker


class QueueFill(NamedTuple):
    """Messages in a queue, by state."""

    queue: str
    ready: int
    delayed: int
    in_flight: int


class Figures(NamedTuple):
    overview: Overview
    cluster: ClusterOut
    replication_lags: dict[int, int]  # by the node that has yet to copy from this one
    queues: list[QueueFill]  # those that are metered by name
    lags: list[GroupLag]
    pipelines: list[PipelineState]


async def figures(broker: ManagedBroker) -> Figures:
    """Brings counters and sums up to date first, and looks at the lag of groups again if that was long ago."""
    await broker.sampling.fold()
    lags = await broker.lags.fresh()
    queues = [_fill(broker, name) for name in sorted(broker.meters.queues.members)]
    member = broker.member
    return Figures(
        overview_view(broker),
        await cluster_view(broker),
        {} if member is None else member.leadership.replication_lags(),
        queues,
        lags,
        broker.pipelines_seen.states_now(),
    )


def _fill(broker: ManagedBroker, name: str) -> QueueFill:
    found = broker.queues.known(name)
    ledger = None if found is None else found[1].ledger
    if ledger is None:
        return QueueFill(name, 0, 0, 0)
    return QueueFill(name, ledger.ready, ledger.delayed, ledger.in_flight)
