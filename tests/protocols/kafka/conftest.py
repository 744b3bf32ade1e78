"""Fixtures for tests that ask the handlers of the Kafka protocol in this process; see admin_kit.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.protocols.kafka.admin_kit import Desk, MakeDesk
from tests.protocols.kafka.cluster_kit import ClusterDesk


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[MakeDesk]:
    made: list[Desk] = []

    def make(**settings: str) -> Desk:
        root = tmp_path / str(len(made))
        root.mkdir()
        made.append(Desk(root, {key.replace("_", "."): text for key, text in settings.items()}))
        return made[-1]

    yield make
    for desk in made:
        desk.close()


@pytest.fixture
def desk(make_desk: MakeDesk) -> Desk:
    return make_desk()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterDesk]:
    desk = ClusterDesk(tmp_path, {})
    yield desk
    desk.close()
