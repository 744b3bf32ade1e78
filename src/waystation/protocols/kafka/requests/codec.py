"""Kafka's messages to and from bytes, by the `kio` package, for everything but the two hot APIs.

Schemas are loaded per API and version on first use: a dataclass costs a millisecond to define, and a broker that
starts in a blink cannot pay for nine hundred of them. The hot APIs, Produce and Fetch, have hand-written codecs in
`records/produce_codec.py` and `records/fetch_codec.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from types import ModuleType
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from waystation.protocols.kafka.requests.bounds import check
from waystation.wire.kafka_types import Malformed

API_KEYS = {name: key for key, name in api_key_map.items()}


def versions_known(name: str) -> range:
    """The versions of an API that the codec can read and write."""
    versions = schema_name_map[name]
    return range(min(versions), max(versions) + 1)


def flexible(name: str, version: int) -> bool:
    """Whether this version uses compact encodings and tagged fields (KIP-482)."""
    return bool(_entity(name, version, EntityType.request).__flexible__)


def _entity(name: str, version: int, kind: EntityType) -> Any:
    path = schema_name_map[name][version][kind]  # type: ignore[index]  # kind is one of the loadable ones
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


@lru_cache(maxsize=512)
def _request_reader(name: str, version: int) -> Callable[[Any, int], tuple[Any, int]]:
    return entity_reader(_entity(name, version, EntityType.request))


@lru_cache(maxsize=512)
def _response_writer(name: str, version: int) -> Callable[[Any, Any], None]:
    return entity_writer(_entity(name, version, EntityType.response))


def decode_request(name: str, version: int, body: bytes) -> Any:
    """The request entity, or Malformed: whatever a hostile body makes the reader do, it is the peer's fault."""
    check(_entity(name, version, EntityType.request), body)
    try:
        request, _ = _request_reader(name, version)(body, 0)
    except MemoryError:
        raise
    except Exception as error:
        raise Malformed(f"{name} v{version} request does not parse: {type(error).__name__}: {error}") from error
    _refuse_nulls(request)
    return request


def _refuse_nulls(entity: Any) -> None:
    """The reader takes a null for any array; where the schema has no null, no handler expects one."""
    kind: Any = type(entity)
    for field, nullable in _arrays(kind):
        elements = getattr(entity, field)
        if elements is None:
            if not nullable:
                raise Malformed(f"{kind.__name__}.{field} is null")
        elif elements and dataclasses.is_dataclass(elements[0]):
            for element in elements:
                _refuse_nulls(element)


@lru_cache(maxsize=2048)
def _arrays(entity: Any) -> tuple[tuple[str, bool], ...]:
    """A class's array fields, and whether each may be null."""
    return tuple(
        (field.name, "None" in str(field.type).rpartition("]")[2])
        for field in dataclasses.fields(entity)
        if str(field.type).startswith("tuple")
    )


def encode_response(name: str, version: int, response: object) -> bytes:
    buffer = BytesIO()
    _response_writer(name, version)(buffer, response)
    return buffer.getvalue()


class ResponseMaker:
    """Builds response entities of one API version from the fields of the newest.

    A field that this version does not have is dropped; one that is not given gets the schema's default. So a handler
    is written once and answers every version.
    """

    __slots__ = ("_classes", "_module", "_name")

    def __init__(self, name: str, version: int) -> None:
        path = schema_name_map[name][version][EntityType.response]
        self._name = name
        self._module: ModuleType = import_module(path.partition(":")[0])
        self._classes: dict[str, _Shape] = {}

    def __call__(self, class_name: str, **given: object) -> Any:
        shape = self._classes.get(class_name)
        if shape is None:
            entity = getattr(self._module, class_name, None)
            if entity is None:
                return None  # a nested structure that came with a later version
            shape = self._classes[class_name] = _Shape(entity)
        return shape.build(given)


class _Shape:
    """One response class: its fields, their defaults, and how a plain value becomes what the writer wants."""

    __slots__ = ("_convert", "_defaults", "_entity", "_names")

    def __init__(self, entity: Any) -> None:
        self._entity = entity
        fields = dataclasses.fields(entity)
        self._names = frozenset(field.name for field in fields)
        self._defaults = {field.name: _default(field) for field in fields if field.default is dataclasses.MISSING}
        self._convert = {
            field.name: _CONVERTERS[kind]
            for field in fields
            if (kind := field.metadata.get("kafka_type")) in _CONVERTERS
        }

    def build(self, given: dict[str, object]) -> Any:
        values = dict(self._defaults)
        names = self._names
        convert = self._convert
        for name, value in given.items():
            if name in names:
                converter = convert.get(name)
                values[name] = value if converter is None else converter(value)
        return self._entity(**values)


def _default(field: Any) -> object:
    """What a field that nobody set says: nothing, in its type's way."""
    kind = str(field.type)
    if kind.startswith("tuple"):
        return ()
    if "None" in kind:
        return None
    if "kafka_type" not in field.metadata:
        return _Shape(field.type).build({})  # a structure inside the structure
    return _NOTHING[field.metadata["kafka_type"]]


def _timedelta(value: object) -> object:
    return timedelta(milliseconds=value) if isinstance(value, int) else value


def _datetime(value: object) -> object:
    return datetime.fromtimestamp(value / 1000, UTC) if isinstance(value, int) else value


def _error(value: object) -> object:
    return value if isinstance(value, ErrorCode) else ErrorCode(value)  # type: ignore[arg-type]


_CONVERTERS: dict[str, Callable[[object], object]] = {
    "timedelta_i32": _timedelta,
    "timedelta_i64": _timedelta,
    "datetime_i64": _datetime,
    "error_code": _error,
}


_NOTHING: dict[str, object] = {
    **dict.fromkeys(("int8", "int16", "int32", "int64", "uint16", "uint32", "float64"), 0),
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": None,
    "error_code": ErrorCode.none,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": datetime.fromtimestamp(0, UTC),
}


@lru_cache(maxsize=512)
def response_maker(name: str, version: int) -> ResponseMaker:
    return ResponseMaker(name, version)
