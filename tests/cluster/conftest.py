"""One real cluster for all tests that ask for it. Whoever kills a node brings it back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import ClusterOfThree


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterOfThree]:
    with ClusterOfThree(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
