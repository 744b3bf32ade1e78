"""`waystation context`: names for brokers, and which broker a command talks to."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.kit import Cli, Done, command, environment
from tests.support.waiting import DEADLINE_S

NOBODY = "127.0.0.1:1"


class Person:
    """Somebody with a home of their own, and no variables of ours."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "config" / "waystation" / "contexts.json"
        self._variables = {"XDG_CONFIG_HOME": str(folder / "config"), "HOME": str(folder)}

    def __call__(self, *words: str, code: int = 0, variables: Mapping[str, str] | None = None) -> Done:
        env = environment({**self._variables, **(variables or {})})
        for name in {"WAYSTATION_SERVER", "WAYSTATION_CONTEXT"} - (variables or {}).keys():
            env.pop(name, None)
        done = subprocess.run(
            command(*words), env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=DEADLINE_S, check=False
        )
        return Done(done.returncode, done.stdout, done.stderr.decode()).checked(words, code)


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path)


def test_commands_talk_to_the_context_in_use(person: Person, cli: Cli, topic: str) -> None:
    assert "no contexts yet" in person("context", "list").text
    person("context", "add", "dev", "--server", cli.server)
    person("context", "add", "nobody", "--server", NOBODY)
    assert person("context", "show").text == "127.0.0.1:9092 (default)\n"
    person("context", "use", "dev")
    person("topics", "create", topic)
    assert topic in {one["topic"] for one in person("topics", "list", "--json").objects}
    assert person("context", "list", "--json").objects == [
        {"context": "dev", "server": cli.server, "current": True},
        {"context": "nobody", "server": NOBODY, "current": False},
    ]
    assert person("context", "list").lines[1].split() == ["dev", cli.server, "yes"]
    assert f"{cli.server} (context dev, by the current context)" in person("status").text
    assert person("status", "--json").json["context"] == "dev"
    assert person("context", "show", "nobody").text == f"{NOBODY}\n"


def test_the_order_of_precedence(person: Person, cli: Cli) -> None:
    for number, name in enumerate(("current", "variable", "option"), 1):
        person("context", "add", name, "--server", f"127.0.0.1:{number}")
    person("context", "use", "current")
    context = {"WAYSTATION_CONTEXT": "variable"}
    server = {"WAYSTATION_SERVER": "127.0.0.1:9"}

    def asked(*words: str, variables: Mapping[str, str] | None = None) -> str:
        return str(person("status", "--json", *words, code=1, variables=variables).json["server"])

    assert asked() == "127.0.0.1:1"
    assert asked(variables=context) == "127.0.0.1:2"
    assert asked("--context", "option", variables=context) == "127.0.0.1:3"
    assert asked(variables=context | server) == "127.0.0.1:9"
    assert asked("--context", "option", variables=context | server) == "127.0.0.1:3", "what is typed wins"
    assert asked("--server", "127.0.0.1:8", "--context", "option", variables=context | server) == "127.0.0.1:8"
    said = person("status", "--context", "option", "--server", "127.0.0.1:8", code=1).err
    assert "--context option has no effect: --server overrides it" in said
    person("status", "--server", cli.server)
    person("context", "remove", "current")
    assert person("context", "show", "--json").json["server"] == "127.0.0.1:9092"


def test_a_pipeline_and_a_running_brokers_settings_use_contexts_too(person: Person, cli: Cli, tmp_path: Path) -> None:
    person("context", "add", "dev", "--server", cli.server)
    assert person("config", "show", "--context", "dev", "--json").json["settings"]
    person("context", "use", "dev")
    assert person("pipeline", "list", "--json").objects == []
    file = tmp_path / "p.toml"
    file.write_text(f'servers = "{NOBODY}"\n[source.a]\ntopics = "t"\n[sink.b]\nfrom = "a"\ntopic = "u"\n')
    assert NOBODY in person("pipeline", "status", str(file), code=1).err
    said = person("pipeline", "status", str(file), "--context", "dev", code=1).err
    assert "no pipeline called 'p'" in said
    assert "no effect" not in said
    file.write_text(file.read_text().partition("\n")[2])
    assert "no pipeline called 'p'" in person("pipeline", "status", str(file), code=1).err


def test_the_file_is_the_owners_alone_and_replaced_as_a_whole(person: Person) -> None:
    person("context", "add", "one", "--server", NOBODY)
    assert stat.S_IMODE(person.file.stat().st_mode) == 0o600
    assert stat.S_IMODE(person.file.parent.stat().st_mode) == 0o700
    before = person.file.stat().st_ino
    held = os.open(person.file, os.O_RDONLY)
    try:
        person("context", "add", "two", "--server", "[::1]:9092")
        assert json.loads(os.read(held, 65536)).keys() == {"current", "contexts"}, "who reads sees a whole file"
    finally:
        os.close(held)
    assert person.file.stat().st_ino != before
    assert os.listdir(person.file.parent) == ["contexts.json"]


def test_what_is_wrong_is_a_sentence(person: Person) -> None:
    person("context", "add", "prod", "--server", NOBODY)
    assert "--replace" in person("context", "add", "prod", "--server", "127.0.0.1:2", code=1).err
    person("context", "add", "prod", "--server", "127.0.0.1:2", "--replace")
    assert person("context", "show", "prod", "--json").json == {"context": "prod", "server": "127.0.0.1:2"}
    person("context", "add", "prod", "--server", "9093,[::1]:9094", "--replace")
    assert person("context", "show", "prod", "--json").json["server"] == "127.0.0.1:9093,[::1]:9094"
    assert "did you mean 'prod'" in person("context", "use", "prd", code=1).err
    assert "did you mean 'prod'" in person("topics", "list", "--context", "prd", code=1).err
    assert "not an address" in person("context", "add", "x", "--server", "a:b:c", code=1).err
    assert "a-z" in person("context", "add", "no/slash", "--server", NOBODY, code=1).err
    person.file.write_text("{")
    assert str(person.file) in person("topics", "list", code=1).err
    assert str(person.file) in person("context", "list", code=1).err
