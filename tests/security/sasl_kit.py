"""A directory of users without a broker, and a client's side of SCRAM."""

from __future__ import annotations

import base64

from waystation.security import credentials
from waystation.security.principals import Principal
from waystation.security.sasl.exchange import Challenge, Failed, LoggedIn, Outcome, SaslExchange
from waystation.wire import scram
from waystation.wire.scram import ScramKeys

SECRET = b"s" * 32


class Book:
    """Users and their passwords, with verifiers that were made quickly."""

    def __init__(self, **passwords: str) -> None:
        self._verifiers = {
            name: tuple(_quick(mechanism, password) for mechanism in scram.DIGESTS)
            for name, password in passwords.items()
        }

    def principal(self, name: str) -> Principal | None:
        return Principal(name) if name in self._verifiers else None

    def check(self, name: str, password: bytes) -> LoggedIn | Failed:
        right = credentials.matches(self._verifiers.get(name, ()), password)
        principal = self.principal(name)
        return LoggedIn(principal) if right and principal is not None else Failed("wrong", name)

    def proved(self, name: str, *, token: bool) -> LoggedIn | None:
        principal = self.principal(name)
        return None if principal is None or token else LoggedIn(principal)

    def scram_keys(self, name: str, mechanism: str, *, token: bool = False) -> ScramKeys:
        found = credentials.scram_keys(self._verifiers.get(name, ()), mechanism)
        return found or credentials.decoy(mechanism, name, SECRET)


def _quick(mechanism: str, password: str) -> ScramKeys:
    salt, rounds = b"salt" + mechanism.encode(), scram.MIN_ITERATIONS
    return scram.keys_of(mechanism, scram.salted_password(mechanism, password.encode(), salt, rounds), salt, rounds)


def login(exchange: SaslExchange, mechanism: str, name: str, password: str, nonce: bytes = b"abcdef") -> Outcome:
    """A client's whole login by SCRAM."""
    bare = b"n=%b,r=%b" % (scram.name_to_wire(name), nonce)
    outcome = exchange.step(b"n,," + bare)
    if not isinstance(outcome, Challenge):
        return outcome
    said = dict(scram.attributes(outcome.data))
    salt, rounds = base64.b64decode(said["s"]), int(said["i"])
    final = b"c=biws,r=" + said["r"]
    message = b",".join((bare, outcome.data, final))
    salted = scram.salted_password(mechanism, password.encode(), salt, rounds)
    proof = scram.proof_of(mechanism, salted, message)
    ended = exchange.step(final + b",p=" + base64.b64encode(proof))
    if isinstance(ended, LoggedIn):
        server_key = scram.mac(mechanism, salted, b"Server Key")
        assert ended.data == b"v=" + base64.b64encode(scram.mac(mechanism, server_key, message))
    return ended
