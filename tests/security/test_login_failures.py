"""Failed logins are told late, and later with each failure from the same address."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Machine, on_a_machine
from waystation.config import BROKER_SETTINGS
from waystation.security.authenticator import LoginPeer
from waystation.security.failures import FORGET_S, MAX_HOSTS, LoginFailures
from waystation.security.sasl.exchange import Failed


def test_the_pause_doubles_with_each_failure_up_to_a_bound_and_each_address_has_its_own() -> None:
    failures = LoginFailures()
    assert [failures.failed("a", 0, 0.1) for _ in range(8)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 3.2])
    assert failures.failed("b", 0, 0.1) == pytest.approx(0.1)


def test_who_gets_in_or_stays_away_for_long_starts_over() -> None:
    failures = LoginFailures()
    for _ in range(3):
        failures.failed("a", 0, 1)
        failures.failed("b", 0, 1)
    failures.succeeded("a")
    assert failures.failed("a", 1, 1) == 1
    assert failures.failed("b", FORGET_S, 1) == 8
    assert failures.failed("b", 2 * FORGET_S + 1, 1) == 1


def test_only_so_many_addresses_are_remembered_and_the_oldest_is_forgotten() -> None:
    failures = LoginFailures()
    for number in range(MAX_HOSTS + 10):
        failures.failed(str(number), 0, 1)
    assert len(failures) == MAX_HOSTS
    assert failures.failed("5", 0, 1) == 1
    assert failures.failed(str(MAX_HOSTS), 0, 1) == 2


@on_a_machine
async def test_a_failure_is_told_after_the_pause_and_others_do_not_wait_for_it(machine: Machine) -> None:
    """Under virtual time: what is asked is who waits for whom, and not how long a machine takes."""
    authenticator, loop = machine.broker.authenticator, asyncio.get_running_loop()
    usual_s = int(str(BROKER_SETTINGS["connection.failed.authentication.delay.ms"].default)) / 1000
    assert usual_s > 0, "it is slowed unless somebody says otherwise"

    async def fail(host: str) -> float:
        began_s = loop.time()
        await authenticator.refuse(Failed("wrong password", "bob"), "PLAIN", LoginPeer("kafka", host))
        return loop.time() - began_s

    together = await asyncio.gather(*(fail("192.0.2.1") for _ in range(3)), fail("192.0.2.2"))
    assert together == pytest.approx([usual_s, 2 * usual_s, 4 * usual_s, usual_s])
