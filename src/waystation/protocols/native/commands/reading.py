"""The requests of a queue's reader: to open it, to claim entries, to read them.

A reader keeps books of its own over a queue, by tags (see `queues/shard/queue_reader.py`). It settles and ceases as
every consumer does. Called by the session, through `requests.HANDLERS`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING

from waystation.broker.access.types import MAX_RUNS, QueueReader
from waystation.errors import Invalid
from waystation.message import Run
from waystation.protocol import ClaimEntries, EntriesAnswer, OpenReader, ReadEntries, ReaderAnswer

if TYPE_CHECKING:
    from waystation.protocols.native.session import NativeSession

MAX_CLAIMED = 1_000_000
"""Tags in one claim: some milliseconds of work."""

MAX_READ = 4_096
"""Messages in one answer to `read_entries`."""


def open_reader(session: NativeSession, command: OpenReader) -> ReaderAnswer:
    consumer = session.new_consumer(command.consumer, command.queue)
    try:
        consumer.feed = reader = session.access.open_reader(
            command.queue,
            f"{session.name}/{command.consumer}",
            on_end=lambda error: session.feed_ended(consumer, error),
            owner=session.name,
        )
    except BaseException:
        session.consumers.pop(command.consumer, None)
        raise
    return ReaderAnswer(reader.queue.id, reader.queue.newest)


def claim_entries(session: NativeSession, command: ClaimEntries) -> Awaitable[list[Run]] | list[Run]:
    reader = session.consumer(command.consumer).feed
    if not isinstance(reader, QueueReader):
        raise Invalid(f"consumer: {command.consumer} is no reader; open one with open_reader")
    if command.runs:
        check_runs(command.runs)
        return reader.claim_these(command.runs)
    if not 1 <= command.count <= MAX_CLAIMED:
        raise Invalid(f"count: {command.count} is not between 1 and {MAX_CLAIMED}")
    return reader.claim(command.count, command.max_bytes, command.wait_ms)


def read_entries(session: NativeSession, command: ReadEntries) -> EntriesAnswer:
    check_runs(command.runs)
    return session.access.read_entries(command.queue, command.runs, MAX_READ, session.answer_bytes)


def check_runs(runs: Sequence[Run]) -> None:
    """As many as a claim can give, in order."""
    end = total = 0
    for first, count in runs:
        total += count
        if first < end or count <= 0 or total > MAX_CLAIMED or len(runs) > 2 * MAX_RUNS:
            raise Invalid(
                f"runs: ({first}, {count}) is no run: a tag and how many from there, ascending, {MAX_CLAIMED} in"
                f" {2 * MAX_RUNS} runs at most"
            )
        end = first + count
