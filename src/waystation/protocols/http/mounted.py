"""APIs of others that the HTTP listener serves beside its own, each under a path of its own.

They are handed in where the listener is constructed, so that this protocol knows none of them; each is loaded at its
first request. An API finds its own routes, checks who calls, and says errors in its own words. Requests to it pass the
same guard against other sites' pages, the same budget and the same meters as all others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from waystation.broker.access.types import Principal
from waystation.errors import WaystationError
from waystation.protocols.http.transport.calls import AnyRoute
from waystation.protocols.http.transport.replies import Reply

if TYPE_CHECKING:
    from waystation.broker.access import Access


class MountedApi(Protocol):
    """Its routes' handlers are given the API itself."""

    access: Access

    def find(self, method: str, parts: list[str]) -> tuple[AnyRoute, dict[str, str]]:
        """The route and the names in its path; raises NotFound or MethodNotAllowed."""

    def of(self, principal: Principal) -> MountedApi:
        """The same for requests of this principal."""

    def error_reply(self, error: WaystationError) -> Reply:
        """Any error, as this API's clients expect one."""


Load = Callable[[], MountedApi]
Mounts = Mapping[str, Load]
"""By the beginning of the path, with its last slash."""


class Mounted:
    """One per listener."""

    def __init__(self, mounts: Mounts) -> None:
        self._mounts = {prefix.encode(): load for prefix, load in mounts.items()}
        self._loaded: dict[bytes, MountedApi] = {}

    def at(self, target: bytes) -> MountedApi | None:
        """The API that this request is for; None: the listener's own."""
        for prefix, load in self._mounts.items():
            if target.startswith(prefix):
                if prefix not in self._loaded:
                    self._loaded[prefix] = load()
                return self._loaded[prefix]
        return None
