"""This node as the others see it: its disk entry, its node entry, and the lease that the latter hangs on.

What happens in which order at a start, and why, is in `starting.py`; here it is carried out. Safety hangs on the
folder's id and incarnation (`node.json`, durable before the store has them), never on the lease: that only says who
seems to be alive. A node entry that is lost while the process lives is written again, with the same incarnation.

A store that does not answer is waited for: at a start nothing else can be done, and later nothing hurries.

Constructed by the broker; `begin`, `claim` and `join` in this order. On the loop's thread only.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from waystation.catalog.catalog import CatalogEntry
from waystation.cluster import node_file
from waystation.cluster.decisions import starting
from waystation.cluster.decisions.state import (
    PARTITIONS,
    Address,
    DiskState,
    NodeState,
    PartitionState,
    disk_key,
    node_key,
    read_disk,
    read_node,
    read_partition,
)
from waystation.cluster.decisions.writes import Identity, StoreEntry, Write, together
from waystation.cluster.store import Store
from waystation.errors import NodeIdTaken, NotFound, RevisionConflict, StoreUnavailable, WaystationError
from waystation.observe.events import event_logger
from waystation.version import __version__
from waystation.world import World

logger = event_logger("waystation.cluster")

T = TypeVar("T")
S = TypeVar("S", NodeState, DiskState)

LEASE_S = 3.0
RETRY_S = 0.5
"""After the store gave no answer."""
COMPLAIN_S = 10.0
"""How often it is said that the store gives no answer."""


async def nobody_answers(node: NodeState) -> bool:
    """Where there is no network to ask."""
    return False


class ClusterMembership:
    """One per broker in a cluster."""

    def __init__(
        self,
        world: World,
        root: str,
        store: Store,
        node_id: int,
        *,
        rack: str = "",
        lease_s: float = LEASE_S,
        restored: bool = False,
        answers: Callable[[NodeState], Awaitable[bool]] = nobody_answers,
    ) -> None:
        """`answers`: whether somebody listens where a node's entry says."""
        self._answers = answers
        self._world = world
        self._root = root
        self._store = store
        self._rack = rack
        self._restored = restored
        self._lease_s = lease_s
        self.node_id = node_id
        self._identity: Identity | None = None
        self.barred: dict[str, int] = {}
        """Epochs of partitions, by their keys, as they were when this process started: it never leads one of them."""
        self.on_fenced: Callable[[], None] | None = None
        """Another process runs under this node's id: this one has to stop."""
        self._listeners: Mapping[str, Address] = {}
        self._draining = False
        self._lease: int | None = None
        self._woken = asyncio.Event()
        self._to_look = False  # whether its entry is still there
        self._task: asyncio.Task[None] | None = None
        self._complained = float("-inf")

    @property
    def identity(self) -> Identity:
        if self._identity is None:
            raise RuntimeError("begin comes first")
        return self._identity

    # -- start ------------------------------------------------------------------------------------------------------

    async def begin(self) -> None:
        """The folder is this node's; its disk entry says so, and if it is not the promised one, the node is out of
        every in-sync set. NodeIdTaken, WrongCluster, NewerFormat, Corrupt: refused, and the folder is untouched."""
        cluster_id = await self._ask(self._store.cluster_id)
        found = node_file.load(self._world.disk, self._root)
        folder = node_file.folder_of(found, self._root, cluster_id, self.node_id, self._new_id())
        await self._check_id(folder)
        while True:
            disk = _known(disk_key(self.node_id), await self._ask(self._store.get, disk_key(self.node_id)), read_disk)
            begun = starting.begin(folder, disk, self._new_id(), restored=self._restored)
            encrypted = self._world.keys is not None
            await self._world.offload(
                partial(node_file.save, encrypted=encrypted), self._world.disk, self._root, cluster_id, begun.folder
            )
            if not starting.trusted(folder, disk) and found is not None and found.incarnation:
                logger.warning(
                    "node.other_disk",
                    "the data folder {folder} is not the one that made the promises of node {node}: it leaves all"
                    " in-sync sets, and copies from the others",
                    folder=self._root,
                    node=self.node_id,
                )
            folder, self._restored = begun.folder, False
            if await self._write_disk(begun.write):
                break
        while self.identity.leaving:
            await self._leave()

    def _new_id(self) -> str:
        return self._world.random.token(8).hex()

    async def _check_id(self, folder: starting.FolderIdentity) -> None:
        """A former life of this node may be known for as long as its lease lasts."""
        give_up = self._world.clock.monotonic() + 2 * self._lease_s
        told = False
        while True:
            entry = await self._ask(self._store.get, node_key(self.node_id))
            try:
                known = _known(node_key(self.node_id), entry, read_node)
                answers = known is not None and await self._answers(known.state)
                starting.check_id(folder, known, answers=answers)
                return
            except NodeIdTaken:
                if self._world.clock.monotonic() >= give_up:
                    raise
                if not told:
                    told = True
                    logger.info(
                        "node.id_in_use",
                        "node {node} seems to run already; waiting until its lease has run out",
                        node=self.node_id,
                    )
                await asyncio.sleep(RETRY_S)

    async def _write_disk(self, write: Write) -> bool:
        """Whether it was made; if not, or if that is not known, the caller reads again."""
        key = disk_key(self.node_id)
        try:
            revision = await self._ask(self._store.write, write.encoded(), write.expected)
        except RevisionConflict:
            return False
        state = write.changes[key]
        if not isinstance(state, DiskState):
            raise TypeError(f"{key} was to be written")
        self._identity = Identity(self.node_id, StoreEntry(key, state, revision))
        return True

    async def _leave(self) -> None:
        """One look at the partitions, and what follows from it."""
        writes = starting.leave_all(self.identity, await self._partitions())
        for write in together(writes):
            try:
                await self._ask(self._store.write, write.encoded(), write.expected)
            except RevisionConflict:
                await self._read_disk()  # it is a partition that has changed, or another process has this node's id
        if writes:
            return  # look again: all of them are to be out
        settled = starting.settle(self.identity)
        if settled is not None and not await self._write_disk(settled):
            await self._read_disk()

    async def _read_disk(self) -> None:
        key = disk_key(self.node_id)
        disk = _known(key, await self._ask(self._store.get, key), read_disk)
        mine = self.identity.disk.state
        if disk is None or (disk.state.folder, disk.state.incarnation) != (mine.folder, mine.incarnation):
            raise NodeIdTaken(f"node {self.node_id} was started elsewhere meanwhile; this process stops")
        self._identity = Identity(self.node_id, disk)  # our own write, whose answer was lost

    async def claim(self, log_epochs: Mapping[str, int]) -> None:
        """Reads the partitions afresh: no epoch that is found is ever led by this process. Where it is named as leader,
        it claims the next one. `log_epochs`: the latest epoch of each log, by the partition's key. NodeIdTaken: another
        process has started under its id."""
        self.barred = {one.key: one.state.epoch for one in await self._partitions()}
        while True:
            claims = starting.claim_all(self.identity, await self._partitions(), log_epochs)
            claims = [one for one in claims if self._still_barred(one)]
            if not claims:
                return
            for write in together(claims):
                try:
                    await self._ask(self._store.write, write.encoded(), write.expected)
                except RevisionConflict:
                    await self._read_disk()  # as in `_leave`

    def _still_barred(self, claim: Write) -> bool:
        """Not what was claimed a moment ago."""
        for key, state in claim.changes.items():
            if isinstance(state, PartitionState) and state.epoch > self.barred.get(key, -1) + 1:
                return False
        return True

    async def _partitions(self) -> list[StoreEntry[PartitionState]]:
        found = await self._ask(self._store.read, PARTITIONS)
        return [StoreEntry(key, read_partition(entry.value), entry.revision) for key, entry in found.entries.items()]

    # -- being there ------------------------------------------------------------------------------------------------

    async def join(self, listeners: Mapping[str, Address]) -> None:
        """Others see that it lives, and where. Returns when its node entry is written."""
        self._listeners = listeners
        while not await self._register():  # noqa: ASYNC110 - it is the store that is waited for
            await asyncio.sleep(RETRY_S)
        self._task = asyncio.get_running_loop().create_task(self._stay(), name="membership")

    async def leave(self) -> None:
        """The end of a clean stop: others need not wait for the lease to run out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(WaystationError):
                await self._world.offload_store(self._store.revoke, lease)

    async def drain(self, draining: bool) -> None:
        """Whether the node gives away what it leads and gets nothing new. Forgotten when its process ends."""
        self._draining = draining
        await self._register()

    @property
    def draining(self) -> bool:
        return self._draining

    def look(self) -> None:
        """This node's entry has changed: somebody may have deleted it."""
        self._to_look = True
        self._woken.set()

    async def _stay(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._lease_s / 3):
                    await self._woken.wait()
            self._woken.clear()
            try:
                await self._renew()
            except NodeIdTaken as error:
                self._fence(error)
                return
            except WaystationError as error:  # no answer, or a store that does not let this node in any more
                self._complain(error)
            except Exception:  # a mistake of ours: without this task the node would be dead for all others, forever
                logger.exception("node.not_renewed", "node {node} cannot tell that it lives", node=self.node_id)

    def superseded(self, disk: StoreEntry[DiskState] | None) -> bool:
        """The watch has told this node's disk entry: whether another process has started under its id. Then this one
        leads nothing any more, and has to stop."""
        if disk is not None and disk.revision < self.identity.disk.revision:
            return False  # from before this process wrote it
        if not starting.superseded(self.identity, disk):
            return False
        self._fence(NodeIdTaken(f"node {self.node_id} was started elsewhere; this process stops"))
        return True

    def _fence(self, error: NodeIdTaken) -> None:
        logger.error("node.fenced", "{error}", error=error)
        if self.on_fenced is not None:
            self.on_fenced()

    async def _renew(self) -> None:
        if self._lease is not None and await self._world.offload_store(self._store.keep_alive, self._lease):
            if not self._to_look:
                return
            self._to_look = False  # before it is looked: what changes meanwhile is looked at again
            try:
                entry = await self._world.offload_store(self._store.get, node_key(self.node_id))
            except WaystationError:
                self._to_look = True
                raise
            if entry is not None and self._is_mine(entry):
                return
        logger.warning("node.entry_lost", "node {node} is not known to be alive; telling again", node=self.node_id)
        await self._register()

    def _is_mine(self, entry: CatalogEntry) -> bool:
        mine = self.identity.disk.state
        state = read_node(entry.value)
        return (state.folder, state.incarnation) == (mine.folder, mine.incarnation)

    async def _register(self) -> bool:
        """NodeIdTaken: another process has it."""
        state = NodeState(
            self.identity.disk.state.incarnation,
            dict(self._listeners),
            self._rack,
            __version__,
            self.identity.disk.state.folder,
            draining=self._draining,
        )
        try:
            return await self._write_entry(state)
        except StoreUnavailable as error:
            self._complain(error)
            return False

    async def _write_entry(self, state: NodeState) -> bool:
        key = node_key(self.node_id)
        self._lease = None  # until the entry hangs on one: keeping another alive would hide that it is not there
        lease = await self._world.offload_store(self._store.grant, self._lease_s)
        present = _known(key, await self._world.offload_store(self._store.get, key), read_node)
        write = starting.register(self.identity, state, present)
        try:
            await self._world.offload_store(_write_leased, self._store, write, lease)
        except NotFound:
            return False
        except RevisionConflict as error:
            await self._check_disk(error)
            return False
        self._lease = lease
        return True

    async def _check_disk(self, error: RevisionConflict) -> None:
        """Either the node entry was changed meanwhile, which is harmless, or another process has our disk entry."""
        entry = await self._world.offload_store(self._store.get, disk_key(self.node_id))
        if entry is None or entry.revision != self.identity.disk.revision:
            raise NodeIdTaken(f"node {self.node_id} was started elsewhere; this process stops") from error

    # -- asking -----------------------------------------------------------------------------------------------------

    async def _ask(self, call: Callable[..., T], *args: object) -> T:
        """However long it takes until the store answers. A write that was made without answer shows as a conflict."""
        while True:
            try:
                return await self._world.offload_store(call, *args)
            except StoreUnavailable as error:
                self._complain(error)
                await asyncio.sleep(RETRY_S)

    def _complain(self, error: WaystationError) -> None:
        now = self._world.clock.monotonic()
        if now - self._complained >= COMPLAIN_S:
            self._complained = now
            logger.warning("store.away", "waiting for the cluster's store: {error}", error=error)


def _known(key: str, entry: CatalogEntry | None, read: Callable[[bytes], S]) -> StoreEntry[S] | None:
    return None if entry is None else StoreEntry(key, read(entry.value), entry.revision)


def _write_leased(store: Store, write: Write, lease: int) -> int:
    return store.write(write.encoded(), write.expected, lease=lease)
