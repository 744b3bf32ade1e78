"""API keys as every protocol shows them, and as they are added and removed.

What is shown of a key is its beginning. The key itself is in the answer to the one who adds it, and nowhere else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from waystation.paging import After, Limit, Next, Search, Total, page_of
from waystation.security.api_keys import DEFAULT_LIFE_MS, ApiKey, id_in, shown

if TYPE_CHECKING:
    from waystation.admin.managed import ManagedBroker

RoleName = Annotated[
    str, Meta(description="`full`: all that its user may do; `read-only`: to look, and to read topics")
]


class KeyOut(msgspec.Struct):
    """A key, without its secret."""

    key: Annotated[str, Meta(description="its beginning")]
    user: Annotated[str, Meta(description="whose it is")]
    role: RoleName
    note: str
    created_ms: int
    expires_ms: int
    expired: bool


class KeyList(msgspec.Struct):
    keys: list[KeyOut]
    next: Next
    total: Total


class KeysQuery(msgspec.Struct):
    search: Search = ""
    after: After = ""
    limit: Limit = 100


class KeyQuery(msgspec.Struct):
    key: Annotated[str, Meta(description="its beginning, as the list shows it")]


class AddKey(msgspec.Struct, kw_only=True):
    user: str
    role: RoleName = "full"
    expires_in_ms: Annotated[int, Meta(description="how long it is valid; 90 days unless it is given")] = (
        DEFAULT_LIFE_MS
    )
    note: Annotated[str, Meta(description="what it is for")] = ""


class KeyAdded(KeyOut):
    secret: Annotated[str, Meta(description="the whole key: it is shown here, and never again")]


async def keys_page(broker: ManagedBroker, query: KeysQuery) -> KeyList:
    """By owner, the oldest first. A search finds the owner, the beginning of the key, and the note."""
    known = {f"{key.owner} {shown(key_id)} {key.note}": key_id for key_id, key in broker.api_keys.listing()}
    page = await page_of(sorted(known), query.search, query.after or None, query.limit)
    found = ((known[name], broker.api_keys.find(known[name])) for name in page.names)
    return KeyList([_shown(broker, key_id, key) for key_id, key in found if key is not None], page.next, page.total)


async def add_key(broker: ManagedBroker, asked: AddKey) -> KeyAdded:
    made = await broker.api_keys.add(asked.user, asked.role, asked.expires_in_ms, asked.note)
    return KeyAdded(**msgspec.structs.asdict(_shown(broker, made.id, made.key)), secret=made.text)


async def remove_key(broker: ManagedBroker, query: KeyQuery) -> None:
    await broker.api_keys.remove(id_in(query.key))


def described(asked: AddKey) -> str:
    """For the audit log."""
    return f"role {asked.role[:20]}, for {asked.expires_in_ms // 1000} s"


def beginning(query: KeyQuery) -> str:
    """For the audit log: never the whole key, should somebody have sent that."""
    return f"key {shown(id_in(query.key)[:40])}"


def _shown(broker: ManagedBroker, key_id: str, key: ApiKey) -> KeyOut:
    expired = key.expires_ms <= broker.world.clock.now_ms()
    return KeyOut(shown(key_id), key.owner, key.role, key.note, key.created_ms, key.expires_ms, expired)
