"""`waystation pipeline test`: pipelines on rows of their own, compared with what is expected, without a broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the extra `spark` is not installed")

from tests.docs.blocks import blocks
from tests.support.server import ROOT
from waystation.cli.main import main
from waystation.spark.pipeline_tests.cases import Case, read_cases
from waystation.spark.pipeline_tests.comparing import compare, equal
from waystation.spark.pipeline_tests.values import AsJson
from waystation.spark.pipelines.file import keys
from waystation.spark.pipelines.file.problems import PipelineInvalid
from waystation.spark.pipelines.file.reading import read_pipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """\
servers = "127.0.0.1:1"

[source.orders]
topics = "orders"
schema = "id STRING, country STRING, amount DOUBLE, paid BOOLEAN"
watermark = { column = "timestamp", delay = "5 minutes" }

[source.countries]
parquet = "no-such-folder"
schema = "country STRING, zone STRING"
static = true

[step.paid]
from = "orders"
filter = "value.paid"
dedup = { columns = ["key"], within_watermark = true }
select = ["value.country", "value.amount", "timestamp"]

[step.per_minute]
from = "paid"
window = { column = "timestamp", size = "1 minute" }
group = "country"
aggregate = { total = "sum(amount)", orders = "count(*)" }
select = ["window.start AS minute", "country", "total", "orders"]

[step.zones]
from = "per_minute"
join = { with = "countries", on = "country", how = "left" }

[step.counted]
from = "paid"
stateful = { processor = "own.py:Count", group = "country", output = "country STRING, n INT" }

[step.bad]
from = "orders"
filter = "_corrupt IS NOT NULL"
select = ["key", "_corrupt AS value"]

[sink.totals]
from = "zones"
topic = "totals"
key = "country"

[sink.bad]
from = "bad"
queue = "bad"
"""

TESTS = """\
[test.paid_orders_are_counted_once]
given.orders = [
  { key = "1", value = { id = "1", country = "DE", amount = 10, paid = true }, timestamp = 2026-03-01T12:00:10Z },
  { key = "1", value = { id = "1", country = "DE", amount = 10, paid = true }, timestamp = 2026-03-01T12:00:10Z },
  { key = "2", value = '{"id": "2", "country": "DE", "amount": 0.1, "paid": true}', timestamp = "2026-03-01 12:00:20" },
  { key = "3", value = '{"id": "3", "country": "FR", "amount": 3, "paid": false}', timestamp = 1772366400000 },
  { key = "4", value = '{"id": "4", "amount": "much"}', headers = { trace = "t1" } },
]
given.countries = "countries.jsonl"
expect.per_minute = [{ minute = 2026-03-01T12:00:00Z, country = "DE", total = 10.1, orders = 2 }]
expect.zones = [{ country = "DE", zone = "EU" }]
expect.step.bad = [{ key = "4" }]
expect.sink.bad = [{ key = "4", value = { amount = "much", id = "4" } }]
[[test.paid_orders_are_counted_once.expect.totals]]
key = "DE"
value = { minute = "2026-03-01T12:00:00.000Z", country = "DE", total = 10.1, orders = 2, zone = "EU" }

[test.shows_what_differs]
given.orders = [
  { key = "1", value = { country = "DE", amount = 10, paid = true }, timestamp = 2026-03-01T12:00:10Z },
  { key = "2", value = { country = "ES", amount = 1, paid = true }, timestamp = 2026-03-01T12:00:10Z },
]
expect.per_minute = [
  { country = "DE", total = 10, orders = 3 },
  { country = "FR", total = 7, orders = 9 },
]

[test.has_a_misspelt_column]
given.orders = [
  { value = { county = "DE" } },
]
expect.paid = []

[test.has_a_wrong_type]
expect.per_minute = [
  { orders = "three" },
]
"""

COUNT = """\
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
class Count(StatefulProcessor):
    def init(self, handle):
        self.seen = handle.getValueState("seen", "n INT")
    def handleInputRows(self, key, rows, timers):
        yield Row(country=key[0], n=sum(1 for _ in rows))
    def close(self):
        pass
