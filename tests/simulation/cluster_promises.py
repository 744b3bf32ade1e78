"""What the outside world was told by a simulated cluster, and whether it keeps to it.

`Broken` is raised as soon as something contradicts what a client was told before: an epoch with two leaders, another
record where one was, a value twice, a transaction that was shown and is aborted, a queue's message that is early or
comes after its ack, a committed offset that goes back. What can only be said at the end is said by `audit_*`, when
everything has healed.

Nothing of the broker is known here: clients and readers call it with what they have heard. What is called thousands
of times in a run puts its sentence together only when it is wrong.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.simulation.promises import Broken, expect

Place = tuple[str, int]
"""A topic, and the partition's number."""


@dataclass
class Attempt:
    """A transaction: how many records it wrote, and what its producer was told of its end."""

    records: int
    outcome: bool | None = None


@dataclass
class Letter:
    """A queue's message."""

    queue: str
    not_before_s: float = 0.0  # by virtual time
    not_before_ms: int = 0  # or by the clock of the node that took it
    stored: bool = False  # the publisher was told so
    seen: bool = False  # a consumer had it
    ending: bool = False  # a consumer has asked to end it: by an ack, or by moving it
    done: bool = False  # and was told that it is
    done_in: int = -1  # the epoch of the leader that wrote so
    tags: dict[str, int] = field(default_factory=dict)  # by queue


