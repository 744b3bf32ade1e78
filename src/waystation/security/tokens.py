"""Tokens of an identity provider (OAuth 2, OpenID Connect): whether a JWT has its signature, and whom it names.

The keys are a JWKS, from a file or a URL, and are remembered: they are fetched again when they are old, and when a
token names a key that is not among them, but not more often than every `REFETCH_S`. So a provider can rotate its
keys, and tokens with invented key ids do not make the broker flood it. While it cannot be reached, the keys known so
far hold.

Signatures are checked by PyJWT (`pip install 'waystation[oauth]'`); symmetric algorithms and `none` are never taken.
`check` may block on the network: away from the loop, by one thread at a time (`Authenticator` sees to it).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec

from waystation.errors import Invalid, InvalidSetting
from waystation.observe.events import event_logger
from waystation.security.sasl.exchange import Failed

logger = event_logger("waystation.tokens")

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
REFETCH_S = 10.0
KEEP_S = 3600.0
FETCH_TIMEOUT_S = 5.0
MAX_JWKS_BYTES = 1024 * 1024
MAX_TOKEN_CHARACTERS = 64 * 1024
MAX_GROUPS = 100


class TokenTerms(msgspec.Struct, frozen=True):
    """What a token has to say to be taken, and where it says who its bearer is."""

    jwks: str  # a path or a URL
    issuer: str = ""  # empty: any
    audience: tuple[str, ...] = ()  # empty: any
    name_claim: str = "sub"
    groups_claim: str = ""
    skew_s: int = 30


class TokenOwner(msgspec.Struct, frozen=True):
    """Whom a token names."""

    name: str
    groups: tuple[str, ...]
    expires_ms: int


class Keys(msgspec.Struct):
    """A JWKS as it was fetched."""

    by_id: dict[str, Any] = msgspec.field(default_factory=dict)
    fetched_s: float = float("-inf")
    tried_s: float = float("-inf")


class Tokens:
    """One per broker that knows an identity provider."""

    def __init__(self, terms: TokenTerms, now_s: Callable[[], float]) -> None:
        try:
            import jwt
        except ImportError as error:
            raise InvalidSetting(
                f"sasl.oauthbearer.jwks.endpoint.url: {error.name or error} is not installed;"
                " pip install 'waystation[oauth]'"
            ) from error
        self._jwt = jwt
        self._terms = terms
        self._now_s = now_s
        self._keys = Keys()

    def check(self, token: str) -> TokenOwner | Failed:
        """Who bears the token. Blocks while keys are fetched."""
        try:
            return self._owner(self._claims(token))
        except self._jwt.PyJWTError as error:
            return Failed(f"the token is not valid: {error}")
        except (Invalid, ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            return Failed(f"the token is not valid: {error}")

    def _claims(self, token: str) -> dict[str, Any]:
        if len(token) > MAX_TOKEN_CHARACTERS:
            raise Invalid("it is too long")
        header = self._jwt.get_unverified_header(token)
        terms = self._terms
        options: Any = {"require": ["exp"], "verify_aud": bool(terms.audience), "verify_iss": bool(terms.issuer)}
        found: dict[str, Any] = self._jwt.decode(
            token,
            self._key(header),
            algorithms=list(ALGORITHMS),
            audience=list(terms.audience) or None,
            issuer=terms.issuer or None,
            leeway=terms.skew_s,
            options=options,
        )
        return found

    def _owner(self, claims: dict[str, Any]) -> TokenOwner:
        terms = self._terms
        name = claims.get(terms.name_claim)
        if not isinstance(name, str) or not name or len(name) > 128:
            raise Invalid(f"it has no claim {terms.name_claim!r} that could be a name")
        groups = claims.get(terms.groups_claim, []) if terms.groups_claim else []
        if isinstance(groups, str):
            groups = groups.split()
        texts = tuple(group for group in groups if isinstance(group, str))[:MAX_GROUPS]
        return TokenOwner(name, texts, int(claims["exp"]) * 1000)

    # -- keys -------------------------------------------------------------------------------------------------------

    def _key(self, header: dict[str, Any]) -> Any:
        name = str(header.get("kid", ""))
        now_s = self._now_s()
        keys = self._keys
        if now_s - keys.fetched_s > KEEP_S or self._find(name) is None:
            self._fetch(now_s)
        found = self._find(name)
        if found is None:
            raise Invalid(f"its key {name[:60]!r} is none of the provider's")
        return found.key

    def _find(self, name: str) -> Any:
        """A token without a key id is checked with the only key there is."""
        keys = self._keys.by_id
        if not name and len(keys) == 1:
            return next(iter(keys.values()))
        return keys.get(name)

    def _fetch(self, now_s: float) -> None:
        keys = self._keys
        if now_s - keys.tried_s < REFETCH_S:
            return
        keys.tried_s = now_s
        try:
            found = self._jwt.PyJWKSet.from_dict(json.loads(_read(self._terms.jwks)))
        except (OSError, ValueError, self._jwt.PyJWTError) as error:
            logger.warning(
                "tokens.no_keys", "the keys at {jwks} cannot be read: {error}", jwks=self._terms.jwks, error=error
            )
            return
        self._keys = Keys({str(key.key_id or ""): key for key in found.keys}, now_s, now_s)


def _read(where: str) -> bytes:
    if "://" not in where:
        with open(where, "rb") as file:
            return file.read(MAX_JWKS_BYTES)
    if not where.startswith(("https://", "http://", "file://")):
        raise ValueError("write a path, or a URL that begins with https://")
    from urllib.request import Request, urlopen

    with urlopen(Request(where, headers={"Accept": "application/json"}), timeout=FETCH_TIMEOUT_S) as answer:
        data: bytes = answer.read(MAX_JWKS_BYTES)
    return data
