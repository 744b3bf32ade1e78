"""Who may ask: keeps web pages of other origins away from a broker that asks for no password.

A browser on the broker's machine runs pages from anywhere, and they can make it send requests to 127.0.0.1. Three facts
tell such a request from an honest one:

- **Host.** A page that points its own name at 127.0.0.1 (DNS rebinding) sends that name. So the host has to be an IP
  address, `localhost`, a name without a dot (no public name is one), a name that the listener has or advertises, or
  one of `waystation.http.hosts`.
- **Origin.** Browsers send it with every POST, PUT, PATCH and DELETE of a page and with every WebSocket. Where it is
  sent, it has to be the listener's own.
- **Sec-Fetch-Site.** Browsers send it with plain reads too, but only to origins that they trust: HTTPS, or loopback. So
  its absence says nothing. Where it is sent and names another site, nothing can be changed.

What remains is a plain read that changes something (taking a message), sent to a plain HTTP address of another machine:
an `<img>` can cause it, and nothing in it is certain. So such a read has to be vouched for by what a page of another
origin cannot produce without asking first (a CORS preflight, which we never allow): the header `X-Requested-With`, with
any value, or a browser's word that the page is our own. A read that changes nothing tells another site's page nothing,
since we send no CORS header that would let it see the answer.

Two old routes are reads that change something by the contract of others (`lenient`): there, a program that shows no
sign of a browser passes without the header. The same holds for a POST that a plain form could send.
"""

from __future__ import annotations

import re
from ipaddress import ip_address

from waystation.protocols.http.transport.problems import Foreign

_HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^\s:,/@\[\]]+))(?::\d+)?")
_OWN_SITE = ("same-origin", "none")
VOUCHER = "x-requested-with"
"""No page can send this header to another origin without a preflight, whatever its value."""

_FORM_TYPES = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
"""Content types that a page may send to another origin without a preflight."""


class Guard:
    """One per listener."""

    def __init__(self, *hosts: str) -> None:
        self._own = tuple(host.lower() for host in hosts)
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

    @staticmethod
    def check_read(headers: dict[str, str], what: str, instead: str, *, lenient: bool) -> None:
        """A GET that changes something: raises Foreign if a page of another origin could have caused it."""
        if _is_vouched(headers) or (lenient and not _is_a_browsers(headers)):
            return
        raise Foreign(
            f"{what} changes something, and any web page can make a browser send a GET: use {instead}, or send the"
            " header X-Requested-With (with any value)"
        )

    @staticmethod
    def check_post(headers: dict[str, str]) -> None:
        """A POST: raises Foreign if it came from a browser that hides where from, and a form could have sent it."""
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind in _FORM_TYPES and _is_a_browsers(headers) and not _is_vouched(headers):
            raise Foreign(
                "a browser sent this without an Origin, as a form of any page could: send it as application/json, or"
                " with the header X-Requested-With (with any value)"
            )

    def _host_allowed(self, host: str, allowed: str) -> bool:
        known = self._known.get((host, allowed))
        if known is None:
            known = _is_allowed(_name_of(host), self._own, allowed)
            if len(self._known) >= 100:
                self._known.clear()  # a client that sends ever other hosts shall not fill the memory
            self._known[host, allowed] = known
        return known


def _is_vouched(headers: dict[str, str]) -> bool:
    """Whether no page of another origin can have sent this. An `Origin` was compared before."""
    return VOUCHER in headers or "origin" in headers or headers.get("sec-fetch-site") in _OWN_SITE


def _is_a_browsers(headers: dict[str, str]) -> bool:
    """Whether there is a sign of a browser. Every browser says that it is Mozilla; a page cannot make it say less."""
    if headers.get("user-agent", "").lower().startswith("mozilla/"):
        return True
    return "referer" in headers or "sec-fetch-site" in headers or "cookie" in headers


def _is_allowed(name: str, own: tuple[str, ...], allowed: str) -> bool:
    if not name:
        return True  # HTTP/1.0 need not say it; every browser does
    if name in (*own, "localhost") or name.endswith(".localhost") or "." not in name:
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
