"""What is stored of a password: verifiers, from which it cannot be computed.

A verifier is one line of text, in one of two forms:

    SCRAM-SHA-256$ITERATIONS:SALT$STORED_KEY:SERVER_KEY       (also SCRAM-SHA-512; base64, as PostgreSQL writes it)
    rabbit_password_hashing_sha256$SALT_AND_HASH              (also …_sha512; from a RabbitMQ definitions file)

Pure, but for `matches` and `verifiers_of`, which take milliseconds of CPU time on purpose: away from the loop.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Iterable, Sequence

import msgspec

from waystation.errors import Invalid
from waystation.wire.scram import (
    DIGESTS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramKeys,
    keys_of,
    salted_password,
)

ITERATIONS = 8192
SALT_BYTES = 24
RABBIT_DIGESTS = {"rabbit_password_hashing_sha256": "sha256", "rabbit_password_hashing_sha512": "sha512"}
RABBIT_SALT_BYTES = 4
MAX_PASSWORD_BYTES = 1024
KEY_BEGIN = b"wsk_"
"""A password that begins so is an API key (`api_keys.py`)."""


class RabbitHash(msgspec.Struct, frozen=True):
    """A salted hash as RabbitMQ stores it: it can check a password, and nothing else."""

    algorithm: str
    salt: bytes
    digest: bytes

    def matches(self, password: bytes) -> bool:
        found = hashlib.new(RABBIT_DIGESTS[self.algorithm], self.salt + password).digest()
        return hmac.compare_digest(found, self.digest)


Verifier = ScramKeys | RabbitHash


def verifiers_of(password: str, token: Callable[[int], bytes]) -> tuple[str, ...]:
    """For both of SCRAM's hashes. `token` gives random bytes."""
    data = checked_password(password)
    made = []
    for mechanism in DIGESTS:
        salt = token(SALT_BYTES)
        made.append(written(keys_of(mechanism, salted_password(mechanism, data, salt, ITERATIONS), salt, ITERATIONS)))
    return tuple(made)


def checked_password(password: str) -> bytes:
    data = password.encode("utf-8", "surrogateescape")
    if not data:
        raise Invalid("the password is empty: choose one")
    if data.startswith(KEY_BEGIN):
        raise Invalid(f"a password cannot begin with {KEY_BEGIN.decode()}: that is how API keys begin")
    if len(data) > MAX_PASSWORD_BYTES or b"\0" in data:
        raise Invalid(f"the password is too long, or has a zero byte in it: use at most {MAX_PASSWORD_BYTES} bytes")
    return data


def written(verifier: Verifier) -> str:
    if isinstance(verifier, RabbitHash):
        return f"{verifier.algorithm}${_base64(verifier.salt + verifier.digest)}"
    keys = f"{_base64(verifier.stored_key)}:{_base64(verifier.server_key)}"
    return f"{verifier.mechanism}${verifier.iterations}:{_base64(verifier.salt)}${keys}"


def read(text: str) -> Verifier:
    """Raises Invalid; what it says does not repeat the verifier."""
    kind, _, rest = text.partition("$")
    try:
        if kind in RABBIT_DIGESTS:
            return _read_rabbit(kind, rest)
        if kind in DIGESTS:
            return _read_scram(kind, rest)
    except (ValueError, binascii.Error):
        raise Invalid(f"a verifier of the kind {kind} cannot be read") from None
    raise Invalid(f"{kind[:40]!r} is no kind of verifier; there are {', '.join((*DIGESTS, *RABBIT_DIGESTS))}")


def _read_rabbit(kind: str, rest: str) -> RabbitHash:
    data = base64.b64decode(rest, validate=True)
    if len(data) != RABBIT_SALT_BYTES + hashlib.new(RABBIT_DIGESTS[kind]).digest_size:
        raise ValueError("length")
    return RabbitHash(kind, data[:RABBIT_SALT_BYTES], data[RABBIT_SALT_BYTES:])


def _read_scram(kind: str, rest: str) -> ScramKeys:
    terms, keys = rest.split("$")
    iterations, salt = terms.split(":")
    stored, server = (base64.b64decode(key, validate=True) for key in keys.split(":"))
    size = hashlib.new(DIGESTS[kind]).digest_size
    found = ScramKeys(kind, base64.b64decode(salt, validate=True), int(iterations), stored, server)
    if len(stored) != size or len(server) != size or not found.salt:
        raise ValueError("length")
    if not MIN_ITERATIONS <= found.iterations <= MAX_ITERATIONS:
        raise ValueError("iterations")
    return found


def scram_keys(verifiers: Iterable[Verifier], mechanism: str) -> ScramKeys | None:
    """The verifier that this mechanism needs, if there is one."""
    for verifier in verifiers:
        if isinstance(verifier, ScramKeys) and verifier.mechanism == mechanism:
            return verifier
    return None


def matches(verifiers: Iterable[Verifier], password: bytes) -> bool:
    """Whether this is the password; slow. The first verifier decides, since all are of the same password."""
    for verifier in verifiers:
        if isinstance(verifier, RabbitHash):
            return verifier.matches(password)
        salted = salted_password(verifier.mechanism, password, verifier.salt, verifier.iterations)
        found = keys_of(verifier.mechanism, salted, verifier.salt, verifier.iterations)
        return hmac.compare_digest(found.stored_key, verifier.stored_key)
    return False


def decoy(mechanism: str, name: str, secret: bytes, rounds: Sequence[int] = ()) -> ScramKeys:
    """For a user that does not exist: the same for the same name each time, as a real one, and without a password.
    `rounds`: of the verifiers that there are, each as often as it is in use, in order; the name picks one, so that
    nobody sees by them whether a user exists."""
    seed = hmac.digest(secret, f"{mechanism}\0{name}".encode("utf-8", "surrogateescape"), "sha512")
    size = hashlib.new(DIGESTS[mechanism]).digest_size
    stored = hmac.digest(secret, b"stored" + seed, "sha512")[:size]
    usual = rounds[int.from_bytes(seed[-8:]) % len(rounds)] if rounds else ITERATIONS
    return ScramKeys(
        mechanism, seed[:SALT_BYTES], usual, stored, hmac.digest(secret, b"server" + seed, "sha512")[:size]
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
