"""The Python client under the long run: delays, retries, priorities, dead letters, redrive, transactions, groups.

Messages are sent with `guarantee="exactly-once"`, so that what the client sends again after a crash is stored once.
"""

from __future__ import annotations

import time
from collections import defaultdict

import waystation
from tests.soak_real.audit import Findings, QueueAccount
from tests.soak_real.ground import Ground, Pace, Steady
from waystation.client.sync.client import Client
from waystation.errors import Conflict, Empty, Expired, Unavailable, WaystationError

JOBS, DEAD, SOURCE, TARGET, RANKED = "native.jobs", "native.dead", "native.source", "native.target", "native.ranked"
EVENTS = "native.events"
LATE_S = 0.8
RETRY_S = 0.2
WINDOW_S = 120
AWAY = (Unavailable, Expired, Conflict)


def connect(ground: Ground) -> Client:
    return waystation.connect(ground.url, timeout=20, wait=20, guarantee="exactly-once")


def prepare(ground: Ground) -> None:
    """Queues with all that a queue can have, and a topic that recognises what is sent again."""
    with connect(ground) as mq:
        mq.queue(DEAD, guarantee="at-least-once")
        retry = waystation.Retry(base=RETRY_S, factor=2, max=1)
        mq.queue(JOBS, max_deliveries=3, retry=retry, dead_letter=DEAD, hold=30, dedup_window=WINDOW_S)
        for queue in (SOURCE, TARGET, RANKED):
            mq.queue(queue, dedup_window=WINDOW_S)
        small = {"segment.bytes": 32_768, "segment.ms": 20_000, "retention.ms": 90_000}
        mq.create_topic(EVENTS, 2, {**small, "waystation.dedup.window.ms": WINDOW_S * 1000})


def is_bad(number: int) -> bool:
    return number % 20 == 9


class Putting(Steady):
    """Puts jobs one by one, some delayed, with priorities."""

    expected = AWAY

    def __init__(self, ground: Ground, account: QueueAccount, queue: str, per_s: float, *, late: bool = False) -> None:
        super().__init__(ground)
        self.account, self.queue = account, queue
        self._late = late
        self._pace = Pace(per_s * ground.rate)

    @property
    def progress(self) -> int:
        return self.account.stored_count

    def session(self) -> None:
        with connect(self.ground) as mq:
            queue = mq.queue(self.queue, guarantee="exactly-once", passive=True)
            turn = 0
            while not self._stopped.is_set():
                turn += 1
                late = self._late and turn % 7 == 0
                number = self.account.try_next(due_s=time.time() + LATE_S if late else 0.0)
                queue.put(number, delay=LATE_S if late else None, priority=turn % 4 if self._late else 0)
                self.account.stored(number)
                self._pace.wait(self._stopped)


class Working(Steady):
    """Acks; rejects the bad ones until they are dead, and acks them once they were sent back."""

    expected = AWAY

    def __init__(self, ground: Ground, account: QueueAccount) -> None:
        super().__init__(ground)
        self.account = account
        self.rejected = 0
        self.revived = 0

    @property
    def progress(self) -> int:
        return self.account.acked_count

    def session(self) -> None:
        with connect(self.ground) as mq, mq.queue(JOBS, passive=True).consume(prefetch=20, manual=True) as jobs:
            while not self._stopped.is_set():
                message = jobs.get_message(timeout=0.5)
                if message is None:
                    continue
                number = message.json()
                self.account.delivered(number)
                try:
                    self._settle(message, number)
                except Conflict:
                    pass  # the broker was away: it is delivered again

    def _settle(self, message: waystation.Message, number: int) -> None:
        if is_bad(number) and not message.deaths:
            # From the time of the request on: the broker counts from when it gets it.
            self.account.not_before(number, time.time() + RETRY_S * 2 ** (message.deliveries - 1))
            last = message.deliveries >= 3
            try:
                message.reject("bad")
            except WaystationError:
                self.account.may_come_again(number)
                raise
            if last:
                self.account.may_come_again(number)  # dead: sent back when the redrive says so
            self.rejected += 1
            return
        self.account.ack_sent(number)
        message.ack()
        self.account.acked(number)
        self.revived += bool(message.deaths)


