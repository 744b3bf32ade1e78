"""Topics and queues as tables of Spark's catalog: `CREATE TABLE orders USING waystation OPTIONS (…)`.

Spark tells the source the options of such a table once, when it asks for the schema of a table that is being created.
Whoever reads or writes the table later gets a schema and nothing else. So the options travel in it: as the comment of
its last column, which the catalog keeps and `DESCRIBE` shows.

What is read has the table's own schema. What is written has the target's only if Spark has fitted the rows to it: rows
whose columns fit already keep their own, and those of another table of ours would bring its options, so that they would
be written to the topic that they came from. To tell the two apart, the last column is a VARCHAR. Spark marks such a
column in the metadata, and takes the mark away where it fits rows to a table. So a mark in what is written means that
the options are not the target's, and the write is refused. That is rare: the length of the VARCHAR is made from the
options, so the columns of two tables differ, and Spark fits the rows. A session that ignored VARCHARs when the table
was created cannot read it, and so cannot confuse it.

A table is read and written, so its options may be those of the source and those of the sink, and each of them is told
its own. For `source`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType, VarcharType

from waystation.errors import Invalid, near_matches
from waystation.spark.kafka_options import in_our_words, is_known
from waystation.spark.links.login_options import IN_PLAIN_TEXT
from waystation.spark.options import SOURCE_OPTIONS, check_names
from waystation.spark.writing.sink_options import SINK_OPTIONS

PROVIDER = "provider"
"""What Spark adds to the properties of a table that is being created, and nobody else does."""
OPTION = "option."
"""What it puts before the names of OPTIONS, which are among the properties too."""
MARK = "waystation "
"""A comment that begins so is options, as JSON."""
LAST = "contentType"
"""The column that carries it, a text that nearly every row leaves empty; in a table it is the last one."""
SHORTEST = 1_000_000_000
"""Its length at least: no text is ever too long for it."""
VARCHAR = "__CHAR_VARCHAR_TYPE_STRING"
"""Spark's mark in the metadata of a VARCHAR column."""
_SERVERS = ("servers", "kafka.bootstrap.servers")


def options_of_new_table(given: Mapping[str, str]) -> dict[str, str] | None:
    """What OPTIONS and TBLPROPERTIES of `CREATE TABLE` say; None where no table is being created.

    Properties may be anything, so those that the source and the sink do not know are not theirs.
    """
    if not given.get(PROVIDER):
        return None
    named = {name.lower()[len(OPTION) :]: value for name, value in given.items() if name.lower().startswith(OPTION)}
    known = {name.lower() for name in (*SOURCE_OPTIONS, *SINK_OPTIONS)}
    properties = {name: value for name, value in given.items() if name.lower() in known or is_known(name)}
    return {**properties, **named}


def keep_options(schema: StructType | str, options: Mapping[str, str]) -> StructType | str:
    """The schema of the source with the options in it. Raises Invalid if they have a secret, which everybody who may
    DESCRIBE the table would see."""
    for name in in_our_words(options):
        if name.lower() in IN_PLAIN_TEXT:
            raise Invalid(
                f"{name}: a table's options are shown by DESCRIBE, so it has no {name} in it: give {name}File or"
                f" {name}Env, or create no table and give the options with the query"
            )
    comment = MARK + json.dumps(dict(sorted(options.items())), ensure_ascii=False)
    length = SHORTEST + zlib.crc32(comment.encode()) % SHORTEST
    if isinstance(schema, str):
        before, _, after = schema.rpartition(f", {LAST} string")  # a field of `value` may have that name, too
        quoted = comment.replace("\\", "\\\\").replace("'", "\\'")
        return f"{before}{after}, {LAST} VARCHAR({length}) COMMENT '{quoted}'"
    others = [field for field in schema if field.name != LAST]
    return StructType([*others, StructField(LAST, VarcharType(length), metadata={"comment": comment})])


def options_to_read(schema: StructType, given: Mapping[str, str]) -> dict[str, str] | None:
    """The options of the table that is read, with those that this query has given besides (`WITH`).

    None where it is no table's, or where the query says itself where the broker is: a frame that was read from a table
    brings its columns, with their comments, wherever it goes.
    """
    found = _find(schema, given)
    if found is None:
        return None
    options, marked = found
    if not marked:
        raise Invalid(
            "this table was created while spark.sql.legacy.charVarcharAsString was on: set it to false, DROP TABLE and"
            " create it again, or use CREATE TEMPORARY VIEW"
        )
    return options


