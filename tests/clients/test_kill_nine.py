"""`kill -9` in a loop under load: what the broker acknowledged before it died is there when it is back.

A process that is killed leaves the page cache behind, so this does not show that fsync was called (the simulated disk
does that); it shows that recovery, deduplication, groups and transactions of the real process hold together.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests.clients import kit
from tests.clients.crash_load import PARTITIONS, Load, Reading, Transacting, Writing, held_by, wait_for_progress
from tests.clients.stage import OwnServerCall, create_topic
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for

COMMITTED = {"isolation.level": "read_committed"}


def test_acknowledged_work_survives_kill_9(own_server: OwnServerCall) -> None:
    crash_loop(own_server(), rounds=4)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_acknowledged_work_survives_many_kills(own_server: OwnServerCall) -> None:
    crash_loop(own_server(log_segment_bytes=1_000_000), rounds=100)


def crash_loop(server: Server, *, rounds: int) -> None:
    """Load, kill, restart; after each restart the commits are checked, at the end everything."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    data, paired = create_topic(admin, unique("data"), PARTITIONS), create_topic(admin, unique("paired"), 2)
    group, tx_group = unique("g"), unique("g")
    writing = Writing(server.bootstrap, data)
    reading = Reading(server.bootstrap, data, group)
    transacting = Transacting(server.bootstrap, paired, tx_group)
    goals: dict[Load, int] = {writing: 500, reading: 200, transacting: 3}
    for load in goals:
        load.start()
    for _ in range(rounds):
        wait_for_progress(goals)
        promised = dict(reading.committed)
        server.kill()
        server.restart()
        reading.check_commits(server.bootstrap, group, promised)
    wait_for_progress(goals)
    for load in (writing, transacting):
        load.stop()
    wait_for(lambda: sum(map(len, reading.seen.values())) >= writing.sent, "the group has read everything")
    reading.stop()
    writing.check(kit.read_all(server.bootstrap, data))
    reading.check_seen()
    last = held_by(server.bootstrap, tx_group, paired, [0])[0]
    transacting.check(kit.read_all(server.bootstrap, paired, COMMITTED), last)


def test_clean_stop_and_start_keeps_everything(own_server: OwnServerCall) -> None:
    server = own_server()
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    topic, group = create_topic(admin, unique("kept"), 2, {"retention.ms": 5_000_000}), unique("g")
    kit.produce(server.bootstrap, topic, kit.numbered(100), partition=1)
    client = kit.consumer(server.bootstrap, group)
    client.commit(offsets=[TopicPartition(topic, 1, 40)], asynchronous=False)
    client.close()
    before = server.bootstrap
    assert server.stop() == 0
    server.restart()
    assert server.bootstrap == before
    assert kit.values(kit.read_all(server.bootstrap, topic)) == kit.numbered(100)
    (held,) = kit.consumer(server.bootstrap, group).committed([TopicPartition(topic, 1)], timeout=DEADLINE_S)
    assert held.offset == 40


def test_second_broker_on_the_same_folder_is_refused_with_the_pid_of_the_first(
    own_server: OwnServerCall, tmp_path: Path
) -> None:
    first = own_server()
    assert first.process is not None
    second = Server(tmp_path / "second")
    second.data = first.data
    with pytest.raises(AssertionError, match=str(first.process.pid)):
        second.start()
    kit.produce(first.bootstrap, unique("still-served"), [b"yes"])
