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

from waystation.errors import WaystationError
from waystation.spark.kafka_options import in_our_words
from waystation.spark.options import read_options
from waystation.spark.reading.refused_reader import RefusedReader
from waystation.spark.reading.schemas import arrow_schema, source_schema
from waystation.spark.tables import (
    check_named,
    for_sink,
    for_source,
    keep_options,
    one_topic,
    options_of_new_table,
    options_to_read,
    options_to_write,
)
from waystation.spark.worker_errors import without_traceback

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

    @without_traceback()
    def schema(self) -> StructType | str:
        created = options_of_new_table(self.options)
        if created is None:
            check_named(self.options)
            return _schema(one_topic(in_our_words(self.options)))
        return keep_options(_schema(for_source(in_our_words(created))), created)

    @without_traceback()
    def reader(self, schema: StructType) -> DataSourceReader:
        given = self._of_source(schema)
        if given.get("queue"):
            from waystation.spark.reading import queue_reading

            return queue_reading.batch_reader(given, schema)
        from waystation.spark.reading.batch import PruningTopicReader, TopicReader

        options = read_options(given, streaming=False)
        kind = PruningTopicReader if _filters_are_pushed() else TopicReader
        return kind(options, arrow_schema(schema, options))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            return self._stream_reader(schema)
        except WaystationError as error:
            return RefusedReader(error)

    def _stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        given = self._of_source(schema)
        if given.get("queue"):
            from waystation.spark.reading.queue_reading import stream_reader

            return stream_reader(given, schema)
        from waystation.spark.reading.stream import TopicStreamReader

        options = read_options(given, streaming=True)
        return TopicStreamReader(options, arrow_schema(schema, options))

    @without_traceback()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter | DataSourceArrowWriter:
        from waystation.spark.writing.batch_sink import check_appends, writer

        check_appends(overwrite)
        return writer(self._of_sink(schema), schema)

    @without_traceback()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter | DataSourceStreamArrowWriter:
        from waystation.spark.writing.sink import stream_writer

        # A stream's columns are as they come: their comments are those of the table that was read, if any.
        check_named(self.options)
        return stream_writer(in_our_words(self.options), schema, overwrite)

    def _of_source(self, schema: StructType) -> Mapping[str, str]:
        """The options of a read, in our words: those that were given, or those of the table that is read."""
        table = options_to_read(schema, self.options)
        if table is not None:
            return for_source(in_our_words(table))
        check_named(self.options)
        return one_topic(in_our_words(self.options))

    def _of_sink(self, schema: StructType) -> Mapping[str, str]:
        table = options_to_write(schema, self.options)
        if table is not None:
            return for_sink(in_our_words(table))
        check_named(self.options)
        return in_our_words(self.options)


def _schema(given: Mapping[str, str]) -> StructType | str:
    if given.get("queue"):
        from waystation.spark.reading import queue_reading

        return queue_reading.schema(given)
    # Whether it will be a stream is not known yet; batch options are the wider set.
    return source_schema(read_options(given, streaming=False))


def _filters_are_pushed() -> bool:
    """Whether Spark asks with its filter pushdown on: then it does so from a worker of its own for that.

    It refuses a reader that has `pushFilters` otherwise, and the reader is not told the setting.
    """
    main: Any = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    return _PUSHDOWN_WORKER in sys.modules or (spec is not None and spec.name == _PUSHDOWN_WORKER)
