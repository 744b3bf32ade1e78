"""Making the data folder of a broker that was alone the first node of a cluster: what `waystation cluster adopt` does.

Nothing in the logs is touched. What the folder's catalog says is copied to the cluster's store, and each partition gets
an entry: this node has it and leads it. The folder's catalog is renamed last: until then the folder is what it was, and
adopting again takes up where it was interrupted. No node runs meanwhile.

What must hold: the entry of a partition has no earlier epoch than its log. So the broker is started and stopped once
before, which also repairs what a crash has left and upgrades an older format.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import islice

import msgspec

from waystation.broker.encrypted_folder import source_from_environment
from waystation.broker.open import open_broker, opened_folder
from waystation.catalog import ABSENT, rows
from waystation.catalog.sqlite import FILE as CATALOG_FILE
from waystation.catalog.sqlite import SqliteCatalog
from waystation.cluster import node_file
from waystation.cluster.address import EtcdAddress
from waystation.cluster.decisions.starting import FolderIdentity
from waystation.cluster.decisions.state import PARTITIONS, DiskState, PartitionState, disk_key, encode, partition_key
from waystation.cluster.etcd import EtcdStore
from waystation.cluster.store import MOST_CHANGES, Store
from waystation.config import BrokerSettings
from waystation.errors import Conflict, NotFound
from waystation.world import World, real_world

ADOPTED_FILE = f"{CATALOG_FILE}.adopted"

KEEP_ALL = {"log.retention.ms": "-1", "log.retention.bytes": "-1"}
"""Of the broker that is started for a moment: its own configuration is not known here, and nothing may be deleted."""


class Adopted(msgspec.Struct, frozen=True):
    cluster_id: str
    topics: int
    partitions: int


async def adopt(path: str, node_id: int, address: EtcdAddress) -> Adopted:
    """NotFound, DataInUse; Conflict if the store has another cluster, or more than this one. StoreUnavailable: it may
    be repeated."""
    world = real_world()
    check_alone(world, path)
    settings = BrokerSettings(KEEP_ALL | source_from_environment())
    broker = await open_broker(path, settings)
    try:
        epochs = {
            partition_key(topic.id, partition.index): max(partition.epoch, 0)
            for topic in broker.topics
            for partition in topic.partitions
        }
    finally:
        await broker.stop()
    return await world.offload(_hand_over, world, path, node_id, address, epochs)


def check_alone(world: World, path: str) -> None:
    if world.disk.size(f"{path}/{CATALOG_FILE}") is not None:
        return
    if world.disk.size(f"{path}/{node_file.FILE}") is not None:
        raise Conflict(f"{path} is the data folder of a node of a cluster already; start it with `waystation serve`")
    raise NotFound(f"{path} is not the data folder of a broker: it has no {CATALOG_FILE}")


def _hand_over(world: World, path: str, node_id: int, address: EtcdAddress, epochs: Mapping[str, int]) -> Adopted:
    with opened_folder(world, path) as (world, root):
        with closing(SqliteCatalog(root, world.random, world.keys)) as catalog:
            cluster_id, found = catalog.cluster_id(), catalog.read()
        with closing(EtcdStore(address, cluster_id)) as store:
            if store.cluster_id() != cluster_id:
                raise Conflict(
                    f"{address} has the cluster {store.cluster_id()} already, and this folder is of {cluster_id}; give"
                    " another prefix (etcd://HOST:PORT/PREFIX), or start this node there with an empty folder"
                )
            folder = _folder(world, root, cluster_id, node_id)
            entries = {disk_key(node_id): encode(DiskState(folder.id, folder.incarnation))}
            for key, epoch in epochs.items():
                entries[key] = encode(PartitionState((node_id,), node_id, epoch, (node_id,)))
            # A topic exists when its entry does: those come after their partitions.
            entries |= {key: entry.value for key, entry in sorted(found.entries.items(), key=_topics_last)}
            _copy(store, entries, disk_key(node_id))
        world.disk.rename(f"{root}/{CATALOG_FILE}", f"{root}/{ADOPTED_FILE}")
        world.disk.sync_folder(root)
    topics = sum(key.startswith(rows.TOPICS) for key in found.entries)
    return Adopted(cluster_id, topics, sum(key.startswith(PARTITIONS) for key in entries))


def _topics_last(item: tuple[str, object]) -> tuple[bool, str]:
    return item[0].startswith((rows.TOPICS, rows.TOPIC_NAMES)), item[0]


def _folder(world: World, root: str, cluster_id: str, node_id: int) -> FolderIdentity:
    """Durable before the store has it, as at every start of a node. One of an earlier attempt stays."""
    found = node_file.load(world.disk, root)
    folder = node_file.folder_of(found, root, cluster_id, node_id, world.random.token(8).hex())
    folder = FolderIdentity(node_id, folder.id, max(folder.incarnation, 1))
    node_file.save(world.disk, root, cluster_id, folder, encrypted=world.keys is not None)
    return folder


def _copy(store: Store, entries: Mapping[str, bytes], disk: str) -> None:
    """Writes what is not there yet. Conflict if there is anything else: then this is not a new cluster.

    If the disk entry is this folder's, as no start has raised its incarnation, it is an earlier attempt that was
    interrupted, and an epoch may have risen since."""
    there = store.read().entries
    again = disk in there and there[disk].value == entries[disk]
    for key, entry in there.items():
        if entries.get(key) != entry.value and not (again and key in entries):
            raise Conflict(
                f"the cluster's store has {key[:100]!r} already, and not from this folder: only a new cluster can"
                " adopt one; give another prefix (etcd://HOST:PORT/PREFIX)"
            )
    missing = {key: value for key, value in entries.items() if key not in there or there[key].value != value}
    for part in _parts(missing):
        store.write(part, {key: there[key].revision if key in there else ABSENT for key in part})


def _parts(entries: Mapping[str, bytes]) -> Iterator[dict[str, bytes]]:
    left = iter(entries.items())
    while part := dict(islice(left, MOST_CHANGES)):
        yield part
