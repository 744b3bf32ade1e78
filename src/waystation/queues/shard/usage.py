"""What is measured of a queue: how much it was used since the start of the broker, and what is in it now.

A shard notes a queue's figures once, before the first change since somebody took the notes away; whoever takes them
knows by how much each queue has changed without looking at any that has not. Pure; for shards and who measures them.
"""

from __future__ import annotations

from waystation.queues.shard.queue import Queue

Usage = tuple[int, int, int, int, int, int, int]
"""Put, delivered, acked, dead, which only grow; ready, delayed, in flight. A bare tuple: made for every queue in
use."""
GROWING = 4
NOTHING: Usage = (0, 0, 0, 0, 0, 0, 0)

Notes = dict[Queue, Usage]
"""Queues that have changed, as they were before."""


def usage_of(queue: Queue) -> Usage:
    ledger = queue.ledger
    if ledger is None:
        return queue.put, queue.delivered, queue.acked, queue.dead, 0, 0, 0
    return queue.put, queue.delivered, queue.acked, queue.dead, ledger.ready, ledger.delayed, ledger.in_flight


def levels_of(usage: Usage) -> tuple[int, int, int]:
    """Ready, delayed, in flight."""
    return usage[4], usage[5], usage[6]


def with_levels(usage: Usage, levels: Usage) -> Usage:
    """The growing half of one and the levels of another."""
    return usage[0], usage[1], usage[2], usage[3], levels[4], levels[5], levels[6]
