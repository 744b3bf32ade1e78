"""Whether a broker that begins to lead knows what the log says: what it has applied while it followed is compared with
a replay of everything, at the moment when it begins to lead and before time passes in it.

A replay may begin with another snapshot than the following did. So what is compared is what it means: which messages
are there, in which state, delivered how often, and where they are; but not whether somebody has noticed that a delay is
over, since that is not written anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from waystation.errors import WaystationError
from waystation.queues.ledger.states import State
from waystation.queues.shard.checkpoint import Checkpointer
from waystation.queues.shard.queue import Queue
from waystation.queues.shard.replay import replay
from waystation.queues.shard.shard import Shard
from waystation.queues.shard.shard_log import ShardLog


class ShardCheck:
    """A `LeadWatcher`. `complain` is told what differs."""

    def __init__(self, complain: Callable[[str], None], checked: Callable[[], None]) -> None:
        self._complain = complain
        self._checked = checked

    def led(self, shard: Shard) -> None:
        try:
            again = replayed(shard)
        except (WaystationError, OSError):
            return  # the disk refuses: nothing can be said
        self._checked()
        told, true = meaning(shard), meaning(again)
        for name in sorted(told.keys() | true.keys()):
            if told.get(name) != true.get(name):
                self._complain(f"shard {shard.index}, {name}: {told.get(name)} is led, the log says {true.get(name)}")
                return

    def began(self, shard: Shard) -> None:
        pass

    def dropped(self, shard: Shard) -> None:
        pass


def replayed(shard: Shard) -> Shard:
    """The same shard, of what its folder says."""
    partition, world = shard.log.partition, shard.world
    again = Shard(
        shard.index,
        ShardLog(partition, world.clock, world.disk),
        world,
        cache_bytes=0,
        on_dead=lambda index, queue: None,
    )
    begin = Checkpointer(again, world, None).load()  # type: ignore[arg-type]  # it makes no checkpoints
    replay(again, begin)
    return again


def meaning(shard: Shard) -> dict[str, Any]:
    """By the name of a queue, and of what belongs to none."""
    state: dict[str, Any] = {f"queue {queue.name}": of_queue(queue) for queue in shard.queues.values()}
    state["open transactions"] = shard.open._by_producer
    state["notes"] = {queue: sorted(runs) for queue, runs in shard.log._notes.items()}
    return state


def of_queue(queue: Queue) -> dict[str, Any]:
    messages: dict[int, Any] = {}
    if queue.ledger is not None and queue.places is not None:
        for state, first, count in queue.ledger.alive_runs():
            for entry in range(first, first + count):
                waits = State.READY if state is State.DELAYED else state
                messages[entry] = (waits.name, queue.ledger.deliveries_of(entry), queue.places.find(entry))
    return {
        "id": queue.id,
        "settings": queue.settings,
        "newest": queue.newest,
        "bytes": queue.bytes,
        "deaths": queue.deaths or {},
        "dead bytes": queue.dead_bytes,
        "messages": messages,
    }
