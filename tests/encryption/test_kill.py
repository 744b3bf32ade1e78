"""`kill -9` of a real broker during writes, and of a real rotation: what was acknowledged is there, and nothing is
plain."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import waystation as ws
from tests.cli.kit import command, environment
from tests.support.server import Server, ServerDied
from tests.support.waiting import wait_for
from waystation.encryption.master_key import new_text
from waystation.errors import Empty, WaystationError

LIVES = 3
TOPIC_BODY, QUEUE_BODY = "a-secret-of-the-topic", "a-secret-of-the-queue"

ROTATE = """
import sys
from waystation.broker.encrypting import retire, rotate
data, *sources = sys.argv[1:]
print("rotating", flush=True)
for one, two in zip(sources, sources[1:]):
    rotate(data, one, two)
    retire(data, two)
"""


class Publisher:
    """Publishes until it is told to end, and remembers what was acknowledged."""

    def __init__(self, server: Server) -> None:
        self.acknowledged: list[str] = []
        self._server = server
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Publisher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._ends.is_set():
            try:
                with ws.connect(self._server.bootstrap, timeout=5) as mq:
                    while not self._ends.is_set():
                        number += 1
                        text = f"{id(self)}-{number}"
                        mq.publish("orders", f"{TOPIC_BODY}-{text}", key=f"key-{TOPIC_BODY}")
                        mq.queue("jobs").put(f"{QUEUE_BODY}-{text}")
                        self.acknowledged.append(text)
            except (WaystationError, OSError):
                time.sleep(0.02)


@pytest.fixture
def sources(tmp_path: Path) -> list[str]:
    for number in range(30):
        (tmp_path / f"{number}.key").write_text(new_text(os.urandom(32)))
    return [f"file:{tmp_path}/{number}.key" for number in range(30)]


@pytest.fixture
def server(tmp_path: Path, sources: list[str]) -> Iterator[Server]:
    made = Server(
        tmp_path / "server",
        settings={
            "encryption.key": sources[0],
            "waystation.checkpoint.interval.ms": 100,
            "log.segment.bytes": 65536,
        },
    )
    try:
        yield made
    finally:
        made.close()


def drained(server: Server) -> tuple[set[str], set[str]]:
    """What is in the topic, and in the queue."""
    with ws.connect(server.bootstrap) as mq:
        in_topic = {message.text().removeprefix(f"{TOPIC_BODY}-") for message in all_of_topic(mq)}
        in_queue: set[str] = set()
        while True:
            try:
                message = mq.queue("jobs").get(timeout=1)
            except Empty:
                return in_topic, in_queue
            in_queue.add(message.text().removeprefix(f"{QUEUE_BODY}-"))
            message.ack()


def all_of_topic(mq: ws.Client) -> list[ws.Message]:
    found: list[ws.Message] = []
    with mq.subscribe("orders", group="audit", start="earliest") as subscription:
        while got := subscription.poll(timeout=3):
            found += got
            subscription.ack_many(got)
    return found


def plain_files(folder: Path) -> list[str]:
    needles = (TOPIC_BODY.encode(), QUEUE_BODY.encode())
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(needle in path.read_bytes() for needle in needles)]


def test_acknowledged_messages_survive_kill_9_and_nothing_of_them_is_plain(server: Server) -> None:
    server.start()
    acknowledged: list[str] = []
    with Publisher(server) as publisher:
        for life in range(LIVES):
            before = len(publisher.acknowledged)
            wait_for(lambda before=before: len(publisher.acknowledged) > before + 50, "messages are acknowledged")  # type: ignore[misc]
            server.kill()
            assert plain_files(server.data) == [], life
            server.restart()
        acknowledged = publisher.acknowledged
    in_topic, in_queue = drained(server)
    assert set(acknowledged) <= in_topic
    assert set(acknowledged) <= in_queue
    server.stop()
    assert plain_files(server.data) == []


def test_acknowledged_messages_survive_kill_9_of_a_rotation_and_of_the_broker(
    server: Server, sources: list[str]
) -> None:
    server.start()
    current = 0
    with Publisher(server) as publisher:
        for life in range(LIVES):
            before = len(publisher.acknowledged)
            rotation = subprocess.Popen(
                [sys.executable, "-c", ROTATE, str(server.data), *sources[current : current + 6]],
                env=environment(),
                stdout=subprocess.PIPE,
            )
            assert rotation.stdout is not None
            rotation.stdout.readline()
            time.sleep(0.004 * life)  # somewhere in the middle, each time elsewhere
            rotation.kill()
            rotation.wait()
            wait_for(lambda before=before: len(publisher.acknowledged) > before + 20, "messages are acknowledged")  # type: ignore[misc]
            server.kill()
            current = newest_that_opens(server, sources)
        acknowledged = publisher.acknowledged
    in_topic, in_queue = drained(server)
    assert set(acknowledged) <= in_topic
    assert set(acknowledged) <= in_queue
    server.stop()
    assert plain_files(server.data) == []


def newest_that_opens(server: Server, sources: list[str]) -> int:
    """Starts the server with the newest master key that does."""
    from waystation.encryption import key_file
    from waystation.encryption.master_key import read_master_key
    from waystation.world import OsDisk

    content = key_file.load(OsDisk(), str(server.data))
    assert content is not None
    number = max(number for number, source in enumerate(sources) if read_master_key(source).id in content.masters)
    server.settings["encryption.key"] = sources[number]
    server.restart()
    return number


def test_a_server_with_a_wrong_key_does_not_start_and_says_why(server: Server, sources: list[str]) -> None:
    server.start()
    server.stop()
    server.settings["encryption.key"] = sources[1]
    with pytest.raises(ServerDied, match="does not open it"):
        server.start()
    server.process = None
    done = subprocess.run(
        command("encryption", "status", "--data", str(server.data), "--scan"), env=environment(), capture_output=True
    )
    assert done.returncode == 0, done.stderr
    server.settings["encryption.key"] = sources[0]
    server.start()
