"""Every key that a pipeline file may have, and what it means: the reference page has the same list (a test compares).

Keys of sources and sinks that are spelled like `startingOffsets` are options of the Spark source and sink `waystation`,
and are handed on as they are.
"""

from __future__ import annotations

TOP = {
    "name": "what the pipeline is called everywhere. Default: the file's name",
    "servers": "the broker's Kafka listener, HOST:PORT. Default: $WAYSTATION_SERVER, or 127.0.0.1:9092",
    "login": "a table: who it logs in as, where the broker asks for that, and TLS",
    "checkpoint": "the folder where it remembers how far it is. Default: .waystation/NAME beside the file",
    "trigger": 'when a batch is made: "once", "available-now" or an interval ("10s"). Default: when there is data',
    "restart": 'after a failure: "never" (the default), "on-failure", or a table of what follows',
    "schedule": "when it runs, as cron writes it: five fields. Default: once, now",
    "time_zone": "of the schedule: Europe/Berlin. Default: UTC",
    "catch_up": "whether it runs at once if a time of its schedule passed while it was not running. Default: false",
    "master": "where Spark runs: local[*] (the default), spark://HOST:PORT, sc://HOST:PORT",
    "progress": "whether it tells how it is doing on the topic waystation.pipelines. Default: true",
    "spark": "a table of Spark's settings, by their dotted names",
    "source": "the tables that come from outside",
    "step": "the tables that are made of others, from top to bottom",
    "sink": "where tables are written",
    "test": "tests: rows for sources, and the rows that steps and sinks should make of them",
}

LOGIN = {
    "user": "the name of a user of the broker",
    "password_file": "a file with its password",
    "password_env": "a variable with its password. Default: WAYSTATION_PASSWORD",
    "token_file": "instead of a user: a file with a token of an identity provider, read at each connection",
    "token_env": "instead of a user: a variable with a token",
    "mechanism": "SCRAM-SHA-256 (the default), SCRAM-SHA-512, PLAIN, OAUTHBEARER (the default with a token), EXTERNAL",
    "tls": "whether connections are encrypted. Default: if one of the following is given",
    "ca": "a file of certificates: one of them has to have signed the broker's. Default: the system's",
    "certificate": "a file with a certificate, where the broker asks clients for one",
    "key": "the file of its key, if it is another one",
}

TEST = {
    "given": "given.SOURCE = [ROWS]: the rows of a source. One without rows is empty",
    "expect": "expect.NAME = [ROWS]: the rows that a step or sink should have",
    "ordered": "whether rows have to come in this order. Default: false",
}

RESTART = {
    "max_restarts": "how many failures in a row are followed by a restart. Default: any number",
    "initial_backoff": 'the pause before the first restart. Default: "1s"',
    "max_backoff": 'the longest pause: each is twice the one before. Default: "5m"',
    "reset_after": 'an attempt that ran this long ends the row of failures. Default: "10m"',
}

SOURCE_KINDS = {
    "topics": "names of topics",
    "pattern": "topics by pattern",
    "assign": "partitions of topics: {orders = [0, 1]}",
    "queue": "a queue; rows are acked when they have arrived",
    "parquet": "a folder of Parquet files",
    "csv": "a folder of CSV files whose first line names the columns, or such a file",
    "json": "a folder of files with a JSON object on each line, or such a file",
    "rate": "for tests: rows per second, with columns timestamp and value",
}

SOURCE_OPTIONS = {
    "startingOffsets": 'where a new pipeline begins: "earliest" (the default), "latest", or {orders = {0 = 17}}',
    "endingOffsets": "where a static source ends",
    "startingTimestamp": "the first message at or after this time (ms since 1970)",
    "endingTimestamp": "for a static source: up to this time",
    "maxRowsPerTrigger": "maximum number of rows in a batch",
    "maxBytesPerTrigger": "maximum number of bytes in a batch",
    "minPartitions": "minimum number of tasks: large ranges are split",
    "group": "publish progress as this group's offsets",
    "failOnDataLoss": "whether messages that retention removed before they were read are an error. Default: true",
    "isolation": '"read_committed" (the default) or "read_uncommitted"',
    "valueFormat": '"json": the value is decoded; by the schema where one is given. Default: bytes',
    "mode": 'what becomes of a value that does not fit the schema: "permissive" (null, the default), "dropmalformed", '
    '"failfast"',
    "retryTimeout": "seconds to wait for a broker that is away. Default: 300",
}

