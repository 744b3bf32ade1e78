"""A data folder with encryption: what is in it, who opens it, and what happens to one that was plain."""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.broker.kit import broker_on, run, send, values
from tests.cli.kit import QuickCli
from waystation.broker import encrypting
from waystation.broker.open import open_broker
from waystation.broker.repair import find_damage
from waystation.catalog.sqlite import SqliteCatalog
from waystation.config import BrokerSettings, variable_of
from waystation.encryption import key_file
from waystation.encryption.key_ring import KeyRing
from waystation.encryption.master_key import SETTING, new_text, read_master_key
from waystation.errors import Conflict, Corrupt, InvalidSetting, NewerFormat, WaystationError, WrongKey
from waystation.log.batches import batch as batches
from waystation.log.cleaning.encrypting import Usage
from waystation.topics.partitions.partition import log_of
from waystation.world import SystemRandom

KEY = "the-key-of-a-record"
BODY = b"the-body-of-a-record"
HEADER = "the-header-of-a-record"
USER = "0123456789abcdef-verifier"


def master(folder: Path, name: str = "master.key") -> str:
    """The source of a new master key."""
    (folder / name).write_text(new_text(os.urandom(32)))
    return f"file:{folder / name}"


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "waystation.lock"
    }


def files_with(folder: Path, needle: bytes) -> list[str]:
    return [name for name, data in content(folder).items() if needle in data]


async def fill(data: Path, *, encryption_key: str = "") -> None:
    """A topic with records, and a definition that is secret."""
    async with broker_on(data, encryption_key=encryption_key) as broker:
        await broker.topics.create("orders", 1)
        for number in range(20):
            send(broker, "orders", BODY + b"%d" % number, key=KEY.encode(), headers=((HEADER, b"x"),))
        await broker.commit.join()
        broker.catalog.save_definition("secret", "login", USER.encode())


async def check(data: Path, *, encryption_key: str = "") -> None:
    async with broker_on(data, encryption_key=encryption_key) as broker:
        assert values(broker, "orders") == [BODY + b"%d" % number for number in range(20)]
        assert broker.catalog.definitions("secret")["login"] == USER.encode()


def refused(data: Path, error: type[WaystationError], text: str, **settings: str) -> None:
    before = content(data)
    given = {name.replace("_", "."): value for name, value in settings.items()}
    with pytest.raises(error, match=text):
        run(open_broker(str(data), BrokerSettings(given)))
    assert content(data) == before, "a folder that is refused is a folder untouched"


def test_nothing_of_what_was_published_is_in_the_folder(tmp_path: Path) -> None:
    source, data = master(tmp_path), tmp_path / "data"
    run(fill(tmp_path / "plain"))
    for needle in (KEY.encode(), BODY, HEADER.encode(), USER.encode()):
        assert files_with(tmp_path / "plain", needle), "the test would see it"
    run(fill(data, encryption_key=source))
    for needle in (KEY.encode(), BODY, HEADER.encode(), USER.encode()):
        assert files_with(data, needle) == []
    run(check(data, encryption_key=source))


def test_a_wrong_or_missing_key_is_refused_and_nothing_is_touched(tmp_path: Path) -> None:
    source, other, data = master(tmp_path), master(tmp_path, "other.key"), tmp_path / "data"
    run(fill(data, encryption_key=source))
    refused(data, InvalidSetting, "is encrypted, and encryption.key is not set")
    refused(data, WrongKey, "does not open it", encryption_key=other)
    refused(data, InvalidSetting, "cannot be read", encryption_key=f"file:{tmp_path}/none")
    refused(data, InvalidSetting, "is not set", encryption_key="env:NO_SUCH_VARIABLE")
    run(check(data, encryption_key=source))


TOOLS = (
    "users list --data {}",
    "users add eve --password-stdin --data {}",
    "users passwd admin --password-stdin --data {}",
    "users remove admin --data {}",
    "acls list --data {}",
    "acls add --user eve --allow read --topic orders --data {}",
    "keys list --data {}",
    "lost restore {} --all",
    "log skip-corrupt {} orders 0",
)
"""Commands on the folder of a broker that does not run."""


@pytest.mark.parametrize("words", TOOLS)
def test_a_tool_with_a_wrong_or_missing_key_touches_nothing_not_even_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    source, other, data = master(tmp_path), master(tmp_path, "other.key"), tmp_path / "data"
    run(fill(data, encryption_key=source))
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in data.iterdir() if path.is_file()}
    assert "waystation.lock" in before
    cli = QuickCli("127.0.0.1:1")
    for given in (other, ""):
        monkeypatch.setenv(variable_of(SETTING), given)
        assert "encrypted" in cli(*words.format(data).split(), stdin=b"secret\n", code=1).err
    assert {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in data.iterdir() if path.is_file()
    } == before


