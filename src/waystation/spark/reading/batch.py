"""Topics as a batch: plans the ranges once, and prunes them by the query's filters.

Made by the data source in Spark's planning process, pickled, and used in its workers. The stream's reader is in
`streaming`; both read ranges by `ranges`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from waystation.spark.options import SourceOptions
from waystation.spark.reading.fetching import cluster_at
from waystation.spark.reading.filters import PushedFilters, wanted_by
from waystation.spark.reading.finding import check_topics, find_topics, partitions_of, resolve
from waystation.spark.reading.planning import Offsets, Range, split
from waystation.spark.reading.ranges import Task, read_range
from waystation.spark.worker_errors import without_traceback
from waystation.spark.workers import settle


class RangePartition(InputPartition):
    """One range for one task."""

    def __init__(self, one: Range) -> None:
        super().__init__(None)
        self.range = one


def read_partition(task: Task, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """What a task does. Where there is nothing to read, Spark makes up a partition of its own."""
    settle()
    if isinstance(partition, RangePartition):
        cluster = cluster_at(task.options.servers, task.options.retry_s)
        with without_traceback():
            yield from read_range(cluster, task, partition.range)


class TopicReader(DataSourceReader):
    """Reads topics from one place to another."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema
        self._wanted = PushedFilters()

    @without_traceback()
    def partitions(self) -> Sequence[InputPartition]:
        options, wanted = self._options, self._wanted
        cluster = cluster_at(options.servers, options.retry_s)
        topics = find_topics(cluster, options)
        check_topics(cluster, options, topics, streaming=False)
        partitions = partitions_of(options, topics)
        starts = resolve(cluster, options, options.starting, partitions, "startingOffsets")
        ends = resolve(cluster, options, options.ending, partitions, "endingOffsets")
        left = [one for one in partitions if one in starts and one in ends and wanted.has(*one)]
        since: Offsets = {}
        if wanted.since_ms is not None:
            since = cluster.offsets(dict.fromkeys(left, max(0, wanted.since_ms)), options.committed)
        ranges = []
        for one in left:
            start, end = max(starts[one], wanted.first), min(ends[one], wanted.last + 1)
            if one in since:
                start = max(start, since[one]) if since[one] >= 0 else end  # no record is that young
            ranges.append(Range(*one, start, max(start, end)))
        return [RangePartition(one) for one in split(ranges, options.min_partitions, options.max_records)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(Task(self._options, self._schema, self._wanted), partition)


class PruningTopicReader(TopicReader):
    """As above, and looks at filters. Spark refuses such a reader while its filter pushdown is off."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:
        self._wanted = wanted_by(filters)
        return filters  # all of them: Spark applies them to what is left
