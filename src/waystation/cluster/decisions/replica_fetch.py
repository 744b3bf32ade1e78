"""A follower's fetch and its leader's answer, without the records; and how the two find where their logs part. Pure.

Where the histories part is found by leader epochs (KIP-101, 279, 595): two logs with the same epoch at the same offset
are equal up to there. The follower names the epoch of its last record. If the leader has no such epoch, or its records
of that epoch end before the follower's do, it answers with the latest epoch that they may share and with where that
ends in its own log; the follower truncates to there and asks again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

NO_EPOCH = -1
"""The epoch of a log without records."""


class EpochEnd(msgspec.Struct, frozen=True):
    """An epoch, and the offset at which it ends in a log."""

    epoch: int
    end: int


class ReplicaFetch(msgspec.Struct, frozen=True):
    """What a follower asks for, of one partition. Its offset is a promise: all before it is fsynced in `folder`."""

    node_id: int
    epoch: int  # the leader epoch of the follower's view
    folder: str
    incarnation: int
    number: int  # one more with each fetch of this incarnation: a late one is told from one that has gone back
    offset: int
    last_epoch: int  # of the record before the offset; NO_EPOCH: the log has none


class FetchAnswer(msgspec.Struct, frozen=True):
    """What a leader answers besides the records, of one partition."""

    leader: int
    epoch: int
    offset: int  # the fetch offset that this answers
    log_start: int
    high_watermark: int
    diverging: EpochEnd | None = None  # then there are no records


class EpochHistory(msgspec.Struct, frozen=True):
    """What a log has: its offsets, and from which offset on each leader epoch wrote (as `log.epochs.Epochs`)."""

    start: int
    end: int
    epochs: Sequence[tuple[int, int]]  # (epoch, first offset), both ascending

    @property
    def last_epoch(self) -> int:
        """Of the last record. An epoch that has begun without a record does not count."""
        for epoch, first in reversed(self.epochs):
            if first < self.end:
                return epoch
        return NO_EPOCH

    def end_of(self, epoch: int) -> EpochEnd:
        """The latest epoch not after `epoch`, and where it ends; (NO_EPOCH, start) if the log has none so early."""
        end = self.end
        for known, first in reversed(self.epochs):
            if known <= epoch:
                return EpochEnd(known, end)
            end = first
        return EpochEnd(NO_EPOCH, self.start)

    def parts_from(self, offset: int, last_epoch: int) -> EpochEnd | None:
        """Of a leader: where a follower's log, which ends at `offset` with a record of `last_epoch`, may still be the
        same; None if it is the same up to its end, as far as this log has not deleted it."""
        shared = self.end_of(last_epoch)
        if shared.epoch == NO_EPOCH:  # the follower has no record, or one from before this log's start
            known = self.end if last_epoch == NO_EPOCH else self.start
            return None if offset <= known else shared
        return shared if shared.epoch < last_epoch or shared.end < offset else None
