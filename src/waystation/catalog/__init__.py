"""The catalog: names and settings of what exists, with revisions. SQLite on one node; behind one small interface."""

from __future__ import annotations

from waystation.catalog.catalog import ABSENT, Catalog, CatalogChange, CatalogEntry, Compacted, Snapshot, Update, Watch
from waystation.catalog.memory import MemoryCatalog
from waystation.catalog.rows import BindingRow, DeletedTopic, ExchangeRow, TopicRow

__all__ = [
    "ABSENT",
    "BindingRow",
    "Catalog",
    "CatalogChange",
    "CatalogEntry",
    "Compacted",
    "DeletedTopic",
    "ExchangeRow",
    "MemoryCatalog",
    "Snapshot",
    "TopicRow",
    "Update",
    "Watch",
]
