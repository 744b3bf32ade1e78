"""A follower that is behind its leader's start begins again there: nothing of before counts, also after a restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.log.kit import Home, run
from waystation.log.batches import batch as batches
from waystation.log.cleaning.truncation import begin_again
from waystation.log.commit import GroupCommit

ENDINGS: list[Callable[[Home], object]] = [Home.kill_and_open, Home.reboot_and_open, Home.restart]


def go_on_at(home: Home, offset: int) -> None:
    run(begin_again(home.log, offset, GroupCommit(home.world)))


def batch_of(home: Home, sequence: int, *, transactional: bool = False) -> bytearray:
    return batches.build(
        [(None, b"value", ())],
        home.clock.ms,
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=batches.TRANSACTIONAL if transactional else 0,
    )


def with_a_producer(root: Path, *, transactional: bool) -> Home:
    """A producer has written, and so has a snapshot of it: its next number here would be 3."""
    home = Home(root, segment_bytes=1)
    for sequence in range(3):
        batch = batch_of(home, sequence, transactional=transactional)
        home.log.append(batch, batches.read_header(batch))
    home.sync()
    home.restart()
    assert 7 in home.log.producers.by_id
    return home


@pytest.mark.parametrize("end", ENDINGS)
def test_a_producer_of_before_is_not_remembered_after_a_restart(tmp_path: Path, end: Callable[[Home], object]) -> None:
    """What it has written meanwhile is not here: that its next number does not follow means nothing."""
    home = with_a_producer(tmp_path, transactional=False)
    go_on_at(home, 100)
    assert not home.log.producers.by_id
    end(home)
    assert not home.log.producers.by_id
    batch = batch_of(home, 50)
    assert home.log.append(batch, batches.read_header(batch)).base_offset == 100


@pytest.mark.parametrize("end", ENDINGS)
def test_a_transaction_that_was_open_before_keeps_nobody_waiting(tmp_path: Path, end: Callable[[Home], object]) -> None:
    """Its end is in what is not here: it would be open forever."""
    home = with_a_producer(tmp_path, transactional=True)
    go_on_at(home, 100)
    assert home.log.stable_offset == 100
    end(home)
    assert home.log.stable_offset == home.log.end_offset == 100


def test_what_is_written_behind_it_is_remembered(tmp_path: Path) -> None:
    home = with_a_producer(tmp_path, transactional=False)
    go_on_at(home, 100)
    batch = batch_of(home, 50)
    home.log.append(batch, batches.read_header(batch))
    home.sync()
    home.restart()
    assert home.log.producers.by_id[7].last_sequence == 50
