"""`waystation serve` as a process: how it starts, what it refuses, how it ends."""

from __future__ import annotations

import json
import re
import signal
import sqlite3
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.kit import Cli, Done, command, environment
from tests.cli.terminal import terminal
from tests.support.ports import free_port, split_address
from tests.support.waiting import DEADLINE_S, wait_for


class Serving:
    """`waystation serve` processes of one test, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, data: str = "data") -> subprocess.Popen[bytes]:
        for listener in ("--amqp", "--http"):
            if listener not in words:
                words = (listener, "127.0.0.1:0", *words)  # the port that it has by default may be somebody else's
        process = subprocess.Popen(
            command("serve", "--data", data, *words),
            cwd=self.folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._running.append(process)
        return process

    def started(self, *words: str) -> tuple[subprocess.Popen[bytes], str]:
        """A broker that is ready, and the address of its Kafka listener."""
        ready = self.folder / "ready.json"
        process = self.start("--kafka", "127.0.0.1:0", "--ready-file", str(ready), *words)
        wait_for(lambda: ready.exists() or process.poll() is not None, "the ready file is there")
        assert process.poll() is None, ended(process).err
        return process, str(json.loads(ready.read_text())["kafka"])

    def refused(self, *words: str, data: str = "data") -> str:
        """The one sentence with which it ends, with exit code 1 and nothing on standard output."""
        done = ended(self.start(*words, data=data))
        assert (done.code, done.out) == (1, b""), done.err
        sentences = [line for line in done.err.splitlines() if line.startswith("waystation: ")]
        assert len(sentences) == 1, done.err
        assert "Traceback" not in done.err
        return sentences[0]

    def close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.kill()
            process.communicate()


def ended(process: subprocess.Popen[bytes]) -> Done:
    out, err = process.communicate(timeout=DEADLINE_S)
    return Done(process.returncode, out, err.decode())


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_says_where_it_listens_and_how_to_begin_and_ends_cleanly(serving: Serving, number: signal.Signals) -> None:
    process, address = serving.started()
    assert split_address(address)[1] > 0
    process.send_signal(number)
    done = ended(process)
    assert done.code == 0, done.err
    assert f"kafka  {address}" in done.lines
    assert any(line.startswith("http   127.0.0.1:") for line in done.lines)
    assert any(f"publish hello 'first message' --server {address}" in line for line in done.lines)
    assert not (serving.folder / "ready.json").exists(), "nothing listens there any more"
    assert "Traceback" not in done.err


def test_the_command_that_it_shows_works(serving: Serving) -> None:
    _, address = serving.started()
    cli = Cli(address)
    cli("publish", "hello", "first message")
    assert cli("consume", "hello").lines == ["first message"]


def test_what_was_published_is_there_after_a_restart(serving: Serving) -> None:
    process, address = serving.started()
    Cli(address)("publish", "kept", "message")
    process.send_signal(signal.SIGTERM)
    assert ended(process).code == 0
    _, address = serving.started()
    assert Cli(address)("consume", "kept").lines == ["message"]


def test_settings_of_file_and_flags_hold(serving: Serving) -> None:
    config = serving.folder / "w.toml"
    config.write_text("[broker]\nnum.partitions = 3\nlog.retention.ms = 77777\nauto.create.topics.enable = false\n")
    _, address = serving.started("--config", str(config), "--set", "num.partitions=5")
    cli = Cli(address)
    assert "no topic" in cli("publish", "t", "x", code=1).err
    cli("topics", "create", "t")
    (described,) = cli("topics", "describe", "t", "--json").objects
    assert len(described["partitions"]) == 5
    assert described["settings"]["retention.ms"]["value"] == "77777"


def test_the_environment_alone_is_enough(serving: Serving) -> None:
    ready = serving.folder / "ready.json"
    told = {f"WAYSTATION_{listener}": "127.0.0.1:0" for listener in ("KAFKA", "AMQP", "HTTP")}
    told |= {"WAYSTATION_DATA": "by-environment", "WAYSTATION_READY_FILE": str(ready)}
    told |= {"WAYSTATION_SET_NUM_PARTITIONS": "3", "WAYSTATION_LOG_FORMAT": "json", "WAYSTATION_KAFAK": "a slip"}
    process = subprocess.Popen(
        command("serve"), cwd=serving.folder, env=environment(told), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None, "the ready file is there")
        cli = Cli(json.loads(ready.read_text())["kafka"])
        cli("topics", "create", "t")
        assert len(cli("topics", "describe", "t", "--json").objects[0]["partitions"]) == 3
        shown = cli("config", "show", "--server", cli.server, "--changed", "--json").json["settings"]
        assert [(one["name"], one["source"]) for one in shown] == [("num.partitions", "environment")]
        assert (serving.folder / "by-environment").is_dir()
    finally:
        process.terminate()
        _, err = process.communicate(timeout=DEADLINE_S)
    (told,) = [one for one in map(json.loads, err.splitlines()) if one["event"] == "config.doubtful"]
    assert "did you mean WAYSTATION_KAFKA" in told["doubt"]


def test_a_mistake_in_the_file_is_told_with_its_place(serving: Serving) -> None:
    (serving.folder / "w.toml").write_text("[broker]\n\nnum.partition = 3\n")
    assert "w.toml:3:1: there is no setting 'num.partition'; did you mean 'num.partitions'?" in serving.refused(
        "--config", "w.toml"
    )
    assert not (serving.folder / "data").exists()


def test_a_folder_in_use_is_refused_with_the_others_pid(serving: Serving) -> None:
    first, address = serving.started()
    assert f"pid {first.pid}" in serving.refused("--kafka", "127.0.0.1:0")
    Cli(address)("publish", "t", "the first one goes on")


def test_data_of_a_newer_version_is_refused_and_left_as_it_is(serving: Serving) -> None:
    process, _ = serving.started()
    process.send_signal(signal.SIGTERM)
    ended(process)
    catalog = serving.folder / "data" / "catalog.sqlite"
    with sqlite3.connect(catalog) as database:
        database.execute("UPDATE format SET version = version + 1000")
    database.close()
    before = contents(serving.folder / "data")
    assert "newer" in serving.refused("--kafka", "127.0.0.1:0")
    assert contents(serving.folder / "data") == before


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the lock, which says who looked last, and the scratch files that SQLite makes to read."""
    scratch = (".lock", ".sqlite-shm", ".sqlite-wal")
    files = (path for path in folder.rglob("*") if path.is_file() and path.suffix not in scratch)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_taken_port_is_named(serving: Serving) -> None:
    _, address = serving.started()
    assert address in serving.refused("--kafka", address, data="other")


