"""A batch of a queue as Spark's checkpoint knows it, and runs of entries cut into pieces.

A queue has no position: messages become due late, have priorities, and go when they are done. So the offset that ends a
batch names its messages, as runs of tags. Spark writes it down before it begins to work on the batch, and a batch that
is worked on again is the same batch. When Spark asks for the batch behind an offset, the offset's own batch is done,
and its messages are acked; so there is never more than one batch between the queue and Spark.

Pure; for the queue's readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from waystation.errors import Invalid
from waystation.message import Run


@dataclass(frozen=True, slots=True)
class QueueOffset:
    """The end of a batch. `number` is the queue's own, which a queue that was re-created does not have."""

    queue: str
    batch: int = 0
    number: int = -1
    runs: tuple[Run, ...] = ()

    @property
    def count(self) -> int:
        return sum(count for _, count in self.runs)

    def to_json(self) -> dict[str, Any]:
        """What Spark keeps; the same offset is always the same text, since Spark compares texts."""
        runs = [[first, count] for first, count in self.runs]
        return {"batch": self.batch, "number": self.number, "queue": self.queue, "runs": runs}

    @staticmethod
    def from_json(found: Mapping[str, Any], queue: str) -> QueueOffset:
        try:
            runs = tuple((int(first), int(count)) for first, count in found["runs"])
            offset = QueueOffset(str(found["queue"]), int(found["batch"]), int(found["number"]), runs)
        except (KeyError, TypeError, ValueError):
            raise Invalid(
                f"the checkpoint's offset {str(dict(found))[:200]} is not one of the waystation source for queues: the"
                " checkpoint belongs to another query; give this one a checkpointLocation of its own"
            ) from None
        if offset.queue != queue:
            raise Invalid(
                f"the checkpoint belongs to a query that reads the queue {offset.queue!r}, not {queue!r}; give this one"
                " a checkpointLocation of its own"
            )
        return offset


def portions(runs: Sequence[Run], most: int) -> Iterator[list[Run]]:
    """The same entries, in lists of at most so many."""
    some: list[Run] = []
    room = most
    for first, count in runs:
        while count:
            taken = min(count, room)
            some.append((first, taken))
            first, count, room = first + taken, count - taken, room - taken
            if not room:
                yield some
                some, room = [], most
    if some:
        yield some


def split(runs: Sequence[Run], parts: int) -> list[list[Run]]:
    """The same entries, in about so many lists of about the same size."""
    total = sum(count for _, count in runs)
    return list(portions(runs, max(1, -(-total // max(1, parts)))))
