"""Whether a request carries the token that the setting `waystation.http.token` asks for.

Without the setting nobody is asked. With it everything needs `Authorization: Bearer TOKEN`, reads too, but for the
files of the dashboard (which asks for the token itself) and what tells a supervisor whether the broker lives. Tools for
RabbitMQ send it as the password of HTTP's basic authentication, with any name. The comparison takes as long for a wrong
token as for the right one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
from collections.abc import Sequence

from waystation.protocols.http.transport.problems import Unauthorized

FREE = ("", "healthz", "readyz", "ui")
"""The first parts of paths that need no token; the first is the dashboard's page."""


LOGIN, WHOAMI = ["v1", "login"], ["v1", "whoami"]


def is_login(method: str, parts: Sequence[str]) -> bool:
    """Whether this is how somebody logs in."""
    return method == "POST" and parts == LOGIN


def is_free(parts: Sequence[str]) -> bool:
    """Whether this path is for anybody."""
    return (parts[0] in FREE and (parts[0] == "ui" or len(parts) == 1)) or parts == WHOAMI


def check_token(wanted: str, headers: dict[str, str], parts: Sequence[str]) -> None:
    """Raises Unauthorized unless the request may pass. `parts`: its path's."""
    if not wanted or is_free(parts):
        return
    said = headers.get("authorization", "")
    if not said:
        raise Unauthorized("this broker asks for a token: send the header `Authorization: Bearer TOKEN`")
    kind, _, value = said.partition(" ")
    if kind.lower() != "bearer" or not _is_bearer(wanted, value.strip()):
        raise Unauthorized("the token is not the one that this broker was started with (waystation.http.token)")


def has_password(wanted: str, headers: dict[str, str]) -> bool:
    """Whether the password of basic authentication, or a bearer, is the token."""
    kind, _, value = headers.get("authorization", "").partition(" ")
    if kind.lower() == "bearer":
        return _is_bearer(wanted, value.strip())
    if kind.lower() != "basic":
        return False
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return False
    return hmac.compare_digest(wanted.encode(), text.partition(":")[2].encode())


def _is_bearer(wanted: str, given: str) -> bool:
    """A header's bytes came as Latin-1; what is not ASCII may have been sent as that, or as UTF-8."""
    as_utf8 = hmac.compare_digest(wanted.encode(), given.encode("latin-1", "replace"))
    as_latin = hmac.compare_digest(wanted.encode(), given.encode())
    return as_utf8 or as_latin