def test_a_taken_port_of_the_http_listener_is_named_and_nothing_stays_behind(serving: Serving) -> None:
    _, address = serving.started()
    said = serving.refused("--kafka", "off", "--http", address, data="other")
    assert address in said
    assert "HTTP protocol" in said
    serving.start("--kafka", "127.0.0.1:0", "--ready-file", str(serving.folder / "ready2.json"), data="other")
    wait_for((serving.folder / "ready2.json").exists, "the folder is free again")


def test_a_taken_port_of_the_amqp_listener_is_named(serving: Serving) -> None:
    _, address = serving.started()
    said = serving.refused("--kafka", "off", "--amqp", address, data="other")
    assert address in said
    assert "AMQP protocol" in said


def test_a_listener_that_is_off_is_not_announced(serving: Serving) -> None:
    process, _ = serving.started("--amqp", "off", "--http", "off")
    assert json.loads((serving.folder / "ready.json").read_text()).keys() == {"kafka"}
    process.send_signal(signal.SIGTERM)
    assert not any(line.startswith(("amqp", "http")) for line in ended(process).lines)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--kafka", "0.0.0.0:0"), "--insecure"),
        (("--kafka", "nonsense:port"), "not an address"),
        (("--amqp", "0.0.0.0:0"), "--insecure"),
        (("--amqp", "nonsense:port"), "not an address"),
        (("--http", "0.0.0.0:0"), "--insecure"),
        (("--http", "nonsense:port"), "not an address"),
        (("--set", "num.partition=1"), "num.partitions"),
        (("--set", "num.partitions=none"), "num.partitions"),
        (("--config", "gone.toml"), "gone.toml"),
    ],
)
def test_a_wrong_wish_is_refused_before_anything_is_touched(
    serving: Serving, words: tuple[str, ...], said: str
) -> None:
    assert said in serving.refused(*words)
    assert not (serving.folder / "data").exists()


