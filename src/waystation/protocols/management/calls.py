"""RabbitMQ's management API, what its calls have in common: who may call, the virtual host, the query, the errors.

The API is RabbitMQ's: paths, fields and errors (`{"error": …, "reason": …}`) are those that its tools know. What is
unknown in a query or a body is passed over, as there. Errors of the broker and of virtual hosts are translated here and
nowhere else. The handlers of this folder use this; nobody else.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from waystation.errors import Conflict, Full, Invalid, NotAllowed, NotFound, WaystationError
from waystation.protocols.http.auth.token import has_password
from waystation.protocols.http.transport.calls import (
    AnyQuery,
    AnyRoute,
    Call,
    Method,
    Nothing,
    Outcome,
    Route,
    read_json,
)
from waystation.protocols.http.transport.problems import MethodNotAllowed, Unauthorized, status_of
from waystation.protocols.http.transport.replies import Reply, json_reply
from waystation.wire.amqp.errors import ACCESS_REFUSED, NOT_FOUND, AmqpError

if TYPE_CHECKING:
    from waystation.broker.access import Access
    from waystation.protocols.management.api import Management

PREFIX = "/api"
TAG = "rabbitmq"
USER = "guest"
DEFAULT_EXCHANGE = "amq.default"
"""What the default exchange is called in paths, since its name is empty."""

ApiCall = Call[AnyQuery, Nothing]
Handler = Callable[["Management", ApiCall], Awaitable[Any]]


class Refused(Invalid):
    """Answered with this status, and RabbitMQ's two words."""

    def __init__(self, status: int, error: str, reason: Any) -> None:
        super().__init__(str(reason))
        self.status = status
        self.error = error
        self.reason = reason


def bad_request(reason: Any) -> Refused:
    return Refused(400, "bad_request", reason)


def not_found() -> Refused:
    return Refused(404, "Object Not Found", "Not Found")


def parts_of(parts: list[str]) -> list[str]:
    """A path's parts: a slash at the end means nothing."""
    return parts[:-1] if len(parts) > 1 and not parts[-1] else parts


def error_reply(error: WaystationError) -> Reply:
    """Any error, as RabbitMQ's tools expect one."""
    if isinstance(error, Unauthorized):
        error = Refused(401, "not_authorized", "Login failed")
    if isinstance(error, Refused):
        reply = json_reply({"error": error.error, "reason": error.reason}, error.status)
        if error.status == 401:
            reply.headers = {"www-authenticate": 'Basic realm="Waystation"'}
        return reply
    if isinstance(error, MethodNotAllowed):
        return Reply(405, headers={"allow": ", ".join(error.allowed)})
    if isinstance(error, NotFound):
        return json_reply({"error": "not_found", "reason": str(error)}, 404)
    if isinstance(error, NotAllowed):
        return json_reply({"error": "not_authorised", "reason": str(error)}, 401)
    if isinstance(error, Invalid | Conflict | Full):
        return json_reply({"error": "bad_request", "reason": str(error)}, 400)
    return json_reply({"error": type(error).__name__, "reason": str(error)}, status_of(error))


def of_amqp(error: AmqpError) -> Refused:
    """What would end a channel, as an answer."""
    if error.code == NOT_FOUND:
        return Refused(404, "not_found", error.text)
    if error.code == ACCESS_REFUSED:
        return Refused(401, "not_authorised", error.text)
    return bad_request(error.text)


def route(method: Method, path: str, handler: Handler, summary: str, *, changes: bool | None = None) -> AnyRoute:
    """A row of the API: whoever calls is checked, and refusals of virtual hosts are told."""

    @wraps(handler)
    async def guarded(api: Management, call: ApiCall) -> Outcome:
        if api.principal.anonymous:
            check_user(call.request.headers, api.node.settings.text("waystation.http.token"))
        try:
            answer = await handler(api, call)
        except AmqpError as error:
            raise of_amqp(error) from error
        if answer is None or isinstance(answer, Reply):
            return answer
        return json_reply(answer)

    return Route(
        method,
        f"{PREFIX}{path}",
        guarded,
        summary,
        tag=TAG,
        query=AnyQuery,
        changes=changes,
        instead="a program that is no browser",
        lenient=True,  # RabbitMQ's tools send no header of ours
    )


def check_user(headers: dict[str, str], token: str = "") -> None:
    """While the broker asks for no password: guest, or nobody at all. With a token, that is the password of anybody."""
    said = headers.get("authorization")
    if token:
        if not has_password(token, headers):
            raise Refused(401, "not_authorized", "Login failed")
        return
    if said is None:
        return
    kind, _, value = said.partition(" ")
    try:
        text = base64.b64decode(value.strip(), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError, ValueError):
        text = ""
    if kind.lower() != "basic" or text != f"{USER}:{USER}":
        raise Refused(401, "not_authorized", "Login failed")


# -- what a call says --------------------------------------------------------------------------------------------------


def vhost_of(api: Management, call: ApiCall) -> Access:
    """To the virtual host in the path, which has to be there."""
    vhost = call.path["vhost"]
    if not api.access.namespaces.exists(vhost):
        raise not_found()
    return api.within(vhost)


def vhost_to_change(api: Management, call: ApiCall) -> Access:
    vhost = call.path["vhost"]
    if not api.access.namespaces.exists(vhost):
        raise Refused(404, "not_found", "vhost_not_found")
    return api.within(vhost)


def body_of(call: ApiCall, *required: str) -> dict[str, Any]:
    """The body, which is an object with these fields; an empty one is an empty object."""
    try:
        value = read_json(call.request.body) if call.request.body.strip() else {}
    except Invalid:
        raise bad_request("failed_to_parse_json") from None
    if not isinstance(value, dict):
        raise bad_request("the body has to be a JSON object")
    missing = [f"{{key_missing,{name}}}" for name in required if name not in value]
    if missing:
        raise bad_request(f"[{','.join(missing)}]")
    return value


def flag(value: object, name: str) -> bool:
    """RabbitMQ takes the words as well."""
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise bad_request(f"{name}: {value!r} is neither true nor false")


def number(value: object, name: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value.removeprefix("-").isdecimal() and len(value) < 20:
        return int(value)
    raise bad_request(f"{name}: {value!r} is not a number")


def text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise bad_request(f"{name}: {value!r} is not a text")
    return value


def table(value: object, name: str) -> dict[str, Any]:
    """Arguments or headers."""
    if value is None or value == []:  # an empty table, as PHP writes it
        return {}
    if not isinstance(value, dict):
        raise bad_request(f"{name}: it has to be a JSON object")
    return value


def exchange_name(name: str) -> str:
    return "" if name == DEFAULT_EXCHANGE else name
