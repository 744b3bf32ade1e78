"""A session's consumers: what they were sent, what they may still be sent.

A client's credit is passed on to the feed behind it in portions, so that a client which does not read its socket is
sent at most one portion more, however much credit it gave. Portions follow the size of the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from waystation.broker.access.types import Feed, QueueFeed

if TYPE_CHECKING:
    from waystation.message import Delivered

FIRST_PORTION = 16
LARGEST_PORTION = 1_024
PORTION_BYTES = 1024 * 1024

SMALL_PORTION = 64
"""As long as messages are so large that a portion has few of them, or their size is not known yet, a feed counts their
bytes one by one. Many small ones are counted by their average."""

PIECE_BYTES = 4 * 1024 * 1024
"""Payloads in one frame; one that is larger comes alone."""

LIVE_PORTION = 10_000
"""Live feeds may drop what there is no credit for: one that is read gets nearly all the credit that the client gave."""

MAX_CREDIT = 2**31
"""More than this says nothing more."""

INBOX_KEPT = 10_000
"""Replies that wait for a client which does not read; the oldest ones go first."""


class NativeConsumer:
    """One consumer of a session, by the number that the client gave it."""

    __slots__ = (
        "_largest", "_portion", "_under_way", "_waiting", "acks", "ceased", "feed", "number", "pending", "prefetch",
        "queue", "subject", "taken_bytes",
    )  # fmt: skip

    def __init__(self, number: int, queue: str = "", *, live: bool = False) -> None:
        self.number = number
        self.queue = queue
        self.subject = queue  # what it consumes, for whoever looks at connections; empty: nothing worth showing
        self.prefetch = 0
        self.acks = not live
        self.feed: Feed | None = None  # None while it is being opened, and for an inbox
        self.ceased = False
        self.pending: list[Delivered] = []  # delivered in this turn of the loop, not yet sent
        self._largest = LIVE_PORTION if live else LARGEST_PORTION
        self._portion = LIVE_PORTION if live else FIRST_PORTION
        self.taken_bytes = 0  # of what was taken last
        self._waiting = 0  # credit that the feed does not know of
        self._under_way = 0  # credit that the feed has not used

    def allow(self, count: int) -> None:
        """The client can take more."""
        self._waiting = min(self._waiting + count, MAX_CREDIT)

    def pass_on(self) -> None:
        """Gives the feed its next portion of the client's credit. Never from within a delivery: it would nest."""
        count = min(self._waiting, self._portion - self._under_way)
        if count > 0 and self.feed is not None and not self.ceased:
            self._waiting -= count
            self._under_way += count
            self.feed.credit(count)

    def take_back(self) -> None:
        """The client wants nothing more for now: credit that was not used is void."""
        self._waiting = 0
        unused = self._under_way - len(self.pending)
        if unused > 0 and self.feed is not None and not self.ceased:
            self._under_way -= unused
            self.feed.credit(-unused)

    def take(self) -> list[list[Delivered]]:
        """What is to be sent now, in pieces that are not too large for a frame."""
        messages, self.pending = self.pending, []
        self._under_way = max(0, self._under_way - len(messages))
        size = sum([len(delivered.message.payload) for delivered in messages])
        self.taken_bytes = size
        if size:
            self._portion = max(1, min(self._largest, PORTION_BYTES * len(messages) // size))
        if isinstance(self.feed, QueueFeed):
            self.feed.portion_bytes = PORTION_BYTES if self._portion <= SMALL_PORTION else 0
        return [messages] if size <= PIECE_BYTES else pieces(messages)

    def end(self, *, politely: bool = False) -> None:
        """It goes; what is in flight to it is redelivered to others. `politely`: the client said so, and did not just
        disconnect."""
        self.ceased = True
        self.pending = []
        if self.feed is None:
            return
        if politely:
            self.feed.leave()
        else:
            self.feed.close()


def pieces(messages: list[Delivered]) -> list[list[Delivered]]:
    """The same messages, in lists of about PIECE_BYTES at most."""
    found: list[list[Delivered]] = []
    piece: list[Delivered] = []
    size = 0
    for delivered in messages:
        length = len(delivered.message.payload)
        if piece and size + length > PIECE_BYTES:
            found.append(piece)
            piece, size = [], 0
        piece.append(delivered)
        size += length
    if piece:
        found.append(piece)
    return found
