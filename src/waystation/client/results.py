"""What the client answers when messages were sent."""

from __future__ import annotations

from collections.abc import Sequence

from waystation.message import Message


class Stored:
    """Messages that a queue took, durably. `duplicates` are positions in what was given: their ids were used before."""

    __slots__ = ("_parts", "queue")

    def __init__(self, queue: str, messages: Sequence[Message], first: int, duplicates: Sequence[int]) -> None:
        self.queue = queue
        self._parts: list[tuple[Sequence[Message], int, Sequence[int]]] = [(messages, first, duplicates)]

    @classmethod
    def joined(cls, queue: str, parts: Sequence[Stored]) -> Stored:
        """Several answers as one."""
        whole = cls(queue, [], 0, [])
        whole._parts = [part for stored in parts for part in stored._parts]
        return whole

    def __len__(self) -> int:
        """How many were stored."""
        return sum(len(messages) - len(duplicates) for messages, _, duplicates in self._parts)

    @property
    def duplicates(self) -> list[int]:
        found: list[int] = []
        start = 0
        for messages, _, duplicates in self._parts:
            found += [start + i for i in duplicates]
            start += len(messages)
        return found

    @property
    def ids(self) -> list[str]:
        """An id for every message given, duplicates included: its own, or `QUEUE#NUMBER`."""
        ids: list[str] = []
        for messages, tag, duplicates in self._parts:
            left_out = set(duplicates)
            for i, message in enumerate(messages):
                ids.append(message.id if message.id is not None else f"{self.queue}#{tag}")
                tag += i not in left_out
        return ids

    def __repr__(self) -> str:
        return f"<Stored {len(self)} in {self.queue!r}>"


class Published:
    """Messages that a topic or an exchange took.

    `partition` and `offset` are those of the first message, -1 where they are not known: with `acks="none"`, with a
    delay, through an exchange, or when messages of one frame went to several partitions. `places` are all partitions
    that were written, with the first offset in each; `queues` those that an exchange put it into; `subscribers` how
    many listened.
    """

    __slots__ = ("_messages", "offset", "partition", "places", "queues", "subscribers", "topic")

    def __init__(
        self,
        messages: Sequence[Message],
        *,
        topic: str,
        partition: int = -1,
        offset: int = -1,
        places: Sequence[tuple[str, int, int]] = (),
        queues: Sequence[str] = (),
        subscribers: int = 0,
    ) -> None:
        self._messages = messages
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.places = places
        self.queues = queues
        self.subscribers = subscribers

    @classmethod
    def joined(cls, parts: Sequence[Published]) -> Published:
        """Several answers as one."""
        if len(parts) == 1:
            return parts[0]
        first = parts[0] if parts else cls([], topic="")
        return cls(
            [message for part in parts for message in part._messages],
            topic=first.topic,
            partition=first.partition if len({part.partition for part in parts}) == 1 else -1,
            offset=first.offset,
            places=[place for part in parts for place in part.places],
            queues=sorted({queue for part in parts for queue in part.queues}),
            subscribers=max((part.subscribers for part in parts), default=0),
        )

    def __len__(self) -> int:
        return len(self._messages)

    @property
    def id(self) -> str:
        """The first message's: its own, or `TOPIC-PARTITION@OFFSET`; empty where the place is not known."""
        own = self._messages[0].id if self._messages else None
        if own is not None:
            return own
        return f"{self.topic}-{self.partition}@{self.offset}" if self.offset >= 0 else ""

    def __repr__(self) -> str:
        return f"<Published {len(self)} to {self.topic!r} {self.partition}@{self.offset}>"