def test_another_address_is_served_when_told_so(serving: Serving) -> None:
    ready = serving.folder / "ready.json"
    serving.start("--kafka", "0.0.0.0:0", "--insecure", "--ready-file", str(ready))
    wait_for(ready.exists, "the broker is ready")
    _, port = split_address(json.loads(ready.read_text())["kafka"])
    Cli(f"127.0.0.1:{port}")("publish", "t", "x")


def test_the_log_is_one_event_a_line_without_payloads(serving: Serving) -> None:
    process, address = serving.started("--log-level", "debug", "--log-format", "json")
    Cli(address)("publish", "t", "a-secret-payload")
    process.send_signal(signal.SIGTERM)
    done = ended(process)
    events = [json.loads(line) for line in done.err.splitlines()]
    assert all({"time", "level", "logger", "event", "text"} <= event.keys() for event in events)
    assert "a-secret-payload" not in done.err


def test_events_have_their_fields_as_keys(serving: Serving) -> None:
    process, address = serving.started("--log-format", "json")
    cli = Cli(address)
    cli("publish", "t", "x")
    cli("consume", "t", "--group", "readers", "--count", "1")
    process.send_signal(signal.SIGTERM)
    events = [json.loads(line) for line in ended(process).err.splitlines()]
    saved = [event for event in events if event["event"] == "group.saved" and event["group"] == "readers"]
    assert {"state", "epoch", "members"} <= saved[0].keys()
    assert any(event["members"] == 1 for event in saved)


def test_without_a_terminal_the_log_has_names_and_values(serving: Serving) -> None:
    process, address = serving.started()
    cli = Cli(address)
    cli("publish", "t", "x")
    cli("consume", "t", "--group", "readers", "--count", "1")
    process.send_signal(signal.SIGTERM)
    lines = ended(process).err.splitlines()
    assert any(" event=group.saved " in line and " group=readers " in line for line in lines), lines
    assert all(re.match(r"time=\S+Z level=\w+ logger=\S+ event=\S+ text=", line) for line in lines)


def test_on_a_terminal_the_log_is_for_people(tmp_path: Path) -> None:
    words = ["serve", "--data", str(tmp_path / "data"), "--ready-file", str(tmp_path / "ready.json")]
    for listener in ("kafka", "amqp", "http"):
        words += [f"--{listener}", "127.0.0.1:0"]
    with terminal(*words, NO_COLOR="1") as person:
        person.read_until("Ctrl-C")
        cli = Cli(json.loads((tmp_path / "ready.json").read_text())["kafka"])
        cli("publish", "t", "x")
        cli("consume", "t", "--group", "readers", "--count", "1")
        person.read_until("group readers is")
        person.process.send_signal(signal.SIGINT)
        assert person.ended() == 0
    log = person.seen.partition("Ctrl-C")[2]
    assert re.search(r"^\d\d:\d\d:\d\d INFO    group readers is \w+, members: 1 \(epoch=\d+\)\r?$", log, re.MULTILINE)
    assert "event=" not in log
    assert "\033" not in log


def test_the_banner_has_the_dashboards_address(serving: Serving) -> None:
    process, _ = serving.started()
    http = json.loads((serving.folder / "ready.json").read_text())["http"]
    browser = urllib.request.Request(f"http://{http}/", headers={"accept": "text/html"})
    with urllib.request.urlopen(browser, timeout=DEADLINE_S) as answer:
        assert "text/html" in answer.headers["content-type"]
    process.send_signal(signal.SIGTERM)
    assert f"dashboard:       http://{http}/" in ended(process).lines
    process, _ = serving.started("--http", "off")
    process.send_signal(signal.SIGTERM)
    assert "dashboard" not in ended(process).text


def test_a_server_that_is_not_there_or_speaks_otherwise_is_said() -> None:
    assert "waystation serve" in Cli("127.0.0.1:1")("topics", "list", code=1).err


def test_a_node_that_waits_for_its_clusters_store_ends_when_it_is_told_to(serving: Serving) -> None:
    process = serving.start("--node", "1", "--cluster", f"etcd://127.0.0.1:{free_port()}/x")
    assert process.stderr is not None
    assert b"cannot reach the cluster's store" in process.stderr.readline()
    process.terminate()
    assert ended(process).code == 0
