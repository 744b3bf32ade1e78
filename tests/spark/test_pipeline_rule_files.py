"""What a pipeline file may say about bad rows, and what is said of mistakes there. No Spark and no broker is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.blocks import blocks
from tests.spark.test_pipeline_files import line_of, pipeline_of, problems
from tests.support.server import ROOT
from waystation.spark.pipelines.file.declared import DeadLetter, Expectation
from waystation.spark.pipelines.file.queries import queries
from waystation.spark.pipelines.graph import as_text

pytestmark = pytest.mark.quick

ORDERS = """\
[source.orders]
topics = "orders"
schema = "id BIGINT"
dead_letter = "orders-dead"
[source.other]
topics = "other"
[step.ids]
from = "orders"
select = ["value.id"]
[sink.other]
from = "other"
topic = "copy"
[sink.files]
from = "ids"
parquet = "ids"
[sink.ids]
from = "ids"
topic = "ids"
"""


def test_dead_letters_join_the_first_query_that_can_commit_them(tmp_path: Path) -> None:
    def planned(text: str) -> list[list[str]]:
        return [[sink.name for sink in query.sinks] for query in queries(pipeline_of(tmp_path, text))]

    assert planned(ORDERS) == [["other"], ["files"], ["ids", "orders.dead_letter"]]
    files = ORDERS.replace('topic = "ids"', "console = true")
    assert planned(files) == [["other"], ["files"], ["ids"], ["orders.dead_letter"]], "a query of their own"
    changing = ORDERS.replace('topic = "ids"', 'topic = "ids"\nmode = "update"')
    assert planned(changing)[-1] == ["orders.dead_letter"]
    queue = ORDERS.replace('topics = "orders"', 'queue = "orders"').replace('parquet = "ids"', 'queue = "ids"')
    assert planned(queue) == [["other"], ["files", "ids", "orders.dead_letter"]]


def test_a_dead_letter_is_a_topic_or_a_queue_and_drawn_behind_its_table(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, ORDERS.replace('"orders-dead"', '{ queue = "dead" }'))
    assert pipeline.sources["orders"].dead_letter == DeadLetter("queue", "dead")
    lines = as_text(pipeline).splitlines()
    first = next(number for number, line in enumerate(lines) if "orders: topic orders" in line)
    assert "orders.dead_letter ▶ queue dead" in "".join(lines[first : first + 5])


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        ('"orders-dead"', '{ quee = "x" }', "dead_letter", "did you mean 'queue'"),
        ('"orders-dead"', '{ queue = "x", topic = "y" }', "dead_letter", "leave one of them"),
        ('"orders-dead"', "3", "dead_letter", "dead_letter has to be"),
        ('schema = "id BIGINT"\n', "", "dead_letter", "add `schema`"),
        ('"orders-dead"', '"orders-dead"\nstatic = true', "dead_letter", "a static source"),
        ('"orders-dead"', '"orders-dead"\nmode = "dropmalformed"', "mode", "leave one of them out"),
        ('"orders-dead"', '"orders"', "dead_letter", "would be read again"),
        ('topics = "orders"', 'pattern = "^orders.*"', "dead_letter", "would be read again"),
        ('topics = "orders"', 'queue = "orders"', "dead_letter", "a parquet sink cannot be part of it"),
    ],
)
def test_a_mistake_about_dead_letters_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, at: str, says: str
) -> None:
    text = ORDERS.replace(old, new, 1)
    found = problems(tmp_path, text)
    assert (line_of(text, at), says) in [(line, says) for line, told in found if says in told], found


EXPECTING = """\
[source.orders]
topics = "orders"
schema = "amount DOUBLE"
expect = { positive = "value.amount > 0" }
[step.paid]
from = "orders"
dead_letter = "paid-dead"
[step.paid.expect]
small = { rule = "value.amount < 10" }
known = { rule = "value IS NOT NULL", on_fail = "dead_letter" }
[sink.out]
from = "paid"
topic = "paid"
"""


def test_expectations_have_a_rule_and_say_what_happens_to_a_row(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, EXPECTING)
    assert pipeline.expectations == {
        "orders": (Expectation("positive", "value.amount > 0", "warn"),),
        "paid": (
            Expectation("small", "value.amount < 10", "warn"),
            Expectation("known", "value IS NOT NULL", "dead_letter"),
        ),
    }
    assert [[sink.name for sink in query.sinks] for query in queries(pipeline)] == [["out", "paid.dead_letter"]]


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        ('"value.amount > 0"', "3", "expect =", "has to be a table, and is a number"),
        ('"value.amount > 0"', '""', "expect =", "positive has to be a text, and is empty"),
        ("positive =", '"all positive" =', "expect =", "write it like a column's, `all_positive`"),
        ('rule = "value.amount < 10"', 'on_fail = "drop"', "small", "expectation 'small' needs `rule`"),
        ('rule = "value.amount < 10"', 'rul = "x"', "small", "did you mean 'rule'"),
        ('"dead_letter" }', '"dead-letter" }', "known", "on_fail cannot be 'dead-letter'; did you mean 'dead_letter'"),
        ('dead_letter = "paid-dead"\n', "", "known", "[step.paid] needs `dead_letter`"),
        (', on_fail = "dead_letter"', "", "paid-dead", "no row gets to this dead_letter"),
        ('"paid-dead"', '"orders"', 'dead_letter = "orders"', "would be read again"),
        ("[sink.out]", "\n".join(f'r{n} = "true"' for n in range(98)) + "\n[sink.out]", "[source", "at most 100"),
    ],
)
def test_a_mistake_about_expectations_is_told_with_its_line(
    tmp_path: Path, old: str, new: str, at: str, says: str
) -> None:
    text = EXPECTING.replace(old, new, 1)
    found = problems(tmp_path, text)
    assert (line_of(text, at), says) in [(line, says) for line, told in found if says in told], found


@pytest.mark.parametrize(
    ("sink", "says"),
    [
        ('destinations = "topics"', 'destinations cannot be \'topics\': name the columns, "topic", "queue" or both'),
        ("destinations = []", "destinations is empty"),
        ('destinations = "topic"\ntopic = "x"', "leave one of them"),
        ('topic = "x"\ndead_letter = "y"', "the rows of this sink all go to one place"),
        ('destinations = "topic"\npartition_by = "id"', "partition_by is for folders of files"),
    ],
)
def test_a_mistake_about_destinations_is_told_with_its_line(tmp_path: Path, sink: str, says: str) -> None:
    text = f'[source.orders]\ntopics = "orders"\n[sink.out]\nfrom = "orders"\n{sink}\n'
    found = problems(tmp_path, text)
    assert any(says in told and line >= 5 for line, told in found), found


def test_a_sink_with_destinations_is_drawn_and_can_share_a_queue(tmp_path: Path) -> None:
    text = ORDERS.replace('topics = "orders"', 'queue = "orders"').replace('parquet = "ids"', 'queue = "ids"')
    pipeline = pipeline_of(tmp_path, text.replace('topic = "ids"', 'destinations = ["topic", "queue"]'))
    assert "ids ▶ topic or queue of each row" in as_text(pipeline)
    assert [len(query.sinks) for query in queries(pipeline)] == [1, 3]


def test_the_files_of_the_guide_have_no_mistake(tmp_path: Path) -> None:
    for block in blocks(ROOT / "docs" / "guide" / "pipeline-rules.md"):
        if block.info == "toml":
            assert problems(tmp_path, block.code) == []
