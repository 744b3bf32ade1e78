"""`waystation pipeline test FILE…`: runs the unit tests of pipelines, and shows what is not as expected.

Spark is imported when tests are run; no broker is asked.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.cli.terminal.arguments import examples
from waystation.cli.terminal.output import bold, print_json, spell_count, visible
from waystation.errors import NotFound, near_matches

if TYPE_CHECKING:
    from waystation.spark.pipeline_tests.cases import Case
    from waystation.spark.pipeline_tests.running import Comparison, Result

MOST_ROWS = 20
"""Rows of each sort that are shown of one table."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation pipeline test orders.toml", "waystation pipeline test orders.toml --only paid_orders"
    )
    parser.add_argument("file", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--only", action="append", metavar="NAME", help="only this test; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON lines, one object for each test")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from waystation.spark.pipeline_tests.cases import read_cases, tested_by
    from waystation.spark.pipelines.file.reading import read_pipeline
    from waystation.spark.sessions import need_pyspark

    read = [read_pipeline(tested_by(file)) for file in dict.fromkeys(map(tested_by, arguments.file))]
    cases = [(one, read_cases(one)) for one in read]
    if arguments.only:
        known = [case.name for _, some in cases for case in some]
        for name in arguments.only:
            if name not in known:
                raise NotFound(f"there is no test {name!r}{near_matches(name, known)}")
        cases = [(one, [case for case in some if case.name in arguments.only]) for one, some in cases]
    need_pyspark()
    from waystation.spark.pipeline_tests.running import run_cases

    results: list[Result] = []
    started = time.monotonic()

    def done(result: Result) -> None:
        results.append(result)
        _tell(result, as_json=arguments.json)

    for one, some in cases:
        run_cases(one, some, done)
    failed = sum(not result.passed for result in results)
    if not arguments.json:
        took = time.monotonic() - started
        print(f"{spell_count(len(results), 'test')}: {len(results) - failed} passed, {failed} failed, in {took:.0f} s")
    return 1 if failed else 0


def _tell(result: Result, *, as_json: bool) -> None:
    if as_json:
        print_json(_object(result))
        return
    print(f"{bold('PASS' if result.passed else 'FAIL')} {visible(result.case.name)}", flush=True)
    if result.error is not None:
        print(f"  {visible(result.error)}")
    for comparison in result.comparisons:
        for line in _lines(result.case, comparison):
            print(visible(line))


def _lines(case: Case, comparison: Comparison) -> Iterator[str]:
    """A headline for a table with differences, and a line for each."""
    from waystation.spark.pipeline_tests.values import spell

    found, rows, expectation = comparison.differences, comparison.rows, comparison.expectation
    if not found:
        return
    counts = ((found.different, "different"), (found.missing, "missing"), (found.unexpected, "unexpected"))
    summary = ", ".join(f"{spell_count(len(some), 'row')} {word}" for some, word in counts if some)
    yield f"  {expectation.kind} {expectation.name}: {summary}"
    for one in found.different[:MOST_ROWS]:
        row = expectation.rows[one.expected]
        columns = "; ".join(
            f"{name} is {spell(one.row[name])}, expected {spell(rows[one.expected][name])}" for name in one.columns
        )
        same = {name: value for name, value in one.row.items() if name not in one.columns}
        yield f"    {row.file}:{row.line}: {columns}" + (f"  (in {spell(same)})" if same else "")
    for number in found.missing[:MOST_ROWS]:
        row = expectation.rows[number]
        yield f"    {row.file}:{row.line}: missing {spell(rows[number])}"
    for other in found.unexpected[:MOST_ROWS]:
        yield f"    unexpected {spell(other)}"
    if any(len(some) > MOST_ROWS for some, _ in counts):
        yield f"    (of each sort, {MOST_ROWS} are shown; --json has all)"


def _object(result: Result) -> dict[str, object]:
    from waystation.spark.pipeline_tests.values import plain

    differences: list[dict[str, object]] = []
    for comparison in result.comparisons:
        found, rows, expectation = comparison.differences, comparison.rows, comparison.expectation
        for one in found.different:
            differences.append(
                {
                    expectation.kind: expectation.name,
                    "what": "different",
                    "line": expectation.rows[one.expected].line,
                    "columns": list(one.columns),
                    "expected": plain(rows[one.expected]),
                    "found": plain(one.row),
                }
            )
        for number in found.missing:
            line = expectation.rows[number].line
            missing = {"what": "missing", "line": line, "expected": plain(rows[number])}
            differences.append({expectation.kind: expectation.name, **missing})
        for other in found.unexpected:
            differences.append({expectation.kind: expectation.name, "what": "unexpected", "found": plain(other)})
    return {
        "test": result.case.name,
        "file": str(result.case.file),
        "line": result.case.line,
        "passed": result.passed,
        "error": result.error,
        "differences": differences,
    }
