"""One broker to a folder, and a folder that is refused is a folder untouched."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from tests.broker.kit import broker_on, run, send, values
from waystation.broker.open import open_broker
from waystation.broker.repair import find_damage
from waystation.config import BrokerSettings
from waystation.errors import DataInUse, NewerFormat, UnknownTopic

HOLDER = """
import sys
from waystation.world import OsDisk
OsDisk().lock(sys.argv[1] + "/waystation.lock", str(__import__("os").getpid()).encode())
print("held", flush=True)
sys.stdin.read()
"""


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "waystation.lock"
    }


def test_a_folder_in_use_names_the_process_that_has_it(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(DataInUse, match=f"pid {holder.pid}"):
            run(open_broker(str(tmp_path), BrokerSettings()))
        with pytest.raises(DataInUse, match=f"pid {holder.pid}"):
            find_damage(str(tmp_path), "t", 0)
    finally:
        holder.communicate()

    async def main() -> None:
        async with broker_on(tmp_path):  # the lock ended with its process
            with pytest.raises(DataInUse, match=f"pid {os.getpid()}"):
                await open_broker(str(tmp_path), BrokerSettings())
        async with broker_on(tmp_path):
            pass

    run(main())


def test_data_of_a_newer_version_is_refused_and_untouched(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 2)
            send(broker, "t", b"v")
        with sqlite3.connect(tmp_path / "catalog.sqlite") as db:
            db.execute("UPDATE format SET version = 99")
        db.close()
        before = content(tmp_path)
        for _ in range(2):
            with pytest.raises(NewerFormat, match="99"):
                await open_broker(str(tmp_path), BrokerSettings())
        assert content(tmp_path) == before

    run(main())


def test_a_clean_stop_and_start_leaves_the_logs_as_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 2)
            for i in range(20):
                send(broker, "t", b"%d" % i)
            cluster = broker.cluster_id
        logs = {name: data for name, data in content(tmp_path).items() if name.endswith(".log") and "/t." in name}
        for _ in range(3):
            async with broker_on(tmp_path) as broker:
                assert broker.cluster_id == cluster
                assert len(values(broker, "t")) == 20
            after = content(tmp_path)
            assert {name: after[name] for name in logs} == logs

    run(main())


def test_damage_is_found_and_skipped_with_the_broker_stopped(tmp_path: Path) -> None:
    async def fill() -> str:
        async with broker_on(tmp_path) as broker:
            await broker.topics.create("t", 2)
            for i in range(6):
                send(broker, "t", b"value %d" % i)
            return broker.topics.get("t").folder

    folder = Path(run(fill()))
    path = folder / "0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[data.index(b"value 2")] ^= 1
    data[data.index(b"value 5")] ^= 1
    path.write_bytes(data)
    for skip in (False, True):
        found = find_damage(str(tmp_path), "t", 0, skip=skip)
        assert [(damage.first_offset, damage.next_offset) for damage in found] == [(2, 3), (5, None)]
    assert find_damage(str(tmp_path), "t", 0) == []
    assert find_damage(str(tmp_path), "t", 1) == []
    for partition, topic in ((2, "t"), (0, "other")):
        with pytest.raises(UnknownTopic):
            find_damage(str(tmp_path), topic, partition)

    async def check() -> None:
        async with broker_on(tmp_path) as broker:
            assert values(broker, "t") == [b"value 0", b"value 1", b"value 3", b"value 4"]
            assert send(broker, "t", b"next").base_offset == 6

    run(check())


def test_a_broker_that_cannot_start_gives_its_folder_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with broker_on(tmp_path) as broker:
            await broker.alter_settings({"num.partitions": "3"})
        with sqlite3.connect(tmp_path / "catalog.sqlite") as db:
            db.execute("UPDATE entries SET value = CAST('many' AS BLOB) WHERE key LIKE 'settings/%'")
        db.close()
        with pytest.raises(Exception, match=r"num\.partitions"):
            await open_broker(str(tmp_path), BrokerSettings())
        with sqlite3.connect(tmp_path / "catalog.sqlite") as db:
            db.execute("DELETE FROM entries WHERE key LIKE 'settings/%'")
        db.close()
        async with broker_on(tmp_path):
            await asyncio.sleep(0)

    run(main())