class Promises:
    """Of one run."""

    def __init__(self) -> None:
        self.leaders: dict[tuple[str, int, int], tuple[int, int]] = {}  # topic, partition, epoch → life
        self.newest: dict[Place, int] = {}
        self.acked: dict[Place, dict[int, bytes]] = {}
        self.shown: dict[Place, dict[int, bytes]] = {}
        self.last_shown: dict[Place, int] = {}
        self.offset_of: dict[Place, dict[bytes, int]] = {}
        self.committed: dict[Place, dict[int, bool]] = {}  # whether a reader of committed records is shown it
        self.visible: dict[tuple[tuple[int, int], str, int], int] = {}
        self.attempts: dict[int, Attempt] = {}
        self.group_offsets: dict[tuple[str, int], int] = {}  # the last that was acknowledged
        self.furthest: dict[int, int] = {}  # by partition: the last offset that any group has
        self.letters: dict[int, Letter] = {}
        self.deliveries = 0
        self.acks = 0

    # -- leaders ------------------------------------------------------------------------------------------------------

    def leads(self, place: Place, epoch: int, life: tuple[int, int]) -> None:
        """Somebody leads an epoch."""
        other = self.leaders.setdefault((*place, epoch), life)
        if other != life:
            raise Broken(f"{place}: epoch {epoch} is led by {other} and by {life}")
        self.newest[place] = max(epoch, self.newest.get(place, -1))

    def leader_has(self, place: Place, epoch: int, end: int) -> None:
        """A leader's log is of this length. One that was deposed and does not know it yet need not have what its
        successor has shown: so all who lead are noted first (`leads`)."""
        if epoch == self.newest[place]:
            last = self.last_shown.get(place, -1)
            if end <= last:
                raise Broken(f"{place}: offset {last} was shown, and the leader of epoch {epoch} has {end} records")

    def leader_has_committed(self, place: Place, epoch: int, end: int) -> None:
        """Of the topic that groups read: what they have committed, whoever coordinates them, is not past its log."""
        furthest = self.furthest.get(place[1], 0)
        if epoch == self.newest[place] and end < furthest:
            raise Broken(f"{place}: offset {furthest} is committed, and the leader of epoch {epoch} has {end} records")

    def high_watermark(self, place: Place, life: tuple[int, int], offset: int) -> None:
        before = self.visible.get((life, *place), 0)
        if offset < before:
            raise Broken(f"{place}: what {life} shows goes back from {before} to {offset}")
        self.visible[life, *place] = offset

    # -- records ------------------------------------------------------------------------------------------------------

    def acknowledged(self, place: Place, offset: int, value: bytes) -> None:
        self.acked.setdefault(place, {})[offset] = value
        self.show(place, offset, value)

    def show(self, place: Place, offset: int, value: bytes) -> None:
        before = self.shown.setdefault(place, {}).setdefault(offset, value)
        self.last_shown[place] = max(offset, self.last_shown.get(place, -1))
        if before != value:
            raise Broken(f"{place}: offset {offset} was {before!r}, and now is {value!r}")
        where = self.offset_of.setdefault(place, {}).setdefault(value, offset)
        if where != offset:
            raise Broken(f"{place}: {value!r} is at {where} and at {offset}")

    def show_committed(self, place: Place, offset: int, value: bytes, *, visible: bool) -> None:
        """A reader of committed records gets this one, or is told to leave it out."""
        before = self.committed.setdefault(place, {}).setdefault(offset, visible)
        if before != visible:
            raise Broken(f"{place}: {value!r} at {offset} was {'shown' if before else 'left out'} before")
        if visible and value.startswith(b"o"):
            attempt = self.attempts[attempt_of(value)]
            expect(attempt.outcome is not False, f"{place}: {value!r} is shown, though its transaction was aborted")

    # -- transactions -------------------------------------------------------------------------------------------------

    def ended(self, number: int, commit: bool) -> None:
        """The producer was told so."""
        self.attempts[number].outcome = commit

    def audit_transactions(self, source: Mapping[int, bytes], target: Mapping[int, bytes], reached: int) -> None:
        """`source`, `target`: what a reader of committed records finds at the end, by offset; `reached`: the offset of
        the source that was committed with what is in the target. The target has exactly one record for each one of the
        source, in order, as far as it has come; and all of a transaction's records or none."""
        found: dict[int, int] = {}
        inputs: list[int] = []
        for _, value in sorted(target.items()):
            if value.startswith(b"o"):
                inputs.append(input_of(value))
                found[attempt_of(value)] = found.get(attempt_of(value), 0) + 1
        for number, attempt in self.attempts.items():
            wanted = {None: (0, attempt.records), True: (attempt.records,), False: (0,)}[attempt.outcome]
            expect(
                found.get(number, 0) in wanted,
                f"transaction {number} ({attempt}) is seen with {found.get(number, 0)} records",
            )
        there = sorted(source)
        expect(inputs == there[: len(inputs)], f"there are outputs of {inputs}; of the inputs {there}")
        expect(
            reached == (inputs[-1] + 1 if inputs else 0),
            f"there are outputs up to {inputs[-1:]}, and the group's offset is {reached}",
        )

    # -- groups -------------------------------------------------------------------------------------------------------

    def offset_committed(self, group: str, index: int, offset: int) -> None:
        self.group_offsets[group, index] = max(offset, self.group_offsets.get((group, index), 0))
        self.furthest[index] = max(offset, self.furthest.get(index, 0))

    def offset_committed_by_owner(self, group: str, index: int, offset: int) -> None:
        """By a member that was assigned the partition, and that has read on from where the group was."""
        least = self.group_offsets.get((group, index), 0)
        expect(offset > least, f"group {group}: {offset} is committed for partition {index}, where {least} was")
        self.offset_committed(group, index, offset)

    def offset_fetched(self, group: str, index: int, offset: int) -> None:
        """Of a group whose offsets only go forward: what was acknowledged is there."""
        self.furthest[index] = max(offset, self.furthest.get(index, 0))
        self.offset_stays(group, index, offset)

    def offset_stays(self, group: str, index: int, offset: int) -> None:
        least = self.group_offsets.get((group, index), 0)
        expect(
            offset >= least,
            f"group {group}: {least} was committed or shown for partition {index}, and now it is {offset}",
        )

    def offset_shown(self, group: str, index: int, offset: int) -> None:
        """To somebody who only looks: it may be old, and it stays."""
        self.group_offsets[group, index] = max(offset, self.group_offsets.get((group, index), 0))

    # -- queues -------------------------------------------------------------------------------------------------------

    def delivered(self, queue: str, number: int, tag: int | None, epoch: int, now_s: float, latest_ms: int) -> None:
        """`tag`: where it is in the queue, if the protocol tells. `epoch`: of the leader that handed it out. Only
        one that led before the one that wrote down the end of a message may not know of it: every later one has it in
        its log. `latest_ms`: the latest that any wall clock has shown. A clock that is set forward makes things due."""
        letter = self.letters.get(number)
        if letter is None:
            raise Broken(f"queue {queue} delivers {number}, which nobody has put")
        self.deliveries += 1
        letter.seen = True
        missed = epoch < letter.done_in
        expect(not letter.done or missed, f"queue {queue} delivers {number} in epoch {epoch}, after its ack: {letter}")
        early = now_s < letter.not_before_s and latest_ms < letter.not_before_ms
        expect(not early, f"queue {queue} delivers {number} early: at {now_s:.3f} s, {letter}")
        known = tag if tag is None else letter.tags.setdefault(queue, tag)
        expect(known == tag, f"queue {queue} has {number} at {known} and at {tag}")

    def delivered_together(self, queue: str, priorities: Sequence[int]) -> None:
        """To one consumer at one time: what is ready and has the highest priority goes first."""
        right = sorted(priorities, reverse=True)
        expect(list(priorities) == right, f"queue {queue} delivers priorities {priorities} in this order")

    def audit_queues(self, left: Mapping[str, Collection[int]], moves: Mapping[str, str]) -> None:
        """`left`: what is in each queue at the end. `moves`: where what leaves a queue goes by itself."""
        count: dict[int, int] = {}
        for numbers in left.values():
            for number in numbers:
                count[number] = count.get(number, 0) + 1
        for number, times in count.items():
            expect(times == 1, f"message {number} is in {[queue for queue in left if number in left[queue]]}")
            letter = self.letters.get(number)
            if letter is None:
                raise Broken(f"message {number} is there, which nobody has put")
            where = next(queue for queue in left if number in left[queue])
            expect(where in (letter.queue, moves.get(letter.queue)), f"{letter} is in {where}")
            expect(not letter.done, f"message {number} is in {where}, though it was acknowledged")
        for number, letter in self.letters.items():
            # What was delivered was on every replica in sync before that, whether its sender was told or not.
            if (letter.stored or letter.seen) and not letter.ending:
                expect(number in count, f"message {number} is in no queue, and nobody has acknowledged it: {letter}")


def attempt_of(value: bytes) -> int:
    """The transaction that an output was written in."""
    return int(value.partition(b":")[2])


def input_of(value: bytes) -> int:
    """The offset of what it was made of."""
    return int(value[1:].partition(b":")[0])


def audit_order(values: Iterable[bytes]) -> None:
    """Of an idempotent producer's values in the order of their offsets: each once, none left out."""
    numbers: dict[bytes, int] = {}
    for value in values:
        if value.startswith(b"i"):
            producer, _, number = value[1:].partition(b":")
            last = numbers.get(producer, 0)
            expect(int(number) == last + 1, f"producer {producer!r}: {int(number)} comes behind {last}")
            numbers[producer] = int(number)
