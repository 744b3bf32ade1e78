"""Errors as HTTP says them: application/problem+json (RFC 9457), each class of error mapped once, here.

`error` is the class's name, the same word that the native protocol uses; `field` is the field of the request that an
`Invalid` speaks of, where it names one. Everything in this protocol that answers an error comes through here.
"""

from __future__ import annotations

import re
from http import HTTPStatus

import msgspec

from waystation import errors
from waystation.errors import WaystationError

PROBLEM_TYPE = "application/problem+json"

STATUS: dict[type[WaystationError], int] = {
    errors.NotFound: 404,
    errors.AlreadyExists: 409,
    errors.Invalid: 400,
    errors.TooLarge: 413,
    errors.Full: 429,
    errors.NotAllowed: 403,
    errors.NotLeader: 421,
    errors.Conflict: 409,
    errors.Expired: 410,
    errors.Unavailable: 503,
    errors.QuotaExceeded: 429,
    errors.Corrupt: 500,
    errors.StorageFailed: 507,
}
"""An error of a class that is not here has the status of the nearest class above it that is."""

_FIELD = re.compile(r"([a-z_][\w.\-\[\]]*): ")


class MethodNotAllowed(WaystationError):
    """The path is known, the method is not. `allowed` has those that are."""

    def __init__(self, method: str, path: str, allowed: list[str]) -> None:
        super().__init__(f"{method} is not allowed at {path}; allowed: {', '.join(allowed)}")
        self.allowed = allowed


class Foreign(errors.NotAllowed):
    """A web page of another origin made a browser send this, or could have."""


class Unauthorized(WaystationError):
    """The broker asks who sends this, and the request does not show it. `challenge`: how it may, as HTTP writes it."""

    def __init__(self, text: str, challenge: str = "Bearer") -> None:
        super().__init__(text)
        self.challenge = challenge


class TimedOut(WaystationError):
    """What was waited for did not come in the time that was given."""


STATUS[Unauthorized] = 401
STATUS[MethodNotAllowed] = 405
STATUS[TimedOut] = 504


class Problem(msgspec.Struct, omit_defaults=True):
    """What went wrong, to what, and what to do about it (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    error: str
    field: str | None = None


def status_of(error: WaystationError) -> int:
    for kind in type(error).__mro__:
        if kind in STATUS:
            return STATUS[kind]
    return 500


def problem_of(error: WaystationError) -> Problem:
    """The problem that an error is."""
    detail = str(error)
    field = _FIELD.match(detail) if isinstance(error, errors.Invalid) else None
    return _problem(_vocabulary(error), type(error).__name__, status_of(error), detail, field and field[1])


def problem_of_status(status: int, detail: str) -> Problem:
    """The problem of a request that never became one, like one that is not HTTP."""
    return _problem(HTTPStatus(status).phrase, HTTPStatus(status).phrase.replace(" ", ""), status, detail, None)


def _vocabulary(error: WaystationError) -> str:
    """The class that all protocols share, in words: `UnknownTopic` is a `NotFound`."""
    for kind in type(error).__mro__:
        if kind in STATUS:
            return re.sub(r"(?<!^)(?=[A-Z])", " ", kind.__name__).capitalize()
    return "Error"


def _problem(title: str, error: str, status: int, detail: str, field: str | None) -> Problem:
    slug = title.lower().replace(" ", "-").replace("'", "")
    return Problem(f"urn:waystation:error:{slug}", title, status, detail, error, field)
