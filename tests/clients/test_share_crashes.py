"""Share groups when processes die: what was acknowledged stays so, everything else comes again, counted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter

from confluent_kafka import Message
from confluent_kafka.admin import AdminClient

from tests.clients import kit
from tests.clients.share_kit import (
    REJECT,
    commit,
    counts,
    from_the_beginning,
    hold,
    poll,
    share_consumer,
    take,
    work,
)
from tests.clients.stage import NewTopicCall, OwnServerCall, create_topic
from tests.support.server import ROOT
from tests.support.waiting import wait_for


def worker(bootstrap: str, group: str, topic: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.clients.share_worker", bootstrap, group, topic],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
    )


def test_what_a_killed_consumer_held_goes_to_the_others_at_once(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    """Long before its locks (30 s here) or its session run out: its connection ended with it."""
    topic = new_topic()
    from_the_beginning(admin, group)
    kit.produce(bootstrap, topic, kit.numbered(20))
    victim = worker(bootstrap, group, topic)
    try:
        assert victim.stdout is not None
        held = {victim.stdout.readline().strip() for _ in range(20)}
        assert held == set(kit.numbered(20))
        with share_consumer(bootstrap, group, [topic]) as heir:
            assert not poll(heir, 0.5)
            victim.send_signal(signal.SIGKILL)
            assert counts(take(heir, 20)) == dict.fromkeys(kit.numbered(20), 2)
    finally:
        victim.kill()
        victim.communicate()


def test_acks_and_counts_survive_a_broker_that_is_killed(own_server: OwnServerCall, group: str) -> None:
    server = own_server()
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    topic = create_topic(admin, "jobs")
    from_the_beginning(admin, group, share_delivery_count_limit="3")
    kit.produce(server.bootstrap, topic, kit.numbered(10))
    client = share_consumer(server.bootstrap, group, [topic])
    held = hold(client, 10)
    for message in held[2:7]:
        client.acknowledge(message)
    commit(client)  # durable: also that all ten were handed out once
    server.kill()
    server.restart()
    for message in [*held[:2], *held[7:]]:
        client.acknowledge(message)  # too late: they are nobody's by now
    got: list[Message] = []
    with share_consumer(server.bootstrap, group, [topic]) as heir:
        work([heir], lambda: len(got) >= 5, "what was not acknowledged", sink=got.append)
    assert counts(got) == {held[n].value(): 2 for n in (0, 1, 7, 8, 9)}
    client.close()


def test_members_go_on_when_the_broker_is_restarted(own_server: OwnServerCall, group: str) -> None:
    """Nothing acknowledged comes back, nothing is left out, through clean stops and kills."""
    server = own_server()
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    topic = create_topic(admin, "jobs", 2)
    from_the_beginning(admin, group)
    seen: Counter[bytes | None] = Counter()
    members = [share_consumer(server.bootstrap, group, [topic]) for _ in range(2)]
    for n in range(3):
        kit.produce(server.bootstrap, topic, kit.numbered(100, 100 * n))
        wanted = set(kit.numbered(100 * (n + 1)))
        work(
            members,
            lambda wanted=wanted: set(seen) >= wanted,  # type: ignore[misc]
            f"round {n}",
            sink=lambda message: seen.update([message.value()]),
        )
        server.kill() if n == 0 else server.stop()
        server.restart()
    for member in members:
        member.close()
    assert set(seen) == set(kit.numbered(300))
    assert seen.total() == 300, "all was acknowledged before each stop"


def test_dead_letters_wait_for_a_topic_that_cannot_be_made(own_server: OwnServerCall, group: str) -> None:
    server = own_server(auto_create_topics_enable=False)
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    topic = create_topic(admin, "jobs")
    from_the_beginning(admin, group, errors_deadletterqueue_topic_name="dead")
    kit.produce(server.bootstrap, topic, [b"bad"])
    with share_consumer(server.bootstrap, group, [topic]) as client:
        take(client, 1, REJECT)
    server.kill()
    server.restart()
    create_topic(admin, "dead")
    with share_consumer(server.bootstrap, group, [topic]) as client:
        poll(client)  # the group is at work again
        (letter,) = wait_for(lambda: kit.read_all(server.bootstrap, "dead"), "the dead letter")
        assert letter.value() == b"bad"
        assert not poll(client)
