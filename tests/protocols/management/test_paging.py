"""Lists and rates of RabbitMQ's management API, as far as a broker of ordinary size does not show them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from waystation.protocols.http.transport.calls import AnyQuery
from waystation.protocols.http.transport.replies import Reply
from waystation.protocols.management import paging
from waystation.protocols.management.calls import Refused
from waystation.protocols.management.paging import TRUNCATED, reply_list
from waystation.protocols.management.rates import MessageRates


def listed(names: Any, gone: str = "", **query: str) -> tuple[Any, Reply]:
    def show(name: str) -> dict[str, Any] | None:
        shown = {"name": name, "size": len(name), "deep": {"er": name, "other": 1}}
        return None if name == gone else shown

    reply = asyncio.run(reply_list(AnyQuery(dict(query)), names, lambda name: str(name), show))
    return json.loads(reply.body), reply


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "MAX_LISTED", 5)
    monkeypatch.setattr(paging, "SHOWN_AT_ONCE", 2)


@pytest.mark.usefixtures("small")
def test_a_list_that_is_too_long_is_cut_and_says_so() -> None:
    names = [f"n{i}" for i in range(6)]
    shown, reply = listed(names)
    assert [one["name"] for one in shown] == names[:5]
    assert reply.headers == {TRUNCATED: "5"}
    shown, reply = listed(names[:5])
    assert (len(shown), reply.headers) == (5, {})
    assert listed([])[0] == []


@pytest.mark.usefixtures("small")
def test_pages_lead_to_all_of_it() -> None:
    names = [f"n{i:02}" for i in range(17)]
    found: list[str] = []
    for page in range(1, 5):
        shown, _ = listed(names, page=str(page), page_size="5")
        assert (shown["page_count"], shown["total_count"], shown["item_count"]) == (4, 17, len(shown["items"]))
        found += [one["name"] for one in shown["items"]]
    assert found == names
    with pytest.raises(Refused, match="Page out of range"):
        listed(names, page="5", page_size="5")
    assert listed([], page="1")[0]["items"] == []


@pytest.mark.usefixtures("small")
def test_only_so_many_are_sorted_by_what_has_to_be_made_first() -> None:
    names = [f"n{i:02}" for i in range(17)]
    with pytest.raises(Refused, match="too many to sort by 'size'"):
        listed(names, page="1", sort="size")
    shown, _ = listed(names, page="1", page_size="3", sort="name", sort_reverse="true")
    assert [one["name"] for one in shown["items"]] == ["n16", "n15", "n14"]
    shown, _ = listed(
        names, page="1", page_size="3", name="n1[0-3]", use_regex="true", sort="deep.er", sort_reverse="true"
    )
    assert [one["name"] for one in shown["items"]] == ["n13", "n12", "n11"]


def test_what_went_meanwhile_is_left_out() -> None:
    assert [one["name"] for one in listed(["a", "b", "c"], gone="b")[0]] == ["a", "c"]


def test_sorting_takes_what_is_missing_first_and_columns_choose() -> None:
    shown, _ = listed(["bb", "a", "ccc"], sort="size", columns="name,deep.er,none,none.at.all,name.of")
    assert shown == [{"name": name, "deep": {"er": name}} for name in ("a", "bb", "ccc")]
    assert [one["name"] for one in listed(["b", "a"], sort="nothing.like.it")[0]] == ["b", "a"]


def test_a_list_is_made_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "TURN_S", 0.0)
    turns = 0

    def names() -> Iterator[str]:
        yield from (f"n{i}" for i in range(5000))

    async def story() -> None:
        nonlocal turns

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await reply_list(AnyQuery({"page": "1"}), names(), str, lambda name: {"name": name})
        counting.cancel()

    asyncio.run(story())
    assert turns > 100


class Clock:
    now = 0.0


def test_a_rate_is_the_growth_between_two_looks() -> None:
    clock = Clock()
    rates = MessageRates(lambda: clock.now)
    assert rates.details("q", {"n": 10}) == {"n": 10}
    clock.now = 0.5
    assert rates.details("q", {"n": 12}) == {"n": 12}, "too soon to say"
    clock.now = 2.0
    assert rates.details("q", {"n": 20}) == {"n": 20, "n_details": {"rate": 5.0}}
    clock.now = 2.5
    assert rates.details("q", {"n": 99}) == {"n": 99, "n_details": {"rate": 5.0}}, "the last one that is known"
    clock.now = 12.0
    assert rates.details("q", {"n": 10, "new": 10}) == {
        "n": 10,
        "n_details": {"rate": -1.0},
        "new": 10,
        "new_details": {"rate": 1.0},
    }


def test_rates_of_what_nobody_looks_at_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("waystation.protocols.management.rates.MAX_KNOWN", 3)
    clock = Clock()
    rates = MessageRates(lambda: clock.now)
    for name in ("a", "b", "c", "a", "d"):
        rates.details(name, {"n": 1})
    clock.now = 10.0
    assert "n_details" in rates.details("a", {"n": 1})
    assert "n_details" not in rates.details("b", {"n": 1})