def test_the_keys_of_another_folder_or_none_are_refused(tmp_path: Path) -> None:
    source, data, second = master(tmp_path), tmp_path / "data", tmp_path / "second"
    run(fill(data, encryption_key=source))
    run(fill(second, encryption_key=source))
    keys = (data / key_file.FILE).read_bytes()
    (data / key_file.FILE).write_bytes((second / key_file.FILE).read_bytes())
    refused(data, Corrupt, "is not in this folder's file of keys", encryption_key=source)
    (data / key_file.FILE).unlink()
    refused(data, Corrupt, "encryption.keys is missing", encryption_key=source)
    refused(data, Corrupt, "encryption.keys is missing")
    (data / key_file.FILE).write_bytes(keys)
    run(check(data, encryption_key=source))


def test_a_version_before_encryption_would_refuse_it(tmp_path: Path) -> None:
    source, data = master(tmp_path), tmp_path / "data"
    run(fill(data, encryption_key=source))
    with closing(sqlite3.connect(data / "catalog.sqlite")) as db:
        (version,) = db.execute("SELECT version FROM format").fetchone()
        assert version > 1000
        db.execute("UPDATE format SET version = version + 1")
        db.commit()
    refused(data, NewerFormat, "newer version", encryption_key=source)


def test_a_key_without_the_package_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    with pytest.raises(InvalidSetting, match="pip install"):
        run(open_broker(str(tmp_path / "data"), BrokerSettings({SETTING: master(tmp_path)})))
    assert not (tmp_path / "data" / key_file.FILE).exists()


def test_a_broker_in_memory_needs_no_key(tmp_path: Path) -> None:
    async def main() -> None:
        broker = await open_broker(":memory:", BrokerSettings({SETTING: "env:NO_SUCH_VARIABLE"}))
        await broker.stop()

    run(main())


# -- folders that were plain -------------------------------------------------------------------------------------------


def test_a_plain_folder_is_encrypted_from_the_next_start_on_and_all_of_it_by_apply(tmp_path: Path) -> None:
    source, data = master(tmp_path), tmp_path / "data"
    run(fill(data))

    async def more() -> None:
        async with broker_on(data, encryption_key=source) as broker:
            send(broker, "orders", b"a new body")

    run(more())
    assert files_with(data, BODY)
    assert files_with(data, b"a new body") == []
    assert files_with(data, USER.encode()) == [], "the catalog is encrypted at once"
    assert encrypting.status(str(data), scan=True).usage != Usage()
    done = encrypting.apply(str(data), source, everything=False)
    assert done.rewritten_bytes > 0
    assert done.damaged == done.kept == []
    for needle in (KEY.encode(), BODY, HEADER.encode(), USER.encode(), b"a new body"):
        assert files_with(data, needle) == []
    found = encrypting.status(str(data), scan=True)
    assert found.usage is not None
    assert found.usage.plain == 0

    async def main() -> None:
        async with broker_on(data, encryption_key=source) as broker:
            assert values(broker, "orders") == [*(BODY + b"%d" % number for number in range(20)), b"a new body"]
            send(broker, "orders", b"another")
        async with broker_on(data, encryption_key=source) as broker:
            assert values(broker, "orders")[-1] == b"another"

    run(main())


def test_apply_can_begin_encryption_by_itself(tmp_path: Path) -> None:
    source, data = master(tmp_path), tmp_path / "data"
    run(fill(data))
    encrypting.apply(str(data), source, everything=False)
    for needle in (KEY.encode(), BODY, HEADER.encode(), USER.encode()):
        assert files_with(data, needle) == []
    run(check(data, encryption_key=source))


def test_apply_refuses_what_was_not_stopped_cleanly_and_what_is_in_use(tmp_path: Path) -> None:
    source, data = master(tmp_path), tmp_path / "data"

    async def main() -> None:
        async with broker_on(data) as broker:
            await broker.topics.create("orders", 1)
            send(broker, "orders", BODY)
            await broker.housekeeping.checkpoint()
            shutil.copytree(data, tmp_path / "killed")
            with pytest.raises(Conflict, match="in use"):
                encrypting.apply(str(data), source, everything=False)
        before = content(tmp_path / "killed")
        with pytest.raises(Conflict, match="not stopped cleanly"):
            encrypting.apply(str(tmp_path / "killed"), source, everything=False)
        assert content(tmp_path / "killed") == before

    run(main())


# -- rotation ----------------------------------------------------------------------------------------------------------


