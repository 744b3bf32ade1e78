"""Verifiers: they recognize the password, they are not the password, and RabbitMQ's are taken as they are."""

from __future__ import annotations

import base64
import hashlib
import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import Invalid
from waystation.security import credentials


def test_a_password_is_recognized_by_each_of_its_verifiers() -> None:
    made = credentials.verifiers_of("geheim", secrets.token_bytes)
    assert [verifier.partition("$")[0] for verifier in made] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    for verifier in made:
        assert "geheim" not in verifier
        assert base64.b64encode(b"geheim").decode() not in verifier
        assert credentials.matches((credentials.read(verifier),), b"geheim")
        assert not credentials.matches((credentials.read(verifier),), b"geheim ")
        assert credentials.written(credentials.read(verifier)) == verifier


def test_the_same_password_has_other_verifiers_each_time() -> None:
    first, second = (credentials.verifiers_of("geheim", secrets.token_bytes) for _ in range(2))
    assert not set(first) & set(second)


@pytest.mark.parametrize("algorithm", ["sha256", "sha512"])
def test_a_salted_hash_of_rabbitmq_recognizes_its_password(algorithm: str) -> None:
    salt = b"\x90\x8d\xc6\x0a"
    stored = base64.b64encode(salt + hashlib.new(algorithm, salt + b"test12").digest()).decode()
    verifier = credentials.read(f"rabbit_password_hashing_{algorithm}${stored}")
    assert credentials.matches((verifier,), b"test12")
    assert not credentials.matches((verifier,), b"test13")
    assert credentials.written(verifier) == f"rabbit_password_hashing_{algorithm}${stored}"


def test_rabbitmqs_own_example_is_recognized() -> None:
    """From its page about passwords: `test12` with the salt 908DC60A."""
    verifier = credentials.read("rabbit_password_hashing_sha256$kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR")
    assert credentials.matches((verifier,), b"test12")


@pytest.mark.parametrize("password", ["", "a\0b", "x" * 1025])
def test_a_password_that_cannot_be_one_is_refused(password: str) -> None:
    with pytest.raises(Invalid, match="password"):
        credentials.verifiers_of(password, secrets.token_bytes)


@given(st.one_of(st.text(max_size=80), st.from_regex(r"SCRAM-SHA-256\$[0-9]{1,9}:[A-Za-z0-9+/=]*\$[A-Za-z0-9+/=:]*")))
def test_what_is_no_verifier_is_refused_without_being_repeated(text: str) -> None:
    try:
        said = repr(type(credentials.read(text)))
    except Invalid as error:
        said = str(error)
    assert "$" not in said


def test_a_decoy_has_no_password_and_differs_with_the_name() -> None:
    one = credentials.decoy("SCRAM-SHA-256", "alice", b"x" * 32)
    assert one == credentials.decoy("SCRAM-SHA-256", "alice", b"x" * 32)
    assert one.salt != credentials.decoy("SCRAM-SHA-256", "bob", b"x" * 32).salt
    assert one.iterations == credentials.ITERATIONS