class Redriving(Steady):
    """Sends dead letters back to the queue where they died, every few seconds."""

    expected = AWAY

    def __init__(self, ground: Ground) -> None:
        super().__init__(ground)
        self.moved = 0

    @property
    def progress(self) -> int:
        return self.moved

    def session(self) -> None:
        with connect(self.ground) as mq:
            dead = mq.queue(DEAD, passive=True, guarantee="at-least-once")
            while not self._stopped.wait(3):
                for letter in dead.peek(5):
                    death = letter.deaths[0] if letter.deaths else {}
                    if death.get("queue") != JOBS or death.get("reason") != "delivery-limit":
                        self.findings.broken("dead letters say what they died of", f"{DEAD}: {letter.id}: {death}")
                self.moved += dead.redrive(limit=200).moved


class Moving(Steady):
    """From one queue to another in a transaction; what is committed is in the second one, once."""

    expected = AWAY

    def __init__(self, ground: Ground, source: QueueAccount, target: QueueAccount) -> None:
        super().__init__(ground)
        self.source, self.target = source, target

    @property
    def progress(self) -> int:
        return self.source.acked_count

    def session(self) -> None:
        with connect(self.ground) as mq:
            queue = mq.queue(SOURCE, passive=True)
            while not self._stopped.is_set():
                messages = queue.get_many(10, timeout=0.5)
                if not messages:
                    continue
                numbers = [message.json() for message in messages]
                with mq.transaction("soak-mover") as tx:
                    for message, number in zip(messages, numbers, strict=True):
                        self.source.delivered(number)
                        self.target.try_number(number)
                        tx.put(TARGET, number)
                        tx.ack(message)
                        self.source.ack_sent(number)
                for number in numbers:
                    self.source.acked(number)
                    self.target.stored(number)


class Taking(Steady):
    """Takes what transactions put, in batches."""

    expected = AWAY

    def __init__(self, ground: Ground, account: QueueAccount, queue: str) -> None:
        super().__init__(ground)
        self.account, self.queue = account, queue

    @property
    def progress(self) -> int:
        return self.account.acked_count

    def session(self) -> None:
        with connect(self.ground) as mq:
            queue = mq.queue(self.queue, passive=True)
            while not self._stopped.is_set():
                messages = queue.get_many(20, timeout=0.5)
                for message in messages:
                    self.account.delivered(message.json())
                    self.account.ack_sent(message.json())
                if messages:
                    queue.ack_many(messages)
                    for message in messages:
                        self.account.acked(message.json())


class Ranking(Steady):
    """Puts a handful with priorities, takes them all: the urgent ones come first."""

    expected = AWAY

    def __init__(self, ground: Ground, account: QueueAccount) -> None:
        super().__init__(ground)
        self.account = account

    @property
    def progress(self) -> int:
        return self.account.acked_count

    def session(self) -> None:
        with connect(self.ground) as mq:
            queue = mq.queue(RANKED, passive=True)
            while True:
                self._take(queue)
                if self._stopped.wait(2):
                    return
                for turn in range(10):
                    number = self.account.try_next()
                    queue.put(number, priority=turn * 7 % 5)
                    self.account.stored(number)

    def _take(self, queue: waystation.Queue) -> None:
        try:
            messages = queue.get_many(100, timeout=0)
        except Empty:
            return
        ranks = [message.priority for message in messages]
        if ranks != sorted(ranks, reverse=True):
            self.findings.broken("urgent messages come first", f"{RANKED}: {ranks}")
        for message in messages:
            self.account.delivered(message.json())
            self.account.ack_sent(message.json())
        if messages:
            queue.ack_many(messages)
            for message in messages:
                self.account.acked(message.json())


