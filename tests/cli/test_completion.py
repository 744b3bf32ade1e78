"""Completion of commands, in real shells."""

from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import waystation
from tests.cli.kit import START, Cli, QuickCli, environment
from tests.support.server import ROOT
from tests.support.waiting import DEADLINE_S
from waystation.cli.completion.command import SHELLS, names
from waystation.cli.completion.tree import spots
from waystation.cli.main import COMMANDS, build_parser

offline = QuickCli("127.0.0.1:1")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `waystation` on the PATH, as an installed one is."""
    path = tmp_path_factory.mktemp("bin") / "waystation"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c {shlex.quote(START)} "$@"\n')
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("scripts")
    found = {shell: folder / f"waystation.{shell}" for shell in SHELLS}
    for shell, path in found.items():
        path.write_bytes(offline("completion", shell).out)
    return found


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, program: Path, scripts: dict[str, Path]) -> Shell:
    need(request.param)
    return Shell(request.param, program, scripts[request.param])


def need(shell: str) -> None:
    if shutil.which(shell) is not None:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"{shell} is missing; scripts/test-tools installs it")
    pytest.skip(f"{shell} is not installed")


ASKS = {
    "bash": r"""
source "$SCRIPT"
COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_WORDBREAKS=$' \t\n"\'><=;|&(:'
_waystation 2>&1
printf '%s\n' "${COMPREPLY[@]}"
""",
    # Completion in zsh needs its line editor; the two builtins that it hands its findings to are listened to instead.
    "zsh": r"""
compdef() { }
source "$SCRIPT"
words=("${(@s: :)LINE}") CURRENT=$#words PREFIX=$words[-1]
compadd() { print -rl -- "${(@P)2}" }
_describe() { [[ $1 == -o ]] && shift; print -rl -- "${(@)${(@P)2}%%:*}" }
_files() { [[ $1 == -/ ]] && print -rl -- $PREFIX*(N/) || print -rl -- $PREFIX*(N) }
_waystation
""",
    "fish": """
