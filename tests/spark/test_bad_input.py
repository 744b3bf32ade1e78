"""What a person sees of a mistake: one sentence on the terminal that says what to do, and no page of Java.

Every one of these runs `waystation pipeline run` as a process of its own, as a person does. The trace is in the log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.cluster_kit import QUICK_TO_START
from tests.spark.sink_kit import committed, connect, texts
from tests.support.names import unique
from tests.support.ports import free_port
from tests.support.server import ROOT, Server
from tests.support.waiting import wait_for

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

RUN_S = 180.0
SETTINGS = f"""
[spark]
spark.driver.memory = "1g"
spark.driver.extraJavaOptions = "{QUICK_TO_START}"
spark.sql.shuffle.partitions = 2
"""


def write(folder: Path, text: str, name: str = "one") -> Path:
    file = folder / f"{name}.toml"
    file.write_text(f'name = "{name}"\n{text}{SETTINGS}')
    return file


@contextlib.contextmanager
def started(file: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`waystation pipeline run`; what it says is in `said` beside the file."""
    command = [sys.executable, "-m", "waystation.cli.main", "pipeline", "run", str(file), *arguments]
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    with file.with_name("said").open("wb") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env={**os.environ, "PYTHONPATH": path},
            cwd=file.parent,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def said(file: Path) -> str:
    return file.with_name("said").read_text(errors="replace")


def run(file: Path, *arguments: str) -> tuple[int, str]:
    with started(file, *arguments) as process:
        code = process.wait(RUN_S)
    return code, said(file)


def check_manners(text: str) -> None:
    """Nothing that only a developer of Spark could read."""
    for word in ("at org.apache", "at java.", "Traceback", "py4j", "Py4J", "SQLSTATE", "\n\tat ", "JVM stacktrace"):
        assert word not in text, text
    assert len(text.splitlines()) <= 8, text


def log_of(file: Path) -> str:
    return (file.parent / ".waystation" / file.stem / "pipeline.log").read_text(errors="replace")


# -- without Spark -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[source.a]\ntopics = "t"\nstartingOffset = "earliest"\n[sink.o]\nfrom = "a"\nconsole = true\n',
            "startingOffsets",
        ),
        ('[source.a]\ntopics = "t"\n[sink.o]\nfrom = "b"\nconsole = true\n', "'b'"),
        ('[source.a]\ntopics = "t"\n[sink.o]\nfrom = "a"\ntopik = "x"\n', "topic"),
        ('[source.a]\ntopics = "t"\n[sink.o]\nfrom = "a"\n', "sink"),
        ('[source.a]\ntopics = "t\n', ""),
        ('trigger = "soon"\n[source.a]\ntopics = "t"\n[sink.o]\nfrom = "a"\nconsole = true\n', "soon"),
    ],
    ids=["option", "table", "key", "nowhere", "toml", "trigger"],
)
def test_a_mistake_in_the_file_is_told_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    file = write(tmp_path, text)
    code, told = run(file)
    assert code != 0
    assert f"{file.name}:" in told
    assert words in told
    check_manners(told)


def test_a_broker_that_is_down_is_named_with_what_to_do(tmp_path: Path) -> None:
    port = free_port()
    text = f'servers = "127.0.0.1:{port}"\n[source.a]\ntopics = "t"\n[sink.o]\nfrom = "a"\nconsole = true\n'
    code, told = run(write(tmp_path, text), "--wait", "1")
    assert code != 0
    assert f"no server answers at 127.0.0.1:{port}" in told
    assert "trying again for 1 s" in told
    check_manners(told)


def test_the_checkpoint_of_another_pipeline_is_refused(tmp_path: Path, server: Server) -> None:
    (tmp_path / "check").mkdir()
    (tmp_path / "check" / "pipeline.json").write_text('{"pipeline": "other", "identity": "x"}')
    text = f'servers = "{server.bootstrap}"\ncheckpoint = "check"\n[source.a]\ntopics = "t"\n[sink.o]\nfrom = "a"\n'
    code, told = run(write(tmp_path, text + "console = true\n"))
    assert code != 0
    assert "belongs to pipeline 'other', not to 'one'" in told
    assert "set `checkpoint` to a folder of its own" in told
    check_manners(told)


