"""The list of API family files. Importing one registers its handlers."""

from __future__ import annotations

from importlib import import_module

FAMILIES = (
    "api_versions",
    "cluster",
    "configs",
    "consumer_groups",
    "groups",
    "metadata",
    "offsets",
    "offsets_listing",
    "telemetry",
    "topics",
    "transactions",
)


def load() -> None:
    for family in FAMILIES:
        import_module(f"waystation.doors.kafka.{family}")
