"""What one listener asks of who connects to it. A broker has one `Authenticator`; each of its listeners has its terms,
and asks an `Entrance` made of both.

Invariant: a listener's terms can only leave mechanisms out, and never let somebody in whom the authenticator would
refuse. Where they say that nobody has to log in, a client that does not is nobody, and rules decide what nobody may.
"""

from __future__ import annotations

from typing import Any

import msgspec

from waystation.errors import NotAllowed
from waystation.security.authenticator import NODE_MECHANISM, Authenticator, LoginPeer
from waystation.security.mapping_rules import parse_rules
from waystation.security.principals import Principal
from waystation.security.sasl.exchange import SaslExchange

CLIENTS = ("User", "Token")
"""Kinds of principals that come in by listeners."""


class ListenerTerms(msgspec.Struct, frozen=True):
    """A listener, as it was configured."""

    name: str
    """Nodes of a cluster have it in common: by it one of them knows where the others have the same listener."""
    advertised_host: str = ""
    """Where clients are told to connect; empty: where they have."""
    advertised_port: int = 0
    """0: the one that it listens on."""
    auth_required: bool | None = None
    """Whether a client has to log in; None: as `auth.required` says for the broker."""
    mechanisms: tuple[str, ...] = ()
    """Of those that the broker offers; empty: all."""
    namespace: str = ""
    """In which its clients are; empty: each in its own."""
    mapping_rules: str = ""
    """Which user a client certificate stands for here; empty: as `ssl.principal.mapping.rules` says for the broker."""


class Entrance:
    """One per listener."""

    def __init__(self, authenticator: Authenticator, terms: ListenerTerms) -> None:
        self.authenticator = authenticator
        self.terms = terms
        self._rules = parse_rules(terms.mapping_rules) if terms.mapping_rules else ()

    @property
    def required(self) -> bool:
        """Whether a client has to show who it is."""
        said = self.terms.auth_required
        return self.authenticator.required if said is None else said

    @property
    def asked_with_users(self) -> bool:
        """Whether that is as the broker says, and may change while it runs."""
        return self.terms.auth_required is None

    @property
    def offered(self) -> bool:
        """Whether a client can show who it is."""
        return self.required or self.authenticator.offered

    @property
    def guests(self) -> bool:
        """Whether AMQP's `guest` may enter."""
        return self.authenticator.guests and not self.required

    def namespace(self, principal: Principal, wanted: str = "") -> str:
        """In which a client is that has come in here: the listener's, the one that it says it wants, or its own home.
        Nodes of a cluster, and who runs in the broker's process, are in none. NotAllowed if the listener is bound to
        another."""
        bound = self.terms.namespace if principal.kind in CLIENTS else ""
        if bound and wanted not in ("", bound):
            raise NotAllowed(f"this listener's clients are in the namespace {bound!r}, not in {wanted[:127]!r}")
        return bound or wanted or principal.namespace

    def mechanisms(self, protocol: str) -> tuple[str, ...]:
        """In the order of preference."""
        found, wanted = self.authenticator.mechanisms(protocol), self.terms.mechanisms
        if not wanted:
            return found
        # AMQPLAIN is how old clients spell PLAIN.
        return tuple(one for one in found if one in wanted or (one == "AMQPLAIN" and "PLAIN" in wanted))

    def certificate(self, ssl_object: Any) -> Principal | None:
        """Whom the client certificate of a TLS connection stands for; None: it has none, or stands for nobody."""
        return self.authenticator.certificate(ssl_object, self._rules)

    def begin(self, mechanism: str, peer: LoginPeer) -> SaslExchange | None:
        """None: it is not offered here."""
        if mechanism != NODE_MECHANISM and mechanism not in self.mechanisms(peer.protocol):
            return None
        return self.authenticator.begin(mechanism, peer)
