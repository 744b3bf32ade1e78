"""Opening a data folder: lock it, open its catalog, start a broker on it. Or none: a broker in memory."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from waystation.broker.broker import LOCK_FILE, Broker
from waystation.broker.encrypted_folder import begun, check_key, unlocked
from waystation.catalog import Catalog
from waystation.catalog.memory import MemoryCatalog
from waystation.catalog.rows import definitions_of
from waystation.catalog.sqlite import FILE as SQLITE_FILE
from waystation.catalog.sqlite import SqliteCatalog, has_entries, new_cluster_id
from waystation.config import BrokerSettings
from waystation.encryption.master_key import SETTING
from waystation.errors import Conflict, DataInUse, Invalid, InvalidSetting, StoreUnavailable
from waystation.observe.events import event_logger
from waystation.observe.tracing import Tracing
from waystation.security.users import KIND as USERS
from waystation.world import MEMORY, MemoryDisk, ThreadOffload, World, real_world

if TYPE_CHECKING:
    from waystation.cluster.address import EtcdAddress
    from waystation.cluster.etcd.store import EtcdStore
    from waystation.security.tls_files import TlsFiles

logger = event_logger("waystation.cluster")

STORE_RETRY_S = 0.5
SMALLEST_SEGMENT, LARGEST_SEGMENT = 64 * 1024, 16 * 1024 * 1024
"""Of a broker in memory: what is deleted frees a segment at a time."""


async def open_broker(path: str, settings: BrokerSettings, world: World | None = None) -> Broker:
    """A started broker on the folder `path`, which is created if it is not there.

    `:memory:` is no folder: nothing is written to any disk, and nothing is left when the broker stops. DataInUse if
    another broker has it, NewerFormat if a newer version wrote it, WrongKey, InvalidSetting or Corrupt if it is
    encrypted and the key does not fit or is missing; then nothing was touched.
    """
    if path == MEMORY:
        settings = in_memory(settings)
        world = real_world(MemoryDisk(settings.integer("waystation.memory.data.max.bytes")))
    world = world or real_world()
    source = "" if path == MEMORY else settings.text(SETTING)
    check_key(world, path, source)
    root = path if path == MEMORY else _lock(world, path)
    with ExitStack() as undo:
        undo.callback(world.disk.unlock, f"{root}/{LOCK_FILE}")
        if path == MEMORY:
            catalog: Catalog = MemoryCatalog(new_cluster_id(world.random))
        else:
            world = begun(world, root, source)
            catalog = SqliteCatalog(root, world.random, world.keys)
        undo.callback(catalog.close)
        tracing = open_tracing(world, settings)
        if tracing is not None:
            undo.callback(tracing.close)
        broker = Broker(world, root, settings, catalog, tracing)
        await broker.start()
        broker.sampling.start()
        undo.pop_all()
    return broker


class LinkPlan(msgspec.Struct, frozen=True):
    """How the nodes of a cluster reach each other: by the listener of this name, and with its certificate."""

    listener: str = "kafka"
    files: TlsFiles | None = None  # None: without TLS


class ClusterPlan(msgspec.Struct, frozen=True):
    """Which cluster a broker is a node of. Its id is the setting `node.id`."""

    address: EtcdAddress
    rack: str = ""
    restored: bool = False
    link: LinkPlan = LinkPlan()


async def open_node(path: str, settings: BrokerSettings, plan: ClusterPlan) -> Broker:
    """A started broker that is a node of a cluster, whose names and settings are in the cluster's store. When its
    listeners are bound, `join` follows.

    A store that gives no answer is waited for. DataInUse, NodeIdTaken, WrongCluster, NewerFormat, Conflict if the
    folder is of a broker alone; then nothing was touched.
    """
    # A broker alone does not need these, and starts faster without.
    from waystation.cluster.links.socket_link import SocketLinks, listens
    from waystation.cluster.node import NodeOptions
    from waystation.security.node_links import LinkLogin, ensure_secret

    world = msgspec.structs.replace(real_world(), store_threads=ThreadOffload(name="waystation-store"))
    source = settings.text(SETTING)
    check_key(world, path, source)
    root = _lock(world, path)
    with ExitStack() as undo:
        undo.callback(world.disk.unlock, f"{root}/{LOCK_FILE}")
        if world.disk.size(f"{root}/{SQLITE_FILE}") is not None:
            raise Conflict(
                f"{root} is the data folder of a broker that is no node of a cluster; it was left untouched."
                " `waystation cluster adopt` makes it the first node of one, or choose another folder"
            )
        world = begun(world, root, source)
        store = await _open_store(world, plan.address)
        undo.callback(store.close)
        tracing = open_tracing(world, settings)
        if tracing is not None:
            undo.callback(tracing.close)
        secret = await world.offload_store(ensure_secret, store, world.random.token)
        login = LinkLogin(secret, plan.link.files)
        name = plan.link.listener
        node = NodeOptions(
            store,
            lambda view: SocketLinks(view, login, name),
            plan.rack,
            answers=partial(listens, name),
            restored=plan.restored,
        )
        broker = Broker(world, root, settings, store, tracing, node=node)
        await broker.start()
        broker.sampling.start()
        undo.pop_all()
    return broker


async def _open_store(world: World, address: EtcdAddress) -> EtcdStore:
    from waystation.cluster.etcd.store import EtcdStore

    told = False
    while True:
        try:
            return await world.offload_store(EtcdStore, address, new_cluster_id(world.random))
        except StoreUnavailable as error:
            if not told:
                told = True
                logger.warning(
                    "store.away",
                    "cannot reach the cluster's store at {address}, trying again: {error}",
                    address=str(address),
                    error=error,
                )
            await asyncio.sleep(STORE_RETRY_S)


def has_users(path: str) -> bool:
    """Whether a data folder has users, so that a broker on it asks everybody who they are."""
    return has_entries(path, definitions_of(USERS))


def in_memory(settings: BrokerSettings) -> BrokerSettings:
    """What else is the default where nothing survives: nobody waits for syncs, segments are small, so that room is
    freed early, and the alarm for a full disk fits the room there is."""
    room = settings.integer("waystation.memory.data.max.bytes")
    alarm = min(settings.integer("waystation.disk.free.min.bytes"), room // 8)
    return settings.above(
        {
            "waystation.flush": "os",
            "log.segment.bytes": str(max(SMALLEST_SEGMENT, min(LARGEST_SEGMENT, room // 32))),
            "waystation.disk.free.min.bytes": str(alarm),
        }
    )


def open_tracing(world: World, settings: BrokerSettings) -> Tracing | None:
    """What `waystation.tracing` asks for. InvalidSetting if it is not installed."""
    if settings.text("waystation.tracing") == "off":
        return None
    try:
        from waystation.observe.otel import OtelSpans
    except ImportError as error:
        raise InvalidSetting(
            f"waystation.tracing=otlp: {error.name or error} is not installed; pip install 'waystation[otel]', or"
            " set it to off"
        ) from error
    return Tracing(world.clock, OtelSpans(world.clock))


@contextmanager
def locked_folder(world: World, path: str) -> Iterator[str]:
    """Keeps brokers off a data folder while somebody works on its files; gives its absolute path."""
    root = _lock(world, path)
    try:
        yield root
    finally:
        world.disk.unlock(f"{root}/{LOCK_FILE}")


@contextmanager
def opened_folder(world: World, path: str) -> Iterator[tuple[World, str]]:
    """The same for who reads what may be encrypted: the world with the folder's keys, and its absolute path. A key that
    does not open it is refused (`unlocked`) before the folder is locked, and nothing is touched."""
    unlocked(world, path)
    with locked_folder(world, path) as root:
        yield unlocked(world, root), root


def _lock(world: World, path: str) -> str:
    # Not `abspath`, which takes `..` away as if no folder were a link; not `pathlib`, which takes a start 4 ms to load.
    parts = [part for part in os.path.join(os.getcwd(), path).split("/") if part not in ("", ".")]
    root = "/" + "/".join(parts)
    try:
        world.disk.make_folder(root)
        holder = world.disk.lock(f"{root}/{LOCK_FILE}", str(os.getpid()).encode())
    except (FileExistsError, NotADirectoryError):
        above = ("/" + "/".join(parts[:count]) for count in range(len(parts), 0, -1))
        file = next((each for each in above if os.path.isfile(each)), root)
        raise Invalid(f"{file} is a file: it cannot be, or have, a data folder; choose a folder") from None
    if holder is not None:
        raise DataInUse(
            f"{root} is in use by another broker (pid {holder.decode(errors='replace').strip() or 'unknown'});"
            " stop it first, or choose another data folder"
        )
    return root
