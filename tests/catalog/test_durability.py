"""What the catalog has answered survives a power cut: on a real file system, and by the system calls that it makes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.loop_disk import LoopDisk, why_not
from waystation.catalog import BindingRow, Catalog, ExchangeRow, TopicRow
from waystation.catalog.sqlite import FILE, SqliteCatalog
from waystation.world import SystemRandom

ORDERS = TopicRow("orders", UUID(int=1), 3, overrides={"retention.ms": "5"})
OLD = TopicRow("old", UUID(int=2), 1)

CHANGES: dict[str, tuple[Callable[[Catalog], object], Callable[[Catalog], bool]]] = {
    "topic created": (lambda c: c.save_topic(ORDERS), lambda c: ORDERS in c.topics()),
    "topic deleted": (lambda c: c.delete_topic(OLD.id), lambda c: OLD not in c.topics()),
    "exchange declared": (
        lambda c: c.save_exchange(ExchangeRow("events", "topic")),
        lambda c: c.exchanges() == [ExchangeRow("events", "topic")],
    ),
    "queue bound": (
        lambda c: c.save_binding(BindingRow("events", "queue:jobs", "#")),
        lambda c: c.bindings() == [BindingRow("events", "queue:jobs", "#")],
    ),
    "setting changed": (
        lambda c: c.save_settings({"num.partitions": "7"}),
        lambda c: c.settings() == {"num.partitions": "7"},
    ),
    "policy defined": (
        lambda c: c.save_definition("policy", "a", b"\x80"),
        lambda c: c.definitions("policy") == {"a": b"\x80"},
    ),
}


def opened(folder: Path) -> closing[SqliteCatalog]:
    return closing(SqliteCatalog(str(folder), SystemRandom()))


def sync(folder: Path) -> None:
    subprocess.run(["sync", "--file-system", str(folder)], check=True)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopDisk]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with LoopDisk(tmp_path_factory.mktemp("loop")) as mounted:
        yield mounted


@pytest.mark.parametrize("change", CHANGES)
def test_what_was_answered_survives_a_power_cut_on_ext4(disk: LoopDisk, change: str) -> None:
    make, is_there = CHANGES[change]
    data = disk.path / change
    data.mkdir()
    with opened(data) as catalog:
        catalog.save_topic(OLD)
    subprocess.run(
        ["sync", "--file-system", str(data)], check=True
    )  # what is at stake is the change and nothing before it
    with opened(data) as catalog:
        make(catalog)  # answered
        disk.power_cut()
    disk.reboot()
    with opened(data) as catalog:
        assert is_there(catalog)


def test_a_new_catalog_survives_a_power_cut_on_ext4(disk: LoopDisk) -> None:
    data = disk.path / "new"
    data.mkdir()
    sync(data)
    with opened(data) as catalog:
        cluster = catalog.cluster_id()
        disk.power_cut()
    disk.reboot()
    assert (data / FILE).exists()
    with opened(data) as catalog:
        assert catalog.cluster_id() == cluster


# -- the same by its system calls -------------------------------------------------------------------------------------

ONE_CHANGE = """
import os, sys
from uuid import UUID
from waystation.catalog import TopicRow
from waystation.catalog.sqlite import SqliteCatalog
from waystation.world import SystemRandom
catalog = SqliteCatalog(sys.argv[1], SystemRandom())
os.path.exists("/change-begins")
catalog.save_topic(TopicRow("orders", UUID(int=1), 3))
os.path.exists("/change-answered")
"""


def _calls(data: Path, trace: Path) -> list[str]:
    """The system calls on the data folder, as `unlink NAME` and `fsync NAME`, and the marks of ONE_CHANGE."""
    subprocess.run(
        ["strace", "-f", "-y", "-o", str(trace), "-e", "trace=unlink,unlinkat,fsync,fdatasync,stat,newfstatat,statx",
         sys.executable, "-c", ONE_CHANGE, str(data)],
        check=True, timeout=120,
    )  # fmt: skip
    found = []
    for line in trace.read_text().splitlines():
        if mark := re.search(r'"/(change-begins|change-answered)"', line):
            found.append(mark[1])
        elif removed := re.search(r'unlink(?:at)?\(.*"([^"]*)"', line):
            found.append(f"unlink {Path(removed[1]).name}")
        elif synced := re.search(r"f(?:data)?sync\(\d+<([^>]*)>\)\s+= 0", line):
            found.append(f"fsync {Path(synced[1]).name}")
    return found


def _can_trace(tmp_path: Path) -> str | None:
    if shutil.which("strace") is None:
        return "there is no strace"
    tried = subprocess.run(["strace", "-o", str(tmp_path / "tried"), "true"], capture_output=True, text=True)
    return None if tried.returncode == 0 else f"strace may not trace here: {tried.stderr.strip()}"


def test_the_folder_is_synced_after_the_journal_is_removed_and_before_the_answer(tmp_path: Path) -> None:
    reason = _can_trace(tmp_path)
    if reason is not None:
        pytest.skip(reason)
    data = tmp_path / "data"
    data.mkdir()
    calls = _calls(data, tmp_path / "trace")
    before, change = calls[: calls.index("change-begins")], calls[calls.index("change-begins") :]
    change = change[: change.index("change-answered")]
    for part in (before, change):  # a new catalog, and a change
        removed = max(i for i, call in enumerate(part) if call == f"unlink {FILE}-journal")
        assert f"fsync {FILE}" in part[:removed], part
        assert "fsync data" in part[removed:], part


def test_a_start_makes_durable_what_a_killed_process_had_not(tmp_path: Path) -> None:
    """Killed between the journal's removal and the sync of the folder: the next start believes that change, so it must
    not be undone by a power cut later."""
    reason = _can_trace(tmp_path)
    if reason is not None:
        pytest.skip(reason)
    data = tmp_path / "data"
    data.mkdir()
    with opened(data):
        pass
    calls = _calls(data, tmp_path / "trace")
    assert "fsync data" in calls[: calls.index("change-begins")], calls


def test_sqlite_knows_the_mode_that_the_catalog_asks_for(tmp_path: Path) -> None:
    """An SQLite that does not know a mode takes another one without a word."""
    with opened(tmp_path) as catalog:
        assert catalog._db.execute("PRAGMA synchronous").fetchone() == (3,)
        assert catalog._db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
