"""The catalog: names and settings of what exists. SQLite on one node; behind one small interface."""

from __future__ import annotations

from waystation.catalog.catalog import BindingRow, Catalog, DeletedTopic, ExchangeRow, TopicRow
from waystation.catalog.memory import MemoryCatalog

__all__ = ["BindingRow", "Catalog", "DeletedTopic", "ExchangeRow", "MemoryCatalog", "TopicRow"]
