"""What `doctor` finds: a line for each thing it looked at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

State = Literal["ok", "warning", "problem"]
Figures = dict[str, int | float | str | bool | None]

_ORDER: tuple[State, ...] = ("ok", "warning", "problem")


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing: what it is, how it is, and what to do if it is not well. `figures` are for programs."""

    check: str
    state: State = "ok"
    says: str
    advice: str = ""
    figures: Figures = {}

    def as_json(self) -> dict[str, object]:
        return {
            "check": self.check,
            "state": self.state,
            "says": self.says,
            "advice": self.advice or None,
            **self.figures,
        }


def worst(found: Iterable[Finding]) -> State:
    return max((one.state for one in found), key=_ORDER.index, default="ok")
