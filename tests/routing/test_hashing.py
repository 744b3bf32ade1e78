"""The consistent-hash exchange: one target for each message, by weight, and few messages move when targets change."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waystation.errors import Invalid
from waystation.message import Message
from waystation.routing.exchanges.binding import Binding
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.subject import Subject
from waystation.routing.table import make_exchange

NOTHING = Message(b"")
KEYS = [f"customer-{number}" for number in range(4_000)]


def ring(weights: dict[str, str], **arguments: Any) -> Exchange:
    named = {name.replace("_", "-", 1): value for name, value in arguments.items()}
    made = make_exchange("x", ExchangeSettings("x-consistent-hash", arguments=named))
    for name, weight in weights.items():
        bind(made, name, weight)
    return made


def bind(made: Exchange, name: str, weight: str = "1") -> Binding:
    made.check(weight, {})
    binding = Binding("x", f"queue:{name}", weight)
    made.add(binding)
    return binding


def owner(made: Exchange, key: str = "", message: Message = NOTHING) -> str:
    [binding] = made.match(Subject(message, routing_key=key))
    return binding.name


def owners(made: Exchange) -> dict[str, str]:
    return {key: owner(made, key) for key in KEYS}


def test_without_targets_nothing_matches() -> None:
    made = ring({})
    assert list(made.match(Subject(Message(b""), routing_key="k"))) == []
    binding = bind(made, "a")
    assert owner(made, "k") == "a"
    made.remove(binding)
    assert list(made.match(Subject(Message(b""), routing_key="k"))) == []


def test_a_key_has_one_owner_whatever_the_order_of_bindings_and_after_a_restart() -> None:
    forward = ring(dict.fromkeys("abcdef", "1"))
    backward = ring(dict.fromkeys("fedcba", "1"))
    assert owners(forward) == owners(backward)
    assert [owner(forward, key) for key in ("", "k", "größe", "orders.eu")] == ["b", "a", "d", "a"]


def test_shares_follow_the_weights() -> None:
    shares = Counter(owners(ring({"a": "1", "b": "1", "c": "2", "d": "4"})).values())
    for name, weight in {"a": 1, "b": 1, "c": 2, "d": 4}.items():
        assert shares[name] == pytest.approx(len(KEYS) * weight / 8, rel=0.3)


def test_a_target_that_comes_takes_its_share_and_moves_nothing_else() -> None:
    made = ring(dict.fromkeys("abcdefghi", "1"))
    before = owners(made)
    joined = bind(made, "new")
    after = owners(made)
    moved = [key for key in KEYS if before[key] != after[key]]
    assert {after[key] for key in moved} == {"new"}
    assert len(moved) == pytest.approx(len(KEYS) / 10, rel=0.4)
    assert len({before[key] for key in moved}) == 9, "everybody gives some"
    made.remove(joined)
    assert owners(made) == before


def test_a_weight_that_is_changed_moves_the_difference_alone() -> None:
    made = ring({"a": "1", "b": "1", "c": "1"})
    first = next(iter(made.bindings.values()))
    before = owners(made)
    bind(made, "a", "3")
    made.remove(first)
    after = owners(made)
    assert {after[key] for key in KEYS if before[key] != after[key]} == {"a"}
    assert after == owners(ring({"b": "1", "a": "3", "c": "1"}))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("123"), st.booleans()), max_size=25))
def test_what_was_bound_and_unbound_before_does_not_matter(changes: list[tuple[str, str, bool]]) -> None:
    made = ring({})
    there: dict[tuple[str, str], Binding] = {}
    for name, weight, look in changes:
        if (name, weight) in there:
            made.remove(there.pop((name, weight)))
        else:
            there[name, weight] = bind(made, name, weight)
        if look:
            list(made.match(Subject(Message(b""), routing_key="k")))
    fresh = ring({})
    for name, weight in there:
        bind(fresh, name, weight)
    for key in KEYS[:100]:
        found = [binding.name for binding in made.match(Subject(Message(b""), routing_key=key))]
        assert found == [binding.name for binding in fresh.match(Subject(Message(b""), routing_key=key))]
        assert len(found) == (1 if there else 0)


@pytest.mark.parametrize("weight", ["", "0", "-1", "1.5", "many", "1001", "٣", "9" * 400])
def test_a_key_that_is_no_weight_is_refused(weight: str) -> None:
    with pytest.raises(Invalid, match="weight"):
        ring({}).check(weight, {})


def test_a_header_or_a_property_is_hashed_instead_of_the_key() -> None:
    weights = dict.fromkeys("abcdefgh", "1")
    by_key = ring(weights)
    by_header = ring(weights, hash_header="customer")
    assert (by_key.reads_messages, by_header.reads_messages) == (False, True)
    for value, text in (("c7", "c7"), (b"c7", "c7"), (7, "7"), (None, ""), ({"a": 1}, None)):
        found = owner(by_header, "whatever", Message(b"", headers={"customer": value}))
        assert text is None or found == owner(by_key, text)
    assert owner(by_header, "k1") == owner(by_header, "k2"), "all that lack it go the same way"
    for name, message in {
        "message_id": Message(b"", id="c7"),
        "correlation_id": Message(b"", correlation_id="c7"),
        "timestamp": Message(b"", timestamp_ms=1_700_000_000_000),
    }.items():
        text = "1700000000000" if name == "timestamp" else "c7"
        assert owner(ring(weights, hash_property=name), "whatever", message) == owner(by_key, text)


@pytest.mark.parametrize(
    "arguments",
    [{"hash_header": 5}, {"hash_property": "priority"}, {"hash_header": "a", "hash_property": "message_id"}],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(Invalid, match="hash-"):
        ring({}, **arguments)
