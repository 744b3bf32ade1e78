"""Telling a transaction's partitions how it ended.

The coordinator knows neither topics nor logs; it is handed a `MarkerWriter`. A marker may be written twice (after a
crash, or when a first attempt broke off): the second ends nothing and is harmless.
"""

from __future__ import annotations

from typing import Protocol

from waystation.errors import NotFound, ProducerEpochStale
from waystation.observe.events import event_logger
from waystation.transactions.machine import Transaction

_log = event_logger(__name__)


class MarkerWriter(Protocol):
    """Appends control batches to data logs."""

    def write_marker(
        self,
        topic: str,
        partition: int,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
    ) -> None:
        """Appends at once, does not wait for the disk. NotFound: no such partition; StorageFailed: try again later."""

    async def spread(self, txn: Transaction, coordinator_epoch: int, attempt: int) -> bool:
        """In a cluster: writes all markers of a prepared transaction, on whichever nodes lead its partitions, and waits
        until they are durable. False: this broker is alone, nothing was done. `attempt` grows with each call: what an
        earlier one has asked for and arrives later is refused."""


def write_markers(writer: MarkerWriter, txn: Transaction, coordinator_epoch: int) -> None:
    """One marker for every partition of a prepared transaction. Raises what the first failing partition raises."""
    for topic, partition in sorted(txn.partitions):
        try:
            writer.write_marker(topic, partition, *txn.producer, txn.commits, coordinator_epoch)
        except NotFound:
            _log.info(
                "marker.skipped",
                "no marker of {id} to {topic}-{partition}: {reason}",
                id=txn.transactional_id,
                topic=topic,
                partition=partition,
                reason="the partition was deleted",
            )
        except ProducerEpochStale as error:
            # A marker with a higher epoch, written by an operator, has ended the transaction there already. Trying
            # again could never succeed and would keep the id busy for ever.
            _log.warning(
                "marker.skipped",
                "no marker of {id} to {topic}-{partition}, which is at a higher epoch: {reason}",
                id=txn.transactional_id,
                topic=topic,
                partition=partition,
                reason=error,
            )
