"""Finds the route of a request. Paths are compared part by part; a literal part wins over a name."""

from __future__ import annotations

from collections.abc import Iterable

from waystation.errors import NotFound
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.problems import MethodNotAllowed


class _Node:
    """A part of a path: what may follow it, and the routes that end here."""

    __slots__ = ("literals", "name", "named", "routes")

    def __init__(self) -> None:
        self.literals: dict[str, _Node] = {}
        self.named: _Node | None = None
        self.name = ""
        self.routes: dict[str, AnyRoute] = {}


class Router:
    """All routes of HTTP."""

    def __init__(self, routes: Iterable[AnyRoute]) -> None:
        self._root = _Node()
        for route in routes:
            self._add(route)

    def _add(self, route: AnyRoute) -> None:
        node = self._root
        for part in route.path[1:].split("/"):
            if part.startswith("{"):
                node.named = node.named or _Node()
                node.named.name = part[1:-1]
                node = node.named
            else:
                node = node.literals.setdefault(part, _Node())
        if route.method in node.routes:
            raise ValueError(f"two routes for {route.method} {route.path}")
        node.routes[route.method] = route

    def find(self, method: str, parts: list[str]) -> tuple[AnyRoute, dict[str, str]]:
        """The route and the names in its path; raises NotFound or MethodNotAllowed."""
        names: dict[str, str] = {}
        node = self._walk(self._root, parts, 0, names)
        if node is None:
            raise NotFound(f"there is nothing at /{'/'.join(parts)[:200]}; /openapi.json lists what there is")
        route = node.routes.get("GET" if method == "HEAD" else method)
        if route is None or (method == "HEAD" and (route.changing or route.streams)):
            raise MethodNotAllowed(method, f"/{'/'.join(parts)[:200]}", sorted(node.routes))
        return route, names

    def _walk(self, node: _Node, parts: list[str], at: int, names: dict[str, str]) -> _Node | None:
        if at == len(parts):
            return node if node.routes else None
        literal = node.literals.get(parts[at])
        found = None if literal is None else self._walk(literal, parts, at + 1, names)
        if found is None and node.named is not None and parts[at]:
            found = self._walk(node.named, parts, at + 1, names)
            if found is not None:
                names[node.named.name] = parts[at]
        return found
