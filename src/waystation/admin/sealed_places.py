"""Places in a list that others share, as a reader gets them: as a text that tells nothing.

Some lists are gone through in an order that everybody's things are in, and a page may end at one that its reader may
not see. The next page has to begin there all the same, so the reader is handed the place under seal. Invariant: nobody
learns or makes a place without the key, which is random and in this process alone; after a restart a list begins again.

A seal is the keyed hash of its place, and the place itself under a keystream made of that hash: the same place has the
same seal, and what is changed does not open.
"""

from __future__ import annotations

import base64
import binascii
from hashlib import blake2b
from hmac import compare_digest
from struct import Struct

from waystation.world.random import Random

Place = tuple[int, int]

KEY_BYTES = 32
SEAL_BYTES = 16
_PLACE = Struct(">qq")  # as long as a seal


class SealedPlaces:
    """One per broker."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._made: bytes | None = None  # not before it is needed: a simulation counts what is drawn

    @property
    def _key(self) -> bytes:
        if self._made is None:
            self._made = self._random.token(KEY_BYTES)
        return self._made

    def sealed(self, place: Place) -> str:
        plain = _PLACE.pack(*place)
        seal = self._hash(b"seal", plain)
        return base64.urlsafe_b64encode(seal + self._under(seal, plain)).rstrip(b"=").decode()

    def opened(self, text: str) -> Place | None:
        """None: it was not sealed here."""
        try:
            both = base64.b64decode(text.encode() + b"=" * (-len(text) % 4), b"-_", validate=True)
        except (binascii.Error, UnicodeEncodeError):
            return None
        if len(both) != 2 * SEAL_BYTES:
            return None
        seal = both[:SEAL_BYTES]
        plain = self._under(seal, both[SEAL_BYTES:])
        if not compare_digest(seal, self._hash(b"seal", plain)):
            return None
        due_ms, tag = _PLACE.unpack(plain)
        return due_ms, tag

    def _under(self, seal: bytes, text: bytes) -> bytes:
        return bytes(one ^ other for one, other in zip(text, self._hash(b"stream", seal), strict=True))

    def _hash(self, use: bytes, text: bytes) -> bytes:
        return blake2b(text, key=self._key, digest_size=SEAL_BYTES, person=use).digest()