source "$SCRIPT"
complete -C "$LINE" | string replace -r '\\t.*' ''
""",
}


class Shell:
    def __init__(self, name: str, program: Path, script: Path) -> None:
        self.name = name
        self._program = program
        self._script = script

    def complete(self, line: str, *, server: str = "127.0.0.1:1", folder: Path = ROOT) -> set[str]:
        """What the shell offers for the last word of a line."""
        flags = {"bash": ["--norc", "--noprofile"], "zsh": ["-f"], "fish": ["--no-config"]}[self.name]
        env = environment({"SCRIPT": str(self._script), "LINE": line, "WAYSTATION_SERVER": server})
        env["PATH"] = f"{self._program.parent}:{env['PATH']}"
        done = subprocess.run(
            [self.name, *flags, "-c", ASKS[self.name]],
            env=env,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.stderr == ""
        last = line.split(" ")[-1]
        return {found for found in done.stdout.splitlines() if found.startswith(last)}


def test_commands_and_options_are_offered(shell: Shell) -> None:
    assert shell.complete("waystation ") >= set(COMMANDS)
    assert shell.complete("waystation exp") == {"export"}
    assert shell.complete("waystation --ser") == {"--server"}
    assert shell.complete("waystation --json topics cr") == {"create"}
    assert shell.complete("waystation queues p") == {"purge", "put", "peek"}
    assert shell.complete("waystation topics create --part") == {"--partitions"}
    assert shell.complete("waystation queues put q --pri") == {"--priority"}


def test_choices_are_offered(shell: Shell) -> None:
    assert shell.complete("waystation serve --log-level ") == {"debug", "info", "warning", "error"}
    assert shell.complete("waystation serve --data x --log-format j") == {"json"}
    assert shell.complete("waystation export t --format p") == {"parquet"}
    assert shell.complete("waystation completion ") >= set(SHELLS)


def test_files_and_folders_are_offered(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "one.toml").write_text("")
    (tmp_path / "one.d").mkdir()
    offered = shell.complete("waystation serve --config on", folder=tmp_path)
    assert {name.rstrip("/") for name in offered} == {"one.toml", "one.d"}
    assert {name.rstrip("/") for name in shell.complete("waystation serve --data on", folder=tmp_path)} == {"one.d"}
    assert "one.toml" in shell.complete("waystation config check on", folder=tmp_path)


def test_names_come_from_the_broker_that_is_meant(shell: Shell, quick: QuickCli, queue: str, topic: str) -> None:
    quick("queues", "create", f"{queue}-a", f"{queue}-b")
    quick("topics", "create", f"{topic}-c")
    line = f"waystation queues describe {queue}"
    assert shell.complete(line, server=quick.server) == {f"{queue}-a", f"{queue}-b"}
    assert shell.complete(f"waystation queues describe --server {quick.server} {queue}") == {f"{queue}-a", f"{queue}-b"}
    assert shell.complete(f"waystation --server {quick.server} queues describe {queue}") == {f"{queue}-a", f"{queue}-b"}
    assert shell.complete(f"waystation queues --server {quick.server} des") == {"describe"}
    assert shell.complete(f"waystation queues put --server {quick.server} {queue}-a") == {f"{queue}-a"}
    assert shell.complete(f"waystation export --queue {queue}-b", server=quick.server) == {f"{queue}-b"}
    assert shell.complete(f"waystation consume {topic}", server=quick.server) == {f"{topic}-c"}
    assert shell.complete(f"waystation consume x {topic}", server=quick.server) == {f"{topic}-c"}
    assert shell.complete(line) == set(), "nobody is there: no names, and no complaint"


def test_a_name_is_never_evaluated(shell: Shell, quick: QuickCli, queue: str, tmp_path: Path) -> None:
    name = f"{queue}$(touch {tmp_path}/evil);`touch {tmp_path}/evil`"
    with waystation.connect(quick.server) as mq:
        mq.queue(name)
        try:
            offered = shell.complete(f"waystation queues describe {queue}", server=quick.server)
        finally:
            mq.queue(name).delete()
    assert len(offered) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["sourced", "installed"])
def test_zsh_completes_in_its_line_editor(program: Path, scripts: dict[str, Path], tmp_path: Path, how: str) -> None:
    """The one that is asked otherwise above is also tried as a person does, with the Tab key."""
    need("zsh")
    pid, terminal = pty.fork()
    if pid == 0:
        env = {"PATH": f"{program.parent}:{os.environ['PATH']}", "TERM": "dumb", "HOME": str(tmp_path), "PS1": "> "}
        os.execvpe("zsh", ["zsh", "-f", "-i"], env)
    try:
        (tmp_path / "_waystation").write_bytes(scripts["zsh"].read_bytes())
        before = f"fpath=({tmp_path} $fpath);" if how == "installed" else ""
        after = f"source {scripts['zsh']};" if how == "sourced" else ""
        os.write(terminal, f"{before} autoload -U compinit; compinit -D -u; {after} print rea''dy\n".encode())
        read_until(terminal, b"ready\r\n")
        os.write(terminal, b"waystation exp\t")
        read_until(terminal, b"export ")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def read_until(terminal: int, wanted: bytes) -> None:
    seen = b""
    deadline = time.monotonic() + DEADLINE_S
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"{wanted!r} did not come: {seen!r}"
        seen += os.read(terminal, 4096)


def test_names_are_given_within_a_bound_and_without_a_word(cli: Cli, quick: QuickCli, topic: str, group: str) -> None:
    quick("topics", "create", topic)
    quick("publish", topic, "x")
    quick("consume", topic, "--group", group, "--count", "1")
    done = cli("completion", "--names", "topics", "--search", topic)
    assert (done.lines, done.err) == ([topic], "")
    assert names(quick.server, "groups", group) == [group]
    assert "amq.topic" in names(quick.server, "exchanges", "amq.")
    quick("namespaces", "create", group)
    quick("policies", "set", f"{group}-p", "^x", "max-length=1", "--namespace", group)
    assert names(quick.server, "namespaces", group) == [group]
    assert names(quick.server, "policies", group) == [f"{group}-p"]
    assert quick("completion", "--names", "topics", "--search", topic, "--json").objects == [{"name": topic}]
    silent = offline("completion", "--names", "queues")
    assert (silent.text, silent.err) == ("", "")
    assert names("nonsense:port", "topics", "") == []


def test_the_tree_has_every_command_and_the_shell_has_to_be_said() -> None:
    paths = {" ".join(spot.path) for spot in spots(build_parser())}
    assert paths >= {*COMMANDS, "topics create", "queues put", "config check", ""}
    assert "bash|zsh|fish" in offline("completion", code=1).err
    assert any(one["path"] == ["export"] for one in offline("completion", "--json").objects)