class Announcing(Steady):
    """Publishes events; the topic stores each once."""

    expected = AWAY

    def __init__(self, ground: Ground, accounts: list[QueueAccount], per_s: float) -> None:
        super().__init__(ground)
        self.accounts = accounts
        self._pace = Pace(per_s * ground.rate / 5)

    @property
    def progress(self) -> int:
        return self.accounts[0].stored_count

    def session(self) -> None:
        with connect(self.ground) as mq:
            while not self._stopped.is_set():
                numbers = [self.accounts[0].try_next() for _ in range(5)]
                for account in self.accounts[1:]:
                    for number in numbers:
                        account.try_number(number)
                # A partition for each call: what one frame holds is stored whole or not at all.
                mq.publish_many(EVENTS, numbers, partition=numbers[0] // 5 % 2)
                for account in self.accounts:
                    for number in numbers:
                        account.stored(number)
                self._pace.wait(self._stopped)


class Sharing(Steady):
    """A member of a shared subscription: each message is acked by itself."""

    expected = AWAY

    def __init__(self, ground: Ground, account: QueueAccount) -> None:
        super().__init__(ground)
        self.account = account

    @property
    def progress(self) -> int:
        return self.account.acked_count

    def session(self) -> None:
        with (
            connect(self.ground) as mq,
            mq.subscribe("native.*", group="native-shared", start="earliest", manual=True) as events,
        ):
            while not self._stopped.is_set():
                messages = events.poll(0.5, max=50)
                for message in messages:
                    self.account.delivered(message.json())
                    self.account.ack_sent(message.json())
                if messages:
                    events.ack_many(messages)
                    for message in messages:
                        self.account.acked(message.json())


class Streaming(Steady):
    """A member of a stream subscription: in order by partition, from the committed offset on.

    Offsets have gaps: a frame that was sent again after a crash is stored as an empty batch. So the order is that of
    the numbers, and what is missing is found by the account.
    """

    expected = AWAY

    def __init__(self, ground: Ground, account: QueueAccount) -> None:
        super().__init__(ground)
        self.account = account
        self._committed: dict[int, int] = defaultdict(int)
        self._highest: dict[int, tuple[int, int]] = defaultdict(lambda: (-1, -1))

    @property
    def progress(self) -> int:
        return self.account.acked_count

    def session(self) -> None:
        with (
            connect(self.ground) as mq,
            mq.subscribe(EVENTS, group="native-stream", mode="stream", start="earliest", manual=True) as events,
        ):
            while not self._stopped.is_set():
                messages = events.poll(0.5, max=50)
                for message in messages:
                    self._look(message)
                if messages:
                    events.commit()
                    for message in messages:
                        self.account.acked(message.json())
                        self._committed[message.partition] = message.offset + 1

    def _look(self, message: waystation.Message) -> None:
        partition, offset, number = message.partition, message.offset, message.json()
        if offset < self._committed[partition]:
            self.findings.broken("committed offsets stay", f"{EVENTS}-{partition}: {offset} came again")
        highest_offset, highest_number = self._highest[partition]
        if offset > highest_offset:
            if number < highest_number:
                self.findings.broken("a topic keeps its order", f"{EVENTS}-{partition}: {number}, {highest_number}")
            self._highest[partition] = (offset, number)
        self.account.delivered(number)
        self.account.ack_sent(number)


class NativeSide:
    """All of it, and what is checked at the end."""

    def __init__(self, ground: Ground, findings: Findings) -> None:
        self.ground = ground
        self.jobs = QueueAccount(JOBS, findings)
        self.source = QueueAccount(SOURCE, findings)
        self.target = QueueAccount(TARGET, findings)
        self.ranked = QueueAccount(RANKED, findings)
        self.shared = QueueAccount("native-shared", findings)
        self.stream = QueueAccount("native-stream", findings)
        self.accounts = [self.jobs, self.source, self.target, self.ranked, self.shared, self.stream]
        self._workers = [Working(ground, self.jobs) for _ in range(2)]
        self._redriving = Redriving(ground)
        self.writers: list[Steady] = [
            Putting(ground, self.jobs, JOBS, 40, late=True),
            Putting(ground, self.source, SOURCE, 20),
            Announcing(ground, [self.shared, self.stream], 40),
            Ranking(ground, self.ranked),
        ]
        self.readers: list[Steady] = [
            *self._workers,
            self._redriving,
            Moving(ground, self.source, self.target),
            Taking(ground, self.target, TARGET),
            Sharing(ground, self.shared),
            Streaming(ground, self.stream),
        ]

    def depth(self) -> int:
        with connect(self.ground) as mq:
            names = (JOBS, DEAD, SOURCE, TARGET)
            infos = [mq.queue(name, passive=True, guarantee="at-least-once").describe() for name in names]
        return sum(info.ready + info.held + info.parked for info in infos)

    def drained(self) -> bool:
        accounts = [account for account in self.accounts if account is not self.ranked]
        return not any(account.open_numbers() for account in accounts) and self.depth() == 0

    def finish(self) -> None:
        with connect(self.ground) as mq:
            for message in mq.queue(RANKED, passive=True).get_many(1000, timeout=0):
                self.ranked.delivered(message.json())
                self.ranked.ack_sent(message.json())
        for account in self.accounts:
            account.finish()

    def figures(self) -> dict[str, object]:
        return {
            "jobs: stored, acked, redelivered": [
                self.jobs.stored_count,
                self.jobs.acked_count,
                self.jobs.redeliveries,
            ],
            "rejected, redriven, acked after a redrive": [
                sum(worker.rejected for worker in self._workers),
                self._redriving.moved,
                sum(worker.revived for worker in self._workers),
            ],
            "moved by transactions": self.source.acked_count,
            "events: shared and stream acks": [self.shared.acked_count, self.stream.acked_count],
        }
