"""kcat as Debian packages it: an older librdkafka, driven from the shell as people do."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients import kit
from tests.clients.stage import NewTopicCall, need_tool
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S, wait_for

Kcat = Callable[..., str]


@pytest.fixture
def kcat_path() -> str:
    return need_tool("kcat", "`apt-get install kcat`; `make test` does it in CI")


@pytest.fixture
def kcat(bootstrap: str, kcat_path: str) -> Kcat:
    """Run kcat and return what it prints."""

    def call(*arguments: str, stdin: str = "") -> str:
        command = [kcat_path, "-b", bootstrap, *arguments]
        done = subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=DEADLINE_S, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.decode()}"
        return done.stdout.decode()

    return call


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(kcat: Kcat, new_topic: NewTopicCall, codec: str) -> None:
    topic = new_topic()
    lines = [f"line {n} " + "x" * 50 for n in range(200)]
    kcat("-P", "-t", topic, "-z", codec, stdin="\n".join(lines))
    assert kcat("-C", "-t", topic, "-e", "-q", "-o", "beginning").splitlines() == lines


def test_keys_headers_and_offsets_are_printed(kcat: Kcat, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    kcat("-P", "-t", topic, "-K", ":", "-H", "colour=blue", "-H", "size=9", stdin="a:1\nb:2\n")
    printed = kcat("-C", "-t", topic, "-e", "-q", "-f", "%o %k %s %h\\n").splitlines()
    assert printed == ["0 a 1 colour=blue,size=9", "1 b 2 colour=blue,size=9"]


def test_null_values_are_told_apart_from_empty_ones(kcat: Kcat, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    kcat("-P", "-t", topic, "-K", ":", "-Z", stdin="gone:\n")
    (line,) = kcat("-C", "-t", topic, "-e", "-q", "-J").splitlines()
    told = json.loads(line)
    assert (told["key"], told["payload"]) == ("gone", None)


def test_metadata_lists_the_broker_and_its_topics(kcat: Kcat, bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic(partitions=3)
    told = json.loads(kcat("-L", "-J"))
    assert [broker["name"] for broker in told["brokers"]] == [bootstrap]
    (mine,) = [entry for entry in told["topics"] if entry["topic"] == topic]
    assert [partition["partition"] for partition in mine["partitions"]] == [0, 1, 2]
    assert f'topic "{topic}" with 3 partitions' in kcat("-L", "-t", topic)


def test_offset_is_found_by_time(kcat: Kcat, bootstrap: str, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    base = int(time.time() * 1000) - 60_000
    client = kit.producer(bootstrap)
    for n in range(10):
        client.produce(topic, b"x", timestamp=base + n * 1000)
    kit.flush(client)
    assert f"{topic} [0] offset 4" in kcat("-Q", "-t", f"{topic}:0:{base + 3500}")


def test_range_of_offsets_and_of_times_is_read(kcat: Kcat, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    kcat("-P", "-t", topic, stdin="\n".join(str(n) for n in range(20)))
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "5", "-c", "3", "-q").split() == ["5", "6", "7"]
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "-2", "-e", "-q").split() == ["18", "19"]
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "s@0", "-c", "1", "-q").split() == ["0"]


def test_idempotent_producing_works(kcat: Kcat, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "acks=all", stdin="1\n2\n3\n")
    assert kcat("-C", "-t", topic, "-e", "-q").split() == ["1", "2", "3"]


def test_transactional_producing_is_seen_when_committed(kcat: Kcat, new_topic: NewTopicCall) -> None:
    topic = new_topic()
    kcat("-P", "-t", topic, "-X", f"transactional.id={unique('tx')}", stdin="1\n2\n3\n")
    assert kcat("-C", "-t", topic, "-e", "-q", "-X", "isolation.level=read_committed").split() == ["1", "2", "3"]


def test_missing_topic_is_created_by_producing(kcat: Kcat) -> None:
    topic = unique("made-by-kcat")
    kcat("-P", "-t", topic, stdin="first\n")
    assert kcat("-C", "-t", topic, "-e", "-q").split() == ["first"]


class Balanced:
    """`kcat -G` processes of one group, writing what they read into files."""

    def __init__(self, kcat_path: str, bootstrap: str, folder: Path) -> None:
        self._command = [kcat_path, "-b", bootstrap, "-u", "-f", "%p %o %s\\n"]
        timing = [f"session.timeout.ms={kit.SESSION_MS}", f"heartbeat.interval.ms={kit.HEARTBEAT_MS}"]
        self._settings = [word for pair in [*timing, "auto.offset.reset=earliest"] for word in ("-X", pair)]
        self._folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def join(self, group: str, topic: str) -> Path:
        path = self._folder / f"out{len(self.running)}"
        with path.open("wb") as out, path.with_suffix(".err").open("wb") as err:
            command = [*self._command, *self._settings, "-G", group, topic]
            self.running.append(subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL))
        return path

    def close(self) -> None:
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(timeout=DEADLINE_S)


@pytest.fixture
def balanced(bootstrap: str, kcat_path: str, tmp_path: Path) -> Iterator[Balanced]:
    crew = Balanced(kcat_path, bootstrap, tmp_path)
    yield crew
    crew.close()


def test_balanced_consumers_share_the_partitions(
    bootstrap: str, balanced: Balanced, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic(partitions=4)
    paths = [balanced.join(group, topic) for _ in range(2)]

    def owned(path: Path) -> int:
        told = [line for line in path.with_suffix(".err").read_text().splitlines() if "rebalanced" in line]
        return told[-1].count(topic) if told and "assigned" in told[-1] else 0

    def shared() -> bool:
        return [owned(path) for path in paths] == [2, 2]

    wait_for(shared, "each has two partitions")
    for partition in range(4):
        kit.produce(bootstrap, topic, kit.numbered(25), partition=partition)
    wait_for(lambda: sum(len(path.read_text().splitlines()) for path in paths) >= 100, "all lines are read")
    rows = [[line.split() for line in path.read_text().splitlines()] for path in paths]
    owners = [{row[0] for row in mine} for mine in rows]
    assert sorted(map(len, owners)) == [2, 2]
    assert not owners[0] & owners[1]
    for mine in rows:
        for home in {row[0] for row in mine}:
            assert [int(row[1]) for row in mine if row[0] == home] == list(range(25))
