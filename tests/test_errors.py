"""What errors say."""

from __future__ import annotations

import pytest

from waystation.errors import near_matches, near_names


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("ordrs", ["orders", "jobs"], "; did you mean 'orders'?"),
        ("Orders", ["orders"], "; did you mean 'orders'?"),
        ("orders.eux", ["orders.eu", "orders.us", "jobs"], "; did you mean 'orders.eu' or 'orders.us'?"),
        ("xyz", ["orders"], ""),
        ("orders", [], ""),
        ("", ["orders", ""], ""),
        ("x" * 5_000, ["x" * 4_999], ""),
    ],
)
def test_near_names_are_named(name: str, known: list[str], expected: str) -> None:
    assert near_matches(name, known) == expected


def test_only_so_many_names_are_looked_at() -> None:
    looked = 0

    def endless() -> object:
        nonlocal looked
        while True:
            looked += 1
            yield f"orders{looked}"

    assert "did you mean" in near_matches("orders", endless())  # type: ignore[arg-type]
    assert looked <= 5_000


def test_a_name_with_something_too_much_in_front_is_found_among_many_that_are_alike() -> None:
    known = [f"orders-2026-{number:03}" for number in range(200)]
    assert near_matches("xorders-2026-150", known).startswith("; did you mean 'orders-2026-150'")


def test_names_that_may_not_be_told_make_room_for_others_and_only_a_few_are_asked_about() -> None:
    asked: list[str] = []

    def seen(name: str) -> bool:
        asked.append(name)
        return name.endswith("7")

    known = [f"orders-2026-{number:03}" for number in range(200)]
    assert near_names("orders-2026-15", [*known[:10], "orders-2026-157"], seen) == [
        "orders-2026-157",
        "orders-2026-007",
    ]
    asked.clear()
    assert near_names("orders-2026-150", known, seen)[0] == "orders-2026-157"
    assert len(asked) == 40
