"""`encryption.keys` of a data folder: its folder keys, each wrapped by every master key that opens the folder.

    {"format": 1, "folder": …, "active": N, "masters": [ID, …],
     "keys": [{"number": N, "created_ms": T, "wraps": {MASTER_ID: base64(nonce 12 bytes, ciphertext 32, tag 16)}}]}

The file is replaced as a whole, durably: after a crash it is the old one or the new one. It is there before the first
byte that needs it, and no key is taken out of it while data may need it. The last of `masters` is the newest. A wrap is
bound to the folder and the number (associated data).

A rotation (`rotated`) adds a folder key, which is used from then on, and a master key, which opens all of them; the
former master key opens them too, until it is retired (`retired`). In between a broker starts with either.

Whoever writes the file holds the lock beside it. A running broker only reads it.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from waystation.encryption.key_ring import KeyRing, aes_gcm
from waystation.encryption.master_key import SETTING, MasterKey, read_master_key
from waystation.errors import Conflict, Corrupt, DataInUse, InvalidSetting, NewerFormat, WaystationError, WrongKey
from waystation.observe.events import event_logger

if TYPE_CHECKING:
    from waystation.world.disk import Disk
    from waystation.world.random import Random

logger = event_logger("waystation.encryption")

FILE = "encryption.keys"
LOCK_FILE = "encryption.lock"
FORMAT = 1
_NONCE_SIZE = 12


class FolderKey(msgspec.Struct, frozen=True):
    number: int
    created_ms: int
    wraps: dict[str, str]


class KeyFile(msgspec.Struct, frozen=True):
    folder: str
    active: int
    masters: tuple[str, ...]
    keys: tuple[FolderKey, ...]
    format: int = FORMAT


def load(disk: Disk, root: str) -> KeyFile | None:
    """None: the folder is not encrypted. NewerFormat, Corrupt; nothing is touched."""
    path = f"{root}/{FILE}"
    try:
        data = disk.read_file(path)
    except NotADirectoryError:
        return None  # whoever opens the folder says so
    if data is None:
        return None
    try:
        found = msgspec.json.decode(data, type=KeyFile)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{path} cannot be read ({error}); it was left untouched. Put it back from a backup") from error
    if found.format > FORMAT:
        raise NewerFormat(
            f"{path} was written by a newer version of Waystation (format {found.format}, this one knows {FORMAT}); it"
            " was left untouched. Upgrade Waystation to use it."
        )
    return found


def save(disk: Disk, root: str, content: KeyFile) -> None:
    """Durable when it returns. Blocks."""
    disk.replace_file(f"{root}/{FILE}", msgspec.json.encode(content))


@contextmanager
def changing(disk: Disk, root: str) -> Iterator[None]:
    """Keeps others from changing the file meanwhile; a running broker does not mind."""
    path = f"{root}/{LOCK_FILE}"
    if disk.lock(path, b"") is not None:
        raise DataInUse(f"{root}/{FILE} is being changed by another process; wait for it and try again")
    try:
        yield
    finally:
        disk.unlock(path)


def created(master: MasterKey, random: Random, now_ms: int) -> KeyFile:
    """For a folder that has none."""
    empty = KeyFile(random.token(8).hex(), 0, (master.id,), ())
    return _with_new_key(empty, [master], random, now_ms)


def unwrapped(content: KeyFile, root: str, master: MasterKey) -> dict[int, bytes]:
    """The folder keys by their numbers. WrongKey says which master keys would do."""
    if master.id not in content.masters:
        raise WrongKey(
            f"{root} is encrypted, and {SETTING} gives the master key {master.id}, which does not open it;"
            f" {' or '.join(content.masters)} does. Nothing was touched"
        )
    found: dict[int, bytes] = {}
    for key in content.keys:
        wrapped = key.wraps.get(master.id)
        if wrapped is None:
            raise Corrupt(
                f"{root}/{FILE}: folder key {key.number:08x} is not wrapped by {master.id}; put the file back"
                " from a backup"
            )
        found[key.number] = _unwrap(content, root, key, wrapped, master)
    if content.active not in found:
        raise Corrupt(f"{root}/{FILE} lacks the folder key {content.active:08x}; put the file back from a backup")
    return found


class FolderKeyRing(KeyRing):
    """The keys of a data folder; a rotation while they are in use is noticed by `refresh`. WrongKey, Corrupt."""

    def __init__(self, disk: Disk, root: str, content: KeyFile, master: MasterKey, source: str, random: Random) -> None:
        super().__init__(unwrapped(content, root, master), content.active, random)
        self._disk = disk
        self._root = root
        self._content = content
        self._master = master
        self._source = source
        self._refused: KeyFile | None = None
        self._told = ""

    def refresh(self) -> None:
        """Blocks. If the new file does not open, the keys in use stay, and the log says so once. The master key may
        come later than that: where it is in a file, which costs nothing to read, it is looked for each time."""
        try:
            content = load(self._disk, self._root)
            if content is None or content == self._content:
                return
            if content == self._refused and not self._source.startswith("file:"):
                return
            self._refused = content
            if self._master.id not in content.masters:
                self._master = read_master_key(self._source)
            self.take(unwrapped(content, self._root, self._master), content.active)
        except (WaystationError, OSError) as error:
            if str(error) != self._told:
                self._told = str(error)
                logger.warning(
                    "encryption.keys_not_loaded",
                    "the keys in use stay, though the file of keys has changed: {error}",
                    error=error,
                )
            return
        self._content, self._refused, self._told = content, None, ""
        logger.info(
            "encryption.keys_loaded",
            "the file of keys has changed; folder key {key} is used from now on",
            key=f"{content.active:08x}",
        )


def rotated(
    content: KeyFile, root: str, master: MasterKey, newer: MasterKey | None, random: Random, now_ms: int
) -> KeyFile:
    """With a new folder key; and with another master key, if there is one. `master` opens it now."""
    keys = unwrapped(content, root, master)
    if newer is not None and newer.id not in content.masters:
        wrapped = [
            replace(key, wraps={**key.wraps, newer.id: _wrap(content, key.number, keys[key.number], newer, random)})
            for key in content.keys
        ]
        content = replace(content, masters=(*content.masters, newer.id), keys=tuple(wrapped))
    masters = [master] if newer is None or newer.id == master.id else [master, newer]
    missing = sorted(set(content.masters) - {each.id for each in masters})
    if missing:
        raise InvalidSetting(
            f"{root} also opens with the master key {missing[0]} of an earlier rotation; retire it first:"
            " `waystation encryption retire`"
        )
    return _with_new_key(content, masters, random, now_ms)


def retired(content: KeyFile, root: str, master: MasterKey) -> KeyFile:
    """Only `master` opens it from now on; it has to be the newest, so that nobody is locked out by mistake."""
    unwrapped(content, root, master)
    if content.masters[-1] != master.id:
        raise Conflict(
            f"the newest master key of {root} is {content.masters[-1]}, not {master.id}: nothing was changed. Give the"
            " newest one with --key"
        )
    kept = [replace(key, wraps={master.id: key.wraps[master.id]}) for key in content.keys]
    return replace(content, masters=(master.id,), keys=tuple(kept))


def without(content: KeyFile, numbers: set[int]) -> KeyFile:
    """Folder keys that nothing needs any more are deleted; never the one in use."""
    kept = [key for key in content.keys if key.number not in numbers or key.number == content.active]
    return replace(content, keys=tuple(kept))


def _with_new_key(content: KeyFile, masters: list[MasterKey], random: Random, now_ms: int) -> KeyFile:
    taken = {key.number for key in content.keys}
    number = 0
    while number == 0 or number in taken:
        number = int.from_bytes(random.token(4), "big")  # random: a key of another folder is no key, not a wrong one
    secret = random.token(32)
    wraps = {master.id: _wrap(content, number, secret, master, random) for master in masters}
    return replace(content, active=number, keys=(*content.keys, FolderKey(number, now_ms, wraps)))


def _associated(content: KeyFile, number: int) -> bytes:
    return f"waystation: folder key {content.folder} {number}".encode()


def _wrap(content: KeyFile, number: int, secret: bytes, master: MasterKey, random: Random) -> str:
    nonce = random.token(_NONCE_SIZE)
    sealed = aes_gcm(master.secret).encrypt(nonce, secret, _associated(content, number))
    return base64.b64encode(nonce + sealed).decode()


def _unwrap(content: KeyFile, root: str, key: FolderKey, wrapped: str, master: MasterKey) -> bytes:
    damaged = Corrupt(
        f"{root}/{FILE}: folder key {key.number:08x} does not open with the master key {master.id}: the file was"
        " changed. Put it back from a backup"
    )
    aead = aes_gcm(master.secret)
    try:
        raw = base64.b64decode(wrapped, validate=True)
        return aead.decrypt(raw[:_NONCE_SIZE], raw[_NONCE_SIZE:], _associated(content, key.number))
    except ValueError:
        raise damaged from None
    except Exception as error:
        if type(error).__name__ != "InvalidTag":
            raise
        raise damaged from None