FORMAT = {
    "format": 'how values are encoded: "json" (the default with a schema), "avro" or "protobuf"',
    "schema_file": "the file of an Avro schema",
    "descriptor": "the file of a Protobuf descriptor set",
    "message": "the full name of the Protobuf message: shop.Order",
    "registry": "the address of a schema registry, for values that begin with the number of their schema",
}

SOURCE = {
    **SOURCE_KINDS,
    **SOURCE_OPTIONS,
    **FORMAT,
    "schema": "the columns, as SQL writes them: id STRING, amount DOUBLE",
    "static": "read once, whole, as a table to join with. Default: false",
    "watermark": "{column, delay}: how late rows may come",
    "filter": "only rows for which this SQL condition holds",
    "select": "these columns, as SQL expressions",
    "expect": "a table of rules: {positive = 'amount > 0'}, or {positive = {rule, on_fail}}",
    "dead_letter": "a topic, or {topic} or {queue}, that gets the values that do not fit the schema, as they came",
    "options": "a table of further options of the Spark source",
}

STEP = {
    "from": "the table, or tables, that it is made of",
    "sql": "a query over all tables above",
    "watermark": "{column, delay}: how late rows may come",
    "filter": "only rows for which this SQL condition holds",
    "join": "{with, on, how}: with another table",
    "dedup": "columns that tell rows apart; or {columns, within_watermark}",
    "window": "{column, size, slide} or {column, gap}: what rows are gathered by time",
    "group": "what rows are gathered by: columns or SQL expressions",
    "aggregate": "a table of columns and what they are: {total = 'sum(amount)'}",
    "python": "FILE:FUNCTION, which takes the tables of `from` and returns one",
    "stateful": "{processor, group, output, mode, time}: a StatefulProcessor for each group",
    "select": "these columns, as SQL expressions",
    "expect": "a table of rules: {positive = 'amount > 0'}, or {positive = {rule, on_fail}}",
    "dead_letter": "a topic, or {topic} or {queue}, that gets rows that fail an expectation",
}

EXPECTATION = {
    "rule": "a SQL condition over the columns of the table",
    "on_fail": "warn (the default: count it), drop, dead_letter or fail",
}
DEAD_LETTER = {"topic": "a topic", "queue": "a queue"}
WATERMARK = {"column": "a timestamp", "delay": "how late: 10 minutes"}
JOIN = {
    "with": "the other table",
    "on": "columns that both have, or a SQL condition",
    "how": "inner (the default), left, right, full, semi, anti, cross",
}
DEDUP = {"columns": "what tells rows apart", "within_watermark": "forget what is older than the watermark"}
WINDOW = {
    "column": "a timestamp",
    "size": "how long a window is: 1 minute",
    "slide": "how far apart windows begin. Default: size",
    "gap": "instead of size: a session ends after this time without a row",
}
STATEFUL = {
    "processor": "FILE:CLASS, a pyspark StatefulProcessor",
    "group": "the columns that have a state together",
    "output": "the columns that it gives, as SQL writes them",
    "mode": "append (the default) or update",
    "time": "none (the default), processing or event: which timers it may set",
}

SINK_KINDS = {
    "topic": "a topic",
    "queue": "a queue",
    "destinations": "columns, topic and queue, that name the topic or queue of each row",
    "parquet": "a folder of Parquet files",
    "console": "true: print the rows",
    "memory": "for tests: a table in the session",
    "delta": "a Delta Lake table's folder (needs the package deltalake)",
    "iceberg": "an Iceberg table's name (needs the package pyiceberg)",
}

SINK = {
    "from": "the table",
    **SINK_KINDS,
    "mode": "append (the default), update, complete, or for a compacted topic upsert",
    "delete_when": "with upsert: a SQL condition; rows for which it holds delete their key",
    "key": "the key of a message, as a SQL expression. Default: the column key, if there is one",
    "value": "the value of a message, as a SQL expression. Default: the column value, else the whole row as JSON",
    **FORMAT,
    "partition_by": "columns that become folders",
    "guarantee": '"exactly-once" (the default) or "at-least-once"',
    "dead_letter": "with destinations: a topic, or {topic} or {queue}, for rows whose destination does not exist",
    "txnId": "for a table that is written once: a name under which it is written at most once",
    "options": "a table of further options of the Spark sink",
}
