"""The start of a shard: what its log says is done again, so that memory says what it said before.

A broker that leads does it at once (`replay`). One that follows takes in what is committed as it comes (`take_in`), and
the rest when it leads (`finish`): nothing that only the end of the log says is done before.

A queue that came from a snapshot knows everything below its stamp already, so its commands below that are skipped; of a
transaction, what counts is where its end is.
"""

from __future__ import annotations

import sys

from waystation.observe.events import event_logger
from waystation.queues.ledger.states import State
from waystation.queues.shard.commands import (
    Alter,
    Bury,
    Command,
    Declare,
    Delay,
    Done,
    Enqueue,
    Forgive,
    Forward,
    HandedOut,
    entries_of,
)
from waystation.queues.shard.queue import Death, Queue
from waystation.queues.shard.shard import Shard

logger = event_logger("waystation.queues")


def replay(shard: Shard, offset: int) -> None:
    """Takes in the log from `offset` on. Blocks."""
    shard.log.begin_replay(offset)
    finish(shard)


def take_in(shard: Shard, before: int | None = None, most_bytes: int = sys.maxsize) -> None:
    """What comes next in the log: see `ShardLog.replay`."""
    for batch in shard.log.replay(before, most_bytes):
        if batch.outcome is not None:
            shard.apply_transaction(batch.producer_id, batch.outcome, batch.offset)
            continue
        for at, command in batch.commands:
            if batch.producer_id < 0:
                _apply(shard, command, at)
                continue
            shard.open.add(batch.producer_id, at, command)
            if isinstance(command, Done):
                _hide(shard, command, at)


def finish(shard: Shard) -> None:
    """Takes in all that is left; then the shard is as it was when somebody last led it."""
    take_in(shard)
    _free_leaving(shard)
    for queue_id, runs in shard.log.recover_notes().items():
        if queue_id in shard.queues:
            shard.queues[queue_id].open_ledger().note_delivered(runs)


def _hide(shard: Shard, command: Done, offset: int) -> None:
    """A transaction that is not over has taken these."""
    queue = shard.queues.get(command.queue)
    if queue is not None and queue.ledger is not None and offset >= queue.stamp:
        for entry in entries_of(command.runs):
            queue.ledger.take_out(entry)


def _apply(shard: Shard, command: Command, offset: int) -> None:
    if isinstance(command, Declare):
        if command.queue not in shard.queues:
            shard.new_queue(command.queue, command.name, command.settings)
        return
    queue = shard.queues.get(command.queue)
    if queue is None or offset < queue.stamp:
        return
    if isinstance(command, Enqueue):
        _admit(queue, command, offset)
        if queue.ids is not None:  # as whoever led has done: one that follows for years would have all of them
            queue.forget_old_ids(min(command.taken_ms, shard.open.coming(queue.id).since_ms), 2 * command.count)
    elif isinstance(command, Done):
        queue.finish(command.runs)
    elif isinstance(command, HandedOut):
        queue.open_ledger().note_delivered(command.runs)
    elif isinstance(command, Forgive):
        queue.open_ledger().forgive(command.runs)
    elif isinstance(command, Delay):
        for entry in entries_of(command.runs):
            queue.open_ledger().delay(entry, command.until_ms)
    elif isinstance(command, Bury):
        _bury(queue, command)
    elif isinstance(command, Forward):
        _move(queue, command, offset)
    elif isinstance(command, Alter):
        shard.change(queue, command.settings)
    else:
        del shard.queues[queue.id]


def _admit(queue: Queue, command: Enqueue, offset: int) -> None:
    first = max(command.first, queue.newest + 1)
    if first != command.first:
        # A damaged batch has hidden how a transaction ended. Which messages these are is not sure, but they are.
        logger.error(
            "messages.renumbered",
            "messages of queue {queue} are renumbered after damage, from {first} to {now}",
            queue=queue.name,
            first=command.first,
            now=first,
        )
    queue.admit(command, first, offset)


def _bury(queue: Queue, command: Bury) -> None:
    ledger = queue.open_ledger()
    buried = [(entry, 1) for entry in entries_of(command.runs) if ledger.take_out(entry)]
    queue.bury(buried, Death(command.reason, command.at_ms, command.error))


def _move(queue: Queue, command: Forward, offset: int) -> None:
    if queue.ledger is not None and queue.places is not None and queue.ledger.state_of(command.first):
        queue.places.move(command.first, len(command.taken_ms), offset)


def _free_leaving(shard: Shard) -> None:
    """What was on its way out when a snapshot was taken, with nothing in the log that says so, is ready again."""
    taken = shard.open.taken()
    for queue in shard.queues.values():
        if queue.ledger is None or not queue.ledger.leaving:
            continue
        kept = taken.get(queue.id, set()) | set(queue.deaths or ())
        runs = [(first, count) for state, first, count in queue.ledger.alive_runs() if state is State.LEAVING]
        queue.ledger.restore([(entry, 1) for entry in entries_of(runs) if entry not in kept])
