"""A catalog that lives as long as the object: for simulations and brokers that leave nothing behind."""

from __future__ import annotations

from uuid import UUID

from waystation.catalog.catalog import TopicRow


class MemoryCatalog:
    def __init__(self, cluster_id: str = "waystation-in-memory01") -> None:
        self._cluster_id = cluster_id
        self._topics: dict[UUID, TopicRow] = {}
        self._settings: dict[str, str] = {}

    def cluster_id(self) -> str:
        return self._cluster_id

    def topics(self) -> list[TopicRow]:
        return list(self._topics.values())

    def save_topic(self, row: TopicRow) -> None:
        self._topics[row.id] = row

    def delete_topic(self, topic_id: UUID) -> None:
        self._topics.pop(topic_id, None)

    def settings(self) -> dict[str, str]:
        return dict(self._settings)

    def save_settings(self, settings: dict[str, str]) -> None:
        self._settings = dict(settings)

    def close(self) -> None:
        pass
