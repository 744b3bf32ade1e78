"""What `waystation encryption` does to a data folder: status, rotation, retiring, and encrypting what is there.

A rotation replaces one small file, at any time: a running broker notices it (`FolderKeyRing.refresh`), what it has
written is opened by the keys that it was sealed with. Encrypting what is there (`apply`) is for a broker that does not
run and was stopped cleanly. It may be interrupted anywhere and repeated: each file is replaced whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import msgspec
from msgspec.structs import replace

from waystation.broker.encrypted_folder import begun
from waystation.broker.open import locked_folder
from waystation.catalog.sqlite import FILE as CATALOG_FILE
from waystation.catalog.sqlite import SqliteCatalog
from waystation.cluster import node_file
from waystation.encryption import key_file
from waystation.encryption.key_file import KeyFile
from waystation.encryption.master_key import read_master_key
from waystation.encryption.sealed_file import is_sealed, opened_whole, sealed_whole
from waystation.errors import Conflict, CorruptBatch, NotFound
from waystation.log.cleaning import encrypting
from waystation.log.cleaning.encrypting import Usage
from waystation.log.points import RecoveryPoints
from waystation.log.segments.swap import SWAP
from waystation.queues.shard import delivery_notes, snapshot
from waystation.topics import lost
from waystation.world import World, real_world

FOR_PEOPLE = (".cut-", ".corrupt-", ".refused")
"""In names of files that are kept for a person, and that no broker reads."""


class Status(msgspec.Struct, frozen=True):
    """`usage` is None unless it was asked for; `kept`: files for a person that may have plain content."""

    keys: KeyFile | None
    usage: Usage | None
    kept: list[str]


class Applied(msgspec.Struct, frozen=True):
    """`damaged`: why a log was not encrypted. `kept`: files for a person, which are as they were; while there are any,
    no folder key is dropped, since what they have may be encrypted with it."""

    rewritten_bytes: int
    logs: int
    damaged: list[str]
    kept: list[str]
    dropped_keys: int


def status(path: str, *, scan: bool) -> Status:
    """Only reads; a broker may run meanwhile. Needs no key."""
    world = real_world()
    root = _data_folder(world, path)
    found = None
    kept: list[str] = []
    if scan:
        found = Usage()
        for folder in _logs(world, root):
            found.add(encrypting.usage(world, folder))
            kept += _kept(world, folder)
    return Status(key_file.load(world.disk, root), found, kept)


def rotate(path: str, source: str, newer: str | None) -> KeyFile:
    """A new folder key, and another master key if there is one. A broker may run meanwhile. WrongKey, Conflict."""
    world = real_world()
    root = _data_folder(world, path)
    with key_file.changing(world.disk, root):
        content = _keys(world, root)
        master = read_master_key(source)
        changed = key_file.rotated(
            content,
            root,
            master,
            None if newer is None else read_master_key(newer),
            world.random,
            world.clock.now_ms(),
        )
        key_file.save(world.disk, root, changed)
    return changed


def retire(path: str, source: str) -> KeyFile:
    """Only the newest master key, which the source gives, opens the folder from now on. A broker may run meanwhile."""
    world = real_world()
    root = _data_folder(world, path)
    with key_file.changing(world.disk, root):
        changed = key_file.retired(_keys(world, root), root, read_master_key(source))
        key_file.save(world.disk, root, changed)
    return changed


def apply(path: str, source: str, *, everything: bool, world: World | None = None) -> Applied:
    """Encrypts what is plain; `everything`: also what earlier folder keys have sealed, and drops those. Blocks.

    DataInUse while a broker runs, Conflict if its last stop was not clean.
    """
    world = world or real_world()
    _data_folder(world, path)
    with locked_folder(world, path) as root:
        points = RecoveryPoints(world.disk, root)
        points.load()
        if not points.clean:
            raise Conflict(
                f"the broker of {root} was not stopped cleanly: start it and stop it once, so that it repairs what a"
                " crash has left; then try again. Nothing was touched"
            )
        _refuse_swaps(world, root)
        world = begun(world, root, source)
        if world.disk.size(f"{root}/{CATALOG_FILE}") is not None:
            with closing(SqliteCatalog(root, world.random, world.keys)):
                pass  # opening it seals it
        _mark_node(world, root)
        points.forget_all()  # positions change: the next start reads the last segment of every log
        return _apply(world, root, everything=everything)


def _apply(world: World, root: str, *, everything: bool) -> Applied:
    rewritten = logs = 0
    damaged: list[str] = []
    kept: list[str] = []
    for folder in _logs(world, root):
        logs += 1
        try:
            rewritten += encrypting.encrypt(world, folder, everything=everything)
        except CorruptBatch as error:
            damaged.append(str(error))
        rewritten += _seal_snapshots(world, folder, everything=everything)
        _forget_notes(world, folder)
        kept += _kept(world, folder)
    dropped = 0
    if everything and not damaged and not kept:
        dropped = _drop_keys(world, root)
    return Applied(rewritten, logs, damaged, kept, dropped)


def _refuse_swaps(world: World, root: str) -> None:
    """A compaction that the disk has interrupted is finished by the next start, with a file that is as it was: it would
    bring back what is plain, or be encrypted with a key that was dropped."""
    for folder in _logs(world, root):
        for name in world.disk.list(folder):
            if name.endswith(SWAP):
                raise Conflict(
                    f"{folder}/{name} is of a compaction that is not finished: start the broker and stop it once; then"
                    " try again. Nothing was touched"
                )


def _seal_snapshots(world: World, folder: str, *, everything: bool) -> int:
    if world.keys is None:
        raise RuntimeError("there are no keys to seal with")
    total = 0
    for name in world.disk.list(folder):
        if name.endswith(snapshot.SUFFIX):
            data = world.disk.read_file(f"{folder}/{name}") or b""
            if everything or not is_sealed(data):
                sealed = sealed_whole(world.keys, opened_whole(world.keys, data))
                world.disk.replace_file(f"{folder}/{name}", sealed)
                total += len(sealed)
    return total


def _forget_notes(world: World, folder: str) -> None:
    """After a clean stop the log has all of them."""
    world.disk.remove(f"{folder}/{delivery_notes.NAME}")


def _drop_keys(world: World, root: str) -> int:
    """Nothing is sealed with them any more: all of it was rewritten, and is durable."""
    with key_file.changing(world.disk, root):
        content = _keys(world, root)
        kept = key_file.without(content, {key.number for key in content.keys})
        if kept != content:
            key_file.save(world.disk, root, kept)
    return len(content.keys) - len(kept.keys)


def _mark_node(world: World, root: str) -> None:
    """As the next start of the node would: versions before encryption refuse the folder from now on."""
    found = node_file.load(world.disk, root)
    if found is not None and found.format != node_file.ENCRYPTED_FORMAT:
        marked = replace(found, format=node_file.ENCRYPTED_FORMAT)
        world.disk.replace_file(f"{root}/{node_file.FILE}", msgspec.json.encode(marked))


def _logs(world: World, root: str) -> Iterator[str]:
    """The folder of every partition, those of lost topics too."""
    here = [f"{root}/topics/{name}" for name in world.disk.list(f"{root}/topics")]
    aside = [f"{root}/{lost.FOLDER}/{name}" for name in lost.lost_folders(world.disk, root)]
    for topic in here + aside:
        for partition in world.disk.list(topic):
            if partition.isdecimal():
                yield f"{topic}/{partition}"


def _kept(world: World, folder: str) -> list[str]:
    return [f"{folder}/{name}" for name in world.disk.list(folder) if any(part in name for part in FOR_PEOPLE)]


def _keys(world: World, root: str) -> KeyFile:
    content = key_file.load(world.disk, root)
    if content is None:
        raise NotFound(f"{root} is not encrypted: it has no {key_file.FILE}; start its broker with encryption.key")
    return content


def _data_folder(world: World, path: str) -> str:
    if not any(world.disk.size(f"{path}/{name}") is not None for name in (CATALOG_FILE, node_file.FILE, key_file.FILE)):
        raise NotFound(f"{path} is not the data folder of a broker: it has no {CATALOG_FILE}")
    return path
