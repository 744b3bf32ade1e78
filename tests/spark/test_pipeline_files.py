"""What a pipeline file may say, and what is said of one with mistakes. No Spark and no broker is needed here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.server import ROOT
from waystation.durations import parse_ms
from waystation.errors import Conflict, Invalid, NotFound
from waystation.spark.pipelines.file import keys
from waystation.spark.pipelines.file.declared import Pipeline, RestartPolicy
from waystation.spark.pipelines.file.problems import FileProblem, PipelineInvalid
from waystation.spark.pipelines.file.queries import queries
from waystation.spark.pipelines.file.reading import read_pipeline, read_with_problems
from waystation.spark.pipelines.file.times import spark_interval
from waystation.spark.pipelines.graph import as_dot, as_text, edges
from waystation.spark.pipelines.status.folder import CheckpointFolder
from waystation.spark.pipelines.transform.explaining import explain
from waystation.spark.pipelines.transform.functions import load_reference

pytestmark = pytest.mark.quick

WHOLE = """\
name = "orders"
servers = "127.0.0.1:1"
trigger = "10s"

[spark]
spark.sql.shuffle.partitions = 2
"spark.driver.memory" = "1g"

[source.orders]
topics = ["orders", "returns"]
schema = "id STRING, customer STRING, amount DOUBLE"
maxRowsPerTrigger = 1000
watermark = { column = "timestamp", delay = "5m" }

[source.customers]
parquet = "customers"
static = true

[step.paid]
from = "orders"
filter = "value.amount > 0"
select = ["value.*", "timestamp"]

[step.named]
from = "paid"
join = { with = "customers", on = "customer", how = "left" }

[step.totals]
from = "named"
window = { column = "timestamp", size = "1 minute", slide = "30s" }
group = "country"
aggregate = { total = "sum(amount)", n = "count(*)" }

[step.big]
sql = '''
SELECT country, total
FROM totals
WHERE total > 100
'''

[sink.out]
from = "big"
topic = "totals"
key = "country"

