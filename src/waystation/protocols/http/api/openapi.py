"""The OpenAPI 3.1 document of HTTP's routes, made from the same rows that answer requests."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from waystation.protocols.http.auth.token import is_free, is_login
from waystation.protocols.http.transport.bodies import (
    KEY_HEADER,
    NAMESPACE_HEADER,
    NUMBER_HEADERS,
    OWN_HEADER,
    TEXT_HEADERS,
    MessageIn,
)
from waystation.protocols.http.transport.calls import AnyRoute, Messages, Nothing
from waystation.protocols.http.transport.problems import PROBLEM_TYPE, Problem
from waystation.protocols.http.transport.replies import EVENTS_TYPE, JSON_TYPE
from waystation.version import __version__

_REFERENCE = "#/components/schemas/{name}"
_ABOUT = (
    "Topics, queues, routing and everything else of a Waystation broker. Errors are problem documents (RFC 9457)."
    " Names in paths are percent-encoded UTF-8 and may contain slashes. Durations end in `_ms`, times are milliseconds"
    " since 1970. A `stream` route is a WebSocket if it is asked for one, else server-sent events."
)
_NAMESPACE = {
    "name": NAMESPACE_HEADER,
    "in": "header",
    "required": False,
    "schema": {"type": "string"},
    "description": "the namespace that the request is in, instead of that of the login name or the user's home",
}
_LOGINS = {"token": {"type": "http", "scheme": "bearer"}, "password": {"type": "http", "scheme": "basic"}}
_STREAM = (
    "WebSocket: the broker sends `{kind: deliver, messages: […]}`, `{kind: answer, id, settled, unknown}`,"
    " `{kind: failure, id, problem}` and `{kind: ceased, problem}`; the client sends `{action: ack | reject | release |"
    " touch, ack_ids: […], …}` and, if it opened with `credit`, `{action: credit, count}`; with an `id` it is answered."
)


def document(routes: Iterable[AnyRoute]) -> dict[str, Any]:
    """The whole document, as JSON has it."""
    routes = list(routes)
    wanted: list[Any] = [Problem, MessageIn]
    for route in routes:
        wanted += [kind for kind in (route.body, route.answer, route.later) if kind not in (Messages, Nothing, None)]
    schemas, components = msgspec.json.schema_components(_once(wanted), ref_template=_REFERENCE)
    known = dict(zip(map(_key, _once(wanted)), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, known)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Waystation", "version": __version__, "description": _ABOUT},
        "tags": [{"name": tag} for tag in dict.fromkeys(route.tag for route in routes)],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": _LOGINS},
        "security": [{}, *({name: []} for name in _LOGINS)],  # nobody is asked while there are no users and no token
    }


def _operation(route: AnyRoute, known: dict[str, Any]) -> dict[str, Any]:
    described = " ".join(text for text in (route.description, _STREAM if route.streams else "") if text)
    operation: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": [
            *_path_parameters(route),
            *_query_parameters(route),
            *_header_parameters(route),
            *_namespace_parameter(route),
        ],
        "responses": _responses(route, known),
    }
    if described:
        operation["description"] = described
    if route.body is Messages:
        one = known[_key(MessageIn)]
        many = {"type": "array", "items": one, "minItems": 1}
        content: dict[str, Any] = {JSON_TYPE: {"schema": {"oneOf": [one, many]}}, "application/octet-stream": {}}
        operation["requestBody"] = {"required": True, "content": content}
    elif route.body is not Nothing:
        content = {JSON_TYPE: {"schema": known[_key(route.body)]}}
        operation["requestBody"] = {"required": not route.optional_body, "content": content}
    return operation


def _path_parameters(route: AnyRoute) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", route.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _query_parameters(route: AnyRoute) -> list[dict[str, Any]]:
    if route.query is Nothing:
        return []
    _, components = msgspec.json.schema_components([route.query])
    (schema,) = components.values()
    required = schema.get("required", ())
    found = []
    for name, described in schema["properties"].items():
        parameter = {"name": name, "in": "query", "required": name in required, "schema": described}
        if "description" in described:
            parameter["description"] = described.pop("description")
        found.append(parameter)
    return found


def _header_parameters(route: AnyRoute) -> list[dict[str, Any]]:
    """Of a body that is a payload as it is."""
    if route.body is not Messages:
        return []
    texts = {**TEXT_HEADERS, KEY_HEADER: "key", f"{OWN_HEADER}NAME": "a header of the message"}
    kinds = [*((name, field, "string") for name, field in texts.items())]
    kinds += [(name, field, "integer") for name, field in NUMBER_HEADERS.items()]
    return [
        {
            "name": name,
            "in": "header",
            "required": False,
            "schema": {"type": kind},
            "description": f"`{field}` of a raw payload" if " " not in field else field,
        }
        for name, field, kind in kinds
    ]


def _namespace_parameter(route: AnyRoute) -> list[dict[str, Any]]:
    """Where somebody is in a namespace: not before a login, nor where nobody is asked for one."""
    parts = route.path.removeprefix("/").split("/")
    return [] if is_free(parts) or is_login(route.method, parts) else [_NAMESPACE]


def _responses(route: AnyRoute, known: dict[str, Any]) -> dict[str, Any]:
    problem = {PROBLEM_TYPE: {"schema": known[_key(Problem)]}}
    responses: dict[str, Any] = {}
    if route.streams:
        responses["101"] = {"description": "the connection is a WebSocket now"}
        responses["200"] = {
            "description": "server-sent events: `message` with a message, `ceased` with a problem",
            "content": {EVENTS_TYPE: {"schema": {"type": "string"}}},
        }
    elif route.answer is None and not route.media:
        responses[str(route.status)] = {"description": "done"}
    else:
        content: dict[str, Any] = {media: {"schema": {"type": "string"}} for media in route.media}
        if route.answer is not None:
            content[JSON_TYPE] = {"schema": known[_key(route.answer)]}
        responses[str(route.status)] = {"description": _first_line(route), "content": content}
        if route.creates:
            responses["201"] = {"description": "made", "content": content}
    if route.later is not None:
        content = {JSON_TYPE: {"schema": known[_key(route.later)]}}
        responses["202"] = {"description": "it is done in the background", "content": content}
    if route.empty:
        responses["204"] = {"description": route.empty}
    responses["default"] = {"description": "a problem", "content": problem}
    return responses


def _first_line(route: AnyRoute) -> str:
    """What the answer is, in its own words where it has some."""
    text = vars(route.answer).get("__doc__") if isinstance(route.answer, type) else None
    return str(text).splitlines()[0] if text and route.answer.__module__.startswith("waystation") else "done"


def _once(kinds: Iterable[Any]) -> list[Any]:
    """Each type once, in order; a generic alias like `dict[str, Any]` is equal to itself but hashes by its parts."""
    return list({_key(kind): kind for kind in kinds}.values())


def _key(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{kind if not isinstance(kind, type) else kind.__qualname__}"
