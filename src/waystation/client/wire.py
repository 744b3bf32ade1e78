"""One connection to one broker, one request at a time: frames, correlation ids, and kio for what is in them.

Each API is spoken in one fixed version (`VERSIONS`), so that the code above reads plain fields. At connect the server
is asked what it speaks; a call that it cannot answer is refused here with a sentence. After any failure in the middle
of an exchange the connection is closed: an answer is never taken for that of another request.

Used by the rest of `client/` alone.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from datetime import timedelta
from functools import lru_cache
from importlib import import_module
from io import BytesIO
from types import TracebackType
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.serial._introspect import EntityField, EntityTupleField, classify_field
from kio.static.constants import EntityType

from waystation.client.address import Address
from waystation.client.refusals import RETRIABLE
from waystation.errors import Invalid, Unavailable
from waystation.version import __version__

CLIENT_ID = "waystation-cli"
CONNECT_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 30.0
LARGEST_ANSWER_BYTES = 256 * 1024 * 1024
"""An answer that claims to be larger is not one: the peer speaks another protocol."""

VERSIONS: dict[str, int] = {
    "api_versions": 3,
    "consumer_group_describe": 0,
    "consumer_group_heartbeat": 1,
    "create_partitions": 3,
    "create_topics": 7,
    "delete_groups": 2,
    "delete_topics": 6,
    "describe_configs": 4,
    "describe_groups": 5,
    "describe_log_dirs": 4,
    "fetch": 12,
    "incremental_alter_configs": 1,
    "list_groups": 5,
    "list_offsets": 7,
    "metadata": 12,
    "offset_commit": 9,
    "offset_delete": 0,
    "offset_fetch": 9,
    "produce": 9,
}
"""Spoken by Waystation and by Apache Kafka 4. Topics go by name where the newest versions want ids."""

_KEYS = {name: key for key, name in api_key_map.items()}
T = TypeVar("T")


class ServerUnreachable(Unavailable):
    """Nobody listens there, or the connection broke."""


class NotKafka(Invalid):
    """Somebody listens there, but does not speak Kafka's protocol."""


