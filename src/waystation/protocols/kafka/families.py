"""The list of API family files. Importing one registers its handlers.

Produce and Fetch are registered here too, so that they are advertised; the connection dispatches them itself.
"""

from __future__ import annotations

from importlib import import_module

from waystation.protocols.kafka import fetch_codec, produce_codec
from waystation.protocols.kafka.registry import api

FAMILIES = (
    "api_versions",
    "cluster",
    "configs",
    "consumer_groups",
    "groups",
    "metadata",
    "offsets",
    "offsets_listing",
    "share_acknowledge",
    "share_fetch",
    "share_groups",
    "share_offsets",
    "telemetry",
    "topics",
    "transactions",
)


def load() -> None:
    for family in FAMILIES:
        import_module(f"waystation.protocols.kafka.{family}")
    for name, codec in (("produce", produce_codec), ("fetch", fetch_codec)):
        api(name, min_version=codec.MIN_VERSION, max_version=codec.MAX_VERSION)(_by_hand)


def _by_hand(_: object) -> object:
    raise NotImplementedError("produce and fetch are dispatched by the connection itself")
