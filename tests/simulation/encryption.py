"""Keys for simulated machines: a file of keys on the simulated disk, real AES-GCM, and somebody who watches nonces.

`SimKeys` stands for the operator of one data folder, over all its lives: it turns encryption on, from the first life or
from a later one on, rotates folder keys and master keys between lives, and retires old master keys. All of that happens
on the disk that loses power. `Nonces` sees each sealing with each data key, over all lives, and complains if a nonce is
used again with a key: also for the same bytes, since that shows that a counter went back.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

from msgspec.structs import replace

from tests.simulation.promises import expect
from waystation.encryption import key_file
from waystation.encryption.key_file import KeyFile
from waystation.encryption.key_ring import Aead, Buffer, KeyRing, aes_gcm
from waystation.encryption.master_key import MasterKey
from waystation.world import Disk, World

ROOT = "/data"


class Nonces:
    """All that were used, by key."""

    def __init__(self) -> None:
        self.used: set[tuple[bytes, bytes]] = set()

    def note(self, key: bytes, nonce: bytes) -> None:
        expect((key, nonce) not in self.used, f"nonce {nonce.hex()} is used again with a key")
        self.used.add((key, nonce))


class Watched:
    """AES-GCM with one key, as it is used."""

    def __init__(self, secret: bytes, nonces: Nonces) -> None:
        self._aead = aes_gcm(secret)
        self._name = hashlib.sha256(secret).digest()
        self._nonces = nonces

    def encrypt(self, nonce: bytes, data: Buffer, associated_data: bytes) -> bytes:
        self._nonces.note(self._name, nonce)
        return self._aead.encrypt(nonce, data, associated_data)

    def decrypt(self, nonce: bytes, data: Buffer, associated_data: bytes) -> bytes:
        return self._aead.decrypt(nonce, data, associated_data)


class SimKeys:
    """`plain_lives`: before encryption is turned on."""

    save: Callable[[Disk, str, KeyFile], None] = staticmethod(key_file.save)

    def __init__(self, seed: int, plain_lives: int, ring: Callable[..., KeyRing] = KeyRing) -> None:
        self._rng = random.Random(f"keys {seed}")
        self._plain_lives = plain_lives
        self._ring = ring
        self._masters = [MasterKey(self._rng.randbytes(32))]
        self.nonces = Nonces()

    def into(self, world: World) -> World:
        """The world of the next life."""
        if self._plain_lives > 0:
            self._plain_lives -= 1
            return world
        disk = world.disk
        disk.make_folder(ROOT)
        content = key_file.load(disk, ROOT)
        if content is None:
            expect(not self.nonces.used, "the file of keys is gone, and there is data that needs it")
            content = key_file.created(self._masters[-1], world.random, world.clock.now_ms())
            self.save(disk, ROOT, content)
        master = next(each for each in reversed(self._masters) if each.id in content.masters)
        for _ in range(self._rng.choice((0, 0, 1, 2))):
            content, master = self._change(world, content, master)
            self.save(disk, ROOT, content)
        keys = key_file.unwrapped(content, ROOT, master)
        return replace(world, keys=self._ring(keys, content.active, world.random, self._cipher))

    def _change(self, world: World, content: KeyFile, master: MasterKey) -> tuple[KeyFile, MasterKey]:
        if len(content.masters) > 1:
            newest = next(each for each in self._masters if each.id == content.masters[-1])
            return key_file.retired(content, ROOT, newest), newest
        newer = None
        if self._rng.random() < 0.5:
            newer = MasterKey(self._rng.randbytes(32))
            self._masters.append(newer)  # before it is used: whoever rotates has it
        return key_file.rotated(content, ROOT, master, newer, world.random, world.clock.now_ms()), master

    def _cipher(self, secret: bytes) -> Aead:
        return Watched(secret, self.nonces)


def some_keys(seed: int) -> SimKeys | None:
    """Of half of all seeds; of some of them only after a first life without."""
    return (None, SimKeys(seed, 0), None, None, SimKeys(seed, 1), SimKeys(seed, 0))[seed % 6]


def encrypting(keys: SimKeys | None, world: World) -> World:
    return world if keys is None else keys.into(world)
