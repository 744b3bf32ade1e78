"""Whatever clients do and whenever the broker crashes: one outcome per transaction, nothing acknowledged is lost."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.transactions.kit import Disk
from tests.transactions.world import TOPIC, Client, TransactionWorld

NAMES = st.sampled_from(["one", "one", "two"])
PARTITIONS = st.integers(0, 2)
WHICH = st.sampled_from([0, 0, 0, 1, 2])
"""Of the newest clients, the how-manieth."""
WEATHER = st.sampled_from(["fair"] * 7 + ["held", "full", "partition"])
"""How the disk behaves from now on: well, without flushing, not at all, or not for one partition's markers."""
LUCK = st.lists(st.sampled_from([0.0, 0.0, 0.5, 1.0, 1.0]), min_size=7, max_size=7)


class Crashes(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = TransactionWorld()

    def teardown(self) -> None:
        """In the end the trouble is over and every transaction's time has come: all are ended, everywhere alike."""
        self.weather("fair")
        self.world.advance(120)
        self.world.check()
        self.world.check_all_ended()
        self.world.close()

    def weather(self, now: str) -> None:
        disk = self.world.broker.disk
        disk.failing = now == "full"
        disk.partitions_failing = {(TOPIC, 1)} if now == "partition" else set()
        if now == "held":
            self.world.hold_flushes()
        else:
            self.world.flush()

    def pick(self, which: int) -> Client | None:
        """A client that could send a request now."""
        living = [client for client in self.world.clients if not client.dead][-3:]
        client = living[-1 - which % len(living)] if living else None
        return None if client is None or client.busy else client

    @initialize(name=NAMES, bumps_epoch=st.booleans())
    def first_producer(self, name: str, bumps_epoch: bool) -> None:
        self.world.start_producer(name, bumps_epoch)

    @rule(name=NAMES, bumps_epoch=st.booleans(), weather=WEATHER)
    def start_producer(self, name: str, bumps_epoch: bool, weather: str) -> None:
        self.weather(weather)
        self.world.start_producer(name, bumps_epoch)
        self.world.start_loose_producer()

    @rule(which=WHICH, weather=WEATHER)
    def go_on(self, which: int, weather: str) -> None:
        client = self.pick(which)
        if client is not None and client.ending is None:
            self.weather(weather)
            self.world.go_on(client)

    @rule(which=WHICH, partitions=st.sets(PARTITIONS, min_size=1), weather=WEATHER)
    def add_and_write(self, which: int, partitions: set[int], weather: str) -> None:
        client = self.pick(which)
        if client is None:
            self.world.start_producer("one", bumps_epoch=bool(which % 2))
            return
        if client.ending is not None or client.must_abort:
            return
        self.weather(weather)
        for partition in sorted(partitions):
            if not client.busy:
                self.world.add(client, partition)
            self.world.write(client, partition)

    @rule(which=WHICH, partitions=st.sets(PARTITIONS, min_size=1), commit=st.booleans(), weather=WEATHER)
    def transaction(self, which: int, partitions: set[int], commit: bool, weather: str) -> None:
        self.add_and_write(which, partitions, "fair")
        self.end(which, commit, weather)

    @rule(which=st.integers(0, 3), partition=PARTITIONS)
    def write_late(self, which: int, partition: int) -> None:
        """A batch that was delayed on its way, or comes from a client that does not know that it is fenced."""
        newest = self.world.clients[-4:]
        if newest:
            self.world.write(newest[-1 - which % len(newest)], partition)

    @rule(which=WHICH, commit=st.booleans(), weather=WEATHER)
    def end(self, which: int, commit: bool, weather: str) -> None:
        client = self.pick(which)
        if client is None or (client.tag is None and not client.must_abort):
            return
        self.weather(weather)
        self.world.end(client, (commit if client.ending is None else client.ending) and not client.must_abort)

    @rule(seconds=st.sampled_from([0.01, 1.0, 12.0, 40.0]), weather=WEATHER)
    def time_passes(self, seconds: float, weather: str) -> None:
        self.weather(weather)
        self.world.advance(seconds)

    @rule(luck=LUCK)
    def crash(self, luck: list[float]) -> None:
        drawn = iter(luck)
        self.world.crash(lambda n: ceil(n * next(drawn)), lambda n: ceil(n * next(drawn)))

    @rule(luck=LUCK)
    def kill(self, luck: list[float]) -> None:
        drawn = iter(luck)
        self.world.crash(lambda n: ceil(n * next(drawn)), lambda n: n, power=False)

    @rule(which=WHICH, partitions=st.sets(PARTITIONS, min_size=1), luck=LUCK, killed_first=st.booleans())
    def crash_amid_an_add(self, which: int, partitions: set[int], luck: list[float], killed_first: bool) -> None:
        """In the second case, what the killed process had written is seen, used by the client, and lost after all."""
        self.add_and_write(which, partitions, "held")
        if killed_first:
            self.kill([1.0] * 7)
            self.add_and_write(which, partitions, "held")
        self.crash(luck)

    @rule(which=WHICH, commit=st.booleans(), luck=LUCK, killed_first=st.booleans())
    def crash_amid_an_end(self, which: int, commit: bool, luck: list[float], killed_first: bool) -> None:
        self.end(which, commit, "held")
        if killed_first:
            self.kill([1.0] * 7)
        self.crash(luck)

    @rule(which=WHICH, commit=st.booleans(), luck=LUCK)
    def crash_after_a_full_disk(self, which: int, commit: bool, luck: list[float]) -> None:
        """The flush that an end waits for fails; when there is room again, the end is carried out, then power fails."""
        self.end(which, commit, "held")
        for weather in ("full", "fair"):
            self.weather(weather)
            self.world.advance(0.2)
        self.crash(luck)

    @rule(partitions=st.sets(PARTITIONS, min_size=1), others=st.sets(PARTITIONS, min_size=1), weather=WEATHER)
    def stage_and_decide(self, partitions: set[int], others: set[int], weather: str) -> None:
        """Two producers stage a transaction each, and both are committed by one decision."""
        self.weather("fair")
        staging = []
        for name, places in (("one", partitions), ("two", others)):
            before = len(self.world.clients)
            self.world.start_producer(name, bumps_epoch=False)
            if len(self.world.clients) == before:
                return
            staging.append(self.world.clients[-1])
            for partition in sorted(places):
                self.world.add(staging[-1], partition)
                self.world.write(staging[-1], partition)
        self.weather(weather)
        self.world.hand_over(staging)

    @rule(weather=WEATHER)
    def ask_again(self, weather: str) -> None:
        self.weather(weather)
        if self.world.jobs:
            self.world.decide(self.world.jobs[-1])

    @rule(partitions=st.sets(PARTITIONS, min_size=1), luck=LUCK, killed_first=st.booleans(), gone=st.booleans())
    def crash_amid_a_decision(self, partitions: set[int], luck: list[float], killed_first: bool, gone: bool) -> None:
        self.stage_and_decide(partitions, {0, 1, 2}, "held")
        if killed_first:
            self.kill([1.0] * 7)
        self.crash(luck)
        if not gone:
            self.ask_again("fair")

    @rule(which=WHICH, partitions=st.sets(PARTITIONS, min_size=1))
    def take_over(self, which: int, partitions: set[int]) -> None:
        """A second instance starts with the same id and works on; the first one does not know it yet."""
        old = self.pick(which)
        if old is not None:
            self.weather("fair")
            self.world.start_producer(old.name, old.bumps_epoch)
            self.add_and_write(0, partitions, "fair")
            for partition in partitions:
                self.world.write(old, partition)

    @invariant()
    def holds(self) -> None:
        self.world.check()


PACE = settings(max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck))

TestCrashes = Crashes.TestCase
TestCrashes.settings = PACE


@pytest.mark.soak
def test_crashes_for_long() -> None:
    run_state_machine_as_test(Crashes, settings=settings(PACE, max_examples=5_000))


def test_the_checks_catch_a_disk_that_says_durable_too_early() -> None:
    world = TransactionWorld(Disk(unsafe=True))
    world.start_producer("one", bumps_epoch=False)
    (client,) = world.clients
    world.add(client, 0)
    world.write(client, 0)
    world.check()
    world.crash(lambda n: 0, lambda n: n)
    with pytest.raises((AssertionError, KeyError)):
        world.check()
    world.close()
