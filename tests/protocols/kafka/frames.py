"""A well-formed frame of every API in every version that the protocol advertises, made from the schemas themselves.

What the fuzzer mutates, and what the "every advertised version works" test sends as it is.
"""

from __future__ import annotations

import dataclasses
import datetime
import struct
import types
import typing
from importlib import import_module
from io import BytesIO
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_writer
from kio.static.constants import EntityType

from waystation.log.batches import batch
from waystation.protocols.kafka.apis import APIS
from waystation.protocols.kafka.requests.registry import Api

TOPIC = "fuzzed"
UNKNOWN_ID = UUID(int=7)


def apis() -> list[Api]:
    """Everything that the protocol answers."""
    return [APIS[key] for key in sorted(APIS)]


def records() -> bytes:
    return bytes(batch.build([(b"key", b"value " * 10, (("header", b"x"),))], 1_700_000_000_000))


def frame(api: Api, version: int, correlation_id: int = 1) -> bytes:
    """Size, header and body of a request that a client could have sent."""
    if api.name == "produce" and version < 3:
        body, flexible = _old_produce(), False
    else:
        path = schema_name_map[api.name][version][EntityType.request]
        entity = getattr(import_module(path.partition(":")[0]), path.partition(":")[2])
        buffer = BytesIO()
        entity_writer(entity)(buffer, sample(entity))
        body, flexible = buffer.getvalue(), bool(entity.__flexible__)
    header = struct.pack(">hhih4s", api.key, version, correlation_id, 4, b"fuzz") + (b"\0" if flexible else b"")
    return struct.pack(">i", len(header) + len(body)) + header + body


def _old_produce() -> bytes:
    """Produce 0–2, which the schemas no longer have."""
    data = records()
    topic = TOPIC.encode()
    head = struct.pack(">hiih", -1, 1_000, 1, len(topic)) + topic
    return head + struct.pack(">iii", 1, 0, len(data)) + data


def sample(entity: Any) -> Any:
    """An instance of a schema class with something plausible in every field."""
    hints = typing.get_type_hints(entity)
    values = {field.name: _value(field.name, hints[field.name], field.metadata) for field in dataclasses.fields(entity)}
    return entity(**values)


def _value(name: str, kind: Any, metadata: Any) -> Any:
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = next(arg for arg in typing.get_args(kind) if arg is not type(None))
    if typing.get_origin(kind) is tuple:
        return (_value(name, typing.get_args(kind)[0], metadata),)
    if dataclasses.is_dataclass(kind):
        return sample(kind)
    if name in SPECIAL:
        return SPECIAL[name]
    return BY_TYPE[str(metadata.get("kafka_type"))]


SPECIAL: dict[str, Any] = {
    "acks": -1,
    "max_wait": datetime.timedelta(0),
    "max_bytes": 1_000_000,
    "partition_max_bytes": 1_000_000,
    "session_epoch": -1,
    "replica_id": -1,
    "transactional_id": "fuzz-tx",
    "session_id": 0,
}

BY_TYPE: dict[str, Any] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint16", "uint32"), 0),
    "float64": 0.0,
    "bool": False,
    "string": TOPIC,
    "bytes": b"\0\1",
    "records": records(),
    "uuid": UNKNOWN_ID,
    "error_code": ErrorCode.none,
    "timedelta_i32": datetime.timedelta(milliseconds=200),
    "timedelta_i64": datetime.timedelta(milliseconds=200),
    "datetime_i64": datetime.datetime.fromtimestamp(1_700_000_000, datetime.UTC),
}
