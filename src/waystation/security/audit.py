"""The audit log: who logged in, who was refused, and who changed what, as records in the topic `__audit`.

Entries are noted in memory and written together a moment later, so that no verb waits for them. What must hold: an
entry has no password and no message in it; noting one costs little and never fails its verb; a flood of failed logins
or refusals neither fills the disk nor hides the entries of others: each user has a share of a second, what is beyond it
is counted, and the count is an entry. Changes are always noted.

The topic is the broker's own: clients read it, if they may, and cannot write to it. In a cluster a node that leads no
partition of it sends its entries to one that does (`take`); where the answer is lost, they are written twice. On the
loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

import msgspec

from waystation.errors import AlreadyExists, NotLeader, WaystationError
from waystation.message import Message
from waystation.observe.events import event_logger

if TYPE_CHECKING:
    from waystation.config import BrokerSettings
    from waystation.security.principals import Principal
    from waystation.topics.messages import Messages
    from waystation.topics.topics import Topic, Topics
    from waystation.world import World

logger = event_logger("waystation.audit")
T = TypeVar("T")

TOPIC = "__audit"
WRITE_EVERY_S = 0.1
RETRY_S = 1.0
MAX_WAITING = 10_000
"""Entries that are not written yet; while they cannot be, later ones are counted only."""
MAX_WAITING_BYTES = 8 * 1024 * 1024
"""The same in memory: an entry with all its texts may have ten kilobytes."""
ENTRY_BYTES = 150
"""Of an entry beside its key and value."""
MAX_AT_ONCE = 1_000

WINDOW_S = 1.0
MOST_OF_ONE = 20
"""Refusals and logins of one user at one address in a window."""
MOST = 200
"""The same, of all."""
MOST_COUNTED = 100
"""Users of whom what is left out is counted by itself."""

MAX_TEXT = 256
MAX_DETAIL = 2_000
SEGMENT_BYTES = 16 * 1024 * 1024
PARTITIONS_OF_CLUSTER = 12
"""So that nearly every node leads one: a node writes to those that it leads."""

Records = Sequence[tuple[bytes, bytes]]
"""Keys and values."""
Kind = Literal["login", "refusal", "change", "left-out"]


class AuditEntry(msgspec.Struct, omit_defaults=True):
    """One record."""

    time_ms: int
    kind: Kind
    user: str  # as the client has shown or said it
    result: str  # ok, refused, or the error
    host: str = ""  # where the client is
    protocol: str = ""
    operation: str = ""  # create, delete, an action's name; of a login its mechanism
    resource: str = ""
    name: str = ""
    detail: str = ""
    count: int = 0  # left-out: how many there were


class Audit:
    """One per broker."""

    def __init__(
        self,
        world: World,
        settings: BrokerSettings,
        topics: Topics,
        messages: Messages,
        *,
        enforced: Callable[[], bool],
        elsewhere: Callable[[Topic, Records], Awaitable[None]] | None,
    ) -> None:
        """`enforced`: whether clients have to log in. `elsewhere`: has them written by another node; None: it is not a
        node of a cluster."""
        self._world = world
        self._settings = settings
        self._topics = topics
        self._messages = messages
        self._enforced = enforced
        self._elsewhere = elsewhere
        self._waiting: list[tuple[bytes, bytes]] = []
        self._waiting_bytes = 0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._window_s = 0.0
        self._total = 0
        self._of_one: dict[tuple[str, str, str], int] = {}
        self._left_out: dict[tuple[str, str, str], int] = {}
        self._told = False  # that they cannot be written
        self.dropped = 0

    @property
    def on(self) -> bool:
        said = self._settings.text("waystation.audit")
        return said == "on" or (said == "auto" and self._enforced())

    # -- noting -----------------------------------------------------------------------------------------------------

    def login(self, user: str, host: str, protocol: str, mechanism: str, *, failure: str = "") -> None:
        """Somebody has shown who they are, or has failed to."""
        if self.on and self._admits(user, host, protocol):
            result = f"refused: {failure}" if failure else "ok"
            self._note("login", user, result, host=host, protocol=protocol, operation=mechanism[:40])

    def refused(self, principal: Principal, operation: str, resource: str, name: str) -> None:
        """A principal wanted what it may not."""
        if self.on and self._admits(str(principal), principal.host, principal.protocol):
            self._of(principal, "refusal", "refused", operation, resource, name)

    def changed(self, principal: Principal, operation: str, resource: str, name: str, detail: str = "") -> None:
        """It was done."""
        if self.on:
            self._of(principal, "change", "ok", operation, resource, name, detail)

    async def change(
        self, principal: Principal, operation: str, resource: str, name: str, work: Awaitable[T], detail: str = ""
    ) -> T:
        """Awaits the work, and notes how it ended."""
        if not self.on:
            return await work
        try:
            done = await work
        except WaystationError as error:
            self._of(principal, "change", f"failed: {type(error).__name__}", operation, resource, name, detail)
            raise
        self._of(principal, "change", "ok", operation, resource, name, detail)
        return done

    def _of(
        self, principal: Principal, kind: Kind, result: str, operation: str, resource: str, name: str, detail: str = ""
    ) -> None:
        self._note(
            kind,
            str(principal),
            result,
            host="" if principal.host == "*" else principal.host,
            protocol=principal.protocol,
            operation=operation,
            resource=resource,
            name=name[:MAX_TEXT],
            detail=detail[:MAX_DETAIL],
        )

    def _note(self, kind: Kind, user: str, result: str, **more: str | int) -> None:
        now_ms = self._world.clock.now_ms()
        entry = AuditEntry(now_ms, kind, user[:MAX_TEXT], result[:MAX_TEXT], **more)  # type: ignore[arg-type]
        record = entry.user.encode(errors="replace"), msgspec.json.encode(entry)
        if len(self._waiting) >= MAX_WAITING or self._waiting_bytes + _size_of(record) > MAX_WAITING_BYTES:
            self.dropped += 1
            return
        self._waiting.append(record)
        self._waiting_bytes += _size_of(record)
        self._wake.set()

    # -- shares of a second -----------------------------------------------------------------------------------------

    def _admits(self, user: str, host: str, protocol: str) -> bool:
        now_s = self._world.clock.monotonic()
        if now_s - self._window_s >= WINDOW_S:
            self._next_window(now_s)
        key = (user[:MAX_TEXT], host, protocol)
        seen = self._of_one.get(key, 0)
        if seen < MOST_OF_ONE and self._total < MOST:
            self._of_one[key] = seen + 1
            self._total += 1
            return True
        if key not in self._left_out and len(self._left_out) >= MOST_COUNTED:
            key = ("*", "", "")
        self._left_out[key] = self._left_out.get(key, 0) + 1
        self._wake.set()
        return False

    def _next_window(self, now_s: float) -> None:
        left_out, self._left_out = self._left_out, {}
        for (user, host, protocol), count in left_out.items():
            self._note("left-out", user, "ok", host=host, protocol=protocol, count=count)
        self._of_one.clear()
        self._total = 0
        self._window_s = now_s

    # -- writing ----------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Writes what is there, if it can be written."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self._next_window(self._world.clock.monotonic())
        while self._waiting and await self._write():
            pass

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            await asyncio.sleep(WRITE_EVERY_S)
            now_s = self._world.clock.monotonic()
            if self._left_out:
                if now_s - self._window_s >= WINDOW_S:
                    self._next_window(now_s)
                else:
                    self._wake.set()  # the counts are an entry when the window is over
            while self._waiting:
                if not await self._write():
                    await asyncio.sleep(RETRY_S)

    async def _write(self) -> bool:
        """The oldest of what waits; False: it cannot be written now."""
        some = self._waiting[:MAX_AT_ONCE]
        try:
            topic = await self._ensure()
            if self._led(topic) is not None or self._elsewhere is None:
                self._publish(topic, some)
            else:
                await self._elsewhere(topic, some)
        except WaystationError as error:
            if not self._told:
                logger.warning(
                    "audit.not_written", "audit entries cannot be written: {error}; they are kept", error=error
                )
            self._told = True
            return False
        self._told = False
        del self._waiting[: len(some)]
        self._waiting_bytes -= sum(map(_size_of, some))
        dropped, self.dropped = self.dropped, 0
        if dropped:
            self._note("left-out", "*", "failed: they could not be written", count=dropped)
        return True

    def take(self, records: Records) -> None:
        """Entries of a node that leads no partition. NotLeader: neither does this one."""
        self._publish(self._topics.get(TOPIC), records)

    def _publish(self, topic: Topic, records: Records) -> None:
        partition = self._led(topic)
        if partition is None:
            raise NotLeader(f"this node leads no partition of {TOPIC!r}")
        made = [Message(value, key=key) for key, value in records]
        self._messages.publish(TOPIC, made, partition, promised=False, internal=True)

    def _led(self, topic: Topic) -> int | None:
        """A partition that this node writes to."""
        return next((partition.index for partition in topic.partitions if partition.leads), None)

    async def _ensure(self) -> Topic:
        found = self._topics.find(TOPIC)
        if found is not None:
            return found
        own = {
            "cleanup.policy": "delete",
            "retention.ms": str(self._settings.integer("waystation.audit.retention.ms")),
            "retention.bytes": str(self._settings.integer("waystation.audit.retention.bytes")),
            "segment.bytes": str(SEGMENT_BYTES),
        }
        partitions = 1 if self._elsewhere is None else PARTITIONS_OF_CLUSTER
        try:
            return await self._topics.create(TOPIC, partitions, own, internal=True)
        except AlreadyExists:
            return self._topics.get(TOPIC)


def _size_of(record: tuple[bytes, bytes]) -> int:
    """In memory, about."""
    return ENTRY_BYTES + len(record[0]) + len(record[1])
