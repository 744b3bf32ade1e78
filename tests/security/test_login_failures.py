"""Failed logins are told late, and later with each failure from the same address."""

from __future__ import annotations

import asyncio

import pytest

from tests.broker.queue_kit import Machine, on_a_machine
from waystation.config import BROKER_SETTINGS
from waystation.security.authenticator import LoginPeer
from waystation.security.credentials import verifiers_of
from waystation.security.failures import FORGET_S, MAX_HOSTS, MAX_USERS, MOST_DOUBLINGS, LoginFailures
from waystation.security.sasl.exchange import Failed, LoggedIn
from waystation.security.users import User


def test_the_pause_doubles_with_each_failure_up_to_a_bound_and_each_address_has_its_own() -> None:
    failures = LoginFailures()
    assert [failures.failed("a", "u", 0, 0.1) for _ in range(8)] == pytest.approx(
        [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2, 3.2]
    )
    assert failures.failed("b", "u", 0, 0.1) == pytest.approx(0.1)


def test_who_gets_in_or_stays_away_for_long_starts_over() -> None:
    failures = LoginFailures()
    for _ in range(3):
        failures.failed("a", "u", 0, 1)
        failures.failed("b", "u", 0, 1)
    failures.succeeded("a", "u")
    assert failures.failed("a", "u", 1, 1) == 1
    assert failures.failed("b", "u", FORGET_S, 1) == 8
    assert failures.failed("b", "u", 2 * FORGET_S + 1, 1) == 1


def test_a_login_of_ones_own_forgets_no_failures_of_others() -> None:
    failures = LoginFailures()
    failures.failed("a", "mallory", 0, 1)
    for count in range(1, MAX_USERS + 5):
        pause_s = failures.failed("a", f"victim{count}", 0, 1)
        failures.succeeded("a", "mallory")
        assert pause_s == 2 ** min(count - (count > 1), MOST_DOUBLINGS)
    assert failures.failed("a", "mallory", 0, 1) == 2**MOST_DOUBLINGS
    assert len(failures) == 1


def test_only_so_many_addresses_are_remembered_and_the_oldest_is_forgotten() -> None:
    failures = LoginFailures()
    for number in range(MAX_HOSTS + 10):
        failures.failed(str(number), "u", 0, 1)
    assert len(failures) == MAX_HOSTS
    assert failures.failed("5", "u", 0, 1) == 1
    assert failures.failed(str(MAX_HOSTS), "u", 0, 1) == 2


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


@on_a_machine
async def test_who_logs_in_itself_tries_others_passwords_no_faster(machine: Machine) -> None:
    broker, loop = machine.broker, asyncio.get_running_loop()
    authenticator = broker.authenticator
    for name in ("mallory", "victim"):
        await broker.users.add(name, User(verifiers_of("pw", broker.world.random.token)))
    peer = LoginPeer("http", "192.0.2.1")
    pauses = []
    for number in range(4):
        began_s = loop.time()
        assert isinstance(await authenticator.password("victim@/", f"guess {number}".encode(), peer), Failed)
        pauses.append(loop.time() - began_s)
        assert isinstance(await authenticator.password("mallory", b"pw", peer), LoggedIn)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8], abs=0.09)
