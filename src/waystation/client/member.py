"""A member of a consumer group by the new protocol (KIP-848): the broker assigns, the member says what it holds.

The member keeps one invariant: a partition that was taken away is reported as given up only after the caller has
committed what it read from it (`on_revoked` runs before the next heartbeat tells). A member that the group has fenced
or forgotten starts over by itself, with nothing assigned. The caller's thread sends the heartbeats: call `beat` often.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID, uuid4

from waystation.client.refusals import Outdated, check
from waystation.client.topics import Place, find_topic, group_places
from waystation.client.wire import Connection, retried

_JOIN, _LEAVE = 0, -1
_REBALANCE_TIMEOUT_MS = 60_000

Places = frozenset[Place]


class Member:
    """One member's side of the conversation."""

    def __init__(
        self, connection: Connection, group: str, topics: Sequence[str], *, on_revoked: Callable[[Places], None]
    ) -> None:
        self._connection = connection
        self._topics = list(topics)
        self._names = {find_topic(connection, name).id: name for name in topics}
        self._on_revoked = on_revoked
        self._reported: Places | None = None
        self._due = 0.0
        self.group = group
        self.id = str(uuid4())
        self.epoch = _JOIN
        self.assigned: Places = frozenset()

    def beat(self, *, now: bool = False) -> None:
        """Sends a heartbeat if one is due (or `now`), and takes what `assigned` is from the answer."""
        if not now and time.monotonic() < self._due:
            return
        try:
            answer = self._heartbeat(self.epoch)
        except Outdated:
            self._start_over()
            return
        self.epoch = int(answer.member_epoch)
        self._due = time.monotonic() + answer.heartbeat_interval.total_seconds()
        if answer.assignment is not None:
            self._take(self._places(answer.assignment))

    def leave(self) -> None:
        """Says goodbye, so that the others need not wait for the session to end."""
        if self.epoch != _JOIN:
            try:
                self._heartbeat(_LEAVE)
            except Outdated:
                pass  # it is out already
            self.epoch = _JOIN

    def _take(self, wanted: Places) -> None:
        if wanted == self.assigned:
            return
        lost = self.assigned - wanted
        if lost:
            self._on_revoked(lost)
        self.assigned = wanted
        self._due = 0.0  # tell at once what is held now: others wait for what was given up

    def _start_over(self) -> None:
        self.epoch = _JOIN
        self.assigned = frozenset()
        self._reported = None
        self._due = 0.0

    def _heartbeat(self, epoch: int) -> Any:
        values: dict[str, Any] = {"group_id": self.group, "member_id": self.id, "member_epoch": epoch}
        if epoch == _JOIN:
            values |= {"rebalance_timeout": _REBALANCE_TIMEOUT_MS, "subscribed_topic_names": self._topics}
        if epoch == _JOIN or (epoch > 0 and self.assigned != self._reported):
            values["topic_partitions"] = self._held()
        held = self.assigned
        answer = retried(
            lambda: self._connection.call("consumer_group_heartbeat", **values), lambda found: found.error_code
        )
        check(answer.error_code, f"group {self.group!r}", answer.error_message)
        self._reported = held
        return answer

    def _held(self) -> list[dict[str, object]]:
        ids = {name: id for id, name in self._names.items()}
        return [
            {"topic_id": UUID(ids[name]), "partitions": numbers}
            for name, numbers in group_places(self.assigned).items()
        ]

    def _places(self, assignment: Any) -> Places:
        if any(str(topic.topic_id) not in self._names for topic in assignment.topic_partitions):
            # A topic was deleted and created anew under its name: it has another id now.
            self._names |= {find_topic(self._connection, name).id: name for name in self._topics}
        return frozenset(
            (self._names[str(topic.topic_id)], int(number))
            for topic in assignment.topic_partitions
            for number in topic.partitions
            if str(topic.topic_id) in self._names
        )
