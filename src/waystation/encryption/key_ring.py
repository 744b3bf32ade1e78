"""Sealing and opening with AES-256-GCM, by the folder keys that a master key has unwrapped.

    sealed bytes: folder key u32 · salt 16 bytes · counter u32 · ciphertext · tag 16 bytes

**No nonce is ever used twice with a key.** Whoever writes a file takes a data key of its own (`new_data_key`): it
follows from a folder key and a salt that was drawn for it, by HKDF-SHA-256. Its nonces are a counter in memory. A
process that starts again, a file that is opened again or was truncated, draws a new salt; what a crash left of an old
one is read, never continued. So nothing about nonces has to survive a crash, and there is nothing that a crash could
take back.

Sealed bytes say themselves what opens them. A key ring is used on the loop and on threads; a data key by one of them at
a time.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from waystation.errors import Corrupt, InvalidSetting

if TYPE_CHECKING:  # `world` imports this module
    from waystation.world.random import Random

PREFIX = struct.Struct(">I16sI")
PREFIX_SIZE = PREFIX.size
TAG_SIZE = 16
OVERHEAD = PREFIX_SIZE + TAG_SIZE
SALT_SIZE = 16
CIPHERS = 1024
"""Data keys that are kept ready for reading, about 2 KiB each. A file has one for each time that it was written to."""
_NONCE = struct.Struct(">8xI")
_INFO = b"waystation: data key"
_LAST = 2**32 - 1

Buffer = bytes | bytearray | memoryview


class Aead(Protocol):
    """AES-GCM with one key."""

    def encrypt(self, nonce: bytes, data: Buffer, associated_data: bytes) -> bytes: ...

    def decrypt(self, nonce: bytes, data: Buffer, associated_data: bytes) -> bytes: ...


class NotOpened(Corrupt):
    """These bytes were not sealed like this: they, or what they were sealed with, are not what they were."""


class UnknownKey(Corrupt):
    """They were sealed with a folder key that this folder does not have."""


class DataKey:
    """Seals. `folder_key` is the number of the one that it follows from."""

    __slots__ = ("_aead", "_counter", "_ring", "_salt", "folder_key")

    def __init__(self, ring: KeyRing) -> None:
        self._ring = ring
        self._begin()

    def _begin(self) -> None:
        self.folder_key = self._ring.active
        self._salt = self._ring.random.token(SALT_SIZE)
        self._aead = self._ring.aead(self.folder_key, self._salt)
        self._counter = 0

    def seal(self, data: Buffer, associated: bytes) -> tuple[bytes, bytes]:
        """The prefix, and what follows it. `associated` is not in it, but has to be the same when it is opened."""
        if self.folder_key != self._ring.active or self._counter == _LAST:
            self._begin()
        counter = self._counter = self._counter + 1  # before it is used: whatever fails below, nobody uses it again
        sealed = self._aead.encrypt(_NONCE.pack(counter), data, associated)
        return PREFIX.pack(self.folder_key, self._salt, counter), sealed


class KeyRing:
    """The folder keys by their numbers, and the one that is used for what is written now."""

    def __init__(
        self,
        keys: Mapping[int, bytes],
        active: int,
        random: Random,
        cipher: Callable[[bytes], Aead] | None = None,
    ) -> None:
        self.random = random
        self.active = active
        self._keys = dict(keys)
        self._cipher = cipher or aes_gcm
        self._ciphers: OrderedDict[tuple[int, bytes], Aead] = OrderedDict()

    def take(self, keys: Mapping[int, bytes], active: int) -> None:
        """A rotation has brought a new one. Those that were there stay: there may be data that needs them."""
        self._keys.update(keys)
        self.active = active

    def refresh(self) -> None:
        """Looks for what a rotation has brought. Blocks."""

    @property
    def numbers(self) -> list[int]:
        return sorted(self._keys)

    def new_data_key(self) -> DataKey:
        return DataKey(self)

    def open(self, sealed: Buffer, associated: bytes) -> bytes:
        """What was sealed. NotOpened, UnknownKey."""
        if len(sealed) < OVERHEAD:
            raise NotOpened("what was encrypted ends in the middle")
        number, salt, counter = PREFIX.unpack_from(sealed)
        aead = self._ciphers.get((number, salt))
        if aead is None:
            aead = self._ready(number, salt)
        try:
            return aead.decrypt(_NONCE.pack(counter), memoryview(sealed)[PREFIX_SIZE:], associated)
        except Exception as error:
            if type(error).__name__ != "InvalidTag":  # `cryptography` is not imported where nothing is encrypted
                raise
            raise NotOpened("it does not open with its key: it was changed, or the key is another folder's") from None

    def _ready(self, number: int, salt: bytes) -> Aead:
        made = self._ciphers[number, salt] = self.aead(number, salt)
        while len(self._ciphers) > CIPHERS:
            try:
                self._ciphers.popitem(last=False)
            except KeyError:  # another thread was faster
                break
        return made

    def aead(self, number: int, salt: bytes) -> Aead:
        secret = self._keys.get(number)
        if secret is None:
            raise UnknownKey(
                f"it was encrypted with the folder key {number:08x}, which is not in this folder's file of keys; put"
                " that file back from a backup"
            )
        return self._cipher(derive(secret, salt))


def derive(secret: bytes, salt: bytes) -> bytes:
    """A data key of a folder key."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt, _INFO).derive(secret)


def aes_gcm(secret: bytes) -> Aead:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise InvalidSetting(
            "encryption.key: the package `cryptography` is not installed; pip install 'waystation[encryption]'"
        ) from None
    return AESGCM(secret)
