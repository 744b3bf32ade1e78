"""What the entries of the catalog say: a key for each thing that exists, and its value as JSON.

| key | value |
| --- | --- |
| `topics/ID` | a `TopicRow` |
| `topic-names/NAME` | the topic's id: that two topics have one name is a conflict of this key |
| `deleted-topics/ID` | a `DeletedTopic` |
| `exchanges/NAME` | an `ExchangeRow` |
| `bindings/EXCHANGE/TARGET/KEY/ARGUMENTS` | a `BindingRow`; the parts percent-encoded, of the arguments a digest |
| `settings/NAME` | the value, as it was written |
| `definitions/KIND/NAME` | bytes of whoever owns the kind |

Pure. Nothing but this module knows how a key is spelled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TypeVar
from uuid import UUID

import msgspec

from waystation.errors import Corrupt

T = TypeVar("T")

TOPICS = "topics/"
TOPIC_NAMES = "topic-names/"
DELETED_TOPICS = "deleted-topics/"
EXCHANGES = "exchanges/"
BINDINGS = "bindings/"
SETTINGS = "settings/"
DEFINITIONS = "definitions/"

NO_ARGUMENTS = b"\x80"


class TopicRow(msgspec.Struct, frozen=True):
    """A topic as it is remembered."""

    name: str
    id: UUID
    partitions: int
    internal: bool = False
    overrides: dict[str, str] = msgspec.field(default_factory=dict)
    created_ms: int = 0
    """0: not known, an earlier version made it."""


class DeletedTopic(msgspec.Struct, frozen=True):
    """A topic that was deleted and whose files may still be there."""

    name: str
    id: UUID
    removed: tuple[int, ...] = ()
    """In a cluster: the nodes that have none of its files any more."""


class ExchangeRow(msgspec.Struct, frozen=True):
    """An exchange that survives a restart."""

    name: str
    kind: str
    alternate: str | None = None
    auto_delete: bool = False
    internal: bool = False
    arguments: bytes = NO_ARGUMENTS
    """A msgpack map."""


class BindingRow(msgspec.Struct, frozen=True):
    """A binding that survives a restart. All four fields together tell it from others."""

    exchange: str
    target: str
    key: str = ""
    arguments: bytes = NO_ARGUMENTS
    """A msgpack map with its names in order."""


_topic = msgspec.json.Decoder(TopicRow)
_deleted = msgspec.json.Decoder(DeletedTopic)
_exchange = msgspec.json.Decoder(ExchangeRow)
_binding = msgspec.json.Decoder(BindingRow)


def encode(row: TopicRow | DeletedTopic | ExchangeRow | BindingRow) -> bytes:
    return msgspec.json.encode(row)


def read_topic(value: bytes) -> TopicRow:
    return _read(_topic, value)


def read_deleted_topic(value: bytes) -> DeletedTopic:
    return _read(_deleted, value)


def read_exchange(value: bytes) -> ExchangeRow:
    return _read(_exchange, value)


def read_binding(value: bytes) -> BindingRow:
    return _read(_binding, value)


def _read(decoder: msgspec.json.Decoder[T], value: bytes) -> T:
    try:
        return decoder.decode(value)
    except msgspec.DecodeError as error:
        raise Corrupt(f"an entry of the catalog cannot be read ({error}): {value[:100]!r}") from error


# -- keys -------------------------------------------------------------------------------------------------------------


def topic_key(topic_id: UUID) -> str:
    return f"{TOPICS}{topic_id}"


def topic_name_key(name: str) -> str:
    return TOPIC_NAMES + name


def deleted_topic_key(topic_id: UUID) -> str:
    return f"{DELETED_TOPICS}{topic_id}"


def exchange_key(name: str) -> str:
    return EXCHANGES + name


def exchange_name(key: str) -> str:
    return key.removeprefix(EXCHANGES)


def binding_key(row: BindingRow) -> str:
    from urllib.parse import quote  # 2 ms to load, which a start without bindings need not pay

    digest = "" if row.arguments == NO_ARGUMENTS else hashlib.sha256(row.arguments).hexdigest()[:32]
    return BINDINGS + "/".join((*(quote(part, safe="") for part in (row.exchange, row.target, row.key)), digest))


def binding_parts(key: str) -> tuple[str, str, str]:
    """(exchange, target, key) of the binding that a key of the catalog names."""
    from urllib.parse import unquote  # as above

    exchange, target, routing_key, _ = key.removeprefix(BINDINGS).split("/")
    return unquote(exchange), unquote(target), unquote(routing_key)


def setting_key(name: str) -> str:
    return SETTINGS + name


def setting_name(key: str) -> str:
    return key.removeprefix(SETTINGS)


def definitions_of(kind: str) -> str:
    return f"{DEFINITIONS}{kind}/"


def definition_key(kind: str, name: str) -> str:
    return definitions_of(kind) + name


def definition_name(kind: str, key: str) -> str:
    return key.removeprefix(definitions_of(kind))


# -- changes that belong together -------------------------------------------------------------------------------------


def topic_saved(row: TopicRow) -> dict[str, bytes | None]:
    """What a new topic writes, and one whose deletion is taken back."""
    return {
        topic_key(row.id): encode(row),
        topic_name_key(row.name): str(row.id).encode(),
        deleted_topic_key(row.id): None,
    }


def topic_deleted(row: TopicRow) -> dict[str, bytes | None]:
    """Its deletion is remembered in the same step: the files are there a little longer."""
    return {
        topic_key(row.id): None,
        topic_name_key(row.name): None,
        deleted_topic_key(row.id): encode(DeletedTopic(row.name, row.id)),
    }


def routes_deleted(exchanges: Iterable[str], bindings: Iterable[BindingRow]) -> dict[str, bytes | None]:
    return dict.fromkeys([*map(exchange_key, exchanges), *map(binding_key, bindings)])
