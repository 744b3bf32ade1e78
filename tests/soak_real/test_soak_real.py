"""The long run in short: a real broker, every protocol, kills, and a lie that has to be found."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.soak_real.run import Options, Soak

pytestmark = pytest.mark.clients
LOST = "nothing acknowledged is lost"


def test_acked_and_committed_state_survives_kills_under_load_of_every_protocol(tmp_path: Path) -> None:
    """Two kills within half a minute; `make soak-real` is the same for an hour, with a kill every minute."""
    soak = Soak(Options(tmp_path, minutes=0.5, kill_every_s=9, rate=0.5, seed=1, sample_every_s=2, say=False))
    report = soak.run()
    assert report.good, report.as_text()
    assert report.kills >= 1
    assert all(load.progress > 0 for load in soak.loads), {load.name: load.progress for load in soak.loads}
    assert json.loads(json.dumps(report.as_json()))["good"]


def test_claimed_ack_that_never_reached_the_broker_fails_the_run(tmp_path: Path) -> None:
    """The whole chain, with a real broker: one message is claimed to be acknowledged that nobody sent."""

    class Lying(Soak):
        def _drain(self) -> None:
            self.http.jobs.stored(self.http.jobs.try_next())
            super()._drain()

    soak = Lying(Options(tmp_path, minutes=0.05, kill_every_s=0, rate=0.3, drain_s=5, say=False))
    report = soak.run()
    assert not report.good
    assert "http.jobs" in report.findings.examples[LOST][0]
    assert LOST in report.as_text()
