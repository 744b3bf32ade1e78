"""What was promised and what was found: the accounts of the long run, apart from every client.

A load writes down what it tried, what the broker acknowledged and what it saw; an account compares the three at once
and again at the end. A promise that was broken goes to `Findings`, never to an exception, so that the run goes on and
the report names everything. Accounts are a byte or less for a message: an hour has some million of them.

Nothing here knows a broker; test_audit.py feeds these classes lies and sees that each is found.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

EXAMPLES = 10
"""Broken promises of one kind that the report spells out; the rest is counted."""
CLOCK_S = 0.005
"""A due time is in whole milliseconds and is read with another call of the clock than ours."""

TRIED, STORED, SEEN, ACK_SENT, ACKED = 1, 2, 4, 8, 16


class Findings:
    """Promises that were broken, by their kind. Any thread may add. The first of each kind is told at once (`tell`), so
    that a run that is ended early has said it."""

    def __init__(self, tell: Callable[[str], None] = lambda _: None) -> None:
        self._tell = tell
        self.counts: Counter[str] = Counter()
        self.examples: dict[str, list[str]] = defaultdict(list)
        self._lock = threading.Lock()

    def broken(self, promise: str, example: str) -> None:
        with self._lock:
            self.counts[promise] += 1
            first = self.counts[promise] == 1
            if len(self.examples[promise]) < EXAMPLES:
                self.examples[promise].append(example)
        if first:
            self._tell(f"BROKEN: {promise}: {example}")

    def __bool__(self) -> bool:
        return bool(self.counts)


class QueueAccount:
    """Messages that are each settled by themselves: of a queue, a dead-letter queue or a shared subscription.

    Each message carries a number that is tried once. What may be found: a number that was tried, not before it is due,
    and not after its ack was acknowledged. What must be found by the end: every number that was acknowledged as stored.
    `ordered`: one consumer sees the numbers for the first time in their order.
    """

    def __init__(self, name: str, findings: Findings, *, ordered: bool = False) -> None:
        self.name = name
        self._findings = findings
        self._ordered = ordered
        self._flags = bytearray()
        self._due_s: dict[int, float] = {}
        self._highest = -1
        self._lock = threading.Lock()
        self.stored_count = 0
        self.acked_count = 0
        self.deliveries = 0
        self.redeliveries = 0

    def try_next(self, *, due_s: float = 0.0) -> int:
        """The next number, about to be sent; `due_s`: not to be seen before this time."""
        with self._lock:
            self._flags.append(TRIED)
            number = len(self._flags) - 1
            if due_s:
                self._due_s[number] = due_s
            return number

    def try_number(self, number: int) -> None:
        """A number that another account gave out may come to be here: a dead letter, a record of a topic."""
        with self._lock:
            self._grow(number)
            self._flags[number] |= TRIED

    def stored(self, number: int) -> None:
        """The broker acknowledged that it has it."""
        with self._lock:
            self._grow(number)
            if not self._flags[number] & STORED:
                self._flags[number] |= TRIED | STORED
                self.stored_count += 1

    def not_before(self, number: int, due_s: float) -> None:
        """It was given back with a pause."""
        with self._lock:
            self._due_s[number] = due_s

    def may_come_again(self, number: int) -> None:
        """Whether its pause holds is not known: the request that asked for it had no answer."""
        with self._lock:
            self._due_s.pop(number, None)

    def delivered(self, number: int, at_s: float | None = None) -> None:
        """A consumer was given it."""
        at_s = time.time() if at_s is None else at_s
        with self._lock:
            flags = self._flags[number] if 0 <= number < len(self._flags) else 0
            if not flags & TRIED:
                self._findings.broken("nothing comes that was not sent", f"{self.name}: {number}")
                return
            if flags & ACKED:
                self._findings.broken("nothing acknowledged is redelivered", f"{self.name}: {number}")
            due_s = self._due_s.get(number, 0.0)
            if at_s < due_s - CLOCK_S:
                early = f"{self.name}: {number} came {due_s - at_s:.3f} s before its time"
                self._findings.broken("nothing delayed is early", early)
            else:
                self._due_s.pop(number, None)
            self.deliveries += 1
            if flags & SEEN:
                self.redeliveries += 1
            elif self._ordered:
                if number < self._highest:
                    self._findings.broken("a queue keeps its order", f"{self.name}: {number} after {self._highest}")
                self._highest = max(number, self._highest)
            self._flags[number] |= SEEN

    def ack_sent(self, number: int) -> None:
        """An ack is on its way: from now on it may stay away, and may still come again."""
        with self._lock:
            self._flags[number] |= ACK_SENT

    def acked(self, number: int) -> None:
        """The broker acknowledged an ack (or another verdict that ends it here)."""
        with self._lock:
            if self._flags[number] & ACKED:
                self._findings.broken("nothing is there twice", f"{self.name}: {number} was acked twice")
            else:
                self._flags[number] |= ACK_SENT | ACKED
                self.acked_count += 1

    def seen(self) -> set[int]:
        with self._lock:
            return {number for number, flags in enumerate(self._flags) if flags & SEEN}

    def open_numbers(self) -> list[int]:
        """Stored, and nobody said a word that would end it."""
        with self._lock:
            return [n for n, flags in enumerate(self._flags) if flags & STORED and not flags & ACK_SENT]

    def never_seen(self) -> list[int]:
        with self._lock:
            return [n for n, flags in enumerate(self._flags) if flags & STORED and not flags & SEEN]

    def finish(self) -> None:
        """All consumers had time to get everything: what is open now is lost."""
        for number in self.open_numbers():
            self._findings.broken("nothing acknowledged is lost", f"{self.name}: {number} was stored and never acked")

    def _grow(self, number: int) -> None:
        if number >= len(self._flags):
            self._flags.extend(bytes(number + 1 - len(self._flags)))


class LogAccount:
    """A topic that one idempotent producer fills: offset and number say each other, so a range is all to remember.

    Number `n` goes to partition `n % partitions`, where it has to stand at offset `n // partitions`: a message that is
    lost, doubled or out of order shifts all that follow.
    """

    def __init__(self, name: str, partitions: int, findings: Findings) -> None:
        self.name = name
        self.partitions = partitions
        self._findings = findings
        self.acknowledged_end = [0] * partitions
        self.seen_end = [0] * partitions
        self.expired = 0
        self._lock = threading.Lock()

    @property
    def acknowledged(self) -> int:
        return sum(self.acknowledged_end)

    def report(self, partition: int, offset: int, number: int) -> None:
        """A delivery report: acknowledged there."""
        self._compare(partition, offset, number, "acknowledged")
        with self._lock:
            if offset != self.acknowledged_end[partition]:
                self._findings.broken(
                    "reports come in order",
                    f"{self.name}-{partition}: {offset} after {self.acknowledged_end[partition] - 1}",
                )
            self.acknowledged_end[partition] = max(self.acknowledged_end[partition], offset + 1)

    def read(self, partition: int, offset: int, number: int, start: int = 0) -> None:
        """A reader that goes on where it was found this; `start`: what is below it was deleted by retention."""
        self._compare(partition, offset, number, "found")
        with self._lock:
            expected = self.seen_end[partition]
            if offset > expected:
                gone = max(0, min(offset, start) - expected)
                self.expired += gone
                if offset - expected > gone:
                    self._findings.broken(
                        "no record is skipped", f"{self.name}-{partition}: {offset} came, {expected + gone} did not"
                    )
            self.seen_end[partition] = max(expected, offset + 1)

    def check_ends(self, ends: Mapping[int, int], acknowledged: list[int]) -> None:
        """The log reaches as far as was acknowledged before it was asked."""
        for partition, end in ends.items():
            if end < acknowledged[partition]:
                self._findings.broken(
                    "nothing acknowledged is lost",
                    f"{self.name}-{partition} ends at {end}, acknowledged up to {acknowledged[partition]}",
                )

    def finish(self) -> None:
        for partition, end in enumerate(self.acknowledged_end):
            if self.seen_end[partition] < end:
                self._findings.broken(
                    "nothing acknowledged is lost",
                    f"{self.name}-{partition}: acknowledged up to {end}, read up to {self.seen_end[partition]}",
                )

    def _compare(self, partition: int, offset: int, number: int, how: str) -> None:
        if number % self.partitions != partition or number // self.partitions != offset:
            self._findings.broken(
                "each record is once at its place in order",
                f"{self.name}-{partition}: {number} {how} at offset {offset}",
            )


class OffsetsAccount:
    """What a group committed: it never goes back, and never past the log."""

    def __init__(self, name: str, findings: Findings) -> None:
        self.name = name
        self._findings = findings
        self._promised: dict[int, int] = {}
        self._lock = threading.Lock()

    def committed(self, partition: int, offset: int) -> None:
        with self._lock:
            self._promised[partition] = max(offset, self._promised.get(partition, 0))

    @property
    def promised(self) -> dict[int, int]:
        with self._lock:
            return dict(self._promised)

    def check(self, promised: Mapping[int, int], held: Mapping[int, int], ends: Mapping[int, int]) -> None:
        """`promised` was taken before `held` was asked, `ends` afterwards."""
        for partition, offset in promised.items():
            if held.get(partition, -1) < offset:
                self._findings.broken(
                    "committed offsets stay", f"{self.name}-{partition}: {offset} became {held.get(partition)}"
                )
        for partition, offset in held.items():
            if offset > ends[partition]:
                self._findings.broken(
                    "committed offsets are within the log",
                    f"{self.name}-{partition}: {offset}, and the log ends at {ends[partition]}",
                )


class KeysAccount:
    """A compacted topic: the last version of each key, as far as it was acknowledged; every tenth is a tombstone."""

    def __init__(self, name: str, findings: Findings) -> None:
        self.name = name
        self._findings = findings
        self._tried: Counter[int] = Counter()
        self._acknowledged: dict[int, int] = {}
        self._lock = threading.Lock()
        self.acknowledged_count = 0

    @staticmethod
    def is_tombstone(version: int) -> bool:
        return version % 10 == 0

    def try_next(self, key: int) -> int:
        with self._lock:
            self._tried[key] += 1
            return self._tried[key]

    def report(self, key: int, version: int) -> None:
        with self._lock:
            self._acknowledged[key] = max(version, self._acknowledged.get(key, 0))
            self.acknowledged_count += 1

    def snapshot(self) -> dict[int, int]:
        with self._lock:
            return dict(self._acknowledged)

    def check(self, promised: Mapping[int, int], found: list[tuple[int, int]]) -> None:
        """`found`: all (key, version) of the topic in their order, read after `promised` was taken."""
        last: dict[int, int] = {}
        for key, version in found:
            if version <= last.get(key, 0):
                self._findings.broken("a key's values keep their order", f"{self.name}: {key}: {version}, {last[key]}")
            last[key] = version
        for key, version in promised.items():
            present = last.get(key)
            if present is None:
                if not any(self.is_tombstone(v) for v in range(version, self._tried[key] + 1)):
                    self._findings.broken("a key's last value stays", f"{self.name}: {key} is gone, was {version}")
            elif present < version:
                self._findings.broken("a key's last value stays", f"{self.name}: {key} is {present}, was {version}")
            elif present > self._tried[key]:
                self._findings.broken("nothing comes that was not sent", f"{self.name}: {key} is {present}")


class TransactionsAccount:
    """Output of consume-transform-produce: inputs 0, 1, 2 … in the first partition, and in the second, for each
    transaction, the range of inputs that it had. Readers of committed records find both without gaps or repeats."""

    def __init__(self, name: str, findings: Findings) -> None:
        self.name = name
        self._findings = findings
        self._next_input = 0
        self._next_range = 0
        self.committed_end = 0
        self.transactions = 0
        self.aborted = 0
        self._lock = threading.Lock()

    @property
    def read_end(self) -> int:
        return min(self._next_input, self._next_range)

    def committed(self, first: int, end: int) -> None:
        with self._lock:
            self.transactions += 1
            self.committed_end = max(self.committed_end, end)

    def read_input(self, value: bytes) -> None:
        if value.startswith(b"abort"):
            self._findings.broken("aborted transactions are invisible", f"{self.name}: {value!r}")
            return
        number = int(value)
        if number != self._next_input:
            what = f"{self.name}: input {number} came, {self._next_input} was due"
            self._findings.broken("a transaction's output is there exactly once", what)
        self._next_input = number + 1

    def read_range(self, value: bytes) -> None:
        if value.startswith(b"abort"):
            self._findings.broken("aborted transactions are invisible", f"{self.name}: {value!r}")
            return
        first, end = map(int, value.split())
        if first != self._next_range:
            what = f"{self.name}: range {first} came, {self._next_range} was due"
            self._findings.broken("a transaction's output is there exactly once", what)
        self._next_range = end

    def finish(self) -> None:
        if self._next_input != self._next_range:
            self._findings.broken(
                "transactions are whole", f"{self.name}: {self._next_input} inputs, ranges up to {self._next_range}"
            )
        if self.read_end < self.committed_end:
            self._findings.broken(
                "nothing acknowledged is lost", f"{self.name}: {self.read_end} read, {self.committed_end} committed"
            )


def check_pair(first: QueueAccount, second: QueueAccount, findings: Findings) -> None:
    """Two queues that were only ever written together have the same numbers."""
    for number in sorted(first.seen() ^ second.seen()):
        findings.broken("transactions are whole", f"{number} is in one of {first.name} and {second.name}")
