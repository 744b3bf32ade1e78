"""Where a key leads, remembered: always what a walk would say, in bounded memory, for any number of bindings."""

from __future__ import annotations

import random

import pytest

from waystation.errors import Invalid, NotAllowed, NotFound
from waystation.message import Message
from waystation.routing import resolving
from waystation.routing.exchanges.binding import Binding, canonical_arguments
from waystation.routing.exchanges.exchange import ExchangeSettings
from waystation.routing.matching.patterns import WildcardPattern
from waystation.routing.resolving import ResolvedRoute, Resolver
from waystation.routing.table import RoutingTable, make_exchange

WORDS = ("eu", "us", "order", "paid", "new", "x")


class Stage:
    def __init__(self) -> None:
        self.queues = {"jobs", "mail"}
        self.topics = {"orders", "jobs"}
        self.table = RoutingTable(self.queues.__contains__, lambda key: key if key in self.topics else None)
        self.resolver = Resolver(self.table)

    def declare(self, name: str, kind: str = "topic", alternate: str | None = None, internal: bool = False) -> None:
        self.table.add_exchange(make_exchange(name, ExchangeSettings(kind, alternate, internal=internal)))

    def bind(self, exchange: str, target: str, key: str = "", **arguments: str) -> Binding:
        binding = Binding(exchange, target, key, dict(arguments), canonical_arguments(dict(arguments)))
        self.table.add_binding(binding)
        return binding


@pytest.fixture
def stage() -> Stage:
    return Stage()


def pattern(rng: random.Random) -> str:
    return ".".join(rng.choice((*WORDS, "*", "#", f"c{rng.randrange(200)}")) for _ in range(rng.randint(1, 5)))


@pytest.mark.parametrize("count", [1_000, 10_000])
def test_a_thousand_and_ten_thousand_patterns_lead_where_each_alone_would(stage: Stage, count: int) -> None:
    rng = random.Random(count)
    stage.declare("orders")
    patterns = {f"q{number}": pattern(rng) for number in range(count)}
    for name, text in patterns.items():
        stage.bind("orders", f"queue:{name}", text)
    naive = {name: WildcardPattern(text) for name, text in patterns.items()}
    for _ in range(40):
        key = ".".join(rng.choice((*WORDS, f"c{rng.randrange(200)}")) for _ in range(rng.randint(0, 5)))
        expected = {name for name, one in naive.items() if one.matches(key)}
        for _ in range(2):  # looked up, and remembered
            route = stage.resolver.resolve("orders", key)
            assert set(route.queues) == expected
            assert len(route.queues) == len(expected)
            assert (route.topics, route.reads_messages) == ((), False)
    assert len(stage.resolver) > 30


def test_queues_and_topics_are_told_apart_each_once_through_all_exchanges(stage: Stage) -> None:
    stage.declare("first", "fanout")
    stage.declare("second", "direct", alternate="rest")
    stage.declare("rest", "fanout")
    for target in ("queue:jobs", "topic:orders", "exchange:second"):
        stage.bind("first", target)
    stage.bind("second", "queue:jobs", "k")
    stage.bind("rest", "queue:mail")
    assert stage.resolver.resolve("first", "k") == ResolvedRoute(("jobs",), ("orders",))
    assert stage.resolver.resolve("first", "other") == ResolvedRoute(("jobs", "mail"), ("orders",))


def test_the_default_exchange_leads_to_the_queue_and_else_to_the_topic_of_that_name(stage: Stage) -> None:
    stage.declare("lost", "direct", alternate="")
    for exchange in ("", "lost"):
        assert stage.resolver.resolve(exchange, "jobs") == ResolvedRoute(("jobs",), ())
        assert stage.resolver.resolve(exchange, "orders") == ResolvedRoute((), ("orders",))
        assert stage.resolver.resolve(exchange, "late") == ResolvedRoute((), ())
        stage.queues.add("late")  # nobody tells the resolver, and nobody need
        assert stage.resolver.resolve(exchange, "late") == ResolvedRoute(("late",), ())
        stage.queues.discard("late")
        assert stage.resolver.resolve(exchange, "late") == ResolvedRoute((), ())


def test_answers_that_depend_on_the_message_are_not_given_without_it(stage: Stage) -> None:
    stage.declare("orders", "direct")
    stage.declare("by-region", "headers")
    stage.bind("orders", "queue:mail", "plain")
    stage.bind("orders", "exchange:by-region", "rich")
    stage.bind("by-region", "queue:jobs", region="eu")
    assert stage.resolver.resolve("orders", "plain") == ResolvedRoute(("mail",), ())
    assert stage.resolver.resolve("orders", "rich").reads_messages
    message = Message(b"", headers={"region": "eu"})
    assert stage.resolver.route_all("orders", ("rich",), message) == (("jobs",), ())
    assert stage.resolver.route_all("orders", ("rich",), Message(b"")) == ((), ())
    assert stage.resolver.route_all("orders", ("rich", "plain"), message) == (("mail", "jobs"), ())


def test_of_several_keys_the_alternate_has_its_turn_if_none_matches(stage: Stage) -> None:
    stage.declare("orders", "direct", alternate="rest")
    stage.declare("rest", "fanout")
    stage.bind("orders", "queue:jobs", "a")
    stage.bind("rest", "queue:mail")
    nothing = Message(b"")
    assert stage.resolver.route_all("orders", ("x", "a"), nothing) == (("jobs",), ())
    assert stage.resolver.route_all("orders", ("x", "y"), nothing) == (("mail",), ())
    assert stage.resolver.route_all("", ("jobs", "orders", "jobs"), nothing) == (("jobs",), ("orders",))


def test_unknown_and_internal_exchanges_and_long_keys_are_refused_every_time(stage: Stage) -> None:
    stage.declare("inner", internal=True)
    for _ in range(2):
        with pytest.raises(NotFound, match="there is no exchange 'innr'"):
            stage.resolver.resolve("innr", "k")
        with pytest.raises(NotAllowed, match="internal"):
            stage.resolver.resolve("inner", "k")
        with pytest.raises(NotAllowed, match="internal"):
            stage.resolver.route_all("inner", ("k",), Message(b""))
        for exchange in ("", "amq.topic"):
            with pytest.raises(Invalid, match="256 bytes"):
                stage.resolver.resolve(exchange, "k" * 256)
    assert len(stage.resolver) == 0


def test_what_is_remembered_is_bounded_and_what_is_asked_for_stays(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolving, "MAX_REMEMBERED", 3_300)
    stage.declare("orders", "fanout")
    stage.bind("orders", "queue:jobs")
    often = stage.resolver.resolve("orders", "often")
    for number in range(1_000):
        stage.resolver.resolve("orders", f"k{number}")
        assert stage.resolver.resolve("orders", "often") is often
        assert len(stage.resolver) <= 100
    stage.resolver.forget()
    assert len(stage.resolver) == 0
    for number in range(60):
        stage.bind("orders", f"queue:q{number}")
    for number in range(1_000):
        assert len(stage.resolver.resolve("orders", f"k{number}").queues) == 61
        assert len(stage.resolver) <= 3_300 / 93 + 1
