"""The dashboard's files: what is in the folder `dashboard`, as it is, and nothing else.

Nothing is built and nothing comes from elsewhere: the content security policy says so to the browser. A file is read
when it is first asked for and kept; a browser that has it asks with its tag and gets 304.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.errors import NotFound
from waystation.protocols.http.transport.calls import AnyRoute, Call, Nothing, Outcome, Route
from waystation.protocols.http.transport.replies import Reply

if TYPE_CHECKING:
    from waystation.protocols.http.request_dispatcher import RequestDispatcher

TAG = "dashboard"
FOLDER = Path(__file__).parent.parent / "dashboard"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
MEDIA = tuple(TYPES.values())
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_NAME = re.compile(r"(?:(?:lib|pages)/)?[a-z_]+\.[a-z]+", re.ASCII)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}


class DashboardFiles:
    """One per listener: the files that were asked for, and their tags."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, str]] = {}

    def reply(self, name: str, has: str | None = None) -> Reply:
        """The file, or 304 for a browser that has it (`has`: the tag it sent). A name is `FILE` or `FOLDER/FILE`."""
        kept = self._known.get(name)
        if kept is None:
            kept = self._known[name] = self._read(name)
        body, tag = kept
        headers = {**HEADERS, "etag": tag}
        if has == tag:
            return Reply(304, b"", TYPES[Path(name).suffix], headers)
        return Reply(200, body, TYPES[Path(name).suffix], headers)

    def _read(self, name: str) -> tuple[bytes, str]:
        path = FOLDER / name
        # Plain words only: a part like `..` would leave the folder, and a file with ever other names would be kept as
        # often as it has names, for anybody who asks.
        if not _NAME.fullmatch(name) or path.suffix not in TYPES or not path.is_file():
            raise NotFound(f"the dashboard has no file {name[:100]!r}")
        body = path.read_bytes()
        return body, f'"{blake2b(body, digest_size=9).hexdigest()}"'


async def file(dispatcher: RequestDispatcher, call: Call[Nothing, Nothing]) -> Outcome:
    name = "/".join(part for part in (call.path["name"], call.path.get("file")) if part)
    return dispatcher.files.reply(name, call.request.headers.get("if-none-match"))


ROUTES: tuple[AnyRoute, ...] = (
    Route("GET", "/ui/{name}", file, "A file of the dashboard", tag=TAG, media=MEDIA),
    Route("GET", "/ui/{name}/{file}", file, "A file of the dashboard, in a folder", tag=TAG, media=MEDIA),
)
