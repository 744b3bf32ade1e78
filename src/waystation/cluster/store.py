"""The store of a cluster: a catalog that several brokers share, with leases.

Everything that the nodes agree on is written here by comparing (`Catalog.write`), and told to all of them by watches,
in the order of revisions. A lease is kept alive by its owner; when it runs out, the keys that were written under it
are deleted. Safety never hangs on a lease: it only says who seems to be alive.

What a caller has to expect of every call: StoreUnavailable, if there was no answer. A write without an answer may have
been made: the watch tells, or reading again. Calls block, so the broker makes them away from the loop. Any thread.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

from waystation.catalog.catalog import Catalog
from waystation.errors import TooLarge

MOST_CHANGES = 100
"""In one write, keys that are only compared included: etcd takes 128 operations in a transaction by default."""


class Store(Catalog):
    """Implemented by etcd (`etcd_store.py`), and in memory for simulations, tests and a cluster in one process
    (`memory_store.py`)."""

    @abstractmethod
    def grant(self, ttl_s: float) -> int:
        """A new lease, which runs out unless it is kept alive."""

    @abstractmethod
    def keep_alive(self, lease: int) -> bool:
        """False: it has run out, or was revoked."""

    @abstractmethod
    def revoke(self, lease: int) -> None:
        """It runs out at once. Fine if it has already."""

    @abstractmethod
    def write(
        self,
        changes: Mapping[str, bytes | None],
        expected: Mapping[str, int] | None = None,
        *,
        lease: int | None = None,
    ) -> int:
        """As `Catalog.write`; what is put is deleted when the lease runs out. RevisionConflict, StoreUnavailable,
        TooLarge (more than MOST_CHANGES keys), and NotFound if there is no such lease any more."""


def check_size(changes: Mapping[str, bytes | None], expected: Mapping[str, int]) -> None:
    """Raises TooLarge if this is more than one write may have."""
    keys = len(changes.keys() | expected.keys())
    if keys > MOST_CHANGES:
        raise TooLarge(
            f"a write of {keys} entries; the cluster's store takes at most {MOST_CHANGES} at once, those that are only"
            " compared included. Make fewer changes at a time"
        )
