"""Follows the catalog and has its changes made in memory, in the order of their revisions, this broker's own included.

What must hold: what the broker shows is what the catalog said at the revision `applied`, in all parts that follow it. A
writer does not change what is in memory itself; it writes, waits until its revision is applied, and answers then. There
is one task that applies, and it waits for nobody who writes: a part's `apply` must not wait for a write.

A change that a part cannot make (the disk refuses the files of a new topic) is told to its writer, who takes it back;
the follower goes on. Where the writer is another broker, or cannot take it back, the change stands: it is tried again
until it can be made or the catalog says something else of that key. If the catalog does not remember everything since
`applied`, all of it is read again.

On the loop's thread only, but for `_wake`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from waystation.catalog.catalog import Catalog, CatalogChange, Compacted, Snapshot, Update, Watch
from waystation.errors import StorageFailed, Unavailable, WaystationError
from waystation.observe.events import event_logger
from waystation.world import World

logger = event_logger("waystation.catalog")

FAILURES_MOST = 100
"""Of changes that nobody waits for: their writer is on another broker."""
READ_AGAIN_S = 1.0
"""After the catalog could not be read."""
MAKE_AGAIN_S = 2.0
"""Between two attempts at changes that a part could not make."""


class CatalogPart(Protocol):
    """What holds in memory what some keys of the catalog say."""

    prefixes: tuple[str, ...]
    """Of its keys: first those of what others are made of."""

    async def apply(self, update: Update) -> None:
        """Makes the changes, which are all of its keys. What is so already is left alone: a change may be told twice,
        or again with what came later. WaystationError if it cannot be done."""

    def known_keys(self) -> Iterable[str]:
        """Of all that it holds."""


class CatalogFollower:
    """One per broker. `begin` before anything is read from the catalog, `start` when everything is."""

    def __init__(self, catalog: Catalog, world: World) -> None:
        self._catalog = catalog
        self._world = world
        self._parts: list[CatalogPart] = []
        self._watch: Watch | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._failures: dict[int, Exception] = {}
        self._owed: dict[
            tuple[CatalogPart, str], Update
        ] = {}  # what a part could not make; by the key, the newest change
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._applied = 0
        self._stopped = False

    def follow(self, part: CatalogPart) -> None:
        self._parts.append(part)

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._applied = self._catalog.revision()
        self._watch = self._catalog.watch(self._applied, self._wake)

    def start(self) -> None:
        self._woken.set()
        self._task = asyncio.get_running_loop().create_task(self._follow())

    async def stop(self) -> None:
        """Nothing is applied any more, and who waits for it is told."""
        self._stopped = True
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(_stopping())
        if self._watch is not None:
            self._watch.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- writing ----------------------------------------------------------------------------------------------------

    async def change(self, changes: Mapping[str, bytes | None], expected: Mapping[str, int] | None = None) -> int:
        """Writes as `Catalog.write` does; durable and in force when it returns."""
        revision = await self.write(changes, expected)
        await self.applied(revision)
        return revision

    async def write(self, changes: Mapping[str, bytes | None], expected: Mapping[str, int] | None = None) -> int:
        """Durable, but perhaps not in force yet, when it returns. If it raises, nothing has happened."""
        return await self._world.offload_store(self._catalog.write, changes, expected)

    @property
    def revision(self) -> int:
        """Up to which everything is applied."""
        return self._applied

    async def applied(self, revision: int) -> None:
        """Returns when what was written is in force; raises what kept a part from making it so."""
        await self._wait(revision)
        error = self._failures.pop(revision, None)
        if error is not None:
            raise error

    async def catch_up(self) -> None:
        """Returns when all that is written now is in force: for one who was told of a conflict and looks again."""
        await self._wait(await self._world.offload_store(self._catalog.revision))

    async def _wait(self, revision: int) -> None:
        if self._applied < revision:
            if self._stopped:
                raise _stopping()
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((revision, done))
            await done

    # -- following --------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        """On any thread, perhaps when the loop is closed already."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._woken.set)

    async def _follow(self) -> None:
        if self._watch is None:
            raise RuntimeError("begin comes before start")
        while True:
            await self._wait_for_news()
            try:
                for update in self._watch.take():
                    await self._make(update)
            except Compacted:
                await self._read_again()

    async def _wait_for_news(self) -> None:
        """Meanwhile, what is owed is tried now and then."""
        while not self._woken.is_set():
            try:
                async with asyncio.timeout(MAKE_AGAIN_S if self._owed else None):
                    await self._woken.wait()
            except TimeoutError:
                await self._make_owed()
        self._woken.clear()

    async def _make_owed(self) -> None:
        for (part, key), update in list(self._owed.items()):
            try:
                await part.apply(update)
            except (WaystationError, OSError):
                continue  # it was told when it failed first
            except Exception:  # a mistake of ours, which must not end the following
                logger.exception("catalog.change_failed", "a change of the catalog cannot be made here", key=key)
            del self._owed[part, key]
            logger.info("catalog.change_made", "a change of the catalog is made here at last", key=key)

    async def _make(self, update: Update) -> None:
        for part in self._parts:
            own = tuple(change for change in update.changes if change.key.startswith(part.prefixes))
            if own:
                await self._apply(part, Update(update.revision, own))
        self._reached(update.revision)

    async def _apply(self, part: CatalogPart, update: Update) -> None:
        if self._owed:
            for change in update.changes:
                self._owed.pop((part, change.key), None)  # it is something else now
        try:
            await part.apply(update)
        except (StorageFailed, OSError) as error:
            for change in update.changes:
                self._owed[part, change.key] = Update(update.revision, (change,))
            logger.warning(
                "catalog.change_put_off",
                "a change of the catalog cannot be made here now, and is tried again unless it is taken back: {error}",
                revision=update.revision,
                error=error,
            )
            self._fail(update.revision, error)
        except WaystationError as error:
            logger.warning(
                "catalog.change_refused",
                "a change of the catalog cannot be made here: {error}",
                revision=update.revision,
                error=error,
            )
            self._fail(update.revision, error)
        except Exception as error:
            logger.exception(
                "catalog.change_failed", "a change of the catalog cannot be made here", revision=update.revision
            )
            self._fail(update.revision, error)

    def _fail(self, revision: int, error: Exception) -> None:
        self._failures[revision] = error
        if len(self._failures) > FAILURES_MOST:
            del self._failures[next(iter(self._failures))]

    def _reached(self, revision: int) -> None:
        self._applied = max(self._applied, revision)
        waiting, self._waiting = self._waiting, []
        for awaited, done in waiting:
            if awaited > self._applied:
                self._waiting.append((awaited, done))
            elif not done.done():
                done.set_result(None)

    async def _read_again(self) -> None:
        try:
            snapshot = await self._world.offload_store(self._catalog.read)
        except WaystationError as error:
            logger.warning("catalog.unreadable", "the catalog cannot be read: {error}", error=error)
            await asyncio.sleep(READ_AGAIN_S)
            self._woken.set()
            return
        logger.info("catalog.reloaded", "the catalog was read again", revision=snapshot.revision)
        if self._watch is not None:
            self._watch.close()
        self._watch = self._catalog.watch(snapshot.revision, self._wake)
        failed_before = set(self._failures)
        for part in self._parts:
            for update in _differences(part, snapshot):
                await self._apply(part, update)
        if set(self._failures) - failed_before:
            self._tell_waiting(StorageFailed("not everything that the catalog says could be done here"))
        self._reached(snapshot.revision)
        self._woken.set()

    def _tell_waiting(self, error: StorageFailed) -> None:
        """Whose change failed cannot be told any more."""
        for _, done in self._waiting:
            if not done.done():
                done.set_exception(error)


def _stopping() -> Unavailable:
    return Unavailable("the broker is stopping; the change is kept and will be in force after its next start")


def _differences(part: CatalogPart, snapshot: Snapshot) -> Iterator[Update]:
    """What a part has to be told to be as the snapshot says: each change by itself, since one that it cannot make shall
    not keep it from the others, in the order in which they were written."""
    for key in [key for key in part.known_keys() if key not in snapshot.entries]:
        yield Update(snapshot.revision, (CatalogChange(key, None),))
    found = [
        (entry.revision, place, CatalogChange(key, entry.value))
        for key, entry in snapshot.entries.items()
        for place, prefix in enumerate(part.prefixes)
        if key.startswith(prefix)
    ]
    for revision, _, change in sorted(found):
        yield Update(revision, (change,))
