"""Group members whose every step is written down, so that a test can check what a group promises.

The promises (`check`): inside one ownership of a partition offsets follow each other without a hole; a new owner starts
no later than where the last one stopped; together the members saw every message. Whether a message may be seen twice
depends on the fault: after a clean rebalance it may not, after a killed member it may.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.clients import kit
from tests.support.server import ROOT
from tests.support.waiting import DEADLINE_S, NotInTime, wait_for

Spot = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Step:
    """What a member did: took or gave up a partition (offset -1), or saw the message at an offset."""

    member: str
    what: str
    spot: Spot
    offset: int = -1


class Member:
    """A consumer in a group that commits what it gives up and journals what it does."""

    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], *, name: str = "m", config: kit.Config | None = None
    ) -> None:
        self.name = name
        self.journal: list[Step] = []
        self.owned: set[Spot] = set()
        self._next: dict[Spot, int] = {}
        self._committed: dict[Spot, int] = {}
        self.client = kit.consumer(bootstrap, group, {"client.id": name, **(config or {})})
        self.resubscribe(topics)

    def resubscribe(self, topics: Sequence[str]) -> None:
        """Read these topics from now on."""
        self.client.subscribe(list(topics), on_assign=self._took, on_revoke=self._gave, on_lost=self._lost)

    def step(self, timeout_s: float = 0.02) -> list[Message]:
        """Poll once; journal what came."""
        got = []
        for message in self.client.consume(100, timeout_s):
            error = message.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
            if error is None:
                spot = (str(message.topic()), int(message.partition() or 0))
                offset = int(message.offset() or 0)
                self._next[spot] = offset + 1
                self._note("saw", spot, offset)
                got.append(message)
        return got

    def commit(self) -> None:
        """Commit what was seen of the partitions it owns."""
        self._commit(self.owned)

    def close(self) -> None:
        """Commit, then leave the group: in the callback of `close()` a commit can come too late (see FINDINGS.md)."""
        wait_for(self._commit_or_step, f"{self.name} committed", retry_on=(KafkaException,))
        self.client.close()

    def _commit_or_step(self) -> bool:
        """One try to commit; in the middle of a rebalance the client must be polled before the next try."""
        try:
            self.commit()
        except KafkaException:
            self.step()
            raise
        return True

    def _note(self, what: str, spot: Spot, offset: int = -1) -> None:
        self.journal.append(Step(self.name, what, spot, offset))

    def _took(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        for tp in partitions:
            self.owned.add((tp.topic, tp.partition))
            self._note("took", (tp.topic, tp.partition))

    def _gave(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        spots = {(tp.topic, tp.partition) for tp in partitions}
        self._commit(spots)
        self._forget("gave", spots)

    def _lost(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._forget("lost", {(tp.topic, tp.partition) for tp in partitions})

    def _forget(self, what: str, spots: set[Spot]) -> None:
        for spot in sorted(spots):
            self.owned.discard(spot)
            self._next.pop(spot, None)
            self._committed.pop(spot, None)
            self._note(what, spot)

    def _commit(self, spots: Iterable[Spot]) -> None:
        news = {spot: self._next[spot] for spot in spots if self._next.get(spot) != self._committed.get(spot)}
        if news:
            self.client.commit(offsets=[TopicPartition(*s, offset) for s, offset in news.items()], asynchronous=False)
            self._committed.update(news)


def pump(members: Sequence[Member], done: Callable[[], bool], what: str, *, within_s: float = DEADLINE_S) -> None:
    """Poll all members in turn until `done`."""
    deadline = time.monotonic() + within_s
    while not done():
        if time.monotonic() > deadline:
            owned = {member.name: sorted(member.owned) for member in members}
            raise NotInTime(f"not within {within_s:g} s: {what} (owned: {owned})")
        for member in members:
            member.step()


def spread(members: Sequence[Member], spots: set[Spot]) -> bool:
    """Whether the members own exactly these partitions, each by one, none idle that could have work."""
    owned = [spot for member in members for spot in member.owned]
    fair = all(member.owned for member in members) or len(members) > len(spots)
    return len(owned) == len(spots) and set(owned) == spots and fair


def spots_of(topic: str, partitions: int) -> set[Spot]:
    """All partitions of a topic."""
    return {(topic, p) for p in range(partitions)}


def seen(steps: Iterable[Step]) -> dict[Spot, set[int]]:
    """Which offsets of which partitions were seen by anyone."""
    result: dict[Spot, set[int]] = {}
    for step in steps:
        if step.what == "saw":
            result.setdefault(step.spot, set()).add(step.offset)
    return result


def saw_all(journals: Sequence[Sequence[Step]], counts: Mapping[Spot, int]) -> bool:
    """Whether every offset below the count was seen, in every partition."""
    together = seen(step for journal in journals for step in journal)
    return all(len(together.get(spot, ())) >= count for spot, count in counts.items())


def check(journals: Sequence[Sequence[Step]], counts: Mapping[Spot, int], *, twice_allowed: bool) -> None:
    """Nothing lost, nothing out of order within an ownership, nothing twice unless a member died."""
    for journal in journals:
        _check_order(journal)
    everything = [step for journal in journals for step in journal]
    together = seen(everything)
    for spot, count in counts.items():
        assert together.get(spot, set()) == set(range(count)), f"{spot}: lost or invented messages"
    if not twice_allowed:
        total = sum(step.what == "saw" for step in everything)
        assert total == sum(counts.values()), "a message came twice although nobody died"


def _check_order(journal: Sequence[Step]) -> None:
    """One member: inside an ownership each offset follows the one before."""
    last: dict[Spot, int] = {}
    for step in journal:
        if step.what != "saw":
            last.pop(step.spot, None)
            continue
        if step.spot in last:
            assert step.offset == last[step.spot] + 1, f"{step.member} at {step.spot}: {last[step.spot]}, {step.offset}"
        last[step.spot] = step.offset


class MemberProcess:
    """A member in a process of its own that can be killed without a farewell."""

    def __init__(
        self,
        folder: Path,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        *,
        name: str,
        config: kit.Config | None = None,
    ) -> None:
        self._path = folder / f"{name}.jsonl"
        order: dict[str, Any] = {"bootstrap": bootstrap, "group": group, "topics": list(topics), "name": name}
        order["config"] = dict(config or {})
        with self._path.open("wb") as out:
            command = [sys.executable, "-m", "tests.clients.members", json.dumps(order)]
            self.process = subprocess.Popen(command, stdout=out, cwd=ROOT, stdin=subprocess.DEVNULL)

    @property
    def journal(self) -> list[Step]:
        """What it has told so far (a line cut off by its death is not told)."""
        steps = []
        for line in self._path.read_text().split("\n")[:-1]:
            member, what, topic, partition, offset = json.loads(line)
            steps.append(Step(member, what, (topic, partition), offset))
        return steps

    def kill(self) -> None:
        """End it with SIGKILL; safe to call twice."""
        self.process.kill()
        self.process.wait()


def main(order: dict[str, Any]) -> None:
    """The member process: print each step, commit after each poll, until killed."""
    member = Member(order["bootstrap"], order["group"], order["topics"], name=order["name"], config=order["config"])
    while True:
        got = member.step(0.1)
        for step in member.journal:
            print(json.dumps([step.member, step.what, *step.spot, step.offset]), flush=True)
        member.journal.clear()
        if got:
            member.commit()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
