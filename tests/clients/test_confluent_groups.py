"""Consumer groups with confluent-kafka, classic and KIP-848: members come, go and die; nothing is lost or reordered.

Every test runs under each way a group can share its work: three client-side assignors of the classic protocol and the
two server-side assignors of the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.clients import kit
from tests.clients.members import Member, MemberProcess, check, pump, saw_all, spots_of, spread
from tests.clients.stage import NewTopicCall, create_topic
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S

TIMING = {"session.timeout.ms": kit.SESSION_MS, "heartbeat.interval.ms": kit.HEARTBEAT_MS}
CLASSIC: dict[str, dict[str, str | int]] = {
    "classic-range": {"partition.assignment.strategy": "range", **TIMING},
    "classic-roundrobin": {"partition.assignment.strategy": "roundrobin", **TIMING},
    "classic-cooperative-sticky": {"partition.assignment.strategy": "cooperative-sticky", **TIMING},
}
KIP848: dict[str, dict[str, str | int]] = {
    "kip848-uniform": {"group.protocol": "consumer", "group.remote.assignor": "uniform"},
    "kip848-range": {"group.protocol": "consumer", "group.remote.assignor": "range"},
}
ALL = {**CLASSIC, **KIP848}
ONE_EACH = ("classic-range", "classic-cooperative-sticky", "kip848-uniform")


@dataclass
class Crew:
    """Makes members of one group and closes them all at the end."""

    bootstrap: str
    group: str
    folder: Path
    members: list[Member]
    processes: list[MemberProcess]

    def join(self, topics: list[str], config: kit.Config) -> Member:
        name = f"m{len(self.members)}"
        member = Member(self.bootstrap, self.group, topics, name=name, config=config)
        self.members.append(member)
        return member

    def join_process(self, topics: list[str], config: kit.Config) -> MemberProcess:
        name = f"p{len(self.processes)}"
        process = MemberProcess(self.folder, self.bootstrap, self.group, topics, name=name, config=config)
        self.processes.append(process)
        return process


@pytest.fixture
def crew(bootstrap: str, group: str, tmp_path: Path) -> Iterator[Crew]:
    crew = Crew(bootstrap, group, tmp_path, [], [])
    yield crew
    for process in crew.processes:
        process.kill()
    for member in crew.members:
        member.close()


@pytest.mark.parametrize("mode", ALL)
def test_members_joining_and_leaving_lose_nothing_and_repeat_nothing(
    bootstrap: str, new_topic: NewTopicCall, crew: Crew, mode: str
) -> None:
    topic = new_topic(partitions=4)
    spots = spots_of(topic, 4)
    feed = Feed(bootstrap, topic, 4)
    first = crew.join([topic], ALL[mode])
    pump([first], lambda: spread([first], spots), "one member owns everything")
    feed.more(25)
    second = crew.join([topic], ALL[mode])
    pump([first, second], lambda: spread([first, second], spots), "two members share")
    feed.more(25)
    third = crew.join([topic], ALL[mode])
    pump([first, second, third], lambda: spread([first, second, third], spots), "three members share")
    feed.more(25)
    first.close()
    crew.members.remove(first)
    pump([second, third], lambda: spread([second, third], spots), "the others take over")
    feed.more(25)
    journals = [member.journal for member in (first, second, third)]
    pump([second, third], lambda: saw_all(journals, feed.counts), "all messages were seen")
    check(journals, feed.counts, twice_allowed=False)


@pytest.mark.parametrize("mode", ONE_EACH)
def test_killed_members_partitions_go_on_where_its_commits_ended(
    bootstrap: str, new_topic: NewTopicCall, crew: Crew, mode: str
) -> None:
    topic = new_topic(partitions=4)
    spots = spots_of(topic, 4)
    feed = Feed(bootstrap, topic, 4)
    survivor = crew.join([topic], ALL[mode])
    doomed = crew.join_process([topic], ALL[mode])
    pump([survivor], lambda: 0 < len(survivor.owned) < 4 and held(doomed) > 0, "both have work")
    feed.more(50)
    pump([survivor], lambda: len(saw(doomed)) > 20, "the other member works")
    doomed.kill()
    feed.more(50)
    pump([survivor], lambda: survivor.owned == spots, "the survivor takes over")
    journals = [survivor.journal, doomed.journal]
    pump([survivor], lambda: saw_all(journals, feed.counts), "all messages were seen")
    check(journals, feed.counts, twice_allowed=True)


@pytest.mark.parametrize("mode", ["classic-range", "kip848-uniform"])
def test_static_member_that_comes_back_gets_its_partitions_without_a_rebalance(
    bootstrap: str, new_topic: NewTopicCall, crew: Crew, mode: str
) -> None:
    topic = new_topic(partitions=4)
    spots = spots_of(topic, 4)
    stay = crew.join([topic], {**ALL[mode], "group.instance.id": "stay"})
    gone = crew.join([topic], {**ALL[mode], "group.instance.id": "comes-back"})
    pump([stay, gone], lambda: spread([stay, gone], spots), "both share")
    had = set(gone.owned)
    steps_before = len(stay.journal)
    gone.close()  # a static member does not leave the group by closing
    crew.members.remove(gone)
    back = crew.join([topic], {**ALL[mode], "group.instance.id": "comes-back"})
    pump([stay, back], lambda: bool(back.owned), "the static member is back")
    assert back.owned == had
    assert [step for step in stay.journal[steps_before:] if step.what != "saw"] == []


def test_second_holder_of_a_static_id_fences_the_first(bootstrap: str, new_topic: NewTopicCall, group: str) -> None:
    topic = new_topic()
    config = {**CLASSIC["classic-range"], "group.instance.id": "only-one"}
    old, new = (kit.consumer(bootstrap, group, config) for _ in range(2))
    old.subscribe([topic])
    kit.produce(bootstrap, topic, [b"x"])
    kit.take(old, 1)
    new.subscribe([topic])
    kit.take(new, 1)
    error = kit.first_error(old)
    assert error.code() in (KafkaError._FATAL, KafkaError.FENCED_INSTANCE_ID)
    assert "fenced" in error.str()
    for client in (new, old):
        client.close()


@pytest.mark.parametrize("mode", ONE_EACH)
def test_new_topics_that_match_a_pattern_are_picked_up(
    bootstrap: str, admin: AdminClient, crew: Crew, mode: str
) -> None:
    stem = unique("pattern")
    create_topic(admin, f"{stem}.a", 2)
    create_topic(admin, f"not.{stem}", 1)
    member = crew.join([f"^{stem}\\..*"], ALL[mode])
    spots = spots_of(f"{stem}.a", 2)
    pump([member], lambda: member.owned == spots, "it owns the topic that matches")
    create_topic(admin, f"{stem}.b", 1)
    spots |= spots_of(f"{stem}.b", 1)
    pump([member], lambda: member.owned == spots, "the new topic is found")
    kit.produce(bootstrap, f"{stem}.b", [b"x"])
    pump([member], lambda: saw_all([member.journal], {(f"{stem}.b", 0): 1}), "its message comes")


@pytest.mark.parametrize("mode", ONE_EACH)
def test_added_partitions_are_shared_out(
    bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, crew: Crew, mode: str
) -> None:
    topic = new_topic(partitions=1)
    members = [crew.join([topic], ALL[mode]) for _ in range(2)]
    pump(members, lambda: spread(members, spots_of(topic, 1)), "one of them owns the only partition")
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(DEADLINE_S)
    pump(members, lambda: spread(members, spots_of(topic, 3)), "the new partitions are shared")
    kit.produce(bootstrap, topic, [b"x"], partition=2)
    journals = [member.journal for member in members]
    pump(members, lambda: saw_all(journals, {(topic, 2): 1}), "a message of a new partition comes")


@pytest.mark.parametrize("mode", ["classic-range", "kip848-uniform"])
def test_one_group_may_read_several_topics_and_change_its_mind(new_topic: NewTopicCall, crew: Crew, mode: str) -> None:
    one, two, three = (new_topic(partitions=2) for _ in range(3))
    member = crew.join([one, two], ALL[mode])
    pump([member], lambda: member.owned == spots_of(one, 2) | spots_of(two, 2), "two topics")
    member.resubscribe([two, three])
    pump([member], lambda: member.owned == spots_of(two, 2) | spots_of(three, 2), "two other topics")
    member.client.unsubscribe()
    pump([member], lambda: member.client.assignment() == [], "nothing")


def test_member_of_another_protocol_is_refused(bootstrap: str, new_topic: NewTopicCall, crew: Crew) -> None:
    topic = new_topic()
    member = crew.join([topic], CLASSIC["classic-range"])
    pump([member], lambda: bool(member.owned), "a classic member with the range assignor")
    other = kit.consumer(bootstrap, crew.group, CLASSIC["classic-cooperative-sticky"])
    other.subscribe([topic])
    assert kit.first_error(other).code() == KafkaError.INCONSISTENT_GROUP_PROTOCOL
    other.close()


@pytest.mark.parametrize("mode", ["classic-range", "classic-cooperative-sticky"])
def test_a_group_changes_its_protocol_member_by_member_and_back(
    bootstrap: str, new_topic: NewTopicCall, crew: Crew, mode: str
) -> None:
    """A rolling restart of the members with another setting: nothing is read twice, nothing is left out."""
    topic = new_topic(partitions=4)
    spots = spots_of(topic, 4)
    feed = Feed(bootstrap, topic, 4)
    members = [crew.join([topic], CLASSIC[mode]) for _ in range(2)]
    everyone = [*members]
    pump(members, lambda: spread(members, spots), "two classic members have all partitions")
    for config in (KIP848["kip848-uniform"], CLASSIC[mode]):
        for number in range(2):
            feed.more(25)
            members[number].close()
            crew.members.remove(members[number])
            members[number] = crew.join([topic], config)
            everyone.append(members[number])
            pump(members, lambda: spread(members, spots), f"member {number} was changed")
    feed.more(25)
    journals = [member.journal for member in everyone]
    pump(members, lambda: saw_all(journals, feed.counts), "all messages were seen")
    check(journals, feed.counts, twice_allowed=False)


def test_unknown_server_assignor_is_refused(bootstrap: str, new_topic: NewTopicCall, group: str) -> None:
    client = kit.consumer(bootstrap, group, {"group.protocol": "consumer", "group.remote.assignor": "by-moonlight"})
    client.subscribe([new_topic()])
    error = kit.first_error(client)
    assert error.code() in (KafkaError._FATAL, KafkaError.UNSUPPORTED_ASSIGNOR)
    client.close()


@pytest.mark.parametrize("mode", ["classic-range", "kip848-uniform"])
def test_commit_from_outside_is_refused_while_the_group_has_members(
    bootstrap: str, new_topic: NewTopicCall, group: str, mode: str
) -> None:
    topic = new_topic()
    inside = kit.consumer(bootstrap, group, ALL[mode])
    inside.subscribe([topic])
    kit.produce(bootstrap, topic, [b"x"])
    kit.take(inside, 1)
    outside = kit.consumer(bootstrap, group)
    with pytest.raises(KafkaException) as refused:
        outside.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    assert kit.code_of(refused.value) == KafkaError.UNKNOWN_MEMBER_ID
    for client in (inside, outside):
        client.close()


class Feed:
    """Keeps a topic supplied and knows how much went where."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self.counts = dict.fromkeys(spots_of(topic, partitions), 0)
        self._client = kit.producer(bootstrap)

    def more(self, each: int) -> None:
        """Produce `each` messages into every partition, and see them acknowledged."""
        reports = kit.Deliveries()
        for (topic, partition), count in self.counts.items():
            for n in range(count, count + each):
                kit.send(self._client, topic, b"%06d" % n, partition=partition, on_delivery=reports)
            self.counts[topic, partition] = count + each
        kit.flush(self._client)
        assert not reports.bad


def held(process: MemberProcess) -> int:
    """How many partitions a member process owns, as it told."""
    return sum({"took": 1, "gave": -1, "lost": -1}.get(step.what, 0) for step in process.journal)


def saw(process: MemberProcess) -> list[int]:
    """The offsets a member process saw."""
    return [step.offset for step in process.journal if step.what == "saw"]
