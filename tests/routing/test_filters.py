"""Filters: what they mean, that nothing in them can hurt the broker, and that what is wrong is said with its place."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.routing.naive_filter import ABSENT, evaluate, render
from waystation.errors import Invalid
from waystation.message import Message, Priority
from waystation.routing.filtering import subject as module
from waystation.routing.filtering.filters import MAX_FILTER_CHARS, Filter, FilterSyntax, Subject, compile_filter
from waystation.routing.filtering.grammar import MAX_DEPTH

ORDER = Message(
    json.dumps(
        {
            "total": 120.5,
            "count": 3,
            "paid": True,
            "note": None,
            "tags": ["new", 7],
            "customer": {"name": "Ada", "größe": 2, "a b": "c"},
            "items": [{"sku": "x1"}, {"sku": "x2"}],
        }
    ).encode(),
    id="m-1",
    key=b"u1",
    headers={"region": "eu", "x-tries": 2, "raw": b"\xff", "utf": b"text", "urgent": True, "deep": {"a": [1, "b"]}},
    priority=Priority.HIGH,
    content_type="application/json",
)


def accepts(text: str, message: Message = ORDER) -> bool:
    return compile_filter(text).matches(message, topic="orders.eu", routing_key="eu.new")


@pytest.mark.parametrize(
    "text",
    [
        "headers.region = 'eu'",
        'headers.region == "eu"',
        "header('region') = 'eu'",
        "header( 'x-tries' ) = 2",
        "headers['x-tries'] < 2.5",
        "headers.x-tries<>3",
        "headers.utf = 'text'",
        "headers.deep.a[1] = 'b'",
        "headers.raw != 'eu' and exists headers.raw",
        "json.total > 100 AND json.total <= 120.5",
        "payload.customer.name = 'Ada'",
        'json.customer."größe" = 2',
        "json.customer['a b'] = 'c'",
        "json.items[0].sku = 'x1' and json.items[-1].sku = 'x2'",
        "json.note = null",
        "json.paid",
        "json.paid = true and not json.paid = false",
        "headers.urgent",
        "'new' in json.tags and 7 in json.tags and 8 not in json.tags",
        "json.count in (1, 2, 3)",
        "json.count not in (4, '3', null, true)",
        "headers.region in ('eu', 'us')",
        "headers.region not like 'u%'",
        "key like 'u_'",
        "key = 'u1' and topic = 'orders.eu' and routing_key like 'eu.%' and id = 'm-1'",
        "topic like 'orders._%'",
        "priority >= 3 and priority = 3",
        "content_type like '%/json'",
        "size > 10 and delay_ms = 0",
        "text like '%\"sku\"%'",
        "exists json.note and exists(json.total) and not exists json.nothing",
        "json.total > json.count",
        "3 <= json.count and 'eu' = headers.region and 5 > json.count",
        "json.count = 3.0",
        "'b' > 'a' and -1 < 0 and 1e3 = 1000",
        "(json.total > 1000 or headers.region = 'eu') and (key = 'x' or key = 'u1')",
        "key = 'x' or key = 'y' or key = 'u1'",
        "not not true",
        "not (false or false)",
        "true or false and false",
        "not false and true",
    ],
)
def test_what_is_so_matches(text: str) -> None:
    assert accepts(text)
    assert not accepts(f"not ({text})")


@pytest.mark.parametrize(
    "field", ["headers.none", "json.none", "json.total.deeper", "json.items[9]", "json.tags.new", "reply_to", "json[0]"]
)
@pytest.mark.parametrize(
    "rest",
    ["= 1", "!= 1", "< 1", ">= 'a'", "= null", "!= null", "in (1, null)", "not in (1)", "like '%'", "not like 'a'", ""],
)
def test_a_comparison_with_a_missing_field_is_false(field: str, rest: str) -> None:
    assert not accepts(f"{field} {rest}")
    assert accepts(f"not {field} {rest}")
    assert not accepts(f"exists {field}")


@pytest.mark.parametrize(
    "text",
    [
        "json.total = '120.5'",
        "json.paid = 1",
        "headers.x-tries = '2'",
        "json.total < 'z'",
        "json.paid > false",
        "json.note < 1",
        "json.tags = 'new'",
        "json.customer = 1",
        "json.paid in (1)",
        "1 in (true)",
        "json.count like '3'",
        "json.count not like '4'",
        "'new' in json.customer",
        "'e' in headers.region",
        "headers.region",
        "json.count",
    ],
)
def test_values_of_two_kinds_are_neither_equal_nor_ordered(text: str) -> None:
    assert not accepts(text)


CROSSED = Message(b'{"n": "5"}', headers={"n": "5", "price": "0.50", "minus": "-3", "tiny": "1e-7", "raw": b"12"})
"""As it comes out of a topic: a header has no type there but text."""


@pytest.mark.parametrize(
    "text",
    [
        "headers.n > 3",
        "3 < headers.n and 5 = headers.n and 5 >= headers.n and 6 != headers.n",
        "headers.n = 5 and headers.n = 5.0 and headers.n = '5'",
        "headers.n != 6 and not headers.n != 5",
        "headers.n in (4, 5) and headers.n not in (6, 7) and not headers.n not in (5)",
        "headers.price < 1 and headers.price = 0.5 and headers.price != '0.5'",
        "headers.minus < 0 and headers.minus >= -3",
        "headers.tiny > 0 and headers.tiny < 0.001",
        "headers.raw = 12",
        "json.n = 5 and text like '%5%'",
        "headers.n > '10'",
    ],
)
def test_a_text_that_is_a_number_compares_with_a_number_as_that_number(text: str) -> None:
    assert accepts(text, CROSSED)
    assert not accepts(f"not ({text})", CROSSED)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "007",
        "+5",
        " 5",
        "5 ",
        "5\n",
        "1_000",
        "0x5",
        "5.",
        ".5",
        "--5",
        "٥",  # a digit, but not one that JSON knows
        "nan",
        "inf",
        "-Infinity",
        "1e999",
        "true",
        "9" * 41,
        "1.2.3",
    ],
)
def test_a_text_that_only_looks_like_a_number_stays_text(name: str) -> None:
    message = Message(b"", headers={"n": name})
    for sign in ("<", "<=", ">", ">=", "="):
        assert not accepts(f"headers.n {sign} 5", message)
    assert accepts("headers.n != 5 and headers.n not in (5, 7, 0)", message)


def test_two_fields_are_compared_as_they_are() -> None:
    message = Message(b'{"n": 5}', headers={"n": "5"})
    assert not accepts("headers.n = json.n or headers.n <= json.n", message)
    assert accepts("headers.n != json.n", message)


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff\xfe", b"{", b'{"total": 5', b"[" * 100_000, b'{"a":' * 50_000, b"nan", b'"\xff"', b"\x00" * 9],
)
def test_a_payload_that_is_not_json_has_no_fields(payload: bytes) -> None:
    assert not accepts("exists json.total or exists json", Message(payload))
    assert not accepts("text = 'x' and not exists text", Message(payload))


def test_json_of_one_value_is_that_value() -> None:
    assert accepts("json = 5", Message(b"5"))
    assert accepts("json = null and exists json", Message(b"null"))
    assert accepts("json[1] = 2", Message(b"[1, 2]"))


def test_json_is_read_once_for_all_filters_and_only_if_one_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[bytes] = []

    def decode(data: bytes) -> Any:
        reads.append(data)
        return msgspec.json.decode(data)

    monkeypatch.setattr(module, "_decode", decode)
    one = Subject(ORDER)
    assert compile_filter("key = 'u1' or json.total > 1").accepts(one)
    assert reads == []
    for text in ("json.total > 1 and json.count = 3", "json.nothing = 1 or payload.count = 3"):
        assert compile_filter(text).accepts(one)
    assert len(reads) == 1
    broken = Subject(Message(b"{"))
    assert not compile_filter("json.a = 1 or json.b = 1").accepts(broken)
    assert len(reads) == 2


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "what"),
    [
        ("headers.region = ", 17, "a value is missing before the end"),
        ("key = 'u1", 6, "a quote is missing"),
        ("(key = 'a'", 10, "parenthesis"),
        ("key = 'a')", 9, "'and', 'or' or the end"),
        ("key = 'a' key", 10, "not 'key'"),
        ("prioritty > 1", 0, "did you mean 'priority'"),
        ("region = 'eu'", 0, "headers.NAME"),
        ("key = eu", 6, "quotes"),
        ("key in (eu)", 8, "quotes"),
        ("key in ()", 8, "value"),
        ("key in ('a'", 11, "',' or ')'"),
        ("key in 5", 7, "list"),
        ("key like 5", 9, "text in quotes"),
        ("key like json.a", 9, "text in quotes"),
        ("key not 'a'", 8, "'in' or 'like'"),
        ("exists 5", 7, "field"),
        ("exists (key", 11, "closing"),
        ("key.a = 1", 0, "has no fields"),
        ("headers = 1", 0, "which header"),
        ("headers[0] = 1", 0, "which header"),
        ("header(region) = 1", 7, "quotes"),
        ("header = 1", 7, "header('name')"),
        ("json. = 1", 5, "behind the dot"),
        ("json[x] = 1", 5, "in quotes"),
        ("json['x' = 1", 9, "closing ]"),
        ("json.a = 12abc", 9, "not a number"),
        ("json.a = 1.", 9, "not a number"),
        ("json.a = 1e999", 9, "too large"),
        ("json.a = " + "9" * 400, 9, "too large"),
        ("a ; drop", 2, "means nothing"),
        ("key = 'a' && key = 'b'", 10, "means nothing"),
        ("5", 1, "comparison"),
        ("'a' and true", 4, "comparison"),
        ("null", 4, "comparison"),
        ("key = 'a' = 'b'", 10, "'and', 'or' or the end"),
        ("not", 3, "missing"),
        ("and", 0, "missing"),
        ("key ~ 'a'", 4, "means nothing"),
        ("größe = 1", 2, "means nothing"),
        ("__import__('os')", 0, "no field"),
        ("", 0, "empty"),
        ("  \n", 0, "empty"),
        ("(" * 200 + "true" + ")" * 200, MAX_DEPTH, "levels"),
        ("not " * 200 + "true", MAX_DEPTH * 4, "levels"),
        (" or ".join(["'a' in json.b"] * 11), 17 * 10 + 7, "more than 10"),
        (" or ".join(["key like '%a_%'"] * 11), 19 * 10 + 9, "more than 10"),
        ("true or " * 1000 + "true", 0, f"limit is {MAX_FILTER_CHARS}"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, position: int, what: str) -> None:
    with pytest.raises(FilterSyntax) as caught:
        compile_filter(text)
    assert caught.value.position == position
    assert what in str(caught.value)
    assert isinstance(caught.value, Invalid)


@pytest.mark.parametrize("before", ["", "json.note = null and ", "true or " * 200, "\n\t"])
def test_a_caret_stands_under_the_place(before: str) -> None:
    with pytest.raises(FilterSyntax) as caught:
        compile_filter(f"{before}key ~ 'a'")
    _, shown, caret = str(caught.value).split("\n")
    assert shown[caret.index("^")] == "~"
    assert f"at character {len(before) + 5}:" in str(caught.value)


def test_likes_that_need_no_scan_are_not_limited() -> None:
    assert accepts(" or ".join(["key like '%x%'", "key like '_x%'"] * 30 + ["key like 'u%1'"]))


def test_a_chain_of_any_length_is_not_deep() -> None:
    assert accepts(" or ".join(["false"] * 400 + ["true"]))
    assert accepts(" and ".join(["true"] * 400))
    assert accepts("not " * MAX_DEPTH + "true")


@given(st.text(max_size=60))
@example("key = '\ud800'")
@example("json['")
@example("json[1")
@example("-")
def test_no_text_gets_anything_but_a_filter_or_filter_syntax(text: str) -> None:
    check(text)


_VOCABULARY = """
key json headers header json.a headers['x'] json[0] payload . [ ] ( ) , ' " '' = == != <> < <= > >= and or not in like
exists true false null 5 -1.5 1e5 'a' 'a%' "b" priority nothing - _ % \\ 'a%_\\' text ; # é
"""
_WORDS = st.sampled_from(_VOCABULARY.split())


@given(st.lists(_WORDS, max_size=14), st.sampled_from([" ", "", "\n"]))
def test_no_mixture_of_its_own_words_gets_anything_but_a_filter_or_filter_syntax(
    words: list[str], between: str
) -> None:
    check(between.join(words))


def check(text: str) -> None:
    error: FilterSyntax | None = None
    try:
        compiled = Filter(text)
        assert compiled.matches(ORDER) in (True, False)
        assert compiled.matches(Message(b"")) in (True, False)
    except FilterSyntax as caught:
        error = caught
    if error is not None:
        assert 0 <= error.position <= len(text)
        assert f"character {error.position + 1}" in str(error) or "empty" in str(error)


# -- against the naive evaluator ---------------------------------------------------------------------------------------

_scalars = st.one_of(
    st.sampled_from(["", "a", "b", "ab", "a%", "it's", '"', "1", "-1", "0.5", "1.0", "-1.5", "1e0", "01", "+1", " 1"]),
    st.integers(-2, 2),
    st.sampled_from([0.0, 1.0, 0.5, -1.5]),
    st.booleans(),
    st.none(),
)
_paths = st.sampled_from(
    [("headers", "a"), ("headers", "b"), ("json", "a"), ("json", "b"), ("json", "b", "a"), ("json", "b", 0), ("key",)]
)
_fields = st.tuples(st.just("field"), _paths)
_constants = st.tuples(st.just("constant"), _scalars)
_values = _fields | _constants
_signs = st.sampled_from(["=", "==", "!=", "<>", "<", "<=", ">", ">="])
_patterns = st.text("ab%_", max_size=4)
_tests = st.one_of(
    st.tuples(st.just("compare"), _signs, _values, _values),
    st.tuples(st.just("in"), st.booleans(), _values, st.lists(_scalars, min_size=1, max_size=4)),
    st.tuples(st.just("member"), st.booleans(), _values, _paths),
    st.tuples(st.just("like"), st.booleans(), _values, _patterns),
    st.tuples(st.just("exists"), _paths),
    st.tuples(st.just("alone"), _paths),
)
_trees = st.recursive(
    _tests,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.just("and"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("or"), st.lists(inner, min_size=2, max_size=3)),
    ),
    max_leaves=8,
)
_json = st.recursive(
    _scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner)
)
_maps = st.dictionaries(st.sampled_from("ab"), _json, max_size=2)


@given(_trees, _maps, _maps | st.just(ABSENT), st.sampled_from([None, "a", "ab"]), st.randoms(use_true_random=False))
def test_it_agrees_with_a_naive_evaluator(tree: Any, headers: Any, payload: Any, key: str | None, dice: Any) -> None:
    fields = {"headers": headers}
    if payload is not ABSENT:
        fields["json"] = payload
    if key is not None:
        fields["key"] = key
    data = b"no json" if payload is ABSENT else json.dumps(payload).encode()
    message = Message(data, key=None if key is None else key.encode(), headers=headers)
    text = render(tree, dice)
    assert compile_filter(text).matches(message) == evaluate(tree, fields), text
