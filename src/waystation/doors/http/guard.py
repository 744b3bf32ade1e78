"""Who may ask: keeps web pages of other origins away from a broker that asks for no password.

A browser on the broker's machine runs pages from anywhere, and they can make it send requests to 127.0.0.1. Three facts
tell such a request from an honest one:

- **Host.** A page that points its own name at 127.0.0.1 (DNS rebinding) sends that name. So the host has to be an IP
  address, `localhost`, a name without a dot (no public name is one), the name that the door listens on, or one of
  `waystation.http.hosts`.
- **Origin.** Browsers send it with every request of a page that is not a plain read. Where it is sent, it has to be
  the door's own.
- **Sec-Fetch-Site.** Browsers send it with plain reads too. A read that changes something (taking a message) is refused
  when it comes from another site; one that changes nothing tells another site's page nothing, since we send no CORS
  header that would let it see the answer.

Programs that are not browsers send neither of the last two.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from waystation.doors.http.problems import Foreign

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:,/@\[\]]+))(?::\d+)?")
_OWN_SITE = ("same-origin", "none")


class Guard:
    """One per door."""

    def __init__(self, host: str) -> None:
        self._own = host.lower()
        self._known: dict[tuple[str, str], bool] = {}

    def check(self, headers: dict[str, str], allowed: str, *, changes: bool) -> None:
        """Raises Foreign unless the request may pass. `allowed`: further host names, separated by commas."""
        host = headers.get("host", "")
        if not self._host_allowed(host, allowed):
            raise Foreign(
                f"the host {host[:100]!r} is not one of this broker's: use its IP address or localhost, or add the name"
                " to the setting waystation.http.hosts"
            )
        origin = headers.get("origin")
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            raise Foreign(f"a page of {origin[:100]!r} may not use this broker: its origin is not {host!r}")
        if changes and headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            raise Foreign("a page of another site may not change anything here")

    def _host_allowed(self, host: str, allowed: str) -> bool:
        known = self._known.get((host, allowed))
        if known is None:
            known = _is_allowed(_name_of(host), self._own, allowed)
            if len(self._known) >= 100:
                self._known.clear()  # a client that sends ever other hosts shall not fill the memory
            self._known[host, allowed] = known
        return known


def _is_allowed(name: str, own: str, allowed: str) -> bool:
    if not name:
        return True  # HTTP/1.0 need not say it; every browser does
    if name in (own, "localhost") or name.endswith(".localhost") or "." not in name:
        return True
    return _is_ip(name) or name in {known.strip().lower() for known in allowed.split(",")}


def _name_of(host: str) -> str:
    """The name in a Host header, without brackets and port; what is none is a name that nobody has."""
    if not host:
        return ""
    found = _HOST.fullmatch(host.strip().lower())
    return (found[1] or found[2]) if found is not None else "no.host"


def _is_ip(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
