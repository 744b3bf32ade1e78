"""Subscriptions to topics, whatever their mode: checked once here, opened by whoever knows the mode.

`live` has no state, `stream` is a member of a Kafka consumer group, `shared` is per-message delivery over topics, as
Kafka's share groups have it. Protocols call `open` with the command as it came; on the loop's thread only.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from waystation.errors import Invalid, Unavailable, WaystationError
from waystation.observe.tracing import Tracing
from waystation.protocol import Subscribe, SubscribeAnswer
from waystation.queues.feed import Deliver, Feed
from waystation.routing.filtering.filters import Filter, compile_filter
from waystation.routing.matching.patterns import Syntax
from waystation.subscriptions.group_member import GroupMember
from waystation.subscriptions.live import LiveFeeds
from waystation.subscriptions.selection import Selection
from waystation.subscriptions.stream_terms import Terms
from waystation.subscriptions.streams import Streams
from waystation.topics.messages import MAX_HISTORY
from waystation.topics.topics import Topics

OnEnd = Callable[[WaystationError], None]

MAX_JOINED_TOPICS = 1_000
"""Topics that a member of a group subscribes to by name: the group compares them at every heartbeat."""


class Shared(Protocol):
    """Shared subscriptions, as far as this module needs them."""

    async def open(
        self,
        group: str,
        patterns: list[str],
        syntax: Syntax,
        consumer_name: str,
        deliver: Deliver,
        on_end: OnEnd,
        *,
        filter: str | None,
        start: str,
        start_ms: int | None,
        prefetch: int,
        visibility_timeout_ms: int | None,
        max_deliveries: int | None,
        dead_letter: str | None,
        auto_ack: bool,
    ) -> Feed: ...

    def count(self, topic: str) -> int:
        """How many groups subscribe to the topic."""

    @property
    def open_feeds(self) -> int:
        """How many members there are that came by `open`."""


class Subscriptions:
    """One per broker."""

    def __init__(
        self,
        topics: Topics,
        live: LiveFeeds,
        streams: Streams,
        shared: Shared | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        self._topics = topics
        self._live = live
        self._streams = streams
        self.shared = shared
        self._tracing = tracing
        self._counted: dict[str, int] = {}
        self._counted_at = (0, 0)

    async def open(
        self, command: Subscribe, consumer_name: str, deliver: Deliver, on_end: OnEnd
    ) -> tuple[Feed, SubscribeAnswer]:
        """The feed, which delivers when it is given credit, and what the subscriber is told."""
        selection = Selection(command.topics, command.syntax)
        wanted = compile_filter(command.filter) if command.filter is not None else None
        _check(command)
        feed = await self._open(command, selection, wanted, consumer_name, deliver, on_end)
        names = sorted(topic.name for topic in selection.matching(self._topics))
        return feed, SubscribeAnswer(names, max((self.count(name) for name in names), default=1))

    async def _open(
        self,
        command: Subscribe,
        selection: Selection,
        wanted: Filter | None,
        consumer_name: str,
        deliver: Deliver,
        on_end: OnEnd,
    ) -> Feed:
        if command.mode == "live":
            if self._tracing is not None:
                deliver = self._tracing.watching(deliver, "topic", "", consumer_name)
            return await self._live.open(
                selection, deliver, on_end, filter=wanted, history=command.history, slow=command.slow
            )
        group = command.group or ""
        if command.mode == "stream":
            if self._tracing is not None:
                deliver = self._tracing.watching(deliver, "topic", "", consumer_name, group)
            terms = Terms(
                filter=wanted,
                start=command.start,
                start_ms=command.start_ms,
                prefetch=command.prefetch,
                auto_ack=command.auto_ack,
                max_deliveries=command.max_deliveries or 0,
                dead_letter=command.dead_letter,
            )
            return await self._streams.open(group, selection, terms, consumer_name, deliver, on_end)
        if self.shared is None:
            raise Unavailable("shared subscriptions are not served by this broker")
        return await self.shared.open(
            group,
            command.topics,
            command.syntax,
            consumer_name,
            deliver,
            on_end,
            filter=command.filter,
            start=command.start,
            start_ms=command.start_ms,
            prefetch=command.prefetch,
            visibility_timeout_ms=command.hold_ms,
            max_deliveries=command.max_deliveries,
            dead_letter=command.dead_letter,
            auto_ack=command.auto_ack,
        )

    def join(self, group: str, topics: list[str], consumer_name: str, on_end: OnEnd) -> Awaitable[GroupMember]:
        """A member of a consumer group that asks for its partitions and reads them by itself."""
        if not group:
            raise Invalid("group: a member needs the name of its group")
        if not 1 <= len(topics) <= MAX_JOINED_TOPICS:
            raise Invalid(f"topics: {len(topics)} is not between 1 and {MAX_JOINED_TOPICS}")
        return self._streams.join(group, topics, consumer_name, on_end)

    # -- how many ---------------------------------------------------------------------------------------------------

    def count(self, topic: str) -> int:
        """To how many a message of this topic goes: each live subscriber, and each group once."""
        now = (self._live.version, self._streams.version)
        if now != self._counted_at:
            self._counted.clear()
            self._counted_at = now
        known = self._counted.get(topic)
        if known is None and topic in self._topics:
            # Asked at every publish, so it must not cost more the more subscribers there are.
            known = self._counted[topic] = self._live.count(topic) + self._streams.count(topic)
        return (known or 0) + (0 if self.shared is None else self.shared.count(topic))

    def counts(self) -> dict[str, int]:
        """The topics that somebody subscribes to, and to how many each goes."""
        counted = ((name, self.count(name)) for name in self._topics.names())
        return {name: count for name, count in counted if count}

    def total(self) -> int:
        """The subscriptions that are open, each once, whatever number of topics it gets."""
        shared = 0 if self.shared is None else self.shared.open_feeds
        return self._live.open_feeds + self._streams.open_feeds + shared


def _check(command: Subscribe) -> None:
    """Raises Invalid, naming the field that makes no sense."""
    if command.mode == "live":
        if command.group is not None:
            raise Invalid("group: a live subscription has none; the modes shared and stream do")
        for field in ("max_deliveries", "dead_letter"):
            if getattr(command, field) is not None:
                raise Invalid(
                    f"{field}: a live subscription acknowledges nothing, so nothing fails in it; give it a group"
                )
        for field, unsaid in (("start", "latest"), ("start_ms", None)):
            if getattr(command, field) != unsaid:
                raise Invalid(f"{field}: a live subscription begins now; give it a group, or history for the last ones")
    elif not command.group:
        raise Invalid(f"group: a {command.mode} subscription needs the name of its group")
    elif command.slow != "block":
        raise Invalid("slow: is for live subscriptions; a group's messages wait for it")
    if command.hold_ms is not None and command.mode != "shared":
        raise Invalid(f"hold_ms: a {command.mode} subscription has no visibility timeout; a shared one has")
    if command.history and command.mode != "live":
        raise Invalid("history: is for live subscriptions; others have start and start_ms")
    if not 0 <= command.history <= MAX_HISTORY:
        raise Invalid(f"history: {command.history} is not between 0 and {MAX_HISTORY}")
    if command.start_ms is not None and command.start_ms < 0:
        raise Invalid(f"start_ms: {command.start_ms} is no time")
    for field, lowest in (("prefetch", 0), ("max_deliveries", 0), ("hold_ms", 1)):
        value = getattr(command, field)
        if value is not None and value < lowest:
            raise Invalid(f"{field}: {value} is below {lowest}")
