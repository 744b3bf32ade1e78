"""The data source `waystation` of Spark: one name for topics and queues, in and out, batch and streaming.

This only reads options and hands over to who does the work: `reading` and `streaming` for topics, `queue_reading` for
queues, `batch_sink` and `sink` for writing. Spark makes it, pickles it and sends it around; it holds options alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from waystation.spark.kafka_options import in_our_words
from waystation.spark.options import read_options
from waystation.spark.schemas import arrow_schema, source_schema
from waystation.spark.telling import told

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        DataSourceStreamWriter,
        DataSourceWriter,
    )

_PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


class WaystationDataSource(DataSource):
    """`spark.read.format("waystation")`, `readStream`, `write`, `writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "waystation"

    @told()
    def schema(self) -> StructType | str:
        if self._reads_queue:
            from waystation.spark.queue_reading import schema

            return schema(self._options)
        # Whether it will be a stream is not known yet; batch options are the wider set.
        return source_schema(read_options(self._options, streaming=False))

    @told()
    def reader(self, schema: StructType) -> DataSourceReader:
        if self._reads_queue:
            from waystation.spark import queue_reading

            return queue_reading.batch_reader(self._options, schema)
        from waystation.spark.reading import PruningTopicReader, TopicReader

        options = read_options(self._options, streaming=False)
        kind = PruningTopicReader if _filters_are_pushed() else TopicReader
        return kind(options, arrow_schema(schema, options))

    @told()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        if self._reads_queue:
            from waystation.spark.queue_reading import stream_reader

            return stream_reader(self._options, schema)
        from waystation.spark.streaming import TopicStreamReader

        options = read_options(self._options, streaming=True)
        return TopicStreamReader(options, arrow_schema(schema, options))

    @told()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter | DataSourceArrowWriter:
        from waystation.spark.batch_sink import writer

        return writer(self._options, schema, overwrite)

    @told()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter | DataSourceStreamArrowWriter:
        from waystation.spark.sink import stream_writer

        return stream_writer(self._options, schema, overwrite)

    @property
    def _options(self) -> Mapping[str, str]:
        return in_our_words(self.options)

    @property
    def _reads_queue(self) -> bool:
        return bool(self.options.get("queue"))


def _filters_are_pushed() -> bool:
    """Whether Spark asks with its filter pushdown on: then it does so from a worker of its own for that.

    It refuses a reader that has `pushFilters` otherwise, and the reader is not told the setting.
    """
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (spec is not None and spec.name == _PUSHDOWN_WORKER)
