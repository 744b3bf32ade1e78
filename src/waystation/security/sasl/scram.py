"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802 and 7677), the broker's side, without channel binding.

The client proves to have the password without sending it, and the broker proves to have the verifier. For a user that
does not exist the exchange goes on with a verifier that nobody has a password for, and fails at its end as with a wrong
password. With Kafka's extension `tokenauth=true` the name is the id of a delegation token, and the password its secret.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from waystation.security.sasl.exchange import Challenge, Failed, LoggedIn, Outcome
from waystation.wire import scram
from waystation.wire.scram import ScramKeys, ScramMalformed

NONCE_BYTES = 24
MAX_NONCE_BYTES = 1024
OVER = "the exchange is over"


class ScramDirectory(Protocol):
    def scram_keys(self, name: str, mechanism: str, *, token: bool) -> ScramKeys:
        """Those of a decoy if there is no such user, or it has none of this mechanism. `token`: the name is the id of a
        delegation token."""

    def proved(self, name: str, *, token: bool) -> LoggedIn | None:
        """Who has proved to have what belongs to this name; None: it is not there any more."""


class ScramExchange:
    """Two messages of the client: who it is, and the proof."""

    blocking = False

    def __init__(self, mechanism: str, directory: ScramDirectory, token: Callable[[int], bytes]) -> None:
        self.mechanism = mechanism
        self._directory = directory
        self._nonce = base64.b64encode(token(NONCE_BYTES))
        self._next: Callable[[bytes], Outcome] | None = self._first
        self._name = ""
        self._token = False
        self._header = b""
        self._first_bare = self._server_first = b""
        self._keys: ScramKeys | None = None

    def step(self, data: bytes) -> Outcome:
        now, self._next = self._next, None
        if now is None:
            return Failed(OVER, self._name)
        try:
            return now(data)
        except ScramMalformed as error:
            return Failed(str(error), self._name)

    def _first(self, data: bytes) -> Outcome:
        """`n,,n=NAME,r=NONCE`"""
        flag, _, rest = data.partition(b",")
        acting, comma, bare = rest.partition(b",")
        if flag not in (b"n", b"y") or not comma:
            raise ScramMalformed("the first message does not begin with n,, (channel binding is not offered)")
        found, extensions = scram.attributes_and_extensions(bare)
        if [key for key, _ in found[:2]] != ["n", "r"]:
            raise ScramMalformed("the first message does not have a name and a nonce")
        self._name = scram.name_from_wire(found[0][1])
        nonce = found[1][1]
        if not nonce or len(nonce) > MAX_NONCE_BYTES or not nonce.isascii():
            raise ScramMalformed("the nonce is empty or too long")
        if acting and (acting[:2] != b"a=" or scram.name_from_wire(acting[2:]) != self._name):
            raise ScramMalformed("acting as another user is not offered")
        self._header = data[: len(data) - len(bare)]
        self._first_bare = bare
        self._nonce = nonce + self._nonce
        self._token = extensions.get("tokenauth", b"").lower() == b"true"
        self._keys = keys = self._directory.scram_keys(self._name, self.mechanism, token=self._token)
        salt = base64.b64encode(keys.salt)
        self._server_first = b"r=%b,s=%b,i=%d" % (self._nonce, salt, keys.iterations)
        self._next = self._final
        return Challenge(self._server_first)

    def _final(self, data: bytes) -> Outcome:
        """`c=HEADER,r=NONCE,p=PROOF`"""
        without_proof, found, proof = data.rpartition(b",p=")
        if not found or self._keys is None:
            raise ScramMalformed("the last message has no proof")
        values = scram.attributes(without_proof)
        if [key for key, _ in values[:2]] != ["c", "r"]:
            raise ScramMalformed("the last message does not have the header and the nonce")
        if scram.from_base64(values[0][1]) != self._header or values[1][1] != self._nonce:
            return Failed("the header or the nonce is not that of this exchange", self._name)
        said = b",".join((self._first_bare, self._server_first, without_proof))
        right = scram.is_proof(self._keys, scram.from_base64(proof), said)
        done = self._directory.proved(self._name, token=self._token)
        if not right or done is None:
            what = "no such delegation token, or it has expired" if self._token else "wrong password, or no such user"
            return Failed(what, self._name)
        signature = scram.mac(self.mechanism, self._keys.server_key, said)
        return replace(done, data=b"v=" + base64.b64encode(signature))
