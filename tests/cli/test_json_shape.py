"""`--json` has one shape: one object a line, whatever the command. The story below runs every command there is."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import waystation
from tests.cli.kit import Cli, QuickCli
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.cli.completion.tree import spots
from waystation.cli.main import build_parser
from waystation.client.sync.client import Client
from waystation.observe.pipeline_state import PipelineState
from waystation.spark.pipelines.status.reporter import Reporter

NOT_RUN = {
    "serve": "it has no --json; its log has --log-format json",
    "demo": "it takes a minute, and is run by tests/cli/test_operating.py; it prints one object, its summary",
    "cluster up": "it has no --json; its ready file is JSON",
    **{
        f"cluster {verb}": "it needs a cluster; tests/cli/test_cluster.py reads its one object"
        for verb in ("adopt", "start-node", "drain", "remove")
    },
    "pipeline run": "it needs Spark; tests/cli/test_pipeline.py reads its one object where Spark is installed",
    "pipeline test": "it needs Spark; tests/spark/test_unit_tests.py reads its objects",
    "pipeline start": "the broker would need Spark",
    **{
        f"users {verb}": "it needs a password on standard input, or closes the broker; tests/security runs it"
        for verb in ("add", "passwd", "remove")
    },
    **{
        f"keys {verb}": "it needs a user; tests/security/test_api_keys.py reads its one object"
        for verb in ("add", "remove")
    },
    "encryption key": "it has no --json; it prints a key",
    "pipeline reset": "it needs the checkpoint of a run on Spark",
    **{
        f"pipeline ready {name}": "it needs Spark, and prints what `pipeline run` does"
        for name in ("archive", "replay", "traffic", "dead-letters", "latest", "sessions")
    },
}
"""Commands that the story does not run, and why."""

PIPELINE = """\
name = "{name}"

[source.ticks]
rate = 5

