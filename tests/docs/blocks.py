"""The blocks of code in a page, and how each kind is run: by Python, by a shell, or as a session at a prompt.

A fence says what becomes of its block. `python` is run as it stands, by pytest if there are tests in it. `sh run` is
run by a shell that stops at the first command that fails. `console run` is a session: what stands behind `$ ` is run,
and what stands below it must be what it prints, where `…` stands for anything. A shell block without `run` is for the
reader only: nothing that could start a service or change a machine is ever run by accident.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from tests.support.server import ROOT

_FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<code>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
_NEEDS = re.compile(r"^# needs: (\S+)$", re.MULTILINE)
_PLACES = {"9092": "kafka", "5672": "amqp", "8080": "http"}
_ADDRESS = re.compile(r"(127\.0\.0\.1|localhost)(:|\", | )(9092|5672|8080)\b")
"""Where the pages say that a broker is, in the ways in which addresses are written."""
SNIPPET_S = 90
SPARK_S = 280
"""Spark alone takes half a minute to start where others work too."""


class Block(NamedTuple):
    """What stands between two fences, and what the first one says."""

    info: str
    code: str

    @property
    def missing(self) -> str | None:
        """The module that it needs, by its first line, and that is not installed here."""
        needed = _NEEDS.match(self.code)
        return needed[1] if needed and find_spec(needed[1]) is None else None


class Ran(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    errors: str


def blocks(page: Path) -> list[Block]:
    """All of a page's, in their order; those inside of lists without their indentation."""
    found = []
    for fence in _FENCE.finditer(page.read_text()):
        lines = fence["code"].splitlines(keepends=True)
        found.append(Block(fence["info"].strip(), "".join(line.removeprefix(fence["indent"]) for line in lines)))
    return found


def pointed_at(code: str, addresses: Mapping[str, str]) -> str:
    """The code with the addresses of a broker that is there."""

    def moved(match: re.Match[str]) -> str:
        host, port = addresses[_PLACES[match[3]]].rsplit(":", 1)
        return f"{host}{match[2]}{port}"

    return _ADDRESS.sub(moved, code)


def run_block(block: Block, folder: Path, addresses: Mapping[str, str]) -> str | None:
    """Runs a block in a folder, against a broker; what went wrong, or None. Blocks that are not to be run are fine."""
    code = pointed_at(block.code, addresses)
    if block.info == "python":
        command = (
            _tested(code, folder) if re.search(r"^def test_", code, re.MULTILINE) else [sys.executable, "-c", code]
        )
        return _failure(code, _run(command, folder, addresses))
    if block.info == "sh run":
        return _failure(code, _run(["bash", "-e", "-u", "-o", "pipefail", "-c", code], folder, addresses))
    if block.info == "console run":
        return _play(code, folder, addresses)
    return None


def _tested(code: str, folder: Path) -> list[str]:
    """The code as a file of tests, with our own fixtures and no others: the package need not be installed here."""
    (folder / "test_page.py").write_text(code)
    plugins = ["-p", "waystation.pytest_plugin", "-p", "no:cacheprovider"]
    return [sys.executable, "-m", "pytest", "-q", "--rootdir", str(folder), *plugins, "test_page.py"]


def _play(session: str, folder: Path, addresses: Mapping[str, str]) -> str | None:
    for step in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, expected = step.partition("\n")
        ran = _run(["bash", "-u", "-o", "pipefail", "-c", command], folder, addresses)
        wanted = ".*".join(re.escape(part) for part in expected.strip().split("…"))
        if ran.code != 0 or not re.fullmatch(wanted, ran.out.strip(), re.DOTALL):
            return f"{_failure(command, ran) or command}\nprinted\n{ran.out}\ninstead of\n{expected}"
    return None


def _run(command: list[str], folder: Path, addresses: Mapping[str, str]) -> Ran:
    slow = any("# needs: pyspark" in word for word in command)
    done = subprocess.run(
        command,
        cwd=folder,
        env=_environment(folder, addresses),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SPARK_S if slow else SNIPPET_S,
        check=False,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def _failure(code: str, ran: Ran) -> str | None:
    return None if ran.code == 0 else f"{code}\nended with {ran.code}: {ran.errors}{ran.out}"


def _environment(folder: Path, addresses: Mapping[str, str]) -> dict[str, str]:
    """With `waystation` on the path, and where it finds the broker; and with a curl that fails where a request does."""
    programs = folder / ".bin"
    program = programs / "waystation"
    if not program.exists():
        programs.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m waystation "$@"\n')
        program.chmod(0o755)
        (programs / ".curlrc").write_text("fail-with-body\nmax-time = 60\n")
    return {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(ROOT / "src"),
        "CURL_HOME": str(programs),
        "WAYSTATION_SERVER": addresses["kafka"],
        "NO_COLOR": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
