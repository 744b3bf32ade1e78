"""A headers exchange: to the bindings whose arguments the message's headers agree with.

`x-match` says how: `all` (the default) or `any` of the other arguments; arguments that begin with `x-` count only with
`all-with-x` and `any-with-x`. An argument that is null asks only that the header is there. Values agree if they are
equal and of one kind: the text '1' is not the number 1.

Bindings are found by one of their headers (of `all`: by the one that fewest others are found by; of `any`: by each),
so that a message is compared with bindings that have something in common with it, not with all.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from waystation.errors import Invalid
from waystation.routing.exchanges.binding import MATCH, Binding
from waystation.routing.exchanges.exchange import Exchange, ExchangeSettings
from waystation.routing.filtering.comparing import is_number, same
from waystation.routing.filtering.subject import Subject, plain

_WAYS = ("all", "any", "all-with-x", "any-with-x")

_Slot = tuple[Hashable, ...]


class HeadersExchange(Exchange):
    reads_messages = True

    def __init__(self, name: str, settings: ExchangeSettings) -> None:
        super().__init__(name, settings)
        self._rules: dict[Binding, _Rule] = {}
        self._slots: dict[_Slot, dict[Binding, None]] = {}
        self._always: dict[Binding, None] = {}

    def check(self, key: str, arguments: dict[str, Any]) -> None:
        if (way := arguments.get(MATCH, "all")) not in _WAYS:
            raise Invalid(f"arguments: {MATCH} is one of {', '.join(_WAYS)}, not {way!r}")

    def _admit(self, binding: Binding) -> None:
        rule = _Rule(binding.arguments)
        if rule.every and not rule.wanted:
            self._always[binding] = None
        elif rule.every:
            rule.slots = [min(rule.slots, key=lambda slot: len(self._slots.get(slot, ())))]
        for slot in rule.slots:
            self._slots.setdefault(slot, {})[binding] = None
        self._rules[binding] = rule

    def _dismiss(self, binding: Binding) -> None:
        rule = self._rules.pop(binding)
        self._always.pop(binding, None)
        for slot in rule.slots:
            entries = self._slots[slot]
            entries.pop(binding, None)
            if not entries:
                del self._slots[slot]

    def match(self, subject: Subject) -> Iterable[Binding]:
        headers = subject.message.headers
        found = dict(self._always)
        refused: set[Binding] = set()
        for name, value in headers.items():
            for slot in ((name,), _slot(name, plain(value))):
                for binding in self._slots.get(slot, ()):
                    if binding in found or binding in refused:
                        continue
                    if self._rules[binding].accepts(headers):
                        found[binding] = None
                    else:
                        refused.add(binding)
        return found


class _Rule:
    """What a binding's arguments ask for."""

    __slots__ = ("every", "slots", "wanted")

    def __init__(self, arguments: dict[str, Any]) -> None:
        way = arguments.get(MATCH, "all")
        self.every = way.startswith("all")
        with_x = way.endswith("-with-x")
        self.wanted = {
            name: plain(value)
            for name, value in arguments.items()
            if name != MATCH and (with_x or not name.startswith("x-"))
        }
        self.slots = list(dict.fromkeys(_slot(name, value) for name, value in self.wanted.items()))

    def accepts(self, headers: dict[str, Any]) -> bool:
        agree = (name in headers and _agrees(value, headers[name]) for name, value in self.wanted.items())
        return all(agree) if self.every else any(agree)


def _agrees(wanted: Any, value: Any) -> bool:
    value = plain(value)
    if wanted is None or same(wanted, value):
        return True
    # Bytes that are no text, lists and objects are of no kind, but can be equal all the same.
    return type(wanted) is type(value) and not isinstance(value, str | int | float) and bool(wanted == value)


def _slot(name: str, value: Any) -> _Slot:
    """Where bindings with this header are found: by name and value, or by the name alone."""
    if isinstance(value, bool):
        return name, "boolean", value
    if isinstance(value, str):
        return name, "text", value
    if is_number(value):
        return name, "number", value
    return (name,)
