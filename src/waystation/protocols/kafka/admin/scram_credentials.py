"""DescribeUserScramCredentials and AlterUserScramCredentials: users' passwords as Kafka's tools see and set them.

A tool sends the password salted and hashed, which is as good as the password for SCRAM: it is turned into a verifier at
once, and nothing of it is stored or logged.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from waystation.errors import WaystationError
from waystation.protocols.kafka.requests.registry import Call
from waystation.wire.scram import MAX_ITERATIONS, MIN_ITERATIONS, ScramKeys, keys_of

MECHANISMS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
NUMBERS = {name: number for number, name in MECHANISMS.items()}
MAX_SALT_BYTES = 1024


def describe_user_scram_credentials(call: Call) -> object:
    """Null or no users means all."""
    make = call.make
    try:
        known = call.access.cluster.scram_credentials()
    except WaystationError as error:
        return _described(call, call.code(error), str(error), ())
    times = Counter(user.name for user in call.request.users or ()) or dict.fromkeys(known, 1)
    results = []
    for name, count in times.items():
        if count > 1:
            results.append(_missing(call, name, ErrorCode.duplicate_resource, "it is in the request more than once"))
        elif name not in known:
            results.append(_missing(call, name, ErrorCode.resource_not_found, "it has no SCRAM credential"))
        else:
            infos = tuple(
                make("CredentialInfo", mechanism=NUMBERS[mechanism], iterations=rounds)
                for mechanism, rounds in sorted(known[name].items())
            )
            results.append(
                make(
                    "DescribeUserScramCredentialsResult",
                    user=name,
                    error_code=ErrorCode.none,
                    error_message=None,
                    credential_infos=infos,
                )
            )
    return _described(call, ErrorCode.none, None, tuple(results))


def _described(call: Call, error: ErrorCode, message: str | None, results: tuple[object, ...]) -> object:
    return call.make(
        "DescribeUserScramCredentialsResponse",
        throttle_time=0,
        error_code=error,
        error_message=message,
        results=results,
    )


def _missing(call: Call, name: str, error: ErrorCode, why: str) -> object:
    message = f"user {name!r}: {why}"
    return call.make("DescribeUserScramCredentialsResult", user=name, error_code=error, error_message=message)


async def alter_user_scram_credentials(call: Call) -> object:
    """Each user by itself: what is wrong with one is told for that one."""
    asked: dict[str, list[Any]] = {}
    for change in (*call.request.deletions, *call.request.upsertions):
        asked.setdefault(change.name, []).append(change)
    results = [await _alter(call, name, changes) for name, changes in asked.items()]
    return call.make("AlterUserScramCredentialsResponse", throttle_time=0, results=tuple(results))


async def _alter(call: Call, name: str, changes: list[Any]) -> object:
    try:
        known = call.access.cluster.scram_credentials().get(name, {})
        error, message = _wrong(changes, known)
        if error is ErrorCode.none:
            keys = {MECHANISMS[change.mechanism]: _keys(change) for change in changes}
            await call.access.cluster.alter_scram(name, keys)
    except WaystationError as failure:
        error, message = call.code(failure), str(failure)
    return call.make("AlterUserScramCredentialsResult", user=name, error_code=error, error_message=message)


def _wrong(changes: list[Any], known: dict[str, int]) -> tuple[ErrorCode, str | None]:
    if any(change.mechanism not in MECHANISMS for change in changes):
        return ErrorCode.unsupported_sasl_mechanism, "there are SCRAM-SHA-256 (1) and SCRAM-SHA-512 (2)"
    if max(Counter(change.mechanism for change in changes).values()) > 1:
        return ErrorCode.duplicate_resource, "a mechanism is in the request more than once"
    for change in changes:
        if not hasattr(change, "salt"):
            if MECHANISMS[change.mechanism] not in known:
                return ErrorCode.resource_not_found, f"there is no {MECHANISMS[change.mechanism]} credential to delete"
        elif not MIN_ITERATIONS <= change.iterations <= MAX_ITERATIONS:
            return ErrorCode.unacceptable_credential, f"iterations: {MIN_ITERATIONS} to {MAX_ITERATIONS} are taken"
        elif not 0 < len(change.salt) <= MAX_SALT_BYTES or not change.salted_password:
            return ErrorCode.unacceptable_credential, "the salt or the salted password is empty or too long"
    return ErrorCode.none, None


def _keys(change: Any) -> ScramKeys | None:
    if not hasattr(change, "salt"):
        return None
    mechanism = MECHANISMS[change.mechanism]
    return keys_of(mechanism, bytes(change.salted_password), bytes(change.salt), change.iterations)
