"""The catalog: names and settings of what exists, with revisions. SQLite on one node; behind one small interface."""

from __future__ import annotations

from waystation.catalog.catalog import ABSENT, Catalog, Change, Compacted, Entry, Snapshot, Update, Watch
from waystation.catalog.memory import MemoryCatalog
from waystation.catalog.rows import BindingRow, DeletedTopic, ExchangeRow, TopicRow

__all__ = [
    "ABSENT",
    "BindingRow",
    "Catalog",
    "Change",
    "Compacted",
    "DeletedTopic",
    "Entry",
    "ExchangeRow",
    "MemoryCatalog",
    "Snapshot",
    "TopicRow",
    "Update",
    "Watch",
]
