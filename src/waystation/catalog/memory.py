"""A catalog that lives as long as the object: for simulations and brokers that leave nothing behind."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from waystation.catalog.catalog import BindingRow, DeletedTopic, ExchangeRow, TopicRow


class MemoryCatalog:
    def __init__(self, cluster_id: str = "waystation-in-memory01") -> None:
        self._cluster_id = cluster_id
        self._topics: dict[UUID, TopicRow] = {}
        self._deleted: dict[UUID, DeletedTopic] = {}
        self._exchanges: dict[str, ExchangeRow] = {}
        self._bindings: dict[BindingRow, None] = {}
        self._settings: dict[str, str] = {}
        self._definitions: dict[str, dict[str, bytes]] = {}

    def cluster_id(self) -> str:
        return self._cluster_id

    def topics(self) -> list[TopicRow]:
        return list(self._topics.values())

    def save_topic(self, row: TopicRow) -> None:
        self._topics[row.id] = row
        self._deleted.pop(row.id, None)

    def delete_topic(self, topic_id: UUID) -> None:
        row = self._topics.pop(topic_id, None)
        if row is not None:
            self._deleted[topic_id] = DeletedTopic(row.name, topic_id)

    def deleted_topics(self) -> list[DeletedTopic]:
        return list(self._deleted.values())

    def forget_deleted_topic(self, topic_id: UUID) -> None:
        self._deleted.pop(topic_id, None)

    def exchanges(self) -> list[ExchangeRow]:
        return list(self._exchanges.values())

    def save_exchange(self, row: ExchangeRow) -> None:
        self._exchanges[row.name] = row

    def bindings(self) -> list[BindingRow]:
        return list(self._bindings)

    def save_binding(self, row: BindingRow) -> None:
        self._bindings[row] = None

    def delete_routes(self, exchanges: Iterable[str], bindings: Iterable[BindingRow]) -> None:
        for name in exchanges:
            self._exchanges.pop(name, None)
        for row in bindings:
            self._bindings.pop(row, None)

    def settings(self) -> dict[str, str]:
        return dict(self._settings)

    def save_settings(self, settings: dict[str, str]) -> None:
        self._settings = dict(settings)

    def definitions(self, kind: str) -> dict[str, bytes]:
        return dict(sorted(self._definitions.get(kind, {}).items()))

    def save_definition(self, kind: str, name: str, value: bytes) -> None:
        self._definitions.setdefault(kind, {})[name] = bytes(value)

    def delete_definition(self, kind: str, name: str) -> None:
        self._definitions.get(kind, {}).pop(name, None)

    def close(self) -> None:
        pass
