"""What every store of a cluster promises: the one in memory and the one in etcd are told apart by nothing here."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import pytest

from tests.cluster.store_kit import Following, TwoNodes
from tests.support.etcd import Etcd, need
from tests.support.waiting import wait_for
from waystation.catalog import ABSENT, CatalogChange, CatalogEntry, Compacted
from waystation.cluster.address import parse
from waystation.cluster.etcd import EtcdStore
from waystation.cluster.etcd.messages import EmptyResponse, EtcdMessage
from waystation.cluster.memory_store import MemoryStore
from waystation.cluster.store import MOST_CHANGES, Store
from waystation.errors import NotFound, RevisionConflict, TooLarge
from waystation.world import SystemClock

_numbers = count()


class Compaction(EtcdMessage, frozen=True):
    revision: int


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    need()
    with Etcd(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture(params=["memory", "etcd"])
def nodes(request: pytest.FixtureRequest) -> Iterator[TwoNodes]:
    if request.param == "memory":
        memory = MemoryStore(SystemClock())
        yield TwoNodes(memory.face(), memory.face(), memory.face, memory.compact)
        return
    etcd: Etcd = request.getfixturevalue("etcd")
    address = parse(etcd.url(f"test-{next(_numbers)}"))
    opened: list[EtcdStore] = []

    def open_one() -> EtcdStore:
        opened.append(EtcdStore(address, f"cluster-{len(opened)}"))
        return opened[-1]

    def compact() -> None:
        store = opened[0]
        store._gateway.ask("/v3/kv/compaction", Compaction(store.revision()), EmptyResponse, repeatable=True)

    yield TwoNodes(open_one(), open_one(), open_one, compact)
    for store in opened:
        store.close()


def values(store: Store, prefix: str = "") -> dict[str, bytes]:
    return {key: entry.value for key, entry in store.read(prefix).entries.items()}


# -- entries ----------------------------------------------------------------------------------------------------------


def test_all_nodes_see_one_cluster_with_the_id_that_the_first_gave_it(nodes: TwoNodes) -> None:
    assert nodes.a.cluster_id() == nodes.b.cluster_id() == nodes.open().cluster_id()
    assert nodes.a.read().entries == {}


def test_what_one_node_writes_the_other_reads_with_its_revision(nodes: TwoNodes) -> None:
    first = nodes.a.write({"a/1": b"x", "a/2": b"\x00\xff"})
    second = nodes.b.write({"a/2": b""})
    assert second > first
    for store in (nodes.a, nodes.b):
        found = store.read("a/")
        assert found.entries == {"a/1": CatalogEntry(b"x", first), "a/2": CatalogEntry(b"", second)}
        assert found.revision >= second
        assert store.get("a/1") == CatalogEntry(b"x", first)
        assert store.get("a/") is None


def test_a_read_has_what_begins_with_the_prefix_and_nothing_else(nodes: TwoNodes) -> None:
    keys = ["a", "a/", "a/1", "a/größe", "a/\U0010ffff", "a0", "b/1", "a/1/2", "A/1", "a.1"]
    nodes.a.write(dict.fromkeys(keys, b""))
    assert list(nodes.b.read("a/").entries) == sorted(key for key in keys if key.startswith("a/"))
    assert list(nodes.b.read("a/1").entries) == ["a/1", "a/1/2"]
    assert list(nodes.b.read().entries) == sorted(keys)
    assert nodes.b.read("c").entries == {}


def test_a_read_of_thousands_of_entries_is_whole_and_at_one_revision(nodes: TwoNodes) -> None:
    for chunk in range(50):
        revision = nodes.a.write({f"n/{chunk * 100 + n:05}": b"%d" % n for n in range(100)})
    found = nodes.b.read("n/")
    assert list(found.entries) == [f"n/{n:05}" for n in range(5_000)]
    assert max(entry.revision for entry in found.entries.values()) == revision <= found.revision


def test_of_two_who_read_the_same_revision_one_writes_and_the_other_is_told(nodes: TwoNodes) -> None:
    revision = nodes.a.write({"a": b"1", "other": b"1"})
    nodes.a.write({"a": b"mine"}, {"a": revision})
    with pytest.raises(RevisionConflict, match=f"'a' was changed .* not {revision}"):
        nodes.b.write({"a": b"theirs", "other": b"theirs", "new": b""}, {"other": revision, "a": revision})
    assert values(nodes.b) == {"a": b"mine", "other": b"1"}


def test_a_key_can_be_expected_to_be_absent_and_another_than_those_written(nodes: TwoNodes) -> None:
    nodes.a.write({"name/t": b"1"}, {"name/t": ABSENT})
    for expected in ({"name/t": ABSENT}, {"gone": 1}):
        with pytest.raises(RevisionConflict):
            nodes.b.write({"x": b"2"}, expected)
    nodes.b.write({"name/t": None})
    nodes.a.write({"x": b"2"}, {"name/t": ABSENT})
    assert values(nodes.b) == {"x": b"2"}


def test_a_write_may_compare_only(nodes: TwoNodes) -> None:
    revision = nodes.a.write({"a": b"1"})
    assert nodes.b.write({}, {"a": revision}) >= revision
    with pytest.raises(RevisionConflict):
        nodes.b.write({}, {"a": revision - 1})


def test_of_many_threads_that_compare_exactly_one_wins_each_round(nodes: TwoNodes) -> None:
    revision = nodes.a.write({"a": b""})

    def attempt(number: int) -> bool:
        try:
            (nodes.a, nodes.b)[number % 2].write({"a": b"%d" % number}, {"a": revision})
        except RevisionConflict:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        for _ in range(10):
            assert sum(pool.map(attempt, range(8))) == 1
            now = nodes.a.get("a")
            assert now is not None
            revision = now.revision


def test_a_write_with_too_many_keys_is_refused_whole(nodes: TwoNodes) -> None:
    nodes.a.write({f"n/{n}": b"" for n in range(MOST_CHANGES)})
    expected = {f"n/{n}": ABSENT for n in range(50, MOST_CHANGES + 1)}
    for changes in ({f"m/{n}": b"" for n in range(MOST_CHANGES + 1)}, {f"n/{n}": b"" for n in range(50)}):
        with pytest.raises(TooLarge, match=f"{MOST_CHANGES + 1} entries.*at most {MOST_CHANGES}"):
            nodes.a.write(changes, expected if len(changes) == 50 else {})
    assert values(nodes.b, "m/") == {}


# -- watching ---------------------------------------------------------------------------------------------------------


def test_a_watch_gives_every_write_whole_once_and_in_order_to_all(nodes: TwoNodes) -> None:
    start = nodes.a.revision()
    following = [Following(store, start) for store in (nodes.a, nodes.b, nodes.a)]
    written = [nodes.a.write({"a": b"1", "b": b"1"}), nodes.b.write({"a": None, "c": b"2"}), nodes.a.write({"a": b"3"})]
    for one in following:
        told = one.reach(written[-1])
        assert [update.revision for update in told] == written
        assert [update.changes for update in told] == [
            (CatalogChange("a", b"1"), CatalogChange("b", b"1")),
            (CatalogChange("a", None), CatalogChange("c", b"2")),
            (CatalogChange("a", b"3"),),
        ]
        assert one.woken
        assert one.watch.take() == []


def test_a_watch_begins_after_its_revision_with_what_was_written_before_it_was_asked_for(nodes: TwoNodes) -> None:
    first = nodes.a.write({"a": b"1"})
    second = nodes.a.write({"a": b"2"})
    third = nodes.a.write({"a": b"3"})
    assert [update.revision for update in Following(nodes.b, first).reach(third)] == [second, third]
    assert [update.revision for update in Following(nodes.open(), second).reach(third)] == [third]


def test_a_watch_from_what_was_read_misses_nothing_and_repeats_nothing(nodes: TwoNodes) -> None:
    for number in range(20):
        nodes.a.write({f"a/{number}": b""})
    snapshot = nodes.b.read()
    following = Following(nodes.b, snapshot.revision)
    last = nodes.a.write({"a/after": b""})
    assert [update.revision for update in following.reach(last)] == [last]


def test_a_revision_that_is_answered_is_reached_by_every_watch(nodes: TwoNodes) -> None:
    """Also that of a write that changed nothing: a broker waits for it."""
    start = nodes.a.write({"a": b"1"})
    following = Following(nodes.b, start)
    nothing = [nodes.a.write({"none": None}), nodes.a.write({}), nodes.a.write({}, {"a": start}), nodes.a.revision()]
    for revision in nothing:
        assert revision == start or following.reach(revision) == []


def test_a_closed_watch_is_woken_no_more(nodes: TwoNodes) -> None:
    start = nodes.a.revision()
    closed, other = Following(nodes.a, start), Following(nodes.a, start)
    closed.watch.close()
    other.reach(nodes.b.write({"a": b""}))
    assert closed.woken == 0


def test_a_watch_from_what_was_compacted_is_told_so_and_reading_again_goes_on(nodes: TwoNodes) -> None:
    start = nodes.a.write({"a": b"1"})
    nodes.a.write({"a": None, "b": b"2"})
    nodes.a.write({"b": b"3"})
    nodes.compact()
    late = nodes.open()
    watch = late.watch(start, lambda: None)

    def compacted() -> bool:
        try:
            assert watch.take() == []
        except Compacted:
            return True
        return False

    wait_for(compacted, "the watch is told that it is too late")
    snapshot = late.read()
    assert {key: entry.value for key, entry in snapshot.entries.items()} == {"b": b"3"}
    following = Following(late, snapshot.revision)
    last = nodes.a.write({"c": b""})
    assert [update.changes for update in following.reach(last)] == [(CatalogChange("c", b""),)]


def test_a_deletion_in_the_very_revision_that_was_compacted_is_not_missed(nodes: TwoNodes) -> None:
    """etcd accepts a watch from a revision that was just compacted, and leaves its deletions out."""
    start = nodes.a.write({"a": b"1"})
    nodes.a.write({"a": None})
    nodes.compact()
    late = nodes.open()
    watch = late.watch(start, lambda: None)

    def knows() -> bool:
        try:
            return any(CatalogChange("a", None) in update.changes for update in watch.take())
        except Compacted:
            return True

    wait_for(knows, "the watch tells of the deletion, or that it is too late")


# -- leases -----------------------------------------------------------------------------------------------------------


def test_keys_of_a_lease_that_is_not_kept_alive_are_deleted_and_everybody_is_told(nodes: TwoNodes) -> None:
    lease = nodes.a.grant(2)
    written = nodes.a.write({"nodes/1": b"here", "other": b"stays"}, {"nodes/1": ABSENT}, lease=lease)
    nodes.a.write({"other": b"stays"})  # without the lease: it is under none any more
    following = Following(nodes.b, written)

    def deleted() -> bool:
        nodes.b.get("other")  # in memory, time passes when somebody asks
        return any(update.changes == (CatalogChange("nodes/1", None),) for update in following.take())

    wait_for(deleted, "the key of the lease is deleted")
    assert values(nodes.b) == {"other": b"stays"}
    assert not nodes.a.keep_alive(lease)


def test_a_lease_that_is_kept_alive_outlives_its_time(nodes: TwoNodes) -> None:
    kept, other = nodes.a.grant(2), nodes.a.grant(2)
    nodes.a.write({"kept": b""}, lease=kept)
    nodes.a.write({"other": b""}, lease=other)

    def other_ran_out() -> bool:
        assert nodes.b.keep_alive(kept)  # by whoever knows it
        return nodes.b.get("other") is None

    wait_for(other_ran_out, "the lease that nobody keeps alive runs out", every_s=0.2)
    assert nodes.b.get("kept") is not None


def test_a_revoked_lease_runs_out_at_once_and_cannot_be_used(nodes: TwoNodes) -> None:
    lease = nodes.a.grant(60)
    nodes.a.write({"nodes/1": b"1", "nodes/2": b"2"}, lease=lease)
    nodes.b.revoke(lease)
    assert values(nodes.a) == {}
    nodes.b.revoke(lease)
    assert not nodes.a.keep_alive(lease)
    with pytest.raises(NotFound, match="run out"):
        nodes.a.write({"nodes/1": b"1"}, lease=lease)
    assert values(nodes.a) == {}


def test_a_key_that_is_deleted_and_written_without_its_lease_stays(nodes: TwoNodes) -> None:
    lease, second = nodes.a.grant(60), nodes.a.grant(60)
    nodes.a.write({"x": b"1", "y": b"1"}, lease=lease)
    nodes.a.write({"x": None})
    nodes.a.write({"x": b"2"})
    nodes.a.write({"y": b"2"}, lease=second)
    nodes.a.revoke(lease)
    assert values(nodes.a) == {"x": b"2", "y": b"2"}
    nodes.a.revoke(second)
    assert values(nodes.a) == {"x": b"2"}
