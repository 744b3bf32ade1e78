"""SASL's mechanisms: the right password enters, nothing else does, and no message raises anything."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.security.sasl_kit import Book, login
from waystation.security.principals import Principal
from waystation.security.sasl.exchange import Challenge, Failed, LoggedIn, SaslExchange
from waystation.security.sasl.external import ExternalExchange
from waystation.security.sasl.oauthbearer import OAuthBearerExchange, token_in
from waystation.security.sasl.plain import AmqplainExchange, PlainExchange
from waystation.security.sasl.scram import ScramExchange
from waystation.wire import scram
from waystation.wire.amqp.tables import encode_table

BOOK = Book(alice="wonder land", **{"a,b=c": "commas, and = signs"})
SCRAMS = sorted(scram.DIGESTS)


def _token(size: int) -> bytes:
    return b"\x07" * size


def _scram(mechanism: str) -> ScramExchange:
    return ScramExchange(mechanism, BOOK, _token)


@pytest.mark.parametrize("mechanism", SCRAMS)
@pytest.mark.parametrize(("name", "password"), [("alice", "wonder land"), ("a,b=c", "commas, and = signs")])
def test_the_password_enters_by_scram_and_the_broker_proves_itself(mechanism: str, name: str, password: str) -> None:
    outcome = login(_scram(mechanism), mechanism, name, password)
    assert isinstance(outcome, LoggedIn)
    assert outcome.principal == Principal(name)


@pytest.mark.parametrize("mechanism", SCRAMS)
def test_a_wrong_password_and_an_unknown_user_end_alike(mechanism: str) -> None:
    wrong = login(_scram(mechanism), mechanism, "alice", "no")
    unknown = login(_scram(mechanism), mechanism, "nobody", "no")
    assert isinstance(wrong, Failed)
    assert isinstance(unknown, Failed)
    assert wrong.reason == unknown.reason
    assert wrong.data == unknown.data == b""


def test_the_salt_of_an_unknown_user_is_the_same_each_time() -> None:
    def first(name: bytes) -> bytes:
        outcome = _scram("SCRAM-SHA-256").step(b"n,,n=%b,r=x" % name)
        assert isinstance(outcome, Challenge)
        return dict(scram.attributes(outcome.data))["s"]

    assert first(b"nobody") == first(b"nobody") != first(b"somebody")


def test_rfc_7677_example_of_scram_sha_256() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = scram.salted_password("SCRAM-SHA-256", b"pencil", salt, 4096)
    message = (
        b"n=user,r=rOprNGfwEbeRWgbNEkqO,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    proof = base64.b64encode(scram.proof_of("SCRAM-SHA-256", salted, message))
    assert proof == b"dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    keys = scram.keys_of("SCRAM-SHA-256", salted, salt, 4096)
    assert base64.b64encode(scram.mac("SCRAM-SHA-256", keys.server_key, message)) == (
        b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    )


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n,,",
        b"p=tls-unique,,n=alice,r=x",
        b"n,a=bob,n=alice,r=x",
        b"n,,r=x,n=alice",
        b"n,,n=alice",
        b"n,,n=,r=x",
        b"n,,n=al=ice,r=x",
        b"n,,m=ext,n=alice,r=x",
        b"n,,n=\xff,r=x",
        b"n,,n=alice,r=" + b"x" * 5000,
    ],
)
def test_a_first_message_that_is_none_fails(first: bytes) -> None:
    assert isinstance(_scram("SCRAM-SHA-256").step(first), Failed)


def test_the_proof_of_one_exchange_is_of_no_use_in_another() -> None:
    replies: list[bytes] = []

    class Recorder:
        mechanism, blocking = "SCRAM-SHA-256", False
        inner = _scram("SCRAM-SHA-256")

        def step(self, data: bytes) -> object:
            replies.append(data)
            return self.inner.step(data)

    assert isinstance(login(Recorder(), "SCRAM-SHA-256", "alice", "wonder land"), LoggedIn)  # type: ignore[arg-type]
    other = ScramExchange("SCRAM-SHA-256", BOOK, lambda size: b"\x08" * size)
    assert isinstance(other.step(replies[0]), Challenge)
    assert isinstance(other.step(replies[1]), Failed)


@pytest.mark.parametrize(
    ("message", "enters"),
    [
        (b"\0alice\0wonder land", True),
        (b"alice\0alice\0wonder land", True),
        (b"bob\0alice\0wonder land", False),
        (b"\0alice\0wonder", False),
        (b"\0nobody\0wonder land", False),
        (b"alice\0wonder land", False),
        (b"\0alice\0wonder land\0", False),
        (b"\0\xff\0wonder land", False),
        (b"", False),
    ],
)
def test_plain_takes_the_name_and_the_password(message: bytes, enters: bool) -> None:
    assert isinstance(PlainExchange(BOOK).step(message), LoggedIn) is enters


@pytest.mark.parametrize(("password", "enters"), [("wonder land", True), ("no", False)])
def test_amqplain_takes_a_table(password: str, enters: bool) -> None:
    message = encode_table({"LOGIN": "alice", "PASSWORD": password})[4:]
    assert isinstance(AmqplainExchange(BOOK).step(message), LoggedIn) is enters


def test_external_is_whom_the_certificate_names_and_nobody_without_one() -> None:
    assert ExternalExchange(Principal("alice")).step(b"") == LoggedIn(Principal("alice"))
    assert isinstance(ExternalExchange(None).step(b"alice"), Failed)


def test_a_bearer_is_told_that_the_token_is_wrong_and_then_fails() -> None:
    exchange = OAuthBearerExchange(lambda token: Failed("no"))
    assert isinstance(exchange.step(b"n,,\x01auth=Bearer a.b.c\x01\x01"), Challenge)
    assert isinstance(exchange.step(b"\x01"), Failed)


@pytest.mark.parametrize(
    ("message", "token"),
    [
        (b"n,,\x01auth=Bearer a.b.c\x01\x01", "a.b.c"),
        (b"n,a=alice,\x01host=x\x01auth=bearer a.b.c\x01ext=1\x01\x01", "a.b.c"),
        (b"n,,\x01auth=Basic a.b.c\x01\x01", None),
        (b"n,,\x01auth=Bearer \x01\x01", None),
        (b"n,,auth=Bearer a.b.c", None),
        (b"", None),
    ],
)
def test_the_token_is_found_in_the_message(message: bytes, token: str | None) -> None:
    assert token_in(message) == token


def _exchanges() -> list[SaslExchange]:
    return [
        *(_scram(mechanism) for mechanism in SCRAMS),
        PlainExchange(BOOK),
        AmqplainExchange(BOOK),
        ExternalExchange(None),
        OAuthBearerExchange(lambda token: Failed("no")),
    ]


STARTS = st.sampled_from(
    [b"n,,n=alice,r=abc", b"y,,n=nobody,r=abc", b"\0alice\0no", b"n,,\x01auth=Bearer x\x01\x01", b"\x05LOGINS"]
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """Anything, or something that was right before it was changed at one place."""
    if draw(st.booleans()):
        return draw(st.binary(max_size=200))
    data = bytearray(draw(STARTS))
    at = draw(st.integers(0, len(data) - 1))
    data[at : at + draw(st.integers(0, 3))] = draw(st.binary(max_size=4))
    return bytes(data)


@settings(max_examples=500)
@given(st.lists(messages(), min_size=1, max_size=4))
def test_whatever_a_client_sends_nothing_is_raised_and_nobody_enters(sent: list[bytes]) -> None:
    for exchange in _exchanges():
        for data in sent:
            assert isinstance(exchange.step(data), Challenge | Failed), (exchange.mechanism, data)


@settings(max_examples=200)
@given(data=st.data())
def test_a_proof_that_was_changed_anywhere_fails(data: st.DataObject) -> None:
    class Spoiler:
        mechanism, blocking = "SCRAM-SHA-256", False

        def __init__(self) -> None:
            self.inner = _scram("SCRAM-SHA-256")
            self.steps = 0

        def step(self, sent: bytes) -> object:
            self.steps += 1
            if self.steps == 2:
                at = data.draw(st.integers(0, len(sent) - 1))
                bit = 1 << data.draw(st.integers(0, 7))
                sent = sent[:at] + bytes([sent[at] ^ bit]) + sent[at + 1 :]
            return self.inner.step(sent)

    spoiler = Spoiler()
    try:
        outcome = login(spoiler, "SCRAM-SHA-256", "alice", "wonder land")  # type: ignore[arg-type]
    except AssertionError:  # the client notices that the broker speaks of something else
        return
    assert isinstance(outcome, Failed)
