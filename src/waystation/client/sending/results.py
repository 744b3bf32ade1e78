"""What the client answers when messages were sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from waystation.message import Message
from waystation.protocol import PublishAnswer


class _Part(NamedTuple):
    """Of one frame: how many were given, the number of the first, who was left out, ids where there are own ones."""

    given: int
    first: int
    duplicates: Sequence[int]
    ids: Sequence[str | None] | None


class Stored:
    """The result of putting into a queue. `duplicates` are positions in what was given: their ids were used before."""

    __slots__ = ("_parts", "queue")

    def __init__(self, queue: str, parts: list[_Part]) -> None:
        self.queue = queue
        self._parts = parts

    @classmethod
    def of(cls, queue: str, messages: Sequence[Message], first: int, duplicates: Sequence[int]) -> Stored:
        """What became of the messages of one frame; they themselves are not kept."""
        ids = [message.id for message in messages]
        return cls(queue, [_Part(len(ids), first, duplicates, ids if any(ids) else None)])

    @classmethod
    def joined(cls, queue: str, answers: Sequence[Stored]) -> Stored:
        """Several answers as one."""
        return cls(queue, [part for stored in answers for part in stored._parts])

    def __len__(self) -> int:
        """How many were stored."""
        return sum(part.given - len(part.duplicates) for part in self._parts)

    @property
    def given(self) -> int:
        """How many messages were given to store."""
        return sum(part.given for part in self._parts)

    @property
    def duplicates(self) -> list[int]:
        found: list[int] = []
        start = 0
        for part in self._parts:
            found += [start + i for i in part.duplicates]
            start += part.given
        return found

    @property
    def ids(self) -> list[str]:
        """An id for every message given, duplicates included: its own, or `QUEUE#NUMBER`."""
        ids: list[str] = []
        for part in self._parts:
            tag, left_out = part.first, set(part.duplicates)
            for i in range(part.given):
                own = None if part.ids is None else part.ids[i]
                ids.append(f"{self.queue}#{tag}" if own is None else own)
                tag += i not in left_out
        return ids

    def __repr__(self) -> str:
        return f"<Stored {len(self)} in {self.queue!r}>"


class Published:
    """The result of publishing to a topic or an exchange.

    `partition` and `offset` are those of the first message, -1 where they are not known: with `acks="none"`, with a
    delay, through an exchange, or when messages of one frame went to several partitions. `places` are all partitions
    that were written, with the first offset in each; `queues` those that an exchange routed it to; `subscribers` how
    many subscribers there were. `unroutable` is how many matched no binding of the exchange and were dropped.
    `duplicates` are positions in what was given: the topic has their ids already, and did not store them again. `len`
    leaves out both."""

    __slots__ = (
        "_count", "_own_id", "duplicates", "offset", "partition", "places", "queues", "subscribers", "topic",
        "unroutable",
    )  # fmt: skip

    def __init__(
        self,
        count: int,
        own_id: str | None,
        *,
        topic: str,
        partition: int = -1,
        offset: int = -1,
        places: Sequence[tuple[str, int, int]] = (),
        queues: Sequence[str] = (),
        subscribers: int = 0,
        unroutable: int = 0,
        duplicates: Sequence[int] = (),
    ) -> None:
        self._count = count
        self.duplicates = duplicates
        self.unroutable = unroutable
        self._own_id = own_id
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.places = places
        self.queues = queues
        self.subscribers = subscribers

    @classmethod
    def of(cls, topic: str, messages: Sequence[Message], answer: PublishAnswer, *, before: int = 0) -> Published:
        """What became of messages of one frame. `before`: how many others of it went to the same partition first."""
        places = answer.places
        one = len(places) == 1
        return cls(
            len(messages),
            messages[0].id if messages else None,
            topic=places[0][0] if places else topic,
            partition=places[0][1] if one else -1,
            offset=places[0][2] + before if one and places[0][2] >= 0 else -1,
            places=places,
            queues=answer.queues,
            subscribers=answer.subscribers,
            unroutable=answer.unroutable,
            duplicates=answer.duplicates,
        )

    @classmethod
    def joined(cls, parts: Sequence[Published]) -> Published:
        """Several answers as one."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0] if parts else cls(0, None, topic="")
        duplicates: list[int] = []
        start = 0
        for part in parts:
            duplicates += [start + position for position in part.duplicates]
            start += part._count
        return cls(
            sum(part._count for part in parts),
            first._own_id,
            topic=first.topic,
            partition=first.partition if len({part.partition for part in parts}) == 1 else -1,
            offset=first.offset,
            places=[place for part in parts for place in part.places],
            queues=sorted({queue for part in parts for queue in part.queues}),
            subscribers=max((part.subscribers for part in parts), default=0),
            unroutable=sum(part.unroutable for part in parts),
            duplicates=duplicates,
        )

    def __len__(self) -> int:
        """How many were stored, or went to somebody."""
        return self._count - self.unroutable - len(self.duplicates)

    @property
    def given(self) -> int:
        """How many messages were given to publish."""
        return self._count

    @property
    def id(self) -> str:
        """The first message's: its own, or `TOPIC-PARTITION@OFFSET`; empty where the position is not known."""
        if self._own_id is not None:
            return self._own_id
        return f"{self.topic}-{self.partition}@{self.offset}" if self.offset >= 0 else ""

    def __repr__(self) -> str:
        rest = f", {self.unroutable} unroutable: nobody got them" if self.unroutable else ""
        if self.duplicates:
            rest += f", {len(self.duplicates)} left out: the ids were used before"
        where = f"{self.topic!r} {self.partition}@{self.offset}" if self.topic else ", ".join(map(repr, self.queues))
        return f"<Published {len(self)}{f' to {where}' if where else ''}{rest}>"
