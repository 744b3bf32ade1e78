"""The walk through exchanges, and what goes with what is removed."""

from __future__ import annotations

import pytest

from waystation.errors import NotFound
from waystation.message import Message
from waystation.routing.exchanges.binding import Binding
from waystation.routing.exchanges.exchange import ExchangeSettings
from waystation.routing.filtering.subject import Subject
from waystation.routing.table import PREDECLARED, RoutingTable, make_exchange

QUEUES = {"jobs", "mail"}


class Stage:
    def __init__(self) -> None:
        self.table = RoutingTable(QUEUES.__contains__, lambda key: key if key == "audit" else None)

    def declare(self, name: str, kind: str = "fanout", alternate: str | None = None, auto_delete: bool = False) -> None:
        self.table.add_exchange(make_exchange(name, ExchangeSettings(kind, alternate, auto_delete=auto_delete)))

    def bind(self, exchange: str, target: str, key: str = "") -> Binding:
        binding = Binding(exchange, target, key)
        self.table.add_binding(binding)
        return binding

    def route(self, exchange: str, key: str = "") -> list[str]:
        return self.table.walk(exchange, [Subject(Message(b""), routing_key=key)]).targets

    def names(self) -> set[str]:
        return {exchange.name for exchange in self.table} - {"", *PREDECLARED}


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_the_default_exchange_goes_to_the_queue_or_topic_of_that_name(stage: Stage) -> None:
    assert stage.route("", "jobs") == ["queue:jobs"]
    assert stage.route("", "audit") == ["topic:audit"]
    assert stage.route("", "nobody") == []


@pytest.mark.parametrize("name", PREDECLARED)
def test_the_exchanges_that_amqp_expects_are_there(stage: Stage, name: str) -> None:
    stage.bind(name, "queue:jobs", "k")
    assert stage.route(name, "k") == ["queue:jobs"]


def test_an_unknown_exchange_is_not_found_and_the_error_says_what_is_missing(stage: Stage) -> None:
    stage.declare("orders")
    with pytest.raises(NotFound, match=r"^there is no exchange 'ordrs'$") as caught:
        stage.route("ordrs")
    assert (caught.value.kind, caught.value.name) == ("exchange", "ordrs")


def test_a_target_is_given_once_however_many_bindings_match(stage: Stage) -> None:
    stage.declare("t", "topic")
    for key in ("a.#", "a.*", "#", "a.b"):
        stage.bind("t", "queue:jobs", key)
    stage.bind("t", "topic:audit", "#")
    assert sorted(stage.route("t", "a.b")) == ["queue:jobs", "topic:audit"]


def test_a_message_goes_through_exchanges_and_not_in_circles(stage: Stage) -> None:
    for name in "abc":
        stage.declare(name)
        stage.bind(name, f"queue:{name}")
    for source, target in ("ab", "bc", "ca", "aa", "cb"):
        stage.bind(source, f"exchange:{target}")
    for name in "abc":
        assert sorted(stage.route(name)) == ["queue:a", "queue:b", "queue:c"]


def test_what_matches_nothing_goes_to_the_alternate(stage: Stage) -> None:
    stage.declare("first", "direct", alternate="second")
    stage.declare("second", "direct", alternate="third")
    stage.declare("third", "fanout", alternate="first")
    stage.bind("first", "queue:one", "k")
    stage.bind("third", "queue:three")
    assert stage.route("first", "k") == ["queue:one"]
    assert stage.route("first", "x") == ["queue:three"]
    assert stage.route("second", "k") == ["queue:three"]


def test_an_alternate_that_does_not_exist_is_nowhere(stage: Stage) -> None:
    stage.declare("first", "direct", alternate="later")
    assert stage.route("first", "x") == []
    stage.declare("later")
    stage.bind("later", "queue:jobs")
    assert stage.route("first", "x") == ["queue:jobs"]


def test_alternates_in_a_circle_end(stage: Stage) -> None:
    stage.declare("a", "direct", alternate="b")
    stage.declare("b", "direct", alternate="a")
    stage.declare("self", "direct", alternate="self")
    assert stage.route("a") == []
    assert stage.route("self") == []


def test_the_default_exchange_may_be_an_alternate(stage: Stage) -> None:
    stage.declare("first", "direct", alternate="")
    assert stage.route("first", "mail") == ["queue:mail"]


def test_whether_the_way_depends_on_the_message_is_told(stage: Stage) -> None:
    stage.declare("plain", "topic")
    stage.bind("plain", "exchange:amq.headers", "deep.#")
    subject = Subject(Message(b""), routing_key="a")
    assert stage.table.walk("plain", [subject]).reads_messages is False
    subject.routing_key = "deep.a"
    assert stage.table.walk("plain", [subject]).reads_messages is True


def test_an_exchange_takes_the_bindings_from_it_and_to_it_along(stage: Stage) -> None:
    stage.declare("a")
    stage.declare("b")
    into, out, other = stage.bind("a", "exchange:b"), stage.bind("b", "queue:jobs"), stage.bind("a", "queue:jobs")
    removal = stage.table.plan([stage.table.get("b")], [])
    assert set(removal.bindings) == {into, out}
    stage.table.apply(removal)
    assert (stage.names(), stage.route("a"), stage.table.binding_count) == ({"a"}, ["queue:jobs"], 1)
    stage.table.remove_binding(other)
    stage.table.remove_binding(other)
    assert stage.table.bindings_to("queue:jobs") == []
    assert stage.table.binding_count == 0


def test_an_auto_delete_exchange_goes_with_its_last_binding_and_so_on(stage: Stage) -> None:
    for name in "abc":
        stage.declare(name, auto_delete=True)
    stage.declare("stays")
    stage.bind("stays", "exchange:a")
    stage.bind("a", "exchange:b")
    stage.bind("b", "exchange:c")
    first, last = stage.bind("c", "queue:jobs"), stage.bind("c", "queue:mail")
    stage.table.apply(stage.table.plan([], [first]))
    assert stage.names() == {"a", "b", "c", "stays"}
    stage.table.apply(stage.table.plan([], [last]))
    assert stage.names() == {"stays"}
    assert stage.table.binding_count == 0


def test_an_auto_delete_exchange_that_was_never_bound_stays(stage: Stage) -> None:
    stage.declare("a", auto_delete=True)
    stage.table.apply(stage.table.plan([], []))
    assert stage.names() == {"a"}