def test_a_rotation_without_downtime(tmp_path: Path) -> None:
    old, new, data = master(tmp_path), master(tmp_path, "new.key"), tmp_path / "data"

    async def main() -> None:
        async with broker_on(data, encryption_key=old) as broker:
            await broker.topics.create("orders", 1)
            send(broker, "orders", b"before")
            encrypting.rotate(str(data), old, new)
            await broker.housekeeping.checkpoint()  # every few seconds
            send(broker, "orders", b"after")
            assert values(broker, "orders") == [b"before", b"after"]
        for source in (old, new):
            async with broker_on(data, encryption_key=source) as broker:
                assert values(broker, "orders") == [b"before", b"after"]
        encrypting.retire(str(data), new)
        refused_by_old = pytest.raises(WrongKey)
        with refused_by_old:
            await open_broker(str(data), BrokerSettings({SETTING: old}))
        async with broker_on(data, encryption_key=new) as broker:
            assert values(broker, "orders") == [b"before", b"after"]
        found = encrypting.status(str(data), scan=True)
        assert found.usage is not None
        assert found.keys is not None
        assert len(found.usage.encrypted) == 2
        done = encrypting.apply(str(data), new, everything=True)
        assert done.dropped_keys == 1
        async with broker_on(data, encryption_key=new) as broker:
            assert values(broker, "orders") == [b"before", b"after"]
        found = encrypting.status(str(data), scan=True)
        assert found.usage is not None
        assert found.keys is not None
        assert [key.number for key in found.keys.keys] == [found.keys.active] == list(found.usage.encrypted)

    run(main())


def rotated(data: Path, source: str) -> Path:
    """The segment of a topic with ten batches of a folder key that is not the active one any more."""

    async def main() -> None:
        async with broker_on(data, encryption_key=source) as broker:
            await broker.topics.create("orders", 1)
            for number in range(10):
                send(broker, "orders", BODY + b"%d" % number)

    run(main())
    encrypting.rotate(str(data), source, None)
    (segment,) = data.glob("topics/orders.*/0/*.log")
    return segment


def test_a_log_that_begins_with_damage_is_named_and_the_keys_of_what_is_behind_stay(tmp_path: Path) -> None:
    source, data = master(tmp_path), tmp_path / "data"
    segment = rotated(data, source)
    segment.write_bytes(b"\xff" * 20 + segment.read_bytes()[20:])
    found = encrypting.status(str(data), scan=True)
    assert found.usage is not None
    assert found.usage.damaged
    done = encrypting.apply(str(data), source, everything=True)
    assert [text for text in done.damaged if str(segment) in text]
    assert done.dropped_keys == 0

    async def main() -> None:
        async with broker_on(data, encryption_key=source) as broker:
            log = log_of(broker.topics.get("orders").partition(0))
            assert [record.value for record in batches.records_of(log.read(1, 1))] == [BODY + b"1"]

    run(main())


def test_the_keys_of_files_that_are_kept_for_a_person_stay(tmp_path: Path) -> None:
    source, data = master(tmp_path), tmp_path / "data"
    segment = rotated(data, source)
    aside = segment.with_name(f"{segment.name}.cut-0")
    shutil.copy(segment, aside)
    done = encrypting.apply(str(data), source, everything=True)
    assert (done.kept, done.dropped_keys) == ([str(aside)], 0)
    aside.unlink()
    assert encrypting.apply(str(data), source, everything=True).dropped_keys == 1


def test_apply_refuses_a_folder_with_a_compaction_that_is_not_finished(tmp_path: Path) -> None:
    """The next start would put its file in the place of what was rewritten."""
    source, data = master(tmp_path), tmp_path / "data"
    segment = rotated(data, source)
    swap = segment.with_name("0-0.swap")
    segment.rename(swap)
    before = content(data)
    with pytest.raises(Conflict, match="not finished"):
        encrypting.apply(str(data), source, everything=True)
    assert content(data) == before

    async def main() -> None:
        async with broker_on(data, encryption_key=source) as broker:
            assert len(values(broker, "orders")) == 10

    run(main())
    assert encrypting.apply(str(data), source, everything=True).dropped_keys == 1
    run(main())


def test_a_lost_and_found_of_a_file_system_is_not_looked_into(tmp_path: Path) -> None:
    source, data = master(tmp_path), tmp_path / "data"
    run(fill(data, encryption_key=source))
    (data / "lost+found" / "#12" / "0").mkdir(parents=True)
    (data / "lost+found" / "#12" / "0" / f"{0:020d}.log").write_bytes(b"not ours")
    assert encrypting.apply(str(data), source, everything=False).damaged == []


