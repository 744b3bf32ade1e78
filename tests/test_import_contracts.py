"""Each import contract of pyproject.toml sees a breach: a copy of the package with one import too many is refused."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

BREACHES = {
    "layers": ("log/batches/batch.py", "from waystation.topics.topics import Topic"),
    "clients": ("client/core.py", "from waystation.protocols.native.session import NativeSession"),
    "access": ("protocols/http/request_dispatcher.py", "from waystation.queues.queues import Queues"),
    "protocols": ("protocols/kafka/records/fetch.py", "from waystation.protocols.amqp.session import AmqpSession"),
}
"""By the contract's id: a module, and what it may not import."""


def contracts() -> list[str]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return [contract["id"] for contract in settings["tool"]["importlinter"]["contracts"]]


def test_every_contract_has_a_breach_that_it_must_see() -> None:
    assert sorted(BREACHES) == sorted(contracts())


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copied")
    shutil.copytree(ROOT / "src" / "waystation", folder / "waystation", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def check(folder: Path, contract: str) -> subprocess.CompletedProcess[str]:
    program = "import sys; from importlinter.cli import lint_imports_command; lint_imports_command()"
    command = [sys.executable, "-c", program, "--no-cache", "--contract", contract]
    return subprocess.run(
        command,
        cwd=folder,
        env={"PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("contract", BREACHES)
def test_a_contract_sees_a_breach(copied: Path, contract: str) -> None:
    name, line = BREACHES[contract]
    path = copied / "waystation" / name
    whole = path.read_text()
    path.write_text(f"{whole}\n\n{line}\n")
    try:
        found = check(copied, contract)
    finally:
        path.write_text(whole)
    assert found.returncode == 1, found.stdout + found.stderr
    assert "1 broken" in found.stdout
    assert f"waystation.{name.removesuffix('.py').replace('/', '.')}" in found.stdout
