"""`waystation pipeline` where the extra `spark` is not installed says what to install, and checks what it can."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.kit import Cli, Done, command, environment
from tests.support.waiting import DEADLINE_S

BLOCK = "import sys\nfor name in ({names}):\n    sys.modules[name] = None\n"
"""What an import finds then is what it finds where the package is not installed: ModuleNotFoundError."""

GOOD = '[source.a]\ntopics = "{topic}"\n[sink.b]\nfrom = "a"\ntopic = "{topic}"\n'


def run(folder: Path, cli: Cli, missing: str, *words: str) -> Done:
    """Runs a command in a Python that lacks some packages."""
    (folder / "sitecustomize.py").write_text(BLOCK.format(names=missing))
    env = environment({"WAYSTATION_SERVER": cli.server})
    env["PYTHONPATH"] = f"{folder}:{env['PYTHONPATH']}"
    done = subprocess.run(command(*words), env=env, capture_output=True, timeout=DEADLINE_S, check=False)
    return Done(done.returncode, done.stdout, done.stderr.decode())


@pytest.mark.parametrize("missing", ["'pyarrow',", "'pyspark',", "'pyarrow', 'pyspark', 'pandas'"])
def test_check_says_what_to_install(tmp_path: Path, cli: Cli, topic: str, missing: str) -> None:
    cli("topics", "create", topic)
    file = tmp_path / "p.toml"
    file.write_text(GOOD.format(topic=topic))
    done = run(tmp_path, cli, missing, "pipeline", "check", str(file))
    assert (done.code, done.err) == (1, "")
    (line,) = done.lines
    assert "pip install 'waystation[spark]'" in line
    assert missing.split("'")[1] in line
    assert "--no-spark" in line
    done = run(tmp_path, cli, missing, "pipeline", "check", "--no-spark", str(file))
    assert (done.code, done.err) == (0, "")


def test_check_still_finds_what_needs_no_spark(tmp_path: Path, cli: Cli, topic: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(GOOD.format(topic=topic) + "colour = 1\n")
    done = run(tmp_path, cli, "'pyarrow', 'pyspark'", "pipeline", "check", str(file))
    assert done.code == 1
    assert "Traceback" not in done.err
    assert any("colour" in line for line in done.lines)
    assert any(topic in line for line in done.lines), "the topic that is not there"


@pytest.mark.parametrize("verb", ["run", "ready"])
def test_what_needs_spark_says_what_to_install(tmp_path: Path, cli: Cli, topic: str, verb: str) -> None:
    file = tmp_path / "p.toml"
    file.write_text(GOOD.format(topic=topic))
    words = (str(file),) if verb == "run" else ("traffic", "--topics", topic, "--to", topic, "--folder", str(tmp_path))
    done = run(tmp_path, cli, "'pyarrow',", "pipeline", verb, *words)
    assert done.code == 1
    assert "pip install 'waystation[spark]'" in done.err
    assert "Traceback" not in done.err
