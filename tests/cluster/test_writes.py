"""Changes of many partitions are made in few writes, also when the store refuses one of them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.broker.kit import run
from tests.cluster.in_process import cluster_of
from waystation.cluster.decisions import elections
from waystation.cluster.decisions.writes import Portions, Write
from waystation.cluster.memory_store import MemoryFace

pytestmark = pytest.mark.timeout(120)


def write(number: int) -> Write:
    return Write({f"p/{number}": None}, {f"p/{number}": 1, "disks/1": 1})


def made(writes: list[Write], stale: set[str], known: set[str] = frozenset()) -> tuple[set[str], list[str], int]:  # type: ignore[assignment]
    """What is made, what is refused alone, and in how many attempts. `known`: of the stale ones, what is told."""
    portions, done, refused, attempts = Portions(writes, 100), set[str](), list[str](), 0
    while (one := portions.next()) is not None:
        attempts += 1
        if stale.isdisjoint(one.expected):
            done |= one.changes.keys()
        elif not portions.refused(lambda write: known.isdisjoint(write.changes)):
            refused += one.changes
    return done, refused, attempts


def test_what_is_not_refused_is_made_in_few_writes() -> None:
    writes = [write(number) for number in range(1_000)]
    everything = {f"p/{number}" for number in range(1_000)}
    assert made(writes, set()) == (everything, [], 11)
    done, refused, attempts = made(writes, {"p/500"})
    assert (done, refused) == (everything - {"p/500"}, ["p/500"])
    assert attempts <= 11 + 2 * 7
    assert made(writes, {"p/500"}, {"p/500"}) == (everything - {"p/500"}, [], 13)
    assert made(writes, everything, everything) == (set(), [], 11)


@pytest.mark.parametrize("seed", range(20))
def test_each_is_made_or_refused_alone_or_known_to_be_refused(seed: int) -> None:
    rng = random.Random(seed)
    everything = {f"p/{number}" for number in range(250)}
    stale = set(rng.sample(sorted(everything), rng.choice((1, 5, 100))))
    known = set(rng.sample(sorted(stale), rng.randint(0, len(stale))))
    done, refused, _ = made([write(number) for number in range(250)], stale, known)
    assert done == everything - stale
    assert set(refused) >= stale - known
    assert len(refused) == len(set(refused))


def test_one_partition_that_has_changed_does_not_have_others_written_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as cluster:
            await cluster.brokers[1].topics.create("t", 90)
            topic = cluster.brokers[1].topics.get("t").id
            for index in range(90):
                await cluster.in_sync("t", {1, 2, 3}, index)
            member = cluster.brokers[1].member
            assert member is not None
            led = [known for (one, _), known in cluster.view().partitions() if one == topic and known.state.leader == 1]
            assert len(led) > 20
            nodes = cluster.view().living
            writes = []
            for known in led:
                moved = elections.hand_over(member.membership.identity, known, 2, nodes[2])
                assert moved is not None
                writes.append(moved)
            middle = len(writes) // 2
            [key] = writes[middle].changes
            writes[middle] = Write(writes[middle].changes, {**writes[middle].expected, key: 1})
            attempts = 0
            real = MemoryFace.write

            def counted(self: MemoryFace, changes: Mapping[str, bytes | None], *more: object) -> int:
                nonlocal attempts
                attempts += self is cluster.faces[1] and any(key.startswith("partitions/") for key in changes)
                return real(self, changes, *more)  # type: ignore[arg-type]

            monkeypatch.setattr(MemoryFace, "write", counted)
            await member.leadership._write(writes)

            assert attempts < 15
            store = cluster.store.face()
            entries = {known.key: (store.get(known.key), known.revision) for known in led}
            left = [one for one, (entry, revision) in entries.items() if entry is None or entry.revision == revision]
            assert left == [key]

    run(main())
