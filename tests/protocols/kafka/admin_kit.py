"""A broker in this process and the handlers of the Kafka protocol, asked as a client would: through bytes, in any
version.

`Desk.ask` builds the request of that version with kio, encodes it, has the protocol decode it, calls the registered
handler, has the protocol encode the answer, and decodes that with kio again. So a field that a version lacks, or a
value that does not fit its type, fails the test that asks.
"""

from __future__ import annotations

import asyncio
import dataclasses
import types
import typing
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from waystation.broker.access import Access
from waystation.broker.access.types import ANONYMOUS, DEFAULT
from waystation.broker.broker import Broker
from waystation.catalog import Catalog, MemoryCatalog
from waystation.cluster.store_view import StoreView
from waystation.config import BrokerSettings
from waystation.log.batches import batch as batches
from waystation.protocols.kafka.admin import cluster, configs, metadata, placement, topics
from waystation.protocols.kafka.apis import APIS
from waystation.protocols.kafka.requests.codec import API_KEYS, decode_request, encode_response
from waystation.protocols.kafka.requests.registry import Call, Listener
from waystation.world.world import real_world

FAMILIES = (cluster, configs, metadata, placement, topics)
LISTENER = Listener("broker.test", 19_092)
DEADLINE_S = 30.0


NOTHING: dict[str, Any] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "float64": 0.0,
    "timedelta_i32": timedelta(seconds=30),
    **dict.fromkeys(("int8", "int16", "int32", "int64"), 0),
}
"""What a request says in fields that a test does not care about."""


def versions(name: str) -> list[int]:
    """Every version of an API that the protocol advertises."""
    api = APIS[API_KEYS[name]]
    return list(range(api.min_version, api.max_version + 1))


def each_version(*names: str) -> pytest.MarkDecorator:
    """Runs a test with every advertised version of the API (or of each of them, with its name)."""
    if len(names) == 1:
        return pytest.mark.parametrize("version", versions(names[0]))
    return pytest.mark.parametrize(("api", "version"), [(name, v) for name in names for v in versions(name)])


def entity(name: str, version: int, kind: EntityType) -> Any:
    module, _, attribute = schema_name_map[name][version][kind].partition(":")  # type: ignore[index]
    return getattr(import_module(module), attribute)


def build(cls: Any, fields: Mapping[str, Any]) -> Any:
    """An entity from plain values, nested ones from dicts. What this version lacks is dropped."""
    hints = typing.get_type_hints(cls)
    values = {}
    for field in dataclasses.fields(cls):
        if field.name in fields:
            values[field.name] = _value(hints[field.name], fields[field.name])
        elif field.default is dataclasses.MISSING:
            values[field.name] = _default(field, hints[field.name])
    return cls(**values)


def _value(kind: Any, given: Any) -> Any:
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    for option in options:
        if isinstance(given, Mapping) and dataclasses.is_dataclass(option):
            return build(option, given)
        if isinstance(given, list | tuple) and typing.get_origin(option) is tuple:
            inner = typing.get_args(option)[0]
            return tuple(_value(inner, one) for one in given)
    return given


def _default(field: Any, kind: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        return ()
    if isinstance(kind, types.UnionType):
        return None
    return NOTHING[field.metadata["kafka_type"]]


class Desk:
    """The broker, its loop, and a client's way to ask it."""

    def __init__(
        self,
        root: Path,
        settings: Mapping[str, str],
        view: StoreView | None = None,
        catalog: Catalog | None = None,
    ) -> None:
        few = {"offsets.topic.num.partitions": "2", "transaction.state.log.num.partitions": "1"}
        self.loop = asyncio.new_event_loop()
        given = BrokerSettings({**few, **settings})
        self.broker = Broker(real_world(), str(root), given, catalog or MemoryCatalog(), view=view)
        self.principal = ANONYMOUS  # who asks
        self.at_close: dict[object, Callable[[], None]] = {}  # what ends with its connection
        self.run(self.broker.start())

    @property
    def access(self) -> Access:
        """What a connection's session holds."""
        return self.broker.access(self.principal, DEFAULT, self.broker.meters.kafka)

    def close(self) -> None:
        self.run(self.broker.stop())
        self.loop.close()

    def run(self, work: Awaitable[Any]) -> Any:
        async def within() -> Any:
            return await asyncio.wait_for(work, DEADLINE_S)

        return self.loop.run_until_complete(within())

    def ask(self, name: str, version: int, **fields: Any) -> Any:
        """The answer to a request with these fields."""
        buffer = BytesIO()
        request = entity(name, version, EntityType.request)
        entity_writer(request)(buffer, build(request, fields))
        read = decode_request(name, version, buffer.getvalue())
        told = "tester", "127.0.0.1", LISTENER, self.at_close
        call = Call(name, version, read, self.broker, self.access, *told, apis=APIS)
        answer = APIS[API_KEYS[name]].handler(call)
        if isinstance(answer, Awaitable):
            answer = self.run(answer)
        data = encode_response(name, version, answer)
        response, end = entity_reader(entity(name, version, EntityType.response))(data, 0)
        assert end == len(data)
        return response

    def create(self, name: str, partitions: int = 1, **overrides: str) -> Any:
        """A topic, made without Kafka's protocol. `retention_ms="5"` stands for retention.ms=5."""
        own = {key.replace("_", "."): text for key, text in overrides.items()}
        return self.run(self.broker.topics.create(name, partitions, own))

    def write(self, name: str, partition: int = 0, count: int = 1) -> None:
        """Records, one in a batch, so that offsets are easy to count."""

        async def append() -> None:
            for n in range(count):
                data = batches.build([(b"k%d" % n, b"v", ())], self.broker.world.clock.now_ms())
                self.broker.topics.get(name).partition(partition).append(data, batches.read_header(data))

        self.run(append())


class MakeDesk(typing.Protocol):
    """Makes a desk whose broker was started with these settings (`num_partitions="3"` stands for num.partitions)."""

    def __call__(self, **settings: str) -> Desk: ...