def test_a_running_broker_takes_a_master_key_that_comes_later_than_the_rotation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    old, new, data = master(tmp_path), master(tmp_path, "new.key"), tmp_path / "data"

    async def main() -> None:
        async with broker_on(data, encryption_key=old) as broker:
            assert broker.world.keys is not None
            before = broker.world.keys.active
            encrypting.rotate(str(data), old, new)
            encrypting.retire(str(data), new)
            for _ in range(3):
                await broker.housekeeping.checkpoint()
            assert broker.world.keys.active == before
            assert len([one for one in caplog.records if "the keys in use stay" in one.message]) == 1
            shutil.copy(tmp_path / "new.key", tmp_path / "master.key")
            await broker.housekeeping.checkpoint()
            assert broker.world.keys.active != before

    run(main())


# -- tools -------------------------------------------------------------------------------------------------------------


def test_tools_take_the_key_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, data = master(tmp_path), tmp_path / "data"
    run(fill(data, encryption_key=source))
    monkeypatch.delenv(variable_of(SETTING), raising=False)
    with pytest.raises(InvalidSetting, match="is encrypted"):
        find_damage(str(data), "orders", 0)
    monkeypatch.setenv(variable_of(SETTING), source)
    assert find_damage(str(data), "orders", 0) == []


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cli, data = QuickCli("nowhere"), tmp_path / "data"
    monkeypatch.delenv(variable_of(SETTING), raising=False)
    for name in ("one.key", "two.key"):
        (tmp_path / name).write_text(cli("encryption", "key").text)
    one, two = f"file:{tmp_path}/one.key", f"file:{tmp_path}/two.key"
    run(fill(data))
    assert cli("encryption", "status", "--data", str(data)).text == "not encrypted\n"
    assert cli("encryption", "status", "--data", str(data), "--json").json["encrypted"] is False
    cli("encryption", "rotate", "--data", str(data), "--key", one, code=1)
    cli("encryption", "apply", "--data", str(data), code=1)
    cli("encryption", "apply", "--data", str(data), "--key", one)
    cli("users", "add", "admin", "--password-stdin", "--data", str(data), stdin=b"hunter2\n", code=1)
    monkeypatch.setenv(variable_of(SETTING), one)
    cli("users", "add", "admin", "--password-stdin", "--data", str(data), stdin=b"hunter2\n")
    assert cli("users", "list", "--data", str(data), "--json").json["user"] == "admin"
    rotated = cli("encryption", "rotate", "--data", str(data), "--new-key", two)
    assert "waystation encryption retire" in rotated.err
    cli("encryption", "retire", "--data", str(data), code=1)
    cli("encryption", "retire", "--data", str(data), "--key", two)
    cli("users", "list", "--data", str(data), code=1)
    shown = cli("encryption", "status", "--data", str(data), "--scan", "--json").json
    assert shown["encrypted"]
    assert shown["plain_bytes"] == 0
    assert [key["active"] for key in shown["keys"]] == [False, True]
    done = cli("encryption", "apply", "--everything", "--data", str(data), "--key", two, "--json").json
    assert done["dropped_keys"] == 1
    assert "writing" in cli("encryption", "status", "--data", str(data), "--scan").text
    run(check(data, encryption_key=two))


def test_the_catalog_seals_what_was_plain_and_leaves_nothing_of_it(tmp_path: Path) -> None:
    """Not in pages that SQLite has freed, either."""
    source = master(tmp_path)
    with closing(SqliteCatalog(str(tmp_path), SystemRandom())) as catalog:
        for number in range(200):
            catalog.save_definition("user", f"user-{number}", b"verifier of %d " % number * 50)
        for number in range(0, 200, 2):
            catalog.delete_definition("user", f"user-{number}")
    assert b"verifier of" in (tmp_path / "catalog.sqlite").read_bytes()
    keys = key_file.created(read_master_key(source), SystemRandom(), 0)
    ring = KeyRing(key_file.unwrapped(keys, "", read_master_key(source)), keys.active, SystemRandom())
    with closing(SqliteCatalog(str(tmp_path), SystemRandom(), ring)) as catalog:
        assert len(catalog.definitions("user")) == 100
        catalog.save_definition("user", "new", b"verifier of a new one")
    assert b"verifier of" not in (tmp_path / "catalog.sqlite").read_bytes()
    with closing(sqlite3.connect(tmp_path / "catalog.sqlite")) as db:
        one, two = (f"definitions/user/user-{number}" for number in (1, 3))
        db.execute("UPDATE entries SET value = (SELECT value FROM entries WHERE key = ?) WHERE key = ?", (one, two))
        db.commit()
    with closing(SqliteCatalog(str(tmp_path), SystemRandom(), ring)) as catalog, pytest.raises(Corrupt, match="user-3"):
        catalog.definitions("user")
