"""The keys of a data folder, when it is opened: by a broker, or by a tool while no broker runs.

A folder is encrypted if it has a file of keys. That is there, durably, before anything is encrypted. A key that is
missing or wrong is found before the folder is locked: nothing is touched, and the error names what is wrong.

A tool takes the source of the master key from the environment, by the variable that sets it for a broker, too.
"""

from __future__ import annotations

import os

from msgspec.structs import replace

from waystation.cluster import node_file
from waystation.config import variable_of
from waystation.encryption import key_file
from waystation.encryption.key_file import FolderKeyRing
from waystation.encryption.master_key import SETTING, read_master_key
from waystation.errors import Corrupt, InvalidSetting
from waystation.observe.events import event_logger
from waystation.world import World

logger = event_logger("waystation.encryption")


def source_from_environment() -> dict[str, str]:
    """As a setting; empty if there is none."""
    source = os.environ.get(variable_of(SETTING))
    return {SETTING: source} if source else {}


def check_key(world: World, path: str, source: str) -> None:
    """InvalidSetting, WrongKey, Corrupt: the folder cannot be opened with what the source gives. Touches nothing."""
    _load(world, path, source)


def _load(world: World, path: str, source: str) -> FolderKeyRing | None:
    content = key_file.load(world.disk, path)
    if content is None:
        if source:
            read_master_key(source)
        return None
    if not source:
        raise InvalidSetting(
            f"{path} is encrypted, and {SETTING} is not set; nothing was touched. Set it (or the variable"
            f" {variable_of(SETTING)}) to where its master key is: file:PATH, env:NAME or command:…"
        )
    return FolderKeyRing(world.disk, path, content, read_master_key(source), source, world.random)


def begun(world: World, root: str, source: str) -> World:
    """The world of a broker on this folder, which is locked. If there is a key and the folder is not encrypted yet, it
    is from now on: what is written. Blocks."""
    keys = _load(world, root, source)
    if keys is None and source:
        _refuse_lost_keys(world, root)
        master = read_master_key(source)
        content = key_file.created(master, world.random, world.clock.now_ms())
        with key_file.changing(world.disk, root):
            key_file.save(world.disk, root, content)
        keys = FolderKeyRing(world.disk, root, content, master, source, world.random)
        logger.info(
            "encryption.begun",
            "{folder} is encrypted from now on; `waystation encryption apply` encrypts the messages that it has",
            folder=root,
            master=master.id,
        )
    elif keys is None:
        _refuse_lost_keys(world, root)
    return replace(world, keys=keys)


def _refuse_lost_keys(world: World, root: str) -> None:
    """New keys would open nothing of what is there."""
    from waystation.catalog.sqlite import is_encrypted

    found = node_file.load(world.disk, root)
    if is_encrypted(root) or (found is not None and found.format == node_file.ENCRYPTED_FORMAT):
        raise Corrupt(
            f"{root} is encrypted, but its {key_file.FILE} is missing; nothing was touched. Put that file back from a"
            " backup: without it nobody can read the folder"
        )


def unlocked(world: World, path: str) -> World:
    """The world of a tool that works on this folder; whoever uses it does not start encryption."""
    source = source_from_environment().get(SETTING, "")
    return replace(world, keys=_load(world, path, source))
