"""Packages of npm for tests with clients of Node: installed once, kept between runs; without npm, a skip."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


def node_modules(package: str, version: str) -> Path:
    """A folder that has the package in it, for NODE_PATH."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("node or npm is not installed")
    folder = Path(tempfile.gettempdir()) / f"waystation-{package}-{version}-{os.getuid()}"
    if not (folder / "node_modules" / package).exists():
        folder.mkdir(exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(folder), f"{package}@{version}"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=60, check=False, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            pytest.skip("the npm registry did not answer in time")
        if done.returncode != 0:
            pytest.skip(f"{package} cannot be installed here: {done.stderr.decode()[-200:]}")
    return folder / "node_modules"