[sink.files]
from = "named"
parquet = "/data/orders"
partition_by = "country"
"""


def write(folder: Path, text: str, name: str = "orders.toml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def problems(folder: Path, text: str) -> list[tuple[int, str]]:
    return [(problem.line, problem.text) for problem in sorted(read_with_problems(write(folder, text)).problems)]


def only_problem(folder: Path, text: str) -> tuple[int, str]:
    (problem,) = problems(folder, text)
    return problem


def line_of(text: str, fragment: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if fragment in line)


def pipeline_of(folder: Path, text: str = WHOLE) -> Pipeline:
    return read_pipeline(write(folder, text)).pipeline


# -- what is read ------------------------------------------------------------------------------------------------------


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    assert (pipeline.name, str(pipeline.servers), str(pipeline.trigger)) == ("orders", "127.0.0.1:1", "10 seconds")
    assert pipeline.settings == {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    orders = pipeline.sources["orders"]
    assert orders.topics == ("orders", "returns")
    assert orders.options["valueFormat"] == "json"
    assert orders.options["startingOffsets"] == "earliest", "a new pipeline begins with what is there"
    assert pipeline.sources["customers"].place == str(tmp_path / "customers"), "paths begin at the file"
    assert pipeline.checkpoint == str(tmp_path / ".waystation" / "orders")
    assert pipeline.steps["totals"].aggregate == {"total": "sum(amount)", "n": "count(*)"}
    assert pipeline.sinks["files"].place == "/data/orders"


def test_a_schedule_and_a_restart_policy_are_read(tmp_path: Path) -> None:
    text = WHOLE.replace('trigger = "10s"', 'schedule = "0 3 * * *"\ntime_zone = "Europe/Berlin"\ncatch_up = true')
    found = pipeline_of(tmp_path, text + '[restart]\nmax_restarts = 3\nmax_backoff = "1m"\n')
    assert (str(found.schedule), str(found.trigger), found.catch_up) == (
        "0 3 * * * (Europe/Berlin)",
        "available-now",
        True,
    )
    assert found.restart == RestartPolicy(max_restarts=3, max_backoff_ms=60_000)
    by_word = pipeline_of(tmp_path, WHOLE.replace("[spark]", 'restart = "on-failure"\n[spark]'))
    assert by_word.restart == RestartPolicy()
    assert pipeline_of(tmp_path).restart is None


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    read = read_pipeline(write(tmp_path, WHOLE), servers="10.0.0.1:9092", master="local[2]")
    assert (str(read.pipeline.servers), read.pipeline.master) == ("10.0.0.1:9092", "local[2]")


def test_the_name_is_the_files_unless_it_says_otherwise(tmp_path: Path) -> None:
    text = '[source.a]\nrate = 1\n[sink.b]\nfrom = "a"\nconsole = true\n'
    assert read_pipeline(write(tmp_path, text, "ticks.toml")).pipeline.name == "ticks"


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("10s", "10 seconds"),
        ("250ms", "250 milliseconds"),
        ("1h30m", "1 hours 30 minutes"),
        ("10 minutes", "10 minutes"),
        ("1 day", "1 days"),
        ("2w", "14 days"),
        ("1.5s", "1 seconds 500 milliseconds"),
        ("0s", "0 seconds"),
    ],
)
def test_durations_are_spelled_as_spark_does(text: str, spelled: str) -> None:
    assert spark_interval(parse_ms(text)) == spelled


# -- mistakes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        ('topics = ["orders", "returns"]', 'topcs = "orders"', "topcs", "did you mean 'topics'?"),
        ("maxRowsPerTrigger", "maxRowPerTrigger", "maxRowPerTrigger", "did you mean 'maxRowsPerTrigger'"),
        ("maxRowsPerTrigger = 1000", 'maxRowsPerTrigger = "many"', "maxRowsPer", "is not a whole number above zero"),
        ('delay = "5m"', 'delay = "five"', "watermark", "is not a duration: write"),
        ('delay = "5m"', 'dely = "5m"', "watermark", "did you mean 'delay'?"),
        ('trigger = "10s"', 'trigger = "sometimes"', "trigger", '"available-now"'),
        ('trigger = "10s"', 'triger = "10s"', "triger", "did you mean 'trigger'?"),
        ('from = "paid"', 'from = "paidd"', 'from = "paidd"', "did you mean 'paid'?"),
        ('from = "paid"', 'from = "totals"', 'from = "totals"', "declared below"),
        ('with = "customers"', 'with = "custmers"', "custmers", "did you mean 'customers'?"),
        ('how = "left"', 'how = "lft"', "lft", "did you mean 'left'?"),
        ('aggregate = { total = "sum(amount)", n = "count(*)" }', "", "window =", "add it"),
        ('from = "big"\n', "", "[sink.out]", "needs `from`"),
        ('topic = "totals"\n', "", "[sink.out]", "needs one of topic"),
        ('topic = "totals"', 'topic = "totals"\nqueue = "x"', "queue", "leave one of them"),
        ('key = "country"', "key = 7", "key = 7", "has to be a text"),
        ("static = true", 'static = "yes"', "static", "true or false"),
        ('partition_by = "country"', 'mode = "update"', "mode", "can only append"),
        ("[step.paid]", "[step.orders]", "[step.orders]", "two tables called 'orders'"),
        ("[sink.out]", '[sink."o-u-t"]', "o-u-t", "letters, digits and underscores"),
        ('name = "orders"', 'name = "or ders"', "name", "cannot be a pipeline's name"),
        ('servers = "127.0.0.1:1"', 'master = "mars"', "master", "spark://HOST:PORT"),
        ('trigger = "10s"', 'schedule = "0 25 * * *"', "schedule", "the hour '25' is wrong: it has to be 0 to 23"),
        ('trigger = "10s"', 'trigger = "10s"\nschedule = "0 3 * * *"', "trigger", "has to end"),
        ('trigger = "10s"', 'schedule = "@daily"\ntime_zone = "Mars"', "time_zone", "no time zone 'Mars'"),
        ('trigger = "10s"', "catch_up = true", "catch_up", "for a pipeline with a `schedule`"),
        ('trigger = "10s"', 'restart = "on-falure"', "restart", "did you mean 'on-failure'?"),
        ('trigger = "10s"', "restart = { max_restart = 3 }", "restart", "did you mean 'max_restarts'?"),
        ('trigger = "10s"', "restart = { max_restarts = 0 }", "restart", "a whole number from 1 on"),
        ('trigger = "10s"', 'restart = { initial_backoff = "soon" }', "restart", "is not a duration"),
        ('trigger = "10s"', 'restart = { max_backoff = "10ms" }', "restart", "shorter than initial_backoff"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, old: str, new: str, at: str, says: str) -> None:
    assert old in WHOLE
    text = WHOLE.replace(old, new, 1)
    found = problems(tmp_path, text)
    assert (line_of(text, at), says) in [(line, says) for line, told in found if says in told], found


JOBS = """\
[source.jobs]
queue = "jobs"
[step.good]
sql = "SELECT value FROM jobs WHERE tag > 3"
[step.bad]
from = "jobs"
filter = "tag <= 3"
[sink.good]
from = "good"
topic = "good"
[sink.bad]
from = "bad"
queue = "bad"
[sink.ticks]
from = "ticks"
console = true
[source.ticks]
rate = 1
"""


def test_sinks_that_read_one_queue_are_one_query(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path, JOBS)
    assert [[sink.name for sink in query.sinks] for query in queries(pipeline)] == [["good", "bad"], ["ticks"]]
    apart = pipeline_of(tmp_path, JOBS.replace('queue = "jobs"', 'topics = "jobs"').replace("tag", "offset"))
    assert [[sink.name for sink in query.sinks] for query in queries(apart)] == [["good"], ["bad"], ["ticks"]]


@pytest.mark.parametrize(
    ("old", "new", "at", "says"),
    [
        ('queue = "bad"', 'parquet = "bad"', "[sink.bad]", "a parquet sink cannot be part of it"),
        ('queue = "bad"', 'queue = "bad"\nguarantee = "at-least-once"', "[sink.bad]", "the same guarantee and options"),
        ('topic = "good"', 'topic = "good"\nmode = "update"', 'mode = "update"', "has to be of mode append"),
        ("rate = 1", 'queue = "jobs"', "[source.ticks]", "queue 'jobs' is read by [source.jobs] already"),
    ],
)
def test_sinks_that_read_one_queue_and_cannot_be_written_together_are_a_mistake(
    tmp_path: Path, old: str, new: str, at: str, says: str
) -> None:
    text = JOBS.replace(old, new, 1)
    found = problems(tmp_path, text)
    first = line_of(text, at)
    assert any(says in told and first <= line <= first + 1 for line, told in found), found


def test_all_mistakes_are_told_at_once_and_no_other(tmp_path: Path) -> None:
    text = WHOLE.replace("maxRowsPerTrigger", "maxRows").replace('from = "big"', 'from = "bigg"')
    with pytest.raises(PipelineInvalid) as caught:
        read_pipeline(write(tmp_path, text))
    file = tmp_path / "orders.toml"
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[0] for line in lines] == [
        f"{file}:{line_of(text, 'maxRows')}",
        f"{file}:{line_of(text, 'bigg')}",
    ]


def test_who_uses_a_table_with_a_mistake_is_not_to_blame(tmp_path: Path) -> None:
    text = WHOLE.replace('topics = ["orders", "returns"]', "")
    line, told = only_problem(tmp_path, text)
    assert line == line_of(text, "[source.orders]")
    assert "needs one of topics" in told


def test_what_is_no_toml_is_told_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(PipelineInvalid, match=r"orders.toml:2: not valid TOML"):
        read_pipeline(write(tmp_path, 'name = "a"\nsource = [\n\n'.replace("[\n", "= 1\n")))


def test_a_pipeline_needs_a_source_and_a_sink(tmp_path: Path) -> None:
    told = [text for _, text in problems(tmp_path, 'name = "a"\n')]
    assert ["source" in text or "sink" in text for text in told] == [True, True]


def test_a_file_that_is_not_there_is_named_with_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    with pytest.raises(NotFound, match=r"did you mean 'orders.toml'"):
        read_pipeline(tmp_path / "ordrs.toml")


def test_bytes_and_folders_are_no_pipelines(tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    for file in (tmp_path / "bytes.toml", tmp_path):
        with pytest.raises(Invalid):
            read_pipeline(file)


# -- the folder --------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_another_pipeline_is_refused(tmp_path: Path) -> None:
    with CheckpointFolder(pipeline_of(tmp_path)):
        pass
    other = WHOLE.replace('name = "orders"', f'name = "other"\ncheckpoint = "{tmp_path}/.waystation/orders"')
    with pytest.raises(Conflict, match=r"belongs to pipeline 'orders'.*set `checkpoint` to a folder of its own"):
        CheckpointFolder(pipeline_of(tmp_path, other)).__enter__()


def test_a_checkpoint_of_a_query_that_is_no_pipeline_is_refused(tmp_path: Path) -> None:
    folder = CheckpointFolder(pipeline_of(tmp_path))
    (folder.path / "offsets").mkdir(parents=True)
    with pytest.raises(Conflict, match="no pipeline"):
        folder.__enter__()


def test_a_pipeline_runs_once_at_a_time(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    with CheckpointFolder(pipeline) as folder:
        assert folder.running_pid() == os.getpid()
        with pytest.raises(Conflict, match=f"running already, as process {os.getpid()}"):
            CheckpointFolder(pipeline).__enter__()
    assert CheckpointFolder(pipeline).running_pid() is None


def test_a_reset_forgets_and_gives_a_new_identity(tmp_path: Path) -> None:
    with CheckpointFolder(pipeline_of(tmp_path)) as folder:
        before = folder.identity
        Path(folder.sink("out")).mkdir(parents=True)
        folder.log.write_text("kept")
        folder.reset()
        assert not folder.remembers()
        assert folder.identity != before
        assert folder.log.read_text() == "kept"


# -- functions ---------------------------------------------------------------------------------------------------------


def test_functions_come_from_a_file_beside_the_pipeline(tmp_path: Path) -> None:
    pytest.importorskip("pyspark", reason="the extra `spark` is not installed")
    (tmp_path / "neighbour.py").write_text("FACTOR = 3\n")
    (tmp_path / "own.py").write_text("import neighbour\ndef triple(x):\n    return x * neighbour.FACTOR\n")
    assert load_reference(tmp_path, "own.py:triple")(2) == 6
    assert load_reference(tmp_path, "own:triple")(2) == 6
    with pytest.raises(NotFound, match="did you mean 'triple'"):
        load_reference(tmp_path, "own.py:tripple")
    with pytest.raises(NotFound, match=r"did you mean 'own.py'"):
        load_reference(tmp_path, "wn.py:triple")


def test_a_function_file_with_a_mistake_is_told_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = 1\ny = x / 0\n")
    with pytest.raises(Invalid, match=r"bad.py:2: ZeroDivisionError"):
        load_reference(tmp_path, "bad.py:y")
    (tmp_path / "worse.py").write_text("x = 1\ndef (:\n")
    with pytest.raises(Invalid, match=r"worse.py:2: SyntaxError"):
        load_reference(tmp_path, "worse.py:y")


# -- pictures and words ------------------------------------------------------------------------------------------------


def test_the_graph_follows_queries_and_joins(tmp_path: Path) -> None:
    found = {(edge.start, edge.end) for edge in edges(pipeline_of(tmp_path))}
    assert found == {
        ("orders", "paid"),
        ("paid", "named"),
        ("customers", "named"),
        ("named", "totals"),
        ("totals", "big"),
        ("big", "sink:out"),
        ("named", "sink:files"),
    }


def test_the_graph_is_drawn(tmp_path: Path) -> None:
    pipeline = pipeline_of(tmp_path)
    text = as_text(pipeline)
    assert "out ▶ topic totals" in text
    assert text.count("named: join") == 2
    assert text.count("└─ named: join …") == 1, "what was drawn is only named again"
    assert '"big" -> "sink:out";' in as_dot(pipeline)


def test_tables_named_in_comments_and_texts_are_not_used(tmp_path: Path) -> None:
    sql = "SELECT 'FROM customers' AS x -- FROM paid\nFROM totals AS t, named n"
    text = WHOLE.replace("SELECT country, total\nFROM totals\nWHERE total > 100\n", sql.replace("'", '"') + "\n")
    text = text.replace('"FROM customers"', '"a"')
    found = {edge.start for edge in edges(pipeline_of(tmp_path, text)) if edge.end == "big"}
    assert found == {"totals", "named"}


@pytest.mark.parametrize(
    ("raised", "sentence"),
    [
        (
            "[STREAM_FAILED] Query [id = 1] terminated with exception: [PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] It"
            "\nTraceback (most recent call last):\n  File \"x.py\", line 3, in f\n    raise NotFound('x')\n"
            "waystation.errors.UnknownTopic: there is no topic 'orders'; create it with `waystation topics create"
            " orders`\n\n\tat org.apache.spark.api.python.X.y(X.scala:12)\n",
            "there is no topic 'orders'; create it with `waystation topics create orders`",
        ),
        (
            "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column, variable, or function parameter with name `idd` cannot be"
            " resolved. Did you mean one of the following? [`id`]. SQLSTATE: 42703; line 1 pos 0;\n'Filter ('idd > 1)",
            "there is no column `idd` here; there are `id`",
        ),
        (
            'Traceback (most recent call last):\n  File "f.py", line 1\nValueError: no: such thing\n',
            "ValueError: no: such thing",
        ),
        (
            "[TABLE_OR_VIEW_NOT_FOUND] The table or view `ordrs` cannot be found. Verify",
            "there is no source or step called 'ordrs'; did you mean 'orders'?",
        ),
        ("plain words\n\tat java.lang.Thread.run", "plain words"),
    ],
)
def test_an_error_of_spark_becomes_one_sentence(raised: str, sentence: str) -> None:
    assert explain(RuntimeError(raised), ["orders"]) == sentence


def test_reading_a_file_imports_no_spark(tmp_path: Path) -> None:
    write(tmp_path, WHOLE)
    program = (
        "import sys; from pathlib import Path; from waystation.spark.pipelines.file.reading import read_pipeline;"
        f"read_pipeline(Path({str(tmp_path / 'orders.toml')!r})); sys.exit('pyspark' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", program], env=environment, check=False).returncode == 0


def test_the_reference_has_every_key() -> None:
    page = (ROOT / "docs" / "guide" / "pipelines.md").read_text()
    tables = (
        keys.TOP,
        keys.LOGIN,
        keys.RESTART,
        keys.SOURCE,
        keys.STEP,
        keys.SINK,
        keys.WATERMARK,
        keys.JOIN,
        keys.DEDUP,
        keys.WINDOW,
        keys.STATEFUL,
        keys.EXPECTATION,
        keys.DEAD_LETTER,
    )
    missing = sorted({key for table in tables for key in table if f"`{key}`" not in page})
    assert not missing


def test_problems_are_ordered_by_line() -> None:
    found = PipelineInvalid(Path("x.toml"), [FileProblem(9, "b"), FileProblem(2, "a"), FileProblem(9, "b")])
    assert str(found) == "x.toml:2: a\nx.toml:9: b"