def options_to_write(schema: StructType, given: Mapping[str, str]) -> dict[str, str] | None:
    """As above, of the table that is written."""
    found = _find(schema, given)
    if found is None:
        return None
    options, marked = found
    if marked:
        raise Invalid(
            "these rows come from a table of waystation, and where they go was not said: give the options, for instance"
            " .option('servers', '127.0.0.1:9092').option('topic', 'orders'), in SQL INSERT INTO name WITH (servers ="
            " '127.0.0.1:9092', topic = 'orders')"
        )
    return options


def _find(schema: StructType, given: Mapping[str, str]) -> tuple[dict[str, str], bool] | None:
    if _says_where(given):
        return None
    for field in schema:
        metadata = field.metadata or {}
        comment = metadata.get("comment")
        if isinstance(comment, str) and comment.startswith(MARK):
            try:
                options = {**json.loads(comment[len(MARK) :]), **given}
            except (ValueError, TypeError):
                raise Invalid(
                    f"the comment of column {field.name!r} was the options of a waystation table, and is damaged:"
                    " DROP TABLE and create it again, which does nothing to the topic"
                ) from None
            return options, VARCHAR in metadata
    return None


def for_source(options: Mapping[str, str]) -> dict[str, str]:
    """Of a table's options those of the source."""
    check_names(options, dict.fromkeys((*SOURCE_OPTIONS, *SINK_OPTIONS)), "table")
    chosen = _without(options, set(SINK_OPTIONS) - set(SOURCE_OPTIONS) - {"topic"})
    return one_topic(chosen) if not _has(chosen, "topics", "pattern", "assign") else _without(chosen, {"topic"})


def for_sink(options: Mapping[str, str]) -> dict[str, str]:
    """Of a table's options those of the sink. A table that is read from one topic is written to it."""
    check_names(options, dict.fromkeys((*SOURCE_OPTIONS, *SINK_OPTIONS)), "table")
    chosen = _without(options, set(SOURCE_OPTIONS) - set(SINK_OPTIONS))
    topics = next((value for name, value in options.items() if name.lower() == "topics"), "").strip()
    if topics and "," not in topics and not _has(chosen, "topic", "queue"):
        chosen["topic"] = topics
    return chosen


def one_topic(options: Mapping[str, str]) -> dict[str, str]:
    """Options of a source that may say `topic`, as a sink does: the same words read and write it."""
    if not _has(options, "topic"):
        return dict(options)
    if _has(options, "topics"):
        raise Invalid("topic and topics say the same: leave one of them out")
    return {"topics" if name.lower() == "topic" else name: value for name, value in options.items()}


def check_named(given: Mapping[str, str]) -> None:
    """Raises Invalid where nothing says which broker is meant: that is what Spark leaves of some tables, or a typo."""
    if not _says_where(given):
        for name in given:
            if near := near_matches(name.lower(), _SERVERS):
                raise Invalid(f"the waystation source and sink have no option {name!r}{near}")
        raise Invalid(
            "the option servers is missing: say where the broker is, for instance .option('servers',"
            " '127.0.0.1:9092'). If this is a table: Spark forgets the OPTIONS of one that was created with a list of"
            " columns or AS SELECT, and gives a stream that writes to a table none; create it by CREATE TABLE name"
            " USING waystation OPTIONS (servers '127.0.0.1:9092', topic 'orders'), or give the options with the query"
            " (in SQL: name WITH (servers = '127.0.0.1:9092', topic = 'orders'))"
        )


def _says_where(given: Mapping[str, str]) -> bool:
    return any(name.lower() in _SERVERS for name in given)


def _has(options: Mapping[str, str], *names: str) -> bool:
    return any(name.lower() in names and bool(value.strip()) for name, value in options.items())


def _without(options: Mapping[str, str], names: set[str]) -> dict[str, str]:
    lower = {name.lower() for name in names}
    return {name: value for name, value in options.items() if name.lower() not in lower}
