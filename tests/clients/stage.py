"""What the fixtures hand to tests: the broker under test, topics, system tools. Used by conftest.py and the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for


@dataclass(frozen=True, slots=True)
class Target:
    """The broker under test."""

    bootstrap: str
    ours: bool


class NewTopicCall(Protocol):
    """Makes a topic under a fresh name and returns the name."""

    def __call__(self, partitions: int = 1, config: Mapping[str, Any] | None = None) -> str: ...


class OwnServerCall(Protocol):
    """Starts a broker process for one test, with these settings (dots written as underscores)."""

    def __call__(self, **settings: str | int | bool) -> Server: ...


def create_topic(client: AdminClient, name: str, partitions: int = 1, config: Mapping[str, Any] | None = None) -> str:
    """Create a topic and wait until each partition has a leader."""
    settings = {key: str(value) for key, value in (config or {}).items()}
    client.create_topics([NewTopic(name, partitions, 1, config=settings)])[name].result(DEADLINE_S)

    def led() -> bool:
        found = client.list_topics(timeout=DEADLINE_S).topics.get(name)
        return found is not None and sum(p.leader >= 0 for p in found.partitions.values()) == partitions

    wait_for(led, f"topic {name} has leaders")
    return name


def missing(what: str, why: str) -> None:
    """Something the machine should have is not there: skip at home, fail in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}: {why}")
    pytest.skip(f"{what}: {why}")


def need_tool(name: str, why: str) -> str:
    """The path of a system tool that the test set-up installs."""
    found = shutil.which(name)
    if found is None:
        missing(f"{name} is not installed", why)
    return str(found)
