"""Each flood does what it is called: a tenant who has logged in moves messages in its own namespace."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks import jobs
from benchmarks.floods import Connection, flood, load_of
from benchmarks.hostile import Broker, every_protocol, probe_of
from benchmarks.tenants import CALM, FLOODED, FLOODS, NOISY, Known, add_users, fill

SHORT_S = 0.2


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    folder: Path = tmp_path_factory.mktemp("floods")
    add_users(folder / "data")
    with every_protocol(folder, lambda addresses: fill(addresses, FLOODS["native takes"], 0.01, limited=False)) as made:
        yield made


@pytest.mark.parametrize("known", FLOODS.values(), ids=FLOODS)
def test_a_flood_moves_messages(broker: Broker, known: Known) -> None:
    address = broker.addresses["kafka" if known.protocol == "native" else known.protocol]
    connection = Connection(load_of(jobs.Flood(known.kind, address, *NOISY, FLOODED, 1)), address)
    try:
        until = time.monotonic() + SHORT_S
        flood([connection], lambda: time.monotonic() > until)
        assert connection.moved > 0
    finally:
        connection.socket.close()


@pytest.mark.parametrize("protocol", sorted({known.protocol for known in FLOODS.values()}))
def test_the_other_tenant_is_answered(broker: Broker, protocol: str) -> None:
    probe = probe_of(protocol, broker.addresses, CALM)
    try:
        assert len(probe.run(0.05)) == 10
    finally:
        probe.close()
