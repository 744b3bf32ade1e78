"""Repairing a data folder while no broker runs on it: what `waystation log skip-corrupt` does."""

from __future__ import annotations

from waystation.broker.open import opened_folder
from waystation.catalog.sqlite import SqliteCatalog
from waystation.errors import UnknownTopic
from waystation.log.opening import repair
from waystation.log.opening.repair import Damage
from waystation.log.points import RecoveryPoints
from waystation.topics.folders import folder_name
from waystation.world import real_world


def find_damage(path: str, topic: str, partition: int, *, skip: bool = False) -> list[Damage]:
    """What is corrupt in one partition; with `skip`, readers can pass it afterwards.

    DataInUse while a broker runs on the folder, UnknownTopic if it holds no such partition.
    """
    world = real_world()
    with opened_folder(world, path) as (world, root):
        catalog = SqliteCatalog(root, world.random, world.keys)
        try:
            row = next((row for row in catalog.topics() if row.name == topic), None)
        finally:
            catalog.close()
        if row is None or not 0 <= partition < row.partitions:
            raise UnknownTopic(f"{root} has no partition {partition} of a topic {topic!r}")
        folder = f"{root}/topics/{folder_name(row)}/{partition}"
        found = repair.find(world, folder)
        if found and skip:
            repair.skip(world, folder, found)
            points = RecoveryPoints(world.disk, root)
            points.load()
            points.forget(f"{row.id}/{partition}")  # positions have moved: the next start reads the whole log
    world.offload.close()
    return found
