"""What becomes of messages of a stream that their consumer does not acknowledge: again, later, or dead.

A message that was rejected is redelivered after a while that grows; `max_deliveries`, its own or the consumer's, ends
that. Nothing new of its partition is delivered meanwhile, and the failures of messages behind it are not counted
against them. A dead one goes to the dead-letter target, or to the queue that is named after topic and group, and only
when it is durable there is it done here. If the consumer said that there is no target it is passed over, with a word in
the log. For `StreamFeed` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from waystation.errors import OffsetOutOfRange
from waystation.message import Delivered
from waystation.observe.events import event_logger
from waystation.queues.backoff import RetryRule
from waystation.queues.dead_letter_names import default_dead_letter
from waystation.queues.feed import Verdict
from waystation.queues.redriven import as_before
from waystation.subscriptions.stream_share import StreamShare
from waystation.subscriptions.stream_terms import Hub, Terms
from waystation.topics.reading import read_chunk

logger = event_logger("waystation.streams")

RETRY = RetryRule(base_ms=100, longest_ms=30_000)
"""Shorter than a queue's: everything behind the message waits with it."""

HIDDEN_MS = 100
"""Between two attempts to read a message that this broker cannot read now."""

Due = Callable[[StreamShare], None]
Buried = Callable[[StreamShare, int], None]


class Retries:
    """`due`: the partition may have something to be delivered again. `buried`: it is kept elsewhere and done here."""

    def __init__(self, hub: Hub, group: str, terms: Terms, due: Due, buried: Buried) -> None:
        self._hub = hub
        self._group = group
        self._terms = terms
        self._due = due
        self._buried = buried
        self.passed_over = 0

    def put_back(
        self, share: StreamShare, offset: int, verdict: Verdict, delay_ms: int | None, error: str | None
    ) -> None:
        """A verdict other than an acknowledgement."""
        failures = share.failures.get(offset, 0)
        spent = False
        if verdict is Verdict.REJECT and not share.is_behind_another(offset):
            failures += 1
            share.failures[offset] = failures
            spent = 0 < self._limit(share, offset) <= failures
            if delay_ms is None:
                delay_ms = RETRY.wait_ms(failures)
        if verdict is Verdict.KILL or spent:
            self._bury(share, offset, "rejected" if verdict is Verdict.KILL else "delivery-limit", error)
            return
        share.deliveries[offset] = share.deliveries.get(offset, 1) + 1
        self._again(share, offset, delay_ms or 0)

    def later(self, share: StreamShare, offset: int) -> None:
        """This broker cannot read it now (`is_hidden`)."""
        self._again(share, offset, HIDDEN_MS)

    def _limit(self, share: StreamShare, offset: int) -> int:
        """How many failures are its last; its own limit goes before the consumer's, 0 is none."""
        found = message_at(share, offset)
        return (0 if found is None else found.message.max_deliveries) or self._terms.max_deliveries

    def _again(self, share: StreamShare, offset: int, delay_ms: int) -> None:
        loop = asyncio.get_running_loop()
        share.put_back(offset, loop.time() + delay_ms / 1000)
        if delay_ms:
            loop.call_later(delay_ms / 1000, self._due, share)
        else:
            self._due(share)

    def _bury(self, share: StreamShare, offset: int, reason: str, error: str | None) -> None:
        found = message_at(share, offset)
        if found is None and is_hidden(share, offset):
            self.later(share, offset)
            return
        if found is not None and share.redriven:
            found = as_before(found)
        topic = share.partition.topic.name if found is None else found.source
        target = self._terms.dead_letter
        if target is None:
            target = default_dead_letter(topic, self._group)
        deliveries = share.deliveries.get(offset, 1)
        if found is None or target in ("", f"topic:{topic}"):  # to where it died it would die again, forever
            self.passed_over += 1
            logger.info(
                "message.passed_over",
                "group {group} passes over {topic}-{partition}@{offset}: {reason}",
                group=self._group,
                topic=topic,
                partition=share.partition.index,
                offset=offset,
                reason=reason,
            )
            share.done(offset)
            return
        share.set_aside(offset)
        dead = msgspec.structs.replace(found, deliveries=deliveries)
        self._hub.bury(self._group, target, dead, reason, error).add_done_callback(
            lambda kept: self._told(share, offset, None if kept.cancelled() else kept.exception())
        )

    def _told(self, share: StreamShare, offset: int, failure: BaseException | None) -> None:
        if failure is None:
            self._buried(share, offset)
        else:
            logger.warning(
                "dead_letter.not_stored",
                "a dead letter of group {group!r} cannot be stored, and its message is redelivered: {error}",
                group=self._group,
                error=failure,
            )
            self._again(share, offset, RETRY.longest_ms)


def is_hidden(share: StreamShare, offset: int) -> bool:
    """Whether a message that was delivered cannot be read now, though it is not gone: in a cluster, where the replica
    here is copied again, or the end of its transaction was truncated and is to be written again."""
    return offset >= share.partition.stable_offset


def message_at(share: StreamShare, offset: int) -> Delivered | None:
    """One message of the partition; None if retention has taken it, or if it `is_hidden`."""
    try:
        chunk = read_chunk(share.partition, offset, 0, 1)
    except OffsetOutOfRange:
        return None
    return next((one for one in chunk.messages if one.offset == offset), None)
