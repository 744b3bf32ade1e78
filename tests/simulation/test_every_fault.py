"""Every disk operation fails once, in every way that leads to it: nothing acknowledged is lost, and it works again.

The calls are counted, not drawn: `trace` runs a few seeds and names every way to every operation; each of them is then
failed with each error that such an operation can answer. A line of the core that touches the disk and is reached by no
run fails `test_every_use_of_the_disk_is_failed_by_some_run`. To repeat a failure: `run(...)` as its note says.

`python -m tests.simulation.test_every_fault` does all of it and prints the figures; `make soak` has it in groups.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import pytest

from tests.simulation.disk_calls import ERRORS, DiskCall, Site, sites_in_source
from tests.simulation.every_fault import ENDINGS, KINDS, Ending, Fault, Kind, run, trace
from tests.simulation.promises import Broken
from waystation.errors import WaystationError
from waystation.log import log as log_module
from waystation.log.log import Log, SyncJob
from waystation.log.opening import recovery
from waystation.queues.shard import checkpoint

T = TypeVar("T")

SEEDS = 24
REACHING_SEEDS = 100
GROUPS = 6
TRIES = 5
ENOUGH = 1
"""A deliberate bug is caught if it shows in more runs than this."""
SOAK_GROUPS = 24

ELSEWHERE = {
    "log/opening/repair.py": "a command on a stopped broker: tests/log/test_repair.py",
    "broker/lost_restoring.py": "a command on a stopped broker: tests/topics/test_lost_topics.py",
    "broker/open.py": "before there is a broker: tests/broker/test_open.py",
    "broker/adopting.py": "a command on a stopped broker: tests/cli/test_cluster.py",
    "broker/encrypting.py": "a command on a stopped broker: tests/encryption/test_folder.py",
    "log/cleaning/encrypting.py": "a command on a stopped broker: tests/log/test_encryption.py fails each of them",
    "encryption/key_file.py": "before there is a broker, and in a rotation: tests/encryption/test_key_file.py fails"
    " each of these calls, and the crash simulations cut the power there",
    "encryption/master_key.py": "keys, which an operator writes: tests/encryption/test_master_key.py",
    "encryption/sealed_file.py": "as cluster/replication/snapshots.py: tests/cluster/test_snapshots.py",
    "security/tls.py _read": "certificates, which an operator writes: tests/security/test_tls.py",
    "security/tokens.py _read": "keys of an identity provider, which an operator writes: tests/security/test_tokens.py",
    "health/health.py disk_room": "a figure for people: shown as unknown",
    "log/opening/overlaps.py _rename": "a segment under a wrong name, which no version writes: tests/log/test_roll.py",
    "log/opening/recovery.py _check_chunk": "batches above a megabyte: the same call a line before",
    "log/opening/recovery.py _cut": "whole batches behind a torn one, kept for a person: tests/log/test_recovery.py",
    "log/opening/recovery.py _open_segments sync": "a kill between a seal and its sync: tests/log/test_roll.py",
    "log/opening/recovery.py _sync_checked sync": "a log whose last segment was set aside: the same call a line before",
    "log/segments/damage.py _followed": "a whole batch behind damage: tests/log/test_recovery.py",
    "log/segments/swap.py withdraw": "only an error leads there",
    "log/cleaning/compaction.py _rewrite remove": "only an error leads there",
    "log/points.py discard": "only an error leads there",
    "log/segments/segment.py _begins_in_1970": "a hole that a power cut left: tests/log/test_retention.py",
    "log/segments/segment.py create": "only an error leads there",
    "queues/shard/checkpoint.py _save remove": "only an error leads there",
    "cluster/replication/snapshots.py": "no simulated cluster frees the beginning of a shard's log: each of these calls"
    " is failed by tests/cluster/test_snapshots.py",
    "topics/folders.py clear": "a topic that a cluster has deleted while this node was away:"
    " tests/cluster/test_deletions.py",
    "queues/shard/delivery_notes.py missing replace_file": "a power cut that took the log's tail, and left what was"
    " noted of it: tests/queues/test_delivery_notes.py",
}
"""Uses of the disk that a run in which nothing fails does not reach, and why that is right."""

IN_A_CLUSTER = (
    "topics/folders.py describe make_folder",
    "topics/topics.py remove_copy",
    "log/points.py drop",
    "log/cleaning/truncation.py _remove_snapshots",
    "queues/shard/checkpoint.py go_on",
    "queues/shard/snapshot.py newest_in",
    "cluster/node_file.py",
    "cluster/replication/high_watermarks.py",
)
"""Uses of the disk that only a node of a cluster makes: `test_cluster_disk_calls.py` fails each of them."""

Where = dict[DiskCall, list[tuple[int, int]]]
"""Each call with the seeds in which it is made, and how often."""


@pytest.fixture(autouse=True)
def _checkpoints_after_a_few_kilobytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CHECKPOINT_BYTES", 2_000)
    monkeypatch.setattr(checkpoint, "FIRST_BYTES", 2_000)
    monkeypatch.setattr(checkpoint, "SLICE_QUEUES", 2)


traced = cache(trace)
"""What a seed does without a deliberate bug: nothing but what the fixture sets has an influence on it."""


def find_calls(kind: Kind, seeds: int = SEEDS, seen: Callable[[Kind, int], Counter[DiskCall]] = traced) -> Where:
    where: Where = defaultdict(list)
    for seed in range(seeds):
        for call, count in seen(kind, seed).items():
            where[call].append((seed, count))
    return dict(sorted(where.items()))


@dataclass(frozen=True)
class Planned:
    """One run. Seeds repeat themselves, but not always to the last disk operation: `places` has more than one."""

    call: DiskCall
    error: int
    ending: Ending
    places: list[tuple[int, int]]  # seed, and which of the call's occurrences

    def run(self, kind: Kind) -> bool:
        """False if the operation did not happen. Some are only made while stopping, and are failed there."""
        for seed, nth in self.places:
            fault = Fault(self.call, nth, self.error)
            if run(kind, seed, fault, self.ending) or run(kind, seed, fault, "stop"):
                return True
        return False


def plan(kind: Kind, where: Where, *, thorough: bool) -> Iterator[Planned]:
    """A run for each line, kind of operation and error; `thorough`: for each way to it, and each ending.

    A follower does much that every log does: if not thorough, only its truncations are failed.
    """
    rng = random.Random(kind)
    told: set[tuple[str, str, int]] = set()
    if kind == "follower" and not thorough:
        where = {call: seeds for call, seeds in where.items() if any("/truncation.py" in c for c in call.callers)}
    for call, seeds in where.items():
        for error in ERRORS[call.kind]:
            if not thorough and (call.kind, call.site, error) in told:
                continue
            told.add((call.kind, call.site, error))
            for ending in ENDINGS if thorough else [rng.choice(ENDINGS)]:
                chosen = [rng.choice(seeds) for _ in range(TRIES)]
                places = [(seed, rng.choice((1, count, rng.randint(1, count)))) for seed, count in chosen]
                yield Planned(call, error, ending, places)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", range(GROUPS))
def test_one_failed_disk_operation_loses_nothing(kind: Kind, group: int) -> None:
    planned = list(plan(kind, find_calls(kind), thorough=False))
    struck = sum(one.run(kind) for one in planned[group::GROUPS])
    assert struck == len(planned[group::GROUPS])


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("group", range(SOAK_GROUPS))
def test_one_failed_disk_operation_loses_nothing_on_every_way_to_it(kind: Kind, group: int) -> None:
    planned = list(plan(kind, find_calls(kind), thorough=True))
    struck = sum(one.run(kind) for one in planned[group::SOAK_GROUPS])
    assert struck == len(planned[group::SOAK_GROUPS])


def reached_lines() -> Iterator[set[tuple[str, int]]]:
    """Those of one more seed of each kind at a time."""
    for seed in range(REACHING_SEEDS):
        callers = (caller for kind in KINDS for call in traced(kind, seed) for caller in call.callers)
        places = (caller.partition(":") for caller in callers)
        yield {(file, int(rest.split()[0])) for file, _, rest in places}


def is_one_of(site: Site, said: Iterable[str]) -> bool:
    return any(f"{site.file} {site.function} {site.verb} ".startswith(f"{one} ") for one in said)


def test_every_use_of_the_disk_is_failed_by_some_run() -> None:
    missed = [site for site in sites_in_source() if not is_one_of(site, (*ELSEWHERE, *IN_A_CLUSTER))]
    for reached in reached_lines():
        missed = [
            site
            for site in missed
            if not any((site.file, line) in reached for line in range(site.first_line, site.last_line + 1))
        ]
        if not missed:
            break
    assert not missed, "no run comes by here: let the machines do what leads to it, or say why not"


def test_what_is_said_to_be_elsewhere_exists() -> None:
    sites = [f"{site.file} {site.function} {site.verb} " for site in sites_in_source()]
    assert all(any(site.startswith(f"{said} ") for site in sites) for said in (*ELSEWHERE, *IN_A_CLUSTER))


def caught(calls: Callable[[DiskCall], bool], endings: Sequence[Ending], runs: int, seeds: int = 8) -> int:
    """How many of some runs of the broker, failing these calls, see a promise broken.

    A deliberate bug may be one of a call's callers, by which calls are told apart: so nothing is taken from `traced`.
    """
    where = {call: found for call, found in find_calls("broker", seeds, trace).items() if calls(call)}
    rng = random.Random(1)
    broken = 0
    for _ in range(runs):
        call = rng.choice(list(where))
        seed, count = rng.choice(where[call])
        try:
            run("broker", seed, Fault(call, rng.randint(1, count), ERRORS[call.kind][0]), rng.choice(endings))
        except* (Broken, WaystationError):  # a hole may show as damage before the audit gets there
            broken += 1
        if broken > ENOUGH:
            break
    return broken


def is_sync_of_a_log(call: DiskCall) -> bool:
    return call.kind == "sync" and "SyncJob.run" in call.site


def test_a_log_that_goes_on_after_a_failed_sync_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    synced = Log.synced

    def believing(self: Log, job: SyncJob) -> None:
        job.error = None  # the deliberate bug
        synced(self, job)

    monkeypatch.setattr(Log, "synced", believing)
    assert caught(is_sync_of_a_log, ["power cut"], 80) > ENOUGH


def test_a_start_that_trusts_the_page_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "_write_again", lambda segment, start: None)  # the deliberate bug
    assert caught(is_sync_of_a_log, ["crash"], 160) > ENOUGH


def is_sync_for_a_snapshot(call: DiskCall) -> bool:
    return is_sync_of_a_log(call) and any("_save_derived" in caller for caller in call.callers)


def test_a_sync_that_nobody_hears_of_when_its_client_hangs_up_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    async def until_cancelled(work: Coroutine[Any, Any, T]) -> T:
        return await work  # the deliberate bug

    monkeypatch.setattr(log_module, "to_its_end", until_cancelled)
    assert caught(is_sync_for_a_snapshot, ["power cut"], 240, seeds=40) > ENOUGH


def main() -> int:
    """Everything, with figures."""
    log_module.CHECKPOINT_BYTES = 2_000
    checkpoint.FIRST_BYTES = 2_000
    checkpoint.SLICE_QUEUES = 2
    broken = 0
    for kind in KINDS:
        where = find_calls(kind)
        planned = list(plan(kind, where, thorough=True))
        pairs = {(one.call, one.error) for one in planned}
        kinds = Counter(call.kind for call in where)
        sites = {(call.kind, call.site) for call in where}
        print(f"{kind}: {len(where)} ways to {len(sites)} places, {len(pairs)} pairs of way and error: {dict(kinds)}")
        struck = failed = 0
        for one in planned:
            try:
                struck += one.run(kind)
            except Exception as error:
                failed += 1
                print(f"FAILED: {error!r} {getattr(error, '__notes__', '')}")
        print(f"{kind}: {len(planned)} runs, {struck} of them with the fault, {failed} failed", flush=True)
        broken += failed
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