"""


def write(folder: Path, tests: str = TESTS) -> Path:
    (folder / "own.py").write_text(COUNT)
    (folder / "countries.jsonl").write_text('{"country": "DE", "zone": "EU"}\n\n{"country": "FR", "zone": "EU"}\n')
    (folder / "orders.test.toml").write_text(tests)
    file = folder / "orders.toml"
    file.write_text(PIPELINE)
    return file


def line_of(text: str, fragment: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if fragment in line)


@pytest.mark.quick
def test_tests_pass_and_fail_with_what_differs(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path)
    beside = tmp_path / "orders.test.toml"
    assert main(["pipeline", "test", str(file)]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "PASS paid_orders_are_counted_once",
        "FAIL shows_what_differs",
        "  step per_minute: 1 row different, 1 row missing, 1 row unexpected",
    ]
    at = line_of(TESTS, "orders = 3")
    assert lines[3] == f'    {beside}:{at}: orders is 1, expected 3  (in {{country: "DE", total: 10.0}})'
    assert lines[4] == f'    {beside}:{at + 1}: missing {{country: "FR", total: 7.0, orders: 9}}'
    assert lines[5] == '    unexpected {country: "ES", total: 1.0, orders: 1}'
    assert lines[6:10] == [
        "FAIL has_a_misspelt_column",
        f"  {beside}:{line_of(TESTS, 'county')}: there is no column 'value.county'; did you mean 'country'?",
        "FAIL has_a_wrong_type",
        f'  {beside}:{line_of(TESTS, "three")}: orders is bigint, which "three" is not',
    ]
    assert lines[10].startswith("4 tests: 1 passed, 3 failed")
    assert not (tmp_path / ".waystation").exists(), "nothing is left behind"
    assert main(["pipeline", "test", str(beside), "--only", "paid_orders_are_counted_once", "--json"]) == 0
    (told,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (told["test"], told["passed"], told["differences"]) == ("paid_orders_are_counted_once", True, [])


def test_a_stateful_step_gets_all_rows_of_a_group(
    tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = ", ".join(f'{{ key = "{n}", value = {{ country = "{c}", paid = true }} }}' for n, c in enumerate("aab"))
    expected = '[{ country = "a", n = 2 }, { country = "b", n = 1 }]'
    file = write(tmp_path, f"[test.counts]\ngiven.orders = [{rows}]\nexpect.counted = {expected}\n")
    assert main(["pipeline", "test", str(file)]) == 0, capsys.readouterr().out


def test_the_tests_of_the_guide_pass(tmp_path: Path, spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    guide = ROOT / "docs" / "guide"
    (file := tmp_path / "orders.toml").write_text(first_toml(guide / "pipelines.md"))
    (tmp_path / "orders.test.toml").write_text(first_toml(guide / "pipeline-tests.md"))
    assert main(["pipeline", "test", str(file)]) == 0, capsys.readouterr().out
    assert "2 tests: 2 passed, 0 failed" in capsys.readouterr().out
    page = (guide / "pipeline-tests.md").read_text()
    assert all(f"`{key}`" in page for key in keys.TEST)


def first_toml(page: Path) -> str:
    return next(block.code for block in blocks(page) if block.info == "toml")


# -- files -------------------------------------------------------------------------------------------------------------


def cases(file: Path) -> list[Case]:
    return read_cases(read_pipeline(file))


@pytest.mark.quick
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("given.orders", "given.ordrs", "there is no source called 'ordrs'; did you mean 'orders'?"),
        ("expect.zones", "expect.zone", "there is no step or sink called 'zone'; did you mean 'zones'?"),
        ("expect.step.bad", "expect.bad", "write expect.step.bad or expect.sink.bad"),
        ("expect.sink.bad", "expect.sink.paid", "there is no sink called 'paid'"),
        ("countries.jsonl", "countries.json", "cannot be read"),
        ("given.countries", "givn.countries", "has no key 'givn'; did you mean 'given'?"),
        ('[{ country = "DE", zone = "EU" }]', '{ country = "DE" }', "write a list of tables"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, old: str, new: str, says: str) -> None:
    text = TESTS.replace(old, new, 1)
    file = write(tmp_path, text)
    with pytest.raises(PipelineInvalid) as raised:
        cases(file)
    told = str(raised.value).splitlines()
    assert any(line.startswith(f"{tmp_path}/orders.test.toml:{line_of(text, new)}: ") and says in line for line in told)


@pytest.mark.quick
def test_tests_may_stand_in_the_pipelines_own_file(tmp_path: Path) -> None:
    file = write(tmp_path)
    (tmp_path / "orders.test.toml").unlink()
    file.write_text(PIPELINE + "\n[test.none]\nexpect.paid = []\n")
    assert [(case.name, case.file) for case in cases(file)] == [("none", file)]


@pytest.mark.quick
def test_rows_are_compared_without_order_unless_it_is_asked_for() -> None:
    one, two = {"a": 1, "b": "x"}, {"a": 2, "b": "y"}
    assert not compare([one, two, one], [one, one, two])
    assert compare([one, two], [two, one], ordered=True)
    assert compare([one, one], [one]).missing == [1], "rows are counted"
    assert equal(0.1 + 0.2, 0.3)
    assert equal(AsJson({"a": [1, 2]}), b'{"a":[1,2.0]}')
    assert not equal(True, 1)
    assert not equal(AsJson([1]), b"no JSON")
