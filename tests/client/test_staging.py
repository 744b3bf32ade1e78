"""Transactions that are staged by many and committed by one: through each client, over lost connections and crashes."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.client.sync.client import Client
from waystation.errors import Conflict, Invalid, InvalidRecord, WaystationError
from waystation.log.batches import batch as batches
from waystation.protocol import StagedTransaction

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name that no other test uses."""
    return f"staging.{next(_numbers)}"


def batch(*values: bytes, **options: Any) -> bytearray:
    return batches.build([(None, value, ()) for value in values], time.time_ns() // 1_000_000, **options)


def stage(mq: Any, name: str, part: int, *, attempt: str = "0") -> StagedTransaction:
    """Two rows to a topic, one as a batch of the client's own, and one to a queue."""
    with mq.transaction(f"{name}/{attempt}.{part}") as tx:
        tx.publish(f"{name}.out", f"{attempt}-{part}-a", partition=0)
        tx.publish_batches(f"{name}.out", [(0, batch(b"%s-%d-b" % (attempt.encode(), part)))])
        tx.put(f"{name}.jobs", f"{attempt}-{part}")
        staged: StagedTransaction | None = tx.stage()
    assert staged is not None
    return staged


def rows(mq: Any, topic: str, count: int) -> list[str]:
    """What readers of committed messages find."""
    found: list[str] = []
    with mq.subscribe(topic, history=100) as subscription:
        while len(found) < count and (message := subscription.get_message(timeout=20)) is not None:
            found.append(bytes(message.payload).decode())
        assert subscription.get_message(timeout=0.05) is None
    return sorted(found)


def expected(attempt: str = "0") -> list[str]:
    return [f"{attempt}-{part}-{row}" for part in range(3) for row in "ab"]


@pytest.fixture
def place(mq: Any, name: str) -> str:
    mq.create_topic(f"{name}.out", partitions=1)
    mq.queue(f"{name}.jobs")
    return name


def test_what_was_staged_is_seen_when_it_is_committed_and_a_replay_changes_nothing(mq: Any, place: str) -> None:
    staged = [stage(mq, place, part) for part in range(3)]
    assert rows(mq, f"{place}.out", 0) == []
    assert mq.queue(f"{place}.jobs").describe().ready == 0
    assert mq.staged_position(place) is None
    assert mq.commit_staged(place, 7, staged, abandon=f"{place}/") is True
    assert mq.commit_staged(place, 7, staged, abandon=f"{place}/") is True
    assert rows(mq, f"{place}.out", 6) == expected()
    assert mq.queue(f"{place}.jobs").describe().ready == 3
    assert mq.staged_position(place) == 7
    again = [stage(mq, place, part, attempt="1") for part in range(3)]
    assert mq.commit_staged(place, 7, again) is False
    assert mq.abort_staged(again) == 0, "they are gone already"
    assert mq.abort_staged(staged) == 0, "committed is committed"
    assert rows(mq, f"{place}.out", 6) == expected()
    assert mq.queue(f"{place}.jobs").describe().ready == 3


def test_what_nobody_asks_for_is_undone_with_the_next_commit_or_by_its_prefix(mq: Any, place: str) -> None:
    zombie = stage(mq, place, 9, attempt="zombie")
    staged = [stage(mq, place, part) for part in range(3)]
    assert mq.commit_staged(place, 0, staged, abandon=f"{place}/") is True
    assert rows(mq, f"{place}.out", 6) == expected()
    with pytest.raises(Conflict, match="zombie"):
        mq.commit_staged(place, 1, [zombie])
    stage(mq, place, 9, attempt="left")
    assert mq.abort_staged(prefix=f"{place}/left") == 1
    assert rows(mq, f"{place}.out", 6) == expected()


def test_a_run_that_is_fenced_stages_nothing_any_more_and_others_do(mq: Any, place: str) -> None:
    stage(mq, place, 0, attempt="run.0")

    def early() -> None:
        with mq.transaction(f"{place}/run.early") as tx:
            tx.publish(f"{place}.out", "early", partition=0)  # it has begun when the run is given up
            assert mq.abort_staged(prefix=f"{place}/run.", fence=True) == 2
            tx.stage()

    with pytest.raises(WaystationError, match="epoch"):
        early()
    with pytest.raises(WaystationError, match="given up"), mq.transaction(f"{place}/run.late") as late:
        late.publish(f"{place}.out", "late", partition=0)
    staged = [stage(mq, place, part) for part in range(3)]
    assert mq.commit_staged(place, 0, staged) is True
    assert rows(mq, f"{place}.out", 6) == expected(), "nothing is in the way of readers"
    for wrong in (f"{place}/", f"{place}/run", "run.", f"{place}/run.part."):
        with pytest.raises(Invalid, match="prefix"):
            mq.abort_staged(prefix=wrong, fence=True)
    with pytest.raises(Invalid, match="fence"):
        mq.abort_staged(fence=True)


def test_a_transaction_with_nothing_in_it_stages_nothing(mq: Any, place: str) -> None:
    with mq.transaction(f"{place}/empty") as tx:
        assert tx.stage() is None
    assert mq.commit_staged(place, 0, []) is True


def test_batches_outside_a_transaction_are_there_at_once(mq: Any, place: str) -> None:
    mq.publish_batches(f"{place}.out", [(0, batch(b"a", b"b")), (0, batch(b"c"))])
    assert rows(mq, f"{place}.out", 3) == ["a", "b", "c"]


def test_bad_input_is_refused_in_words(mq: Any, place: str) -> None:
    topic = f"{place}.out"
    with pytest.raises(InvalidRecord, match="producer id"):
        mq.publish_batches(topic, [(0, batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0))])
    with pytest.raises(InvalidRecord, match="transactional"):
        mq.publish_batches(topic, [(0, batch(b"a", attributes=batches.TRANSACTIONAL))])
    damaged = batch(b"a")
    damaged[-1] ^= 1
    with pytest.raises(WaystationError, match="CRC"):
        mq.publish_batches(topic, [(0, batch(b"good")), (0, damaged)])
    with pytest.raises(WaystationError, match="partition"):
        mq.publish_batches(topic, [(5, batch(b"a"))])
    with pytest.raises(Invalid, match="batches"):
        mq.publish_batches(topic, [])
    for prefix in ("__way", "__waystation.delayed"):
        with pytest.raises(Invalid, match="prefix"):
            mq.abort_staged(prefix=prefix)
        with pytest.raises(Invalid, match="abandon"):
            mq.commit_staged(place, 0, [], abandon=prefix)
    with pytest.raises(WaystationError, match="broker's own"):
        mq.commit_staged(place, 0, [StagedTransaction("__waystation.delayed", 0, 0)])
    assert rows(mq, topic, 0) == []


