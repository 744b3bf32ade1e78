"""SCRAM's arithmetic and messages (RFC 5802 and 7677), without channel binding: what both sides of a login compute.

Pure. The broker's side of the exchange is `security/sasl/scram.py`, the client's `client/links/login.py`. Names and
passwords are taken as their UTF-8 bytes, without SASLprep, as Kafka's brokers and clients do.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

import msgspec

MAX_EXTENSIONS = 10
DIGESTS = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""Mechanisms, and their hash functions."""
MIN_ITERATIONS, MAX_ITERATIONS = 4096, 1_000_000
"""Fewer are too easy to guess from a stolen verifier; more would let a broker keep its clients busy."""


class ScramMalformed(ValueError):
    """The other side's message is none of SCRAM's."""


class ScramKeys(msgspec.Struct, frozen=True):
    """What is stored of a password: enough to check a proof of it, not enough to make one."""

    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes


def salted_password(mechanism: str, password: bytes, salt: bytes, iterations: int) -> bytes:
    """The slow step."""
    return hashlib.pbkdf2_hmac(DIGESTS[mechanism], password, salt, iterations)


def keys_of(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramKeys:
    client_key = mac(mechanism, salted, b"Client Key")
    stored_key = hashlib.new(DIGESTS[mechanism], client_key).digest()
    return ScramKeys(mechanism, salt, iterations, stored_key, mac(mechanism, salted, b"Server Key"))


def mac(mechanism: str, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, DIGESTS[mechanism])


def proof_of(mechanism: str, salted: bytes, auth_message: bytes) -> bytes:
    """What a client shows to have the password, for this one exchange."""
    client_key = mac(mechanism, salted, b"Client Key")
    stored_key = hashlib.new(DIGESTS[mechanism], client_key).digest()
    return exclusive_or(client_key, mac(mechanism, stored_key, auth_message))


def is_proof(keys: ScramKeys, proof: bytes, auth_message: bytes) -> bool:
    """In constant time."""
    if len(proof) != len(keys.stored_key):
        return False
    client_key = exclusive_or(proof, mac(keys.mechanism, keys.stored_key, auth_message))
    return hmac.compare_digest(hashlib.new(DIGESTS[keys.mechanism], client_key).digest(), keys.stored_key)


def exclusive_or(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def attributes(text: bytes) -> list[tuple[str, bytes]]:
    """`r=…,s=…,i=…` in their order; a value may have `=` in it."""
    found = []
    for part in text.split(b","):
        if len(part) < 2 or part[1:2] != b"=" or not part[:1].isalpha():
            raise ScramMalformed("an attribute is not written as NAME=VALUE")
        found.append((part[:1].decode(), part[2:]))
    return found


def attributes_and_extensions(text: bytes) -> tuple[list[tuple[str, bytes]], dict[str, bytes]]:
    """The same of a first message, behind whose attributes extensions may stand, with names of several letters, as
    Kafka writes them: `n=…,r=…,tokenauth=true`."""
    parts = text.split(b",")
    size = next((at for at, part in enumerate(parts) if b"=" in part and part[1:2] != b"="), len(parts))
    extensions: dict[str, bytes] = {}
    for part in parts[size:]:
        name, found, value = part.partition(b"=")
        if not found or not name.isalpha() or len(extensions) >= MAX_EXTENSIONS:
            raise ScramMalformed("an extension is not written as NAME=VALUE, or there are too many")
        extensions[name.decode()] = value
    return attributes(b",".join(parts[:size])), extensions


def name_to_wire(name: str) -> bytes:
    return name.replace("=", "=3D").replace(",", "=2C").encode()


def name_from_wire(name: bytes) -> str:
    """Every `=` has to begin one of the two escapes."""
    rest = name.replace(b"=2C", b"").replace(b"=3D", b"")
    if b"=" in rest or not name:
        raise ScramMalformed("the name is empty, or has a = that is not written as =3D")
    try:
        return name.replace(b"=2C", b",").replace(b"=3D", b"=").decode()
    except UnicodeDecodeError:
        raise ScramMalformed("the name is not UTF-8") from None


def from_base64(text: bytes) -> bytes:
    """Of one value there is one spelling: bits behind the last byte have to be zero."""
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ScramMalformed("a value is not base64") from None
    if base64.b64encode(found) != text:
        raise ScramMalformed("a value is not base64 as it is usually written")
    return found
