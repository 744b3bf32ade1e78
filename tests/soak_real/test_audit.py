"""The audit of the long run can fail: every kind of lie that it is fed is found, and the truth is not."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.soak_real.audit import (
    Findings,
    KeysAccount,
    LogAccount,
    OffsetsAccount,
    QueueAccount,
    TransactionsAccount,
    check_pair,
)
from tests.soak_real.sampling import Sample, growth

LOST = "nothing acknowledged is lost"
Tale = Callable[[Findings], None]


def honest(findings: Findings) -> None:
    queue = QueueAccount("q", findings, ordered=True)
    for _ in range(3):
        number = queue.try_next(due_s=time.time() - 1)
        queue.stored(number)
        queue.delivered(number)
        queue.delivered(number)
        queue.ack_sent(number)
        queue.acked(number)
    queue.try_next()
    queue.finish()
    log = LogAccount("t", 2, findings)
    for number in range(4):
        log.report(number % 2, number // 2, number)
        log.read(number % 2, number // 2, number)
    log.check_ends({0: 2, 1: 2}, [2, 2])
    log.finish()
    offsets = OffsetsAccount("g", findings)
    offsets.committed(0, 2)
    offsets.check(offsets.promised, {0: 2}, {0: 2})
    keys = KeysAccount("k", findings)
    for _ in range(3):
        keys.report(7, keys.try_next(7))
    keys.check(keys.snapshot(), [(7, 2), (7, 3)])
    output = TransactionsAccount("o", findings)
    output.committed(0, 2)
    output.read_input(b"0")
    output.read_input(b"1")
    output.read_range(b"0 2")
    output.finish()


def ack_that_never_happened(findings: Findings) -> None:
    queue = QueueAccount("q", findings)
    queue.stored(queue.try_next())
    queue.delivered(0)
    queue.acked(0)
    queue.delivered(0)


def put_that_never_happened(findings: Findings) -> None:
    queue = QueueAccount("q", findings)
    queue.stored(queue.try_next())
    queue.finish()


def copy_in_a_queue(findings: Findings) -> None:
    queue = QueueAccount("q", findings)
    queue.stored(queue.try_next())
    queue.delivered(0)
    queue.delivered(0)
    queue.acked(0)
    queue.acked(0)


def early_delivery(findings: Findings) -> None:
    queue = QueueAccount("q", findings)
    queue.delivered(queue.try_next(due_s=time.time() + 60))


def stranger(findings: Findings) -> None:
    QueueAccount("q", findings).delivered(5)


def wrong_order(findings: Findings) -> None:
    queue = QueueAccount("q", findings, ordered=True)
    first, second = queue.try_next(), queue.try_next()
    queue.delivered(second)
    queue.delivered(first)


def short_log(findings: Findings) -> None:
    LogAccount("t", 1, findings).check_ends({0: 9}, [10])


def unread_log(findings: Findings) -> None:
    log = LogAccount("t", 1, findings)
    log.report(0, 0, 0)
    log.finish()


def doubled_record(findings: Findings) -> None:
    log = LogAccount("t", 1, findings)
    log.read(0, 0, 0)
    log.read(0, 1, 0)


def skipped_record(findings: Findings) -> None:
    LogAccount("t", 1, findings).read(0, 3, 3, start=2)


def commit_that_went_back(findings: Findings) -> None:
    OffsetsAccount("g", findings).check({0: 5}, {0: 4}, {0: 9})


def commit_past_the_log(findings: Findings) -> None:
    OffsetsAccount("g", findings).check({0: 5}, {0: 9}, {0: 8})


def old_value(findings: Findings) -> None:
    keys = KeysAccount("k", findings)
    for _ in range(3):
        keys.report(7, keys.try_next(7))
    keys.check(keys.snapshot(), [(7, 2)])


def missing_key(findings: Findings) -> None:
    keys = KeysAccount("k", findings)
    keys.report(7, keys.try_next(7))
    keys.check(keys.snapshot(), [])


def half_transaction(findings: Findings) -> None:
    output = TransactionsAccount("o", findings)
    output.read_input(b"0")
    output.finish()


def doubled_transaction(findings: Findings) -> None:
    output = TransactionsAccount("o", findings)
    for _ in range(2):
        output.read_input(b"0")


def visible_abort(findings: Findings) -> None:
    TransactionsAccount("o", findings).read_input(b"abort 3")


def commit_that_never_happened(findings: Findings) -> None:
    output = TransactionsAccount("o", findings)
    output.committed(0, 1)
    output.finish()


def lone_half(findings: Findings) -> None:
    left, right = QueueAccount("l", findings), QueueAccount("r", findings)
    left.delivered(left.try_next())
    right.try_number(0)
    check_pair(left, right, findings)


@pytest.mark.parametrize(
    ("tale", "promise"),
    [
        (ack_that_never_happened, "nothing acknowledged is redelivered"),
        (put_that_never_happened, LOST),
        (copy_in_a_queue, "nothing is there twice"),
        (early_delivery, "nothing delayed is early"),
        (stranger, "nothing comes that was not sent"),
        (wrong_order, "a queue keeps its order"),
        (short_log, LOST),
        (unread_log, LOST),
        (doubled_record, "each record is once at its place in order"),
        (skipped_record, "no record is skipped"),
        (commit_that_went_back, "committed offsets stay"),
        (commit_past_the_log, "committed offsets are within the log"),
        (old_value, "a key's last value stays"),
        (missing_key, "a key's last value stays"),
        (half_transaction, "transactions are whole"),
        (doubled_transaction, "a transaction's output is there exactly once"),
        (visible_abort, "aborted transactions are invisible"),
        (commit_that_never_happened, LOST),
        (lone_half, "transactions are whole"),
    ],
)
def test_a_lie_is_found_and_named(tale: Tale, promise: str) -> None:
    told: list[str] = []
    findings = Findings(told.append)
    tale(findings)
    assert promise in findings.counts
    assert len(told) == len(findings.counts), "the first of each kind is told at once"


def test_the_truth_is_not_complained_about() -> None:
    findings = Findings()
    honest(findings)
    assert not findings, findings.examples


def sample(life: int, age_s: float, rss: float) -> Sample:
    return Sample(life, age_s, rss, files=50, threads=8, tasks=20, connections=30, cpu_s=1.0)


def test_growth_over_lives_and_over_one_long_life_is_said() -> None:
    growing_lives = [sample(life, age, 60 + 5 * life) for life in range(20) for age in (20, 40, 60)]
    flat_lives = [sample(life, age, 60 + age / 10) for life in range(20) for age in (20, 40, 60)]
    assert growth(growing_lives)
    assert not growth(flat_lives)
    assert growth([sample(0, 60 * minute, 60 + 5 * minute) for minute in range(21)])
    assert not growth([sample(0, 60 * minute, min(60 + 5 * minute, 85)) for minute in range(21)])