@pytest.mark.parametrize(
    ("scheme", "words"),
    [("spark", "see that its master is running there"), ("sc", "no Spark Connect server answers at")],
)
def test_a_cluster_that_is_not_there_is_named(tmp_path: Path, server: Server, scheme: str, words: str) -> None:
    if scheme == "sc":
        pytest.importorskip(
            "grpc", reason="grpcio is not installed; `pip install 'waystation[spark-connect]'` brings it"
        )
    master = f"{scheme}://127.0.0.1:{free_port()}"
    text = f'servers = "{server.bootstrap}"\n[source.a]\nrate = 1\n[sink.o]\nfrom = "a"\nconsole = true\n'
    code, told = run(write(tmp_path, text), "--master", master)
    assert code != 0
    assert words in told
    assert master in told
    check_manners(told)


# -- with Spark --------------------------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_a_topic_that_is_not_there_is_named(tmp_path: Path, server: Server) -> None:
    text = f'servers = "{server.bootstrap}"\n[source.a]\ntopics = "not-there"\n[sink.o]\nfrom = "a"\nconsole = true\n'
    file = write(tmp_path, text)
    code, told = run(file)
    assert code != 0
    assert "topic 'not-there' does not exist" in told
    assert "waystation topics create" in told
    check_manners(told)
    assert "not-there" in log_of(file)


@pytest.mark.timeout(600)
def test_a_column_of_the_wrong_type_for_the_sink_is_named(tmp_path: Path, server: Server) -> None:
    topic = unique("t")
    with connect(server) as mq:
        mq.create_topic(topic, partitions=1)
    text = f"""servers = "{server.bootstrap}"
trigger = "available-now"
[source.a]
topics = "{topic}"
startingOffsets = "earliest"
[step.b]
from = "a"
select = ["value", "'high' AS priority"]
[sink.o]
from = "b"
topic = "{topic}"
"""
    file = write(tmp_path, text)
    code, told = run(file)
    assert code != 0
    assert "column 'priority' is string" in told
    check_manners(told)
    assert "priority" in log_of(file)
    assert "at org.apache" not in log_of(file), "it is found before Spark starts a query"


@pytest.mark.timeout(900)
def test_a_broker_that_is_away_for_a_while_is_told_and_the_query_goes_on(tmp_path: Path) -> None:
    """It is away until the person has been told so twice, which is a good ten seconds, and comes back by itself."""
    with Server(tmp_path / "broker") as broker:
        with connect(broker) as mq:
            for topic in ("in", "out"):
                mq.create_topic(topic, partitions=1)
            mq.publish_many("in", [str(n) for n in range(10)])
        text = f"""servers = "{broker.bootstrap}"
trigger = "200ms"
[source.a]
topics = "in"
startingOffsets = "earliest"
[sink.o]
from = "a"
topic = "out"
"""
        file = write(tmp_path, text)
        with started(file) as process:
            wait_for(lambda: len(committed(broker, "out")) == 10, "the first rows", within_s=RUN_S)
            broker.stop()
            wait_for(lambda: "away" in said(file), "the person is told", within_s=60)
            wait_for(lambda: log_of(file).count("trying again for") >= 3, "it is tried on and on", within_s=120)
            assert process.poll() is None, said(file)
            broker.restart()
            with connect(broker) as mq:
                mq.publish_many("in", [str(n) for n in range(10, 20)])
            wait_for(lambda: len(committed(broker, "out")) >= 20, "the other rows", within_s=RUN_S)
            wait_for(lambda: "back" in said(file), "the person is told that", within_s=60)
            process.send_signal(signal.SIGTERM)
            assert process.wait(RUN_S) == 0, said(file)
        assert sorted(texts(committed(broker, "out")), key=int) == [str(n) for n in range(20)]
        check_manners(said(file))
