"""Runs: entries that follow one another, as (first, how many). What queues hand around instead of one object each.

A list of runs is *tidy* when it ascends and no two of its runs touch or overlap. Everything the ledger returns is tidy.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.message import Run


def add_run(runs: list[Run], first: int, count: int) -> None:
    """Appends, and joins what follows directly on the last run."""
    if runs:
        before, length = runs[-1]
        if before + length == first:
            runs[-1] = (before, length + count)
            return
    runs.append((first, count))


def tidy(runs: list[Run]) -> None:
    """Brings runs in any order, overlapping or not, into order."""
    if len(runs) < 2:
        return
    runs.sort()
    joined: list[Run] = []
    start, end = runs[0][0], 0
    for first, count in runs:
        if joined and first <= end:
            end = max(end, first + count)
            joined[-1] = (start, end - start)
        else:
            start, end = first, first + count
            joined.append((first, count))
    runs[:] = joined


def joined(runs: Sequence[Run]) -> list[Run]:
    """Runs that ascend, with those that touch made one."""
    whole: list[Run] = []
    for first, count in runs:
        add_run(whole, first, count)
    return whole


def apart(runs: Sequence[Run]) -> Sequence[Run]:
    """The same entries in runs that ascend, do not overlap and are not empty: mostly the very same runs."""
    end = -1
    for first, count in runs:
        if first < end or count < 1:  # a count below zero would hide an overlap from the runs behind it
            ordered = [(first, count) for first, count in runs if count > 0]
            tidy(ordered)
            return ordered
        end = first + count
    return runs


def runs_of(entries: list[int]) -> list[Run]:
    """The runs of some entries, which it sorts; an entry may stand there twice."""
    if not entries:
        return []
    entries.sort()
    if entries[-1] - entries[0] + 1 == len(entries) == len(set(entries)):
        return [(entries[0], len(entries))]
    runs: list[Run] = []
    start = end = entries[0]
    for entry in entries:
        if entry > end:
            runs.append((start, end - start))
            start = entry
        end = entry + 1
    runs.append((start, end - start))
    return runs


def common(some: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    """The entries that two tidy lists have in common."""
    found: list[Run] = []
    at = 0
    for first, count in some:
        while at < len(others) and sum(others[at]) <= first:
            at += 1
        beside = at
        while beside < len(others) and others[beside][0] < first + count:
            low = max(first, others[beside][0])
            add_run(found, low, min(first + count, sum(others[beside])) - low)
            beside += 1
    return found


def without(some: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    """The entries of one tidy list that are not in another."""
    left: list[Run] = []
    shared = common(some, others)
    at = 0
    for first, count in some:
        end = first + count
        while at < len(shared) and shared[at][0] < end:
            start, length = shared[at]
            if start > first:
                left.append((first, start - first))
            first = start + length
            at += 1
        if first < end:
            left.append((first, end - first))
    return left
