"""What happened to a group: changes are noted once, and the notes are bounded."""

from __future__ import annotations

import pytest

from waystation.groups import history
from waystation.groups.history import GroupHistory
from waystation.groups.machines.classic_member import assigned_partitions


class Clock:
    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        self.ms += 1
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


def test_a_note_that_says_the_same_again_is_dropped() -> None:
    notes = GroupHistory(Clock())
    for state, members in (("Empty", 0), ("Stable", 1), ("Stable", 1), ("Stable", 2), ("Stable", 1)):
        notes.note("g", state, members, f"{members}")
    assert [(entry.state, entry.members) for entry in notes.of("g")] == [
        ("Empty", 0),
        ("Stable", 1),
        ("Stable", 2),
        ("Stable", 1),
    ]
    assert [entry.time_ms for entry in notes.of("g")] == [1, 2, 3, 4]
    notes.forget("g")
    assert notes.of("g") == []
    notes.forget("g")


def test_only_the_last_entries_of_the_last_groups_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_GROUPS", 3)
    notes = GroupHistory(Clock())
    for count in range(history.MAX_ENTRIES + 20):
        notes.note("busy", "Stable", count)
    assert [entry.members for entry in notes.of("busy")] == list(range(20, history.MAX_ENTRIES + 20))
    for name in ("a", "b"):
        notes.note(name, "Empty", 0)
    notes.note("busy", "Empty", 0)
    notes.note("c", "Empty", 0)
    assert not notes.of("a")  # it was quiet for longest
    assert all(notes.of(name) for name in ("busy", "b", "c"))


def test_all_groups_together_keep_so_many_entries_of_so_many_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_IN_ALL", 10)
    notes = GroupHistory(Clock())
    for name in ("a", "b", "c"):
        for count in range(4):
            notes.note(name, "Stable", count, "x" * 10_000)
    assert [len(notes.of(name)) for name in ("a", "b", "c")] == [0, 4, 4]
    assert {len(entry.why) for entry in notes.of("c")} == {history.LONGEST_WHY}
    notes.forget("b")
    for count in range(6):
        notes.note("d", "Stable", count)
    assert [len(notes.of(name)) for name in ("c", "d")] == [4, 6]


@pytest.mark.parametrize(
    ("assignment", "found"),
    [
        (b"", None),
        (b"\0\1\0\0\0\0\0\0\0\0", []),
        (b"\0\1\0\0\0\1\0\1t\0\0\0\2\0\0\0\0\0\0\0\7\xff\xff\xff\xff", [("t", [0, 7])]),
        (b"\0\1\0\0\0\1\0\1t\x7f\xff\xff\xff", None),
        (b"\0\1\0\0\0\1\0\1t\xff\xff\xff\xff", None),
        (b"\0\1\0\0\0\2\0\1t\0\0\0\0", None),
        (b"\0\1\0\0\0\1\xff\xff\0\0\0\0", None),
        (b"something of connect's own", None),
    ],
)
def test_an_assignment_is_read_or_left_alone(assignment: bytes, found: list[tuple[str, list[int]]] | None) -> None:
    assert assigned_partitions(assignment) == found