[sink.out]
from = "ticks"
console = true
"""


@dataclass
class World:
    """What the story is about. Its lines name these by `{…}`."""

    server: Server
    folder: Path
    quick: QuickCli
    mq: Client
    names: dict[str, str]
    clients: list[Client] = field(default_factory=list)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def objects(self, line: str, code: int = 0) -> list[dict[str, object]]:
        words = shlex.split(line.format(**self.names))
        return [json.loads(text) for text in self.quick(*words, "--json", code=code).lines]

    def die(self) -> None:
        """Two messages become dead letters."""
        for name in ("a", "b", "c"):
            self.mq.queue(self.names["q"]).put(name, id=f"dead-{name}")
            self.quick("queues", "get", self.names["q"], "--then", "dead-letter")
        dead = self.mq.queue(self.names["q"] + ".dead")
        wait_for(lambda: len(dead) == 3, "three dead letters")

    def respond(self) -> None:
        self.mq.respond(self.names["q"] + ".asked")(lambda message: message.payload)
        wait_for(lambda: self.names["q"] + ".asked" in [one.queue for one in self.mq.queues()], "it responds")

    def victim(self) -> None:
        name = unique("victim")
        self.clients.append(waystation.connect(self.quick.server, name=name))
        self.clients[0].ping()
        (found,) = self.objects(f"connections list --search {name}")
        self.names["victim"] = str(found["name"])

    def lose(self) -> None:
        """A folder with a topic that its catalog does not know, and one with a log."""
        data = self.folder / "lost"
        with waystation.open(data):
            pass
        shutil.copy(data / "catalog.sqlite", self.folder / "backup")
        with waystation.open(data) as broker:
            for topic in ("one", "two"):
                Cli(broker.kafka)("publish", topic, "x")
        (self.names["segment"],) = map(str, data.glob("topics/one.*/0/*.log"))
        shutil.copytree(data, self.folder / "whole")
        shutil.copy(self.folder / "backup", data / "catalog.sqlite")
        with waystation.open(data):
            pass
        self.names["data"], self.names["whole"] = str(data), str(self.folder / "whole")
        self.names["segment"] = self.names["segment"].replace(str(data), str(self.folder / "whole"))
        one, two = (str(found["folder"]) for found in self.objects("lost list {data}"))
        self.names |= {"one": one, "two": two}

    def pipeline(self) -> None:
        """One that says it runs here, as a process that can be stopped."""
        name = unique("pipe")
        (self.folder / "pipe.toml").write_text(PIPELINE.format(name=name))
        (self.folder / "wrong.toml").write_text(PIPELINE.format(name=name).replace("ticks", "tocks", 1))
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        state = PipelineState(name, "run", phase="running", host=os.uname().nodename, pid=process.pid)
        reporter = Reporter(self.quick.server, state, lambda text: None)
        reporter.start()
        wait_for(lambda: any(one["pipeline"] == name for one in self.objects("pipeline list")), "it is listed")
        reporter.close()
        self.names["pipe"] = name
        self.processes.append(process)
        threading.Thread(target=process.wait, daemon=True).start()  # or it would be a zombie, which counts as alive


STORY: list[tuple[str, int] | Callable[[World], None]] = [
    # the command, and how many objects it prints at least
    ("topics create {t} {t}2", 2),
    ("publish {t} a b c", 1),
    ("topics list", 2),
    ("topics describe {t} {t}2", 2),
    ("topics alter {t} --partitions 2", 1),
    ("topics search {t} --text b", 1),
    ("consume {t} --group {g}", 3),
    ("topics delete-records {t} --partition 0 --before 1 --yes", 1),
    ("groups list", 1),
    ("groups describe {g}", 1),
    ("groups reset {g} --to earliest --yes", 1),
    ("groups delete {g} --yes", 1),
    ("export {t}", 2),
    ("export {t} --out {dir}/t.jsonl", 1),
    ("import {dir}/t.jsonl --to {t}2", 1),
    ("subscribe {t} --group {g}.s --from earliest --count 2", 2),
    ("topics delete {t} {t}2 --yes", 2),
    ("queues create {q} --dead-letter {q}.dead", 1),
    ("queues create {q}.dead", 1),
    World.die,
    ("queues put {q} a b", 1),
    ("queues list", 2),
    ("queues describe {q} {q}.dead", 2),
    ("queues alter {q} --ttl 1h", 1),
    ("queues peek {q}", 2),
    ("queues get {q}", 1),
    ("queues put {q} late --delay 1h --id late", 1),
    ("queues put {q} late --delay 1h --id later", 1),
    ("queues find late", 1),
    ("delayed list", 2),
    ("delayed list {q}", 2),
    ("delayed describe {q} late later", 2),
    ("delayed cancel {q} late", 1),
    ("queues cancel {q} later", 1),
    ("dead-letters list", 1),
    ("dead-letters show {q}.dead", 3),
    ("dead-letters redrive {q}.dead --id dead-a", 1),
    ("dead-letters delete {q}.dead dead-b --yes", 1),
    ("queues purge {q} --yes", 1),
    ("exchanges create {x}", 1),
    ("exchanges bind {x} {q} --key k", 1),
    ("exchanges list", 2),
    ("exchanges describe {x}", 1),
    ("exchanges route {x} --routing-key k", 1),
    ("exchanges unbind {x} {q} --key k", 1),
    ("exchanges delete {x} --yes", 1),
    ("queues delete {q} {q}.dead --yes", 2),
    ("namespaces create {g}", 1),
    ("namespaces list", 2),
    ("namespaces describe {g} /", 2),
    ("namespaces alter {g} --max-queues 5", 1),
    ("policies set {x} '^jobs' message-ttl=1000 --namespace {g}", 1),
    ("policies list", 1),
    ("policies describe {x} --namespace {g}", 1),
    ("policies delete {x} --namespace {g} --yes", 1),
    ("namespaces delete {g} --yes", 1),
    World.respond,
    ("request {q}.asked hello", 1),
    World.victim,
    ("connections list", 2),
    ("connections describe {victim}", 1),
    ("connections close {victim} --yes", 1),
    World.pipeline,
    ("pipeline list", 1),
    ("pipeline status {pipe}", 1),
    ("pipeline stop {pipe}", 1),
    ("pipeline delete {pipe} --yes", 1),
    ("pipeline graph {dir}/pipe.toml", 1),
    ("pipeline check --no-spark {dir}/wrong.toml", 1),
    ("audit", 0),
    ("status", 1),
    ("cluster status", 1),
    ("cluster reassign --replication-factor 1", 0),
    ("cluster elect", 0),
    ("context add {x} --server {server}", 1),
    ("context use {x}", 1),
    ("context list", 1),
    ("context show", 1),
    ("context remove {x}", 1),
    ("top --once", 1),
    ("bench --count 100", 4),
    ("config show", 1),
    ("config show --server {server}", 1),
    ("config check {dir}/wrong.toml", 1),
    ("config set num.partitions=1", 1),
    ("config example", 1),
    ("doctor --no-disk-test --data {dir}/fresh --config {dir}/quiet.toml", 1),
    ("tls create --out {dir}/certificates", 1),
    ("users list --data {dir}/users", 0),
    ("keys list --data {dir}/users", 0),
    ("acls add --data {dir}/users --user alice --allow read --topic orders", 1),
    ("acls list --data {dir}/users", 1),
    ("acls remove --data {dir}/users --user alice --topic orders --yes", 1),
    ("quotas set --user alice producer_byte_rate=1G", 1),
    ("quotas list --user alice", 1),
    ("quotas remove --user alice", 1),
    ("completion", 20),
    ("completion --names queues --server {server}", 1),
    World.lose,
    ("lost list {data}", 2),
    ("lost restore {data} {one}", 1),
    ("lost delete {data} {two} --yes", 1),
    ("log dump {segment}", 1),
    ("log skip-corrupt {whole} one 0 --dry-run", 1),
    ("encryption apply --data {whole} --key file:{dir}/master.key", 1),
    ("encryption status --data {whole}", 1),
    ("encryption rotate --data {whole} --key file:{dir}/master.key", 1),
    ("encryption retire --data {whole} --key file:{dir}/master.key", 1),
]

FIND_MISTAKES = ("config check", "pipeline check")
"""They end with exit code 1, since there are some."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with Server(tmp_path / "server") as server, waystation.connect(server.bootstrap) as mq:
        words = {"t": unique("t"), "q": unique("q"), "x": unique("x"), "g": unique("g")}
        names = {**words, "dir": str(tmp_path), "server": server.bootstrap}
        (tmp_path / "quiet.toml").write_text('kafka = "127.0.0.1:0"\namqp = "off"\nhttp = "off"\n')
        (tmp_path / "master.key").write_text("0123456789abcdef" * 4)
        made = World(server, tmp_path, QuickCli(server.bootstrap), mq, names)
        try:
            yield made
        finally:
            for client in made.clients:
                client.close()
            for process in made.processes:
                process.kill()
                process.wait()


def command_of(line: str) -> str:
    """The commands at the beginning of a line."""
    paths = {spot.path for spot in spots(build_parser()) if not spot.commands}
    words = tuple(line.split())
    return " ".join(next(words[:length] for length in (3, 2, 1) if words[:length] in paths))


def test_the_story_has_every_command() -> None:
    told = {command_of(step[0]) for step in STORY if isinstance(step, tuple)}
    there = {" ".join(spot.path) for spot in spots(build_parser()) if not spot.commands}
    assert told | NOT_RUN.keys() == there
    assert not told & NOT_RUN.keys()


def test_json_is_one_object_a_line_whatever_the_command(world: World) -> None:
    for step in STORY:
        if not isinstance(step, tuple):
            step(world)
            continue
        line, least = step
        found = world.objects(line, code=1 if line.startswith(FIND_MISTAKES) else 0)
        assert all(isinstance(one, dict) for one in found), f"{line}: {found}"
        assert len(found) >= least, f"{line}: {found}"
