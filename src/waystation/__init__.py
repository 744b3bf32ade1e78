"""Waystation: a message broker for Python people.

    with waystation.open("./data") as broker:
        ...  # any Kafka client, at broker.kafka

Importing this loads nothing but the names below; the broker comes with the first call.
"""

from __future__ import annotations

import typing

from waystation import errors
from waystation.errors import WaystationError
from waystation.version import __version__

if typing.TYPE_CHECKING:
    import os
    from collections.abc import Mapping

    from waystation.embedded import EmbeddedBroker

__all__ = ["WaystationError", "__version__", "errors", "open"]


def open(
    path: str | os.PathLike[str], *, settings: Mapping[str, str] | None = None, kafka: str = "127.0.0.1:0"
) -> EmbeddedBroker:
    """Starts a broker in this process, in the background, and returns it when it takes connections.

    `path` is the folder of its data, made if it is not there; only one broker at a time may have it (`DataInUse`).
    `":memory:"` is for tests: for now it is a temporary folder that is removed on close. `settings` are the broker's,
    by their dotted names. `kafka` is where its Kafka door listens, on this machine: port 0 takes a free one, `"off"`
    leaves it closed. What goes wrong at the start is raised here.

        with waystation.open("./data", settings={"num.partitions": "4"}) as broker:
            producer = confluent_kafka.Producer({"bootstrap.servers": broker.kafka})
    """
    from waystation.embedded import EmbeddedBroker

    return EmbeddedBroker(path, settings, kafka)
