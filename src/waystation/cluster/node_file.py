"""`node.json` of a data folder: which node of which cluster it belongs to, its own id, and its incarnation.

It is how a disk that made a promise is told from another one (`starting.py`). Durable when `save` returns. A folder
without it has never been started in a cluster. Used by membership.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from waystation.errors import Corrupt, NewerFormat, WrongCluster
from waystation.world.disk import Disk

if TYPE_CHECKING:
    from waystation.cluster.decisions.starting import FolderIdentity

FILE = "node.json"
FORMAT = 1
ENCRYPTED_FORMAT = 2
"""The same, of a folder that is encrypted: versions before encryption refuse it."""


class NodeFile(msgspec.Struct, frozen=True):
    cluster_id: str
    node_id: int
    folder: str
    incarnation: int
    format: int = FORMAT


_decoder = msgspec.json.Decoder(NodeFile)


def load(disk: Disk, root: str) -> NodeFile | None:
    """None: there is none. NewerFormat, Corrupt; then nothing was touched."""
    path = f"{root}/{FILE}"
    data = disk.read_file(path)
    if data is None:
        return None
    try:
        found = _decoder.decode(data)
    except msgspec.DecodeError as error:
        raise Corrupt(
            f"{path} cannot be read ({error}); it was left untouched. Put it back from a backup, or start this node"
            " with an empty data folder: it then gets everything from the others"
        ) from error
    if found.format > ENCRYPTED_FORMAT:
        raise NewerFormat(
            f"{path} was written by a newer version of Waystation (format {found.format}, this one knows"
            f" {ENCRYPTED_FORMAT}); it was left untouched. Upgrade Waystation to use it."
        )
    return found


def folder_of(found: NodeFile | None, root: str, cluster_id: str, node_id: int, new_id: str) -> FolderIdentity:
    """What the folder says of itself. WrongCluster: it belongs elsewhere, and is left untouched."""
    from waystation.cluster.decisions.starting import FolderIdentity  # every broker looks for the file, few find one

    if found is None:
        return FolderIdentity(node_id, new_id)
    if found.cluster_id != cluster_id:
        raise WrongCluster(
            f"{root} belongs to the cluster {found.cluster_id}, not to {cluster_id}; it was left untouched. Start it"
            " with the address of its own cluster, or choose another folder"
        )
    if found.node_id != node_id:  # another node's disk: none of this node's promises are in it
        return FolderIdentity(node_id, new_id)
    return FolderIdentity(node_id, found.folder, found.incarnation)


def save(disk: Disk, root: str, cluster_id: str, folder: FolderIdentity, *, encrypted: bool = False) -> None:
    """Durable when it returns. Blocks."""
    version = ENCRYPTED_FORMAT if encrypted else FORMAT
    content = NodeFile(cluster_id, folder.node_id, folder.id, folder.incarnation, version)
    disk.replace_file(f"{root}/{FILE}", msgspec.json.encode(content))