# -- lost connections and crashes --------------------------------------------------------------------------------------


def test_a_stage_outlives_its_connection_and_an_unfinished_one_does_not(server: Server, name: str) -> None:
    url = f"waystation://{server.bootstrap}"
    with waystation.connect(url) as mq:
        mq.create_topic(f"{name}.out", partitions=1)
        mq.queue(f"{name}.jobs")
        with waystation.connect(url) as task:
            staged = [stage(task, name, part) for part in range(3)]
            half = task.transaction(f"{name}/half")
            half.__enter__()
            half.publish(f"{name}.out", "half")
        assert mq.commit_staged(name, 0, staged) is True
        assert wait_for(lambda: rows(mq, f"{name}.out", 6), "the unfinished one is undone") == expected()
        assert mq.abort_staged(prefix=f"{name}/") == 0


def test_stages_and_decisions_survive_a_killed_broker(tmp_path: Path) -> None:
    name = "kill"
    with Server(tmp_path) as server:
        url = f"waystation://{server.bootstrap}"

        def restart() -> Client:
            server.kill()
            server.restart()
            return waystation.connect(url, wait=20)

        with waystation.connect(url) as mq:
            mq.create_topic(f"{name}.out", partitions=1)
            mq.queue(f"{name}.jobs")
            staged = [stage(mq, name, part) for part in range(3)]
        with restart() as mq:
            assert rows(mq, f"{name}.out", 0) == []
            assert mq.commit_staged(name, 4, staged) is True
        with restart() as mq:
            assert mq.staged_position(name) == 4
            assert mq.commit_staged(name, 4, staged) is True
            assert mq.commit_staged(name, 4, [stage(mq, name, 0, attempt="1")]) is False
            assert rows(mq, f"{name}.out", 6) == expected()
            assert mq.queue(f"{name}.jobs").describe().ready == 3
