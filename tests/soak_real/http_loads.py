"""HTTP clients under the long run: put, take, ack; publish and look at a topic's history."""

from __future__ import annotations

import http.client
import json
import time
from typing import Any

from tests.soak_real.audit import Findings, QueueAccount
from tests.soak_real.ground import Ground, Pace, Steady

QUEUE, TOPIC = "http.jobs", "http.events"
LATE_S = 0.6
COUNT = 20


class Away(Exception):
    """The broker could not be asked, or did not answer: whether it did what was asked is not known."""


class Session:
    """One connection that asks and answers in JSON."""

    def __init__(self, ground: Ground) -> None:
        host, port = ground.http
        self._connection = http.client.HTTPConnection(host, port, timeout=30)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        try:
            sent = None if body is None else json.dumps(body)
            headers = {} if body is None else {"content-type": "application/json"}
            self._connection.request(method, path, sent, headers)
            answer = self._connection.getresponse()
            raw = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Away(str(error)) from error
        if answer.status == 503:
            raise Away(raw.decode(errors="replace"))
        return answer.status, json.loads(raw) if raw else None

    def demand(self, method: str, path: str, body: object = None) -> Any:
        status, answer = self.ask(method, path, body)
        if status >= 300:
            raise AssertionError(f"{method} {path}: {status} {answer}")
        return answer


def prepare(ground: Ground) -> None:
    with Session(ground) as session:
        session.demand("PUT", f"/v1/queues/{QUEUE}", {"hold_ms": 20_000})
        settings = {"segment.bytes": "32768", "retention.ms": "90000"}
        session.demand("PUT", f"/v1/topics/{TOPIC}", {"partitions": 1, "settings": settings})


class Putting(Steady):
    """Puts small batches, some of them delayed."""

    expected = (Away,)

    def __init__(self, ground: Ground, account: QueueAccount, per_s: float) -> None:
        super().__init__(ground)
        self.account = account
        self._pace = Pace(per_s * ground.rate / 4)

    @property
    def progress(self) -> int:
        return self.account.stored_count

    def session(self) -> None:
        with Session(self.ground) as session:
            turn = 0
            while not self._stopped.is_set():
                turn += 1
                late = turn % 5 == 0
                due_s = time.time() + LATE_S if late else 0.0
                numbers = [self.account.try_next(due_s=due_s) for _ in range(4)]
                delay = {"delay_ms": int(LATE_S * 1000)} if late else {}
                session.demand("POST", f"/v1/queues/{QUEUE}/messages", [{"json": n, **delay} for n in numbers])
                for number in numbers:
                    self.account.stored(number)
                self._pace.wait(self._stopped)


class Taking(Steady):
    """Takes and acks by id; an ack that was answered is final."""

    expected = (Away,)

    def __init__(self, ground: Ground, account: QueueAccount) -> None:
        super().__init__(ground)
        self.account = account

    @property
    def progress(self) -> int:
        return self.account.acked_count

    def session(self) -> None:
        with Session(self.ground) as session:
            while not self._stopped.is_set():
                answer = session.demand("POST", f"/v1/queues/{QUEUE}/take?count={COUNT}&wait_ms=500")
                messages = {m["ack_id"]: int(m["payload"]) for m in answer["messages"]}
                for number in messages.values():
                    self.account.delivered(number)
                    self.account.ack_sent(number)
                if messages:
                    self._ack(session, messages)

    def _ack(self, session: Session, messages: dict[str, int]) -> None:
        status, answer = session.ask("POST", "/v1/ack", {"ack_ids": list(messages)})
        unknown = set(messages if status == 409 else answer["unknown"])  # the broker was restarted meanwhile
        for ack_id, number in messages.items():
            if ack_id not in unknown:
                self.account.acked(number)


class Publishing(Steady):
    """Publishes events one by one; the topic's history ends with the last one that was acknowledged."""

    expected = (Away,)

    def __init__(self, ground: Ground, findings: Findings, per_s: float) -> None:
        super().__init__(ground)
        self._pace = Pace(per_s * ground.rate)
        self._number = 0
        self.acknowledged = 0

    @property
    def progress(self) -> int:
        return self.acknowledged

    def session(self) -> None:
        with Session(self.ground) as session:
            while not self._stopped.is_set():
                if self._number % 10 == 0:
                    self._look(session)
                self._number += 1
                session.demand("POST", f"/v1/topics/{TOPIC}/messages", {"json": self._number})
                self.acknowledged = self._number
                self._pace.wait(self._stopped)

    def _look(self, session: Session) -> None:
        promised = self.acknowledged
        answer = session.demand("GET", f"/v1/topics/{TOPIC}/history?count=5")
        found = [int(m["payload"]) for m in answer["messages"]]
        if found != sorted(set(found)):
            self.findings.broken("a topic keeps its order", f"{TOPIC}: {found}")
        if promised and (not found or not promised <= found[-1] <= self._number):
            self.findings.broken("nothing acknowledged is lost", f"{TOPIC}: {promised} is not at the end of {found}")


class HttpSide:
    """All of it, and what is checked at the end."""

    def __init__(self, ground: Ground, findings: Findings) -> None:
        self.ground = ground
        self.jobs = QueueAccount(QUEUE, findings)
        self._publishing = Publishing(ground, findings, 15)
        self.writers: list[Steady] = [Putting(ground, self.jobs, 40), self._publishing]
        self.readers: list[Steady] = [Taking(ground, self.jobs), Taking(ground, self.jobs)]

    def drained(self) -> bool:
        with Session(self.ground) as session:
            info = session.demand("GET", f"/v1/queues/{QUEUE}")
        return not self.jobs.open_numbers() and not info["ready"] + info["held"] + info["parked"]

    def finish(self) -> None:
        self.jobs.finish()

    def figures(self) -> dict[str, object]:
        return {
            "jobs: stored, acked, redelivered": [
                self.jobs.stored_count,
                self.jobs.acked_count,
                self.jobs.redeliveries,
            ],
            "events acknowledged": self._publishing.acknowledged,
        }
