"""How the nodes of a cluster show each other who they are: by a secret that all of them read from the cluster's store.

A node that connects is sent random bytes, and answers with their HMAC; the secret does not travel. Clients cannot read
it: no view and no protocol shows this entry of the store. Where the listeners speak TLS, so do the links, with the
certificate of the listeners as the client's own.

`ensure_secret` blocks: before the broker is constructed. The rest is pure, but for `context`, which reads files.
"""

from __future__ import annotations

import hmac
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.catalog import ABSENT
from waystation.errors import RevisionConflict
from waystation.security.principals import BROKER
from waystation.security.sasl.exchange import Challenge, Failed, LoggedIn, Outcome
from waystation.security.users import SECRET_BYTES, SECRET_KEY

if TYPE_CHECKING:
    from waystation.catalog import Catalog
    from waystation.security.tls_files import TlsFiles

MECHANISM = "WAYSTATION-NODE"
CHALLENGE_BYTES = 32
_PURPOSE = b"waystation node link\0"


def ensure_secret(store: Catalog, token: Callable[[int], bytes]) -> bytes:
    """The cluster's, made by the first node that asks for it."""
    found = store.get(SECRET_KEY)
    if found is None:
        try:
            store.write({SECRET_KEY: token(SECRET_BYTES)}, {SECRET_KEY: ABSENT})
        except RevisionConflict:
            pass  # another node was faster
        found = store.get(SECRET_KEY)
    if found is None:
        raise RuntimeError("what was written to the store is not there")
    return found.value


def proof_of(secret: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, _PURPOSE + challenge, "sha256")


class NodeExchange:
    """The side of the node that is connected to."""

    mechanism = MECHANISM
    blocking = False

    def __init__(self, secret: bytes, token: Callable[[int], bytes]) -> None:
        self._secret = secret
        self._challenge = token(CHALLENGE_BYTES)
        self._steps = 0

    def step(self, data: bytes) -> Outcome:
        self._steps += 1
        if self._steps == 1:
            return Challenge(self._challenge)
        if self._steps == 2 and hmac.compare_digest(data, proof_of(self._secret, self._challenge)):
            return LoggedIn(BROKER)
        return Failed("it does not know the secret of this cluster", "node")


class LinkLogin:
    """The side of the node that connects."""

    def __init__(self, secret: bytes, files: TlsFiles | None) -> None:
        """`files`: of the listeners by which nodes reach each other; None: they speak no TLS."""
        self._secret = secret
        self._files = files

    def proof(self, challenge: bytes) -> bytes:
        return proof_of(self._secret, challenge)

    def context(self) -> ssl.SSLContext | None:
        """None: links are as plain as the listeners. Nodes know each other by addresses: where an authority of one's
        own says who may be a node, names are not compared. Public ones sign for anybody, each for a name of its own."""
        files = self._files
        if files is None:
            return None
        context = ssl.create_default_context(cafile=files.client_ca or None)
        context.check_hostname = not files.client_ca
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(files.certificate, files.key or None, password=lambda: "")
        return context
