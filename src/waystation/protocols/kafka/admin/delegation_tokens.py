"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from kio.schema.errors import ErrorCode

from waystation.errors import WaystationError
from waystation.protocols.kafka.requests.registry import Call

USER = "User"
NO_TIME = 0
"""In an answer that says an error."""


async def create_delegation_token(call: Call) -> object:
    asked = call.request
    kind, owner = getattr(asked, "owner_principal_type", None), getattr(asked, "owner_principal_name", None)
    if any(one.principal_type != USER for one in asked.renewers) or (owner and kind != USER):
        return _created(call, ErrorCode.invalid_principal_type)
    try:
        made = await call.access.delegation.create(
            owner or None, [one.principal_name for one in asked.renewers], _ms(asked.max_lifetime)
        )
    except WaystationError as error:
        return _created(call, call.code(error))
    token = made.token
    times = (token.issued_ms, token.expires_ms, token.max_ms)
    return _created(call, ErrorCode.none, token.owner, token.requester, times, made.id, made.secret)


def _created(
    call: Call,
    error: ErrorCode,
    owner: str = "",
    requester: str = "",
    times: Sequence[int] = (NO_TIME, NO_TIME, NO_TIME),
    token_id: str = "",
    secret: bytes = b"",
) -> object:
    who = call.access.principal
    return call.make(
        "CreateDelegationTokenResponse",
        error_code=error,
        principal_type=who.kind,
        principal_name=owner or who.name,
        token_requester_principal_type=who.kind,
        token_requester_principal_name=requester or who.name,
        issue_timestamp=_time(times[0]),
        expiry_timestamp=_time(times[1]),
        max_timestamp=_time(times[2]),
        token_id=token_id,
        hmac=secret,
        throttle_time=0,
    )


async def renew_delegation_token(call: Call) -> object:
    try:
        expires_ms = await call.access.delegation.renew(bytes(call.request.hmac), _ms(call.request.renew_period))
    except WaystationError as error:
        return _moved(call, "RenewDelegationTokenResponse", call.code(error))
    return _moved(call, "RenewDelegationTokenResponse", ErrorCode.none, expires_ms)


async def expire_delegation_token(call: Call) -> object:
    try:
        period_ms = _ms(call.request.expiry_time_period)
        expires_ms = await call.access.delegation.expire(bytes(call.request.hmac), period_ms)
    except WaystationError as error:
        return _moved(call, "ExpireDelegationTokenResponse", call.code(error))
    return _moved(call, "ExpireDelegationTokenResponse", ErrorCode.none, expires_ms)


def _moved(call: Call, response: str, error: ErrorCode, expires_ms: int = NO_TIME) -> object:
    return call.make(response, error_code=error, expiry_timestamp=_time(expires_ms), throttle_time=0)


def describe_delegation_token(call: Call) -> object:
    """No owners means all, null as well as in Kafka's tools."""
    owners = call.request.owners
    try:
        named = None if owners is None else {one.principal_name for one in owners if one.principal_type == USER}
        found = call.access.delegation.listing(named)
    except WaystationError as error:
        return call.make("DescribeDelegationTokenResponse", error_code=call.code(error), tokens=(), throttle_time=0)
    make = call.make
    tokens = tuple(
        make(
            "DescribedDelegationToken",
            principal_type=USER,
            principal_name=one.token.owner,
            token_requester_principal_type=USER,
            token_requester_principal_name=one.token.requester,
            issue_timestamp=one.token.issued_ms,
            expiry_timestamp=one.token.expires_ms,
            max_timestamp=one.token.max_ms,
            token_id=one.id,
            hmac=one.secret,
            renewers=tuple(
                make("DescribedDelegationTokenRenewer", principal_type=USER, principal_name=name)
                for name in one.token.renewers
            ),
        )
        for one in found
    )
    return make("DescribeDelegationTokenResponse", error_code=ErrorCode.none, tokens=tokens, throttle_time=0)


def _ms(period: Any) -> int:
    return int(period / timedelta(milliseconds=1))


def _time(time_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
