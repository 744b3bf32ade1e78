"""What becomes of messages of a stream that their consumer does not acknowledge: again, later, or dead.

A message that was rejected comes again after a while that grows; `max_deliveries` ends that. A dead one goes to the
dead-letter target, and only when it is durable there is it done here; without a target it is passed over, with a word
in the log. For `StreamFeed` alone.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from waystation.broker.reading import read_chunk
from waystation.broker.stream_share import Share
from waystation.broker.stream_terms import Hub, Terms
from waystation.errors import OffsetOutOfRange
from waystation.message import Delivered
from waystation.queues.feed import Verdict

logger = logging.getLogger("waystation.streams")

FIRST_MS, LONGEST_MS = 100, 30_000
"""A rejected message comes again after the first, then twice that, and so on."""

Told = Callable[[Share, int], None]


class Retries:
    """`due`: the message is to be delivered again now. `buried`: it is kept elsewhere and done here."""

    def __init__(self, hub: Hub, group: str, terms: Terms, due: Told, buried: Told) -> None:
        self._hub = hub
        self._group = group
        self._terms = terms
        self._due = due
        self._buried = buried
        self.passed_over = 0

    def put_back(self, share: Share, offset: int, verdict: Verdict, delay_ms: int | None, error: str | None) -> None:
        """A verdict other than an acknowledgement."""
        deliveries = share.deliveries.get(offset, 1)
        limit = self._terms.max_deliveries
        if verdict is Verdict.KILL or (verdict is Verdict.REJECT and limit and deliveries >= limit):
            self._bury(share, offset, "rejected" if verdict is Verdict.KILL else "delivery-limit", error)
            return
        share.deliveries[offset] = deliveries + 1
        if verdict is Verdict.REJECT and delay_ms is None:
            delay_ms = min(LONGEST_MS, FIRST_MS << min(deliveries - 1, 20))
        if delay_ms:
            asyncio.get_running_loop().call_later(delay_ms / 1000, self._due, share, offset)
        else:
            self._due(share, offset)

    def _bury(self, share: Share, offset: int, reason: str, error: str | None) -> None:
        target = self._terms.dead_letter
        deliveries = share.deliveries.get(offset, 1)
        found = None if target in (None, f"topic:{share.partition.topic.name}") else message_at(share, offset)
        if target is None or found is None:  # a letter to where it died would die there again, for ever
            self.passed_over += 1
            logger.info(
                "passed over: group=%r message=%s-%d@%d reason=%s",
                *(self._group, share.partition.topic.name, share.partition.index, offset, reason),
            )
            share.done(offset)
            return
        dead = msgspec.structs.replace(found, deliveries=deliveries)
        self._hub.bury(target, dead, reason, error).add_done_callback(
            lambda kept: self._told(share, offset, None if kept.cancelled() else kept.exception())
        )

    def _told(self, share: Share, offset: int, failure: BaseException | None) -> None:
        if failure is None:
            self._buried(share, offset)
        else:
            logger.warning("a dead letter of group %r cannot be kept and comes again: %s", self._group, failure)
            asyncio.get_running_loop().call_later(LONGEST_MS / 1000, self._due, share, offset)


def message_at(share: Share, offset: int) -> Delivered | None:
    """One message of the partition; None if retention has taken it."""
    try:
        chunk = read_chunk(share.partition, offset, 0)
    except OffsetOutOfRange:
        return None
    return next((one for one in chunk.messages if one.offset == offset), None)
