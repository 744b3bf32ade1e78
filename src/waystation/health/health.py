"""Whether the broker is well, and if not, why and what to do: one list of reasons, for the dashboard, the health checks
and whoever else asks.

A reason is `failing` if messages cannot be taken now, and a `warning` if somebody should look before that happens.
Everything here is known already: asking costs a look at the disk and nothing else. `docs/reference/metrics.md` has the
table of reasons.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.health.sampling import SEVERAL
from waystation.routing.namespace_names import DEFAULT
from waystation.world import MEMORY

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

Status = Literal["ok", "warning", "failing"]

NEARLY = 2
"""A disk is nearly full with less than this many times the room that publishers are stopped at."""
NEARLY_SHARE = 0.05
"""And with less than this share of it free."""
NEARLY_USED = 0.9
"""Memory and connections: a warning from this share of their limit on."""
SLOW_LOOP_MS = 250.0
SLOW_SYNC_MS = 100.0
MANY_DEAD = 10
"""Dead letters within the last minutes that are worth a word."""
ABANDONED_LAG = 10_000
NAMED = 3
"""Things of one kind that a reason names."""


class Reason(msgspec.Struct, frozen=True):
    severity: Literal["warning", "failing"]
    what: str
    advice: str


class Health(msgspec.Struct, frozen=True):
    status: Status
    reasons: list[Reason]


def health_of(broker: ManagedBroker) -> Health:
    reasons = [reason for look in LOOKS for reason in look(broker)]
    reasons.sort(key=lambda reason: reason.severity != "failing")
    worst: Status = reasons[0].severity if reasons else "ok"
    return Health(worst, reasons)


def failed_logs(broker: ManagedBroker) -> Iterator[Reason]:
    """Logs that take no more writes until a restart, and those that wait for room."""
    failed, stalled = [], []
    for topic in broker.topics:
        for partition in topic.partitions:
            if partition.failure is not None:
                failed.append((f"{topic.name}-{partition.index}", str(partition.failure)))
            elif partition.stalled is not None:
                stalled.append((f"{topic.name}-{partition.index}", str(partition.stalled)))
    if failed:
        yield Reason(
            "failing",
            f"{_spell([name for name, _ in failed], 'log')} takes no more writes: {failed[0][1]}",
            "Look at the disk and at the broker's log file; what was acknowledged is safe. Restart the broker when the"
            " disk is well.",
        )
    if stalled:
        yield Reason(
            "failing",
            f"{_spell([name for name, _ in stalled], 'log')} waits for the disk: {stalled[0][1]}",
            "Free some room on the disk, or some file handles if those are missing; writing resumes by itself.",
        )


def _disk(broker: ManagedBroker) -> Iterator[Reason]:
    free, total = disk_room(broker)
    least = broker.settings.integer("waystation.disk.free.min.bytes")
    if not total:
        return
    where = "in the memory for data" if broker.root == MEMORY else f"on the disk of {broker.root}"
    left = f"{spell_bytes(free)} of {spell_bytes(total)} are free {where}"
    if least and free < least:
        yield Reason(
            "failing",
            f"The disk is full: {left}, and publishers have to wait below {spell_bytes(least)}.",
            "Free some room, shorten the retention of topics, purge queues; or change waystation.disk.free.min.bytes.",
        )
    elif free < NEARLY * least or free < NEARLY_SHARE * total:
        yield Reason(
            "warning",
            f"The disk is nearly full: {left}.",
            "Free some room, or shorten the retention of topics, before publishers have to wait.",
        )


def _memory(broker: ManagedBroker) -> Iterator[Reason]:
    limit = broker.settings.integer("waystation.memory.max.bytes")
    used = broker.world.memory.used_bytes()
    if not limit or used < NEARLY_USED * limit:
        return
    over = used >= limit
    yield Reason(
        "failing" if over else "warning",
        f"The broker uses {spell_bytes(used)} of memory; its limit is {spell_bytes(limit)}"
        f"{', and publishers have to wait' if over else ''}.",
        "Let consumers catch up, or raise waystation.memory.max.bytes.",
    )


def _alarms(broker: ManagedBroker) -> Iterator[Reason]:
    for name in broker.namespaces.names():
        reason = broker.resource_alarms.reason(name)
        if reason is not None:
            who = "Publishers" if name == DEFAULT else f"Publishers of namespace {name!r}"
            yield Reason(
                "warning",
                f"{who} have to wait: {reason}.",
                "They resume by themselves when there is room: consume, purge, or raise the limit.",
            )


def _connections(broker: ManagedBroker) -> Iterator[Reason]:
    admission = broker.admission
    if admission.refused_lately:
        what = f"Connections were refused within the last minute, {admission.refused.total():,} since the start"
    elif admission.count >= NEARLY_USED * admission.most:
        what = f"{admission.count:,} clients are connected"
    else:
        full = [port for port, count in admission.by_port.items() if count >= NEARLY_USED * admission.most_at_one]
        if not full:
            return
        what = f"{admission.at(full[0]):,} clients are connected to the {full[0]} port"
    yield Reason(
        "warning",
        f"{what}; at most {admission.most:,} can be, {admission.most_at_one:,} of them at one port.",
        "Close connections that nobody needs; or raise max.connections, and the limit of open files (`ulimit -n`) to"
        " twice that.",
    )


def _speed(broker: ManagedBroker) -> Iterator[Reason]:
    delay_ms, fsync_ms = _always(broker.sampling.loop_delays_ms), _always(broker.sampling.fsyncs_ms)
    if delay_ms > SLOW_LOOP_MS:
        yield Reason(
            "warning",
            f"The broker was busy for {delay_ms:.0f} ms or longer at a time, again and again, and everybody waited.",
            "Look for very large requests, or give the broker a faster or less busy processor.",
        )
    if fsync_ms > SLOW_SYNC_MS:
        yield Reason(
            "warning",
            f"The disk takes {fsync_ms:.0f} ms or longer to sync, on average; every acknowledgement waits for that.",
            "Look at what else writes to this disk; `waystation doctor` measures it.",
        )


def _always(samples: Sequence[float]) -> float:
    """What all of the last samples have reached; 0 until there are several."""
    return min(samples) if len(samples) == SEVERAL else 0.0


def _dead_letters(broker: ManagedBroker) -> Iterator[Reason]:
    recent = broker.sampling.recent_dead_letters
    if recent >= MANY_DEAD:
        yield Reason(
            "warning",
            f"{recent} messages became dead letters within the last five minutes.",
            "See the reasons on the page of dead letters, and redrive them when the cause is fixed.",
        )


def _groups(broker: ManagedBroker) -> Iterator[Reason]:
    left = [one for one in broker.lags.known() if not one.members and one.lag >= ABANDONED_LAG]
    if left:
        left.sort(key=lambda one: -one.lag)
        yield Reason(
            "warning",
            f"{_spell([one.group for one in left], 'group')} has no members and is {left[0].lag:,} records behind.",
            "Start its consumers; or delete the group, or move it to the end, if nobody needs it.",
        )


def _pipelines(broker: ManagedBroker) -> Iterator[Reason]:
    now_ms = broker.world.clock.now_ms()
    for state in broker.pipelines_seen.states_now():
        seen = state.seen(now_ms)
        if seen == "restarting":
            yield Reason(
                "warning",
                f"Pipeline {state.pipeline!r} is being restarted after a failure ({state.restarts} restarts): "
                f"{(state.error or '').partition(chr(10))[0][:200]}.",
                f"Fix the cause; its log ({state.log or 'on ' + state.host}) has the trace. It tries again by itself.",
            )
        if seen in ("failed", "died", "lost"):
            why = f": {state.error.splitlines()[0][:200]}" if state.error else ""
            yield Reason(
                "warning",
                f"Pipeline {state.pipeline!r} has {'been lost' if seen == 'lost' else seen}{why}.",
                f"Look at its log ({state.log or 'on ' + state.host}) and start it again; its checkpoint knows where.",
            )


def _logs(broker: ManagedBroker) -> Iterator[Reason]:
    """Looked for only where the last sample found one, or nobody takes samples."""
    sampling = broker.sampling
    if sampling.census.troubled or not sampling.running or broker.meters.commit.failures:
        yield from failed_logs(broker)


def _lost_topics(broker: ManagedBroker) -> Iterator[Reason]:
    try:
        lost = broker.topics.folders.lost()
    except OSError:  # the disk's own trouble has its own reasons
        return
    if lost:
        yield Reason(
            "warning",
            f"{_spell(lost, 'folder')} has the files of a topic that the catalog does not know.",
            f"Stop the broker and re-create the topic with `waystation lost restore {broker.root} --all`, or delete"
            f" it with `waystation lost delete {broker.root} FOLDER`.",
        )


def _cluster(broker: ManagedBroker) -> Iterator[Reason]:
    """What this node knows of the whole cluster."""
    if broker.member is None:
        return
    offline, under = [], []
    for topic in broker.topics:
        for index in range(len(topic.partitions)):
            placed = broker.view.placed(topic.id, index)
            if placed is None:
                continue
            if not placed.has_leader:
                offline.append(f"{topic.name}-{index}")
            elif not set(placed.replicas) <= set(placed.in_sync):
                under.append(f"{topic.name}-{index}")
    away = [str(one) for one in broker.view.known() if broker.view.node(one) is None]
    if offline:
        yield Reason(
            "failing",
            f"{_spell(offline, 'partition')} has no leader: nothing can be read or written there.",
            "Start the nodes that have its replicas. If none can come back: waystation cluster elect --unclean.",
        )
    if under:
        yield Reason(
            "warning",
            f"{_spell(under, 'partition')} has replicas that are not in sync.",
            "Nothing is lost, but fewer nodes may fail now. `waystation cluster status` shows which nodes lag.",
        )
    if away:
        yield Reason(
            "warning",
            f"{_spell(away, 'node')} of the cluster does not live.",
            "Start it again; or, if it is not to come back, `waystation cluster remove`.",
        )


LOOKS = (
    _logs,
    _lost_topics,
    _cluster,
    _disk,
    _memory,
    _alarms,
    _connections,
    _speed,
    _dead_letters,
    _groups,
    _pipelines,
)


def disk_room(broker: ManagedBroker) -> tuple[int, int]:
    """(free, total) of the disk with the data; zeros where it does not say."""
    try:
        disk = broker.world.disk
        return disk.free_bytes(broker.root), disk.total_bytes(broker.root)
    except OSError:
        return 0, 0


def spell_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def _spell(names: list[str], kind: str) -> str:
    """Some names, and how many more: `group 'a'`, `group 'a' (and 2 more)`."""
    shown = ", ".join(repr(name) for name in names[:NAMED])
    more = len(names) - NAMED
    return f"{kind.capitalize()} {shown}{f' (and {more} more)' if more > 0 else ''}"
