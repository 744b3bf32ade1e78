"""Each kind of exchange: which bindings a message matches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.errors import FilterSyntax, Invalid
from waystation.message import Message
from waystation.routing.exchanges.binding import Binding, canonical_arguments
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.subject import Subject
from waystation.routing.table import make_exchange


def exchange(kind: str, *bindings: tuple[str, dict[str, Any]]) -> Exchange:
    """The n-th binding goes to queue:n."""
    made = make_exchange("x", ExchangeSettings(kind))
    for number, (key, arguments) in enumerate(bindings):
        made.check(key, arguments)
        made.add(bound(number, key, arguments))
    return made


def bound(number: int, key: str = "", arguments: dict[str, Any] | None = None) -> Binding:
    arguments = arguments or {}
    return Binding("x", f"queue:{number}", key, arguments, canonical_arguments(arguments))


def matched(made: Exchange, key: str = "", payload: bytes = b"", **headers: Any) -> list[int]:
    message = Message(payload, headers={name.replace("_", "-"): value for name, value in headers.items()})
    found = list(made.match(Subject(message, routing_key=key)))
    assert len(found) == len(set(found)), "each once"
    return sorted(int(binding.target.partition(":")[2]) for binding in found)


def test_direct_goes_by_the_whole_key() -> None:
    made = exchange("direct", ("a", {}), ("a", {"x-note": 1}), ("b", {}), ("", {}), ("a.*", {}))
    assert matched(made, "a") == [0, 1]
    assert matched(made, "") == [3]
    assert matched(made, "a.b") == []


def test_fanout_goes_to_all() -> None:
    assert matched(exchange("fanout", ("a", {}), ("b", {})), "c") == [0, 1]


def test_topic_goes_by_patterns() -> None:
    made = exchange("topic", ("orders.*", {}), ("orders.#", {}), ("#", {}), ("*", {}), ("orders.eu", {}), ("o*", {}))
    assert matched(made, "orders.eu") == [0, 1, 2, 4]
    assert matched(made, "orders") == [1, 2, 3]
    assert matched(made, "") == [2]
    assert matched(made, "o*") == [2, 3, 5]


HEADERS: list[dict[str, Any]] = [
    {"a": 1, "b": "x"},
    {"x-match": "all", "a": 1},
    {"x-match": "any", "a": 1, "b": "x"},
    {"x-match": "all"},
    {"x-match": "any"},
    {"x-match": "all", "a": None},
    {"x-match": "all", "x-a": 1, "a": 1},
    {"x-match": "all-with-x", "x-a": 1, "a": 1},
    {"x-match": "any-with-x", "x-a": 1, "a": 1},
    {"x-match": "any", "x-a": 1},
    {"x-match": "all", "a": True},
    {"x-match": "all", "a": [1, {"b": 2}]},
    {"x-match": "all", "a": b"\xff"},
    {"x-match": "all", "a": b"text"},
]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, [3]),
        ({"a": 1, "b": "x"}, [0, 1, 2, 3, 5, 6, 8]),
        ({"a": 1.0}, [1, 2, 3, 5, 6, 8]),
        ({"b": "x"}, [2, 3]),
        ({"a": "1"}, [3, 5]),
        ({"a": None}, [3, 5]),
        ({"a": True}, [3, 5, 10]),
        ({"x-a": 1}, [3, 8]),
        ({"x-a": 1, "a": 1}, [1, 2, 3, 5, 6, 7, 8]),
        ({"a": [1, {"b": 2}]}, [3, 5, 11]),
        ({"a": b"\xff"}, [3, 5, 12]),
        ({"a": b"text"}, [3, 5, 13]),
        ({"a": "text"}, [3, 5, 13]),
        ({"c": 9}, [3]),
    ],
)
def test_headers_go_by_what_their_arguments_ask_for(headers: dict[str, Any], expected: list[int]) -> None:
    made = exchange("headers", *[("", arguments) for arguments in HEADERS])
    assert matched(made, **headers) == expected


@pytest.mark.parametrize("way", ["some", "", None, 1, "ALL"])
def test_a_way_to_match_headers_that_there_is_not_is_refused(way: Any) -> None:
    with pytest.raises(Invalid, match="x-match"):
        make_exchange("x", ExchangeSettings("headers")).check("", {"x-match": way})


_header_values = st.sampled_from([1, 1.0, True, "1", "x", None, b"\xff", [1]])
_header_maps = st.dictionaries(st.sampled_from(["a", "b", "x-c"]), _header_values, max_size=3)
_ways = st.sampled_from(["all", "any", "all-with-x", "any-with-x"])


def naively(arguments: dict[str, Any], headers: dict[str, Any]) -> bool:
    way = arguments["x-match"]
    results = []
    for name, wanted in arguments.items():
        if name == "x-match" or (name.startswith("x-") and "with-x" not in way):
            continue
        value = headers.get(name)
        alike = isinstance(wanted, bool) == isinstance(value, bool) and wanted == value
        results.append(name in headers and (wanted is None or alike))
    return all(results) if way.startswith("all") else any(results)


@given(
    st.lists(st.tuples(st.booleans(), _ways, _header_maps), max_size=15), st.lists(_header_maps, min_size=1, max_size=5)
)
def test_headers_agree_with_naive_matching_through_all_changes(
    changes: list[tuple[bool, str, dict[str, Any]]], messages: list[dict[str, Any]]
) -> None:
    made = make_exchange("x", ExchangeSettings("headers"))
    for number, (removes, way, arguments) in enumerate(changes):
        if removes and made.bindings:
            made.remove(next(iter(made.bindings.values())))
        else:
            made.add(bound(number, "", {"x-match": way, **arguments}))
    for headers in messages:
        found = set(made.match(Subject(Message(b"", headers=headers))))
        assert found == {each for each in made.bindings.values() if naively(each.arguments, headers)}
    for binding in list(made.bindings.values()):
        made.remove(binding)
    assert not any(vars(made)[name] for name in ("_slots", "_rules", "_always"))


def test_filter_goes_by_the_expression_in_the_argument_or_the_key() -> None:
    made = exchange(
        "filter",
        ("ignored", {"filter": "json.total > 100"}),
        ("json.total > 100", {}),
        ("headers.region = 'eu' and routing_key = 'k'", {}),
        ("", {"filter": "true"}),
    )
    assert matched(made, "k", b'{"total": 200}', region="eu") == [0, 1, 2, 3]
    assert matched(made, "x", b'{"total": 20}', region="eu") == [3]
    assert matched(made, "k", b"no json") == [3]
    for binding in list(made.bindings.values()):
        made.remove(binding)
    assert matched(made, "k", b'{"total": 200}', region="eu") == []


@pytest.mark.parametrize(
    ("key", "arguments"), [("", {}), ("json.a >", {}), ("true", {"filter": "("}), ("", {"filter": 5})]
)
def test_a_filter_that_does_not_compile_is_refused_when_it_is_bound(key: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(FilterSyntax):
        make_exchange("x", ExchangeSettings("filter")).check(key, arguments)


def test_a_kind_that_there_is_not_is_refused_with_those_there_are() -> None:
    with pytest.raises(Invalid, match="direct, fanout, topic, headers, filter, x-consistent-hash, x-delayed-message"):
        make_exchange("x", ExchangeSettings("x-random"))


@pytest.mark.parametrize("kind", ["direct", "fanout", "topic", "headers", "filter", "x-consistent-hash"])
def test_a_delayed_exchange_routes_as_the_kind_that_it_names(kind: str) -> None:
    plain = make_exchange("x", ExchangeSettings(kind))
    delayed = make_exchange("x", ExchangeSettings("x-delayed-message", arguments={"x-delayed-type": kind}))
    assert delayed.reads_messages is plain.reads_messages
    keys = {"filter": ["headers.a = 'b'", "true"], "x-consistent-hash": ["1", "2"]}.get(kind, ["a.*", "a.b"])
    arguments = {"a": "b"} if kind == "headers" else {}
    bindings = [bound(number, key, arguments) for number, key in enumerate(keys)]
    for made in (plain, delayed):
        for binding in bindings:
            made.check(binding.key, binding.arguments)
            made.add(binding)
    for key in ("a.b", "a.*", "other"):
        assert matched(delayed, key) == matched(plain, key)
        assert matched(delayed, key, a="b") == matched(plain, key, a="b")
    delayed.remove(bindings[0])
    assert list(delayed.bindings.values()) == bindings[1:]
    assert 0 not in matched(delayed, "a.b", a="b")
    if kind != "headers":
        with pytest.raises(Invalid, match="of the kind 'x-delayed-message' and does not look at 'a'"):
            delayed.check(keys[0], {"a": "b"})


@pytest.mark.parametrize("inner", [None, 5, "x-delayed-message", "none"])
def test_a_delayed_exchange_names_a_kind_that_there_is(inner: Any) -> None:
    arguments = {} if inner is None else {"x-delayed-type": inner}
    with pytest.raises(Invalid, match="x-delayed-type is one of direct"):
        make_exchange("x", ExchangeSettings("x-delayed-message", arguments=arguments))


def test_a_delayed_exchange_refuses_bindings_that_its_kind_refuses() -> None:
    made = make_exchange("x", ExchangeSettings("x-delayed-message", arguments={"x-delayed-type": "x-consistent-hash"}))
    with pytest.raises(Invalid, match="weight"):
        made.check("no weight", {})
