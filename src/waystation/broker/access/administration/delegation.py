"""`DelegationAccess`: delegation tokens, as Kafka's clients make, see, renew and end them.

Who has logged in may make tokens of its own, unless it has logged in by one; to make them for another user needs the
right to alter that user, and to see another's the right to describe it (Kafka's CreateTokens and DescribeTokens).
Owner, requester and renewers of a token may see it and move its expiry. A family of `Access`; on the loop's thread
only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from waystation.broker.access.messaging.family import Family
from waystation.errors import NotAllowed
from waystation.security.delegation_tokens import MadeToken, TokenRefused
from waystation.security.principals import ANONYMOUS, FULL


class DelegationAccess(Family):
    """One principal's."""

    __slots__ = ()

    async def create(self, owner: str | None, renewers: Iterable[str], max_life_ms: int) -> MadeToken:
        """`owner` None: the principal itself."""
        self._check_allowed()
        me = self._principal.name
        whose = me if owner is None else owner
        if whose != me:
            try:
                self._ask("alter", "user", whose)
            except NotAllowed as error:
                raise TokenRefused("DELEGATION_TOKEN_AUTHORIZATION_FAILED", str(error)) from error
        named = list(renewers)
        work = self._broker.delegation_tokens.create(whose, me, named, max_life_ms)
        return await self._changing(
            "create", "delegation-token", whose, work, f"renewers: {', '.join(named) or 'none'}"
        )

    async def renew(self, secret: bytes, period_ms: int) -> int:
        """Of a token that concerns the principal: when it expires now."""
        self._check_allowed()
        me = self._principal.name
        work = self._broker.delegation_tokens.renew(secret, me, period_ms)
        return await self._changing("renew", "delegation-token", me, work)

    async def expire(self, secret: bytes, period_ms: int) -> int:
        """Of a token that concerns the principal: when it expires now. A period below zero ends it."""
        self._check_allowed()
        me = self._principal.name
        work = self._broker.delegation_tokens.expire(secret, me, period_ms)
        return await self._changing("expire", "delegation-token", me, work)

    def listing(self, owners: Collection[str] | None) -> list[MadeToken]:
        """Of these owners, or all; those that concern the principal, and those of users that it may describe."""
        self._check_allowed()
        me = self._principal.name
        return [
            one
            for one in self._broker.delegation_tokens.listing()
            if (owners is None or one.token.owner in owners)
            and (one.token.concerns(me) or self._sees("user", one.token.owner))
        ]

    def _check_allowed(self) -> None:
        """Raises if tokens are off, or are not for this principal, whatever it is about."""
        if not self._broker.delegation_tokens.enabled:
            raise TokenRefused(
                "DELEGATION_TOKEN_AUTH_DISABLED", "delegation tokens are off: set delegation.token.secret.key"
            )
        who = self._principal
        leaving = who.name in self._broker.users.leaving  # a token would outlive it
        if who.kind != "User" or who.name == ANONYMOUS.name or who.credential or who.role != FULL or leaving:
            raise TokenRefused(
                "DELEGATION_TOKEN_REQUEST_NOT_ALLOWED",
                "delegation tokens are for those who have logged in, and not by a delegation token or an API key",
            )