class Connection:
    """A connected socket. Not for use by two threads at once."""

    def __init__(self, address: Address, *, timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self.address = address
        self._timeout_s = timeout_s
        self._correlation = 0
        self._spoken: dict[int, tuple[int, int]] = {}
        try:
            self._socket = socket.create_connection((address.host, address.port), CONNECT_TIMEOUT_S)
        except OSError as error:
            raise ServerUnreachable(
                f"no server answers at {address} ({_reason(error)}); start one with `waystation serve`,"
                " or say where it is with --server HOST:PORT"
            ) from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._ask_versions()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def call(self, name: str, *, wait_s: float = 0.0, answer: bool = True, **values: object) -> Any:
        """Sends a request built from plain values (see `build`) and returns the response entity.

        `wait_s` is time that the server may take on purpose (a long poll), on top of the usual timeout. Without
        `answer` nothing is awaited (a publish with acks=0).
        """
        version = self._version_of(name)
        body = build(_entity(name, version, EntityType.request), values)
        try:
            self._send(name, version, body)
            return self._receive(name, version, self._timeout_s + wait_s) if answer else None
        except TimeoutError:
            self.close()
            raise ServerUnreachable(f"{self.address} did not answer within {self._timeout_s + wait_s:g} s") from None
        except OSError as error:
            self.close()
            raise ServerUnreachable(f"the connection to {self.address} broke ({_reason(error)})") from None
        except BaseException:  # Ctrl-C between question and answer: the next answer would be for this question
            self.close()
            raise

    def _version_of(self, name: str) -> int:
        version = VERSIONS[name]
        low, high = self._spoken.get(_KEYS[name], (0, -1)) if self._spoken else (version, version)
        if not low <= version <= high:
            raise Invalid(f"the server at {self.address} does not speak {name} v{version}, which this command needs")
        return version

    def _ask_versions(self) -> None:
        try:
            answer = self.call("api_versions", client_software_name="waystation", client_software_version=__version__)
        except ServerUnreachable as error:
            raise NotKafka(f"{error}: whatever listens there does not speak Kafka's protocol; check the port") from None
        if answer.error_code is not ErrorCode.none:
            raise NotKafka(
                f"the server at {self.address} refused to say what it speaks: {answer.error_code.name.upper()}"
            )
        self._spoken = {int(api.api_key): (int(api.min_version), int(api.max_version)) for api in answer.api_keys}

    def _send(self, name: str, version: int, body: object) -> None:
        self._correlation += 1
        entity = _entity(name, version, EntityType.request)
        header = build(
            entity.__header_schema__,
            {
                "request_api_key": _KEYS[name],
                "request_api_version": version,
                "correlation_id": self._correlation,
                "client_id": CLIENT_ID,
            },
        )
        buffer = BytesIO(b"\0\0\0\0")
        buffer.seek(4)
        entity_writer(entity.__header_schema__)(buffer, header)
        entity_writer(entity)(buffer, body)
        frame = buffer.getbuffer()
        struct.pack_into(">i", frame, 0, len(frame) - 4)
        self._socket.settimeout(self._timeout_s)
        self._socket.sendall(frame)

    def _receive(self, name: str, version: int, timeout_s: float) -> Any:
        self._socket.settimeout(timeout_s)
        (size,) = struct.unpack(">i", self._read(4))
        if not 4 <= size <= LARGEST_ANSWER_BYTES:
            self.close()
            raise NotKafka(f"{self.address} does not speak Kafka's protocol; check the port")
        frame = self._read(size)
        entity = _entity(name, version, EntityType.response)
        try:
            header, used = entity_reader(entity.__header_schema__)(frame, 0)
            response, _ = entity_reader(entity)(frame, used)
        except Exception as error:  # whatever a foreign byte does to the reader, it means the same
            self.close()
            raise NotKafka(
                f"{self.address} sent an answer to {name} v{version} that does not parse: {error}"
            ) from error
        if header.correlation_id != self._correlation:
            self.close()
            raise NotKafka(f"{self.address} answered another question than {name}")
        return response

    def _read(self, size: int) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise ConnectionResetError("closed by the server")
            view = view[count:]
        return bytes(data)


def retried(work: Callable[[], T], code_of: Callable[[T], ErrorCode], *, within_s: float = 10.0) -> T:
    """Calls `work` until its code is not one of those that a starting server answers for a moment."""
    deadline = time.monotonic() + within_s
    while True:
        result = work()
        if code_of(result).name not in RETRIABLE or time.monotonic() >= deadline:
            return result
        time.sleep(0.1)


def build(entity: Any, values: Mapping[str, object]) -> Any:
    """A kio entity from plain values: dicts become nested entities, sequences tuples, milliseconds timedeltas.

    What is not given gets the schema's default. A name that the entity does not have is a TypeError: a bug of ours.
    """
    shape = _shape(entity)
    unknown = values.keys() - shape.keys()
    if unknown:
        raise TypeError(f"{entity.__name__} has no {', '.join(sorted(unknown))}")
    return entity(
        **{name: fill(values[name]) if name in values else default for name, (fill, default) in shape.items()}
    )


_Fill = Callable[[Any], object]


@lru_cache(maxsize=256)
def _shape(entity: Any) -> dict[str, tuple[_Fill, object]]:
    return {field.name: (_filler(field), _default(field)) for field in fields(entity)}


def _filler(field: Any) -> _Fill:
    kind = classify_field(field)
    if isinstance(kind, EntityTupleField):
        return lambda items: None if items is None else tuple(build(kind.type_, item) for item in items)
    if isinstance(kind, EntityField):
        return lambda item: None if item is None else build(kind.type_, item)
    if kind.is_array:
        return lambda items: None if items is None else tuple(items)
    if field.metadata.get("kafka_type") in ("timedelta_i32", "timedelta_i64"):
        return lambda value: timedelta(milliseconds=value)
    return lambda value: value


_ZEROES: dict[str, object] = {
    "bool": False,
    "bytes": b"",
    "error_code": ErrorCode.none,
    "float64": 0.0,
    "records": b"",
    "string": "",
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
}


def _default(field: Any) -> object:
    if field.default is not MISSING:
        return field.default
    if "None" in str(field.type):
        return None
    kind = classify_field(field)
    if kind.is_array:
        return ()
    return build(kind.type_, {}) if isinstance(kind, EntityField) else _ZEROES.get(field.metadata["kafka_type"], 0)


@lru_cache(maxsize=128)
def _entity(name: str, version: int, kind: EntityType) -> Any:
    module, _, attribute = schema_name_map[name][version][kind].partition(":")  # type: ignore[index]
    return getattr(import_module(module), attribute)


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
