"""Found by Spark through its name: it makes `format("waystation")` work without anything being registered."""

from waystation.spark.source import WaystationDataSource as DefaultSource

__all__ = ["DefaultSource"]
