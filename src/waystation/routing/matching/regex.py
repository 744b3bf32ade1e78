"""Regular expressions over names, matched in time linear in the name.

A KIP-848 member may subscribe by a pattern that the broker evaluates. Kafka uses RE2 for it; Python's own `re` would
let a pattern such as `(a+)+b` hold the event loop for longer than the universe has left. So: a small matcher that
follows all alternatives at once (Thompson's construction) and never goes back. The syntax is RE2's, as far as names can
need it; what is left out (look-around, back-references, word boundaries, Unicode classes) is refused by name.

A pattern must match the whole name, as in Kafka. Pure; anyone may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NoReturn

from waystation.errors import InvalidPattern

MAX_PATTERN_CHARS = 4_096
"""Longer patterns are lists of names in disguise; those have a field of their own."""

MAX_STATES = 5_000
"""Counted repetitions multiply; RE2 has such a limit too."""

MAX_ACTIVE = 500
"""Alternatives followed at once. Sensible patterns have a dozen; each one costs time on every character."""

MAX_REPEAT = 1_000
"""As in RE2."""

MAX_DEPTH = 100
"""Nesting of groups: the parser recurses."""

_CACHE_LIMIT = 100_000  # states in remembered transitions, per pattern: a few MB

_Test = Callable[[str], bool]


def _any_character(character: str) -> bool:
    return character != "\n"


def _is_digit(character: str) -> bool:
    return "0" <= character <= "9"


def _is_word(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character == "_")


def _is_space(character: str) -> bool:
    return character in " \t\n\f\r"


_CLASSES: dict[str, _Test] = {"d": _is_digit, "w": _is_word, "s": _is_space}
_POSIX: dict[str, _Test] = {
    "alnum": lambda c: c.isascii() and c.isalnum(),
    "alpha": lambda c: c.isascii() and c.isalpha(),
    "digit": _is_digit,
    "lower": lambda c: "a" <= c <= "z",
    "upper": lambda c: "A" <= c <= "Z",
    "punct": lambda c: c.isascii() and c.isprintable() and not c.isalnum() and c != " ",
    "space": _is_space,
    "word": _is_word,
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}


class Regex:
    """A compiled pattern. `InvalidPattern` from the constructor says what is wrong and where."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN_CHARS:
            raise InvalidPattern(f"the pattern has {len(text)} characters, the limit is {MAX_PATTERN_CHARS}")
        self.text = text
        self._program = _Parser(text).program()
        self._start = self._program.closure([self._program.start], at_start=True)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}
        self._remembered = 0

    def matches(self, name: str) -> bool:
        """Whether the pattern matches the whole name; InvalidPattern if that takes too many alternatives at once."""
        states = self._start
        for character in name:
            if not states:
                return False
            states = self._steps.get((states, character)) or self._step(states, character)
        return self._program.accepts(states)

    def _step(self, states: frozenset[int], character: str) -> frozenset[int]:
        after = self._program.step(states, character)
        if len(after) > MAX_ACTIVE:
            raise InvalidPattern(f"{self.text!r} has too many alternatives open at once; use smaller repetitions")
        if self._remembered > _CACHE_LIMIT:
            self._steps.clear()
            self._remembered = 0
        self._steps[states, character] = after
        self._remembered += len(after) + 1
        return after


class _Program:
    """States, each with one test on a character or with free moves; anchors are free moves with a condition."""

    def __init__(self) -> None:
        self.tests: list[_Test | None] = []
        self.moves: list[list[int]] = []  # after the test, or free if there is none
        self.anchors: dict[int, str] = {}
        self.start = 0
        self.end = 0

    def add(self, test: _Test | None = None) -> int:
        if len(self.tests) >= MAX_STATES:
            raise InvalidPattern(f"the pattern needs more than {MAX_STATES} states; use smaller repetitions")
        self.tests.append(test)
        self.moves.append([])
        return len(self.tests) - 1

    def closure(self, states: Iterable[int], *, at_start: bool = False, at_end: bool = False) -> frozenset[int]:
        """Everything that is reached without reading a character."""
        seen: set[int] = set()
        todo = list(states)
        while todo:
            state = todo.pop()
            if state in seen:
                continue
            seen.add(state)
            anchor = self.anchors.get(state)
            if (anchor == "^" and not at_start) or (anchor == "$" and not at_end):
                continue
            if self.tests[state] is None:
                todo += self.moves[state]
        return frozenset(seen)

    def step(self, states: frozenset[int], character: str) -> frozenset[int]:
        reached: list[int] = []
        for state in states:
            test = self.tests[state]
            if test is not None and test(character):
                reached += self.moves[state]
        return self.closure(reached)

    def accepts(self, states: frozenset[int]) -> bool:
        # `at_start` matters only for an empty name, whose first states went through the closure with it already.
        return self.end in states or self.end in self.closure(states, at_end=True)


_Fragment = tuple[int, int]  # (first state, last state); the last one has free moves only


class _Parser:
    """Recursive descent, building the program as it reads: alternation, sequence, repetition, atom."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._depth = 0
        self._fold = False
        self._program = _Program()

    def program(self) -> _Program:
        if self._text.startswith("(?i)"):
            self._fold = True
            self._at = 4
        first, last = self._alternation()
        if self._at < len(self._text):
            self._fail("a closing parenthesis without an opening one")
        self._program.start, self._program.end = first, last
        return self._program

    def _fail(self, what: str) -> NoReturn:
        raise InvalidPattern(f"{self._text!r} is not a valid pattern: {what} (at character {self._at})")

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self, what: str = "something more") -> str:
        character = self._peek()
        if not character:
            self._fail(f"{what} is missing at the end")
        self._at += 1
        return character

    def _alternation(self) -> _Fragment:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} levels of parentheses")
        first, last = self._program.add(), self._program.add()
        while True:
            branch = self._sequence()
            self._program.moves[first].append(branch[0])
            self._program.moves[branch[1]].append(last)
            if self._peek() != "|":
                break
            self._at += 1
        self._depth -= 1
        return first, last

    def _sequence(self) -> _Fragment:
        first = last = self._program.add()
        while self._peek() not in ("", "|", ")"):
            piece = self._repetition()
            self._program.moves[last].append(piece[0])
            last = piece[1]
        return first, last

    def _repetition(self) -> _Fragment:
        begin = self._at
        piece = self._atom()
        repeats = 0
        while (bounds := self._bounds()) is not None:
            repeats += 1
            if repeats > 1:
                self._fail("a repetition of a repetition; use parentheses")
            end = self._at
            piece = self._repeated(piece, begin, *bounds)
            self._at = end
        return piece

    def _bounds(self) -> tuple[int, int | None] | None:
        character = self._peek()
        bounds: tuple[int, int | None]
        if character in ("*", "+", "?") and character:
            self._at += 1
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[character]
        elif character == "{" and (counted := self._counted()) is not None:
            bounds = counted
        else:
            return None
        if self._peek() == "?":
            self._at += 1  # "lazy" only changes what is captured, and nothing is
        return bounds

    def _counted(self) -> tuple[int, int | None] | None:
        """`{2}`, `{2,}`, `{2,5}`; any other brace is an ordinary character, as in RE2."""
        close = self._text.find("}", self._at)
        low, comma, high = self._text[self._at + 1 : close].partition(",")
        if close < 0 or not (low.isascii() and low.isdigit()) or not (not high or (high.isascii() and high.isdigit())):
            return None
        most = int(low) if not comma else int(high) if high else None
        if int(low) > MAX_REPEAT or (most is not None and not int(low) <= most <= MAX_REPEAT):
            self._fail(f"repetitions are between 0 and {MAX_REPEAT}, the smaller first")
        self._at = close + 1
        return int(low), most

    def _repeated(self, piece: _Fragment, begin: int, low: int, most: int | None) -> _Fragment:
        """The atom, `low` to `most` times. Copies are made by parsing it again: it has no state to share."""
        program = self._program
        first = last = program.add()
        skips: list[int] = []
        copies = max(low, 1) if most is None else most
        for index in range(copies):
            if index >= low:
                skips.append(last)
            part = piece if index == 0 else self._again(begin)
            program.moves[last].append(part[0])
            last = part[1]
            if most is None and index == copies - 1:
                program.moves[part[1]].append(part[0])  # around again
        end = program.add()
        program.moves[last].append(end)
        for state in skips:
            program.moves[state].append(end)
        return first, end

    def _again(self, begin: int) -> _Fragment:
        self._at = begin
        return self._atom()

    def _atom(self) -> _Fragment:
        character = self._take()
        if character == "(":
            return self._group()
        if character == "[":
            return self._single(self._set())
        if character == ".":
            return self._single(_any_character)
        if character in "^$":
            return self._anchor(character)
        if character in "*+?":
            self._fail("nothing to repeat")
        if character == "\\":
            return self._escape()
        return self._single(self._literal(character))

    def _group(self) -> _Fragment:
        if self._peek() == "?":
            self._at += 1
            if self._peek() == "P":
                self._at += 1
            kind = self._take()
            if kind == "<" and self._peek() not in ("=", "!"):
                while self._take("the end of the group's name") != ">":
                    pass
            elif kind != ":":
                self._fail(f"(?{kind} is not offered; (?:…) and (?i) at the very start are")
        inside = self._alternation()
        if self._peek() != ")":
            self._fail("a closing parenthesis is missing")
        self._at += 1
        return inside

    def _escape(self) -> _Fragment:
        character = self._take("the escaped character")
        if character in "Az":
            return self._anchor("^" if character == "A" else "$")
        return self._single(self._escaped_test(character))

    def _escaped_test(self, character: str) -> _Test:
        if character.lower() in _CLASSES:
            test = _CLASSES[character.lower()]
            return test if character.islower() else _negated(test)
        return self._literal(self._escaped_literal(character))

    def _escaped_literal(self, character: str) -> str:
        if character in _ESCAPES:
            return _ESCAPES[character]
        if character == "x":
            digits = self._text[self._at : self._at + 2]
            if len(digits) == 2 and all(digit in "0123456789abcdefABCDEF" for digit in digits):
                self._at += 2
                return chr(int(digits, 16))
        if character.isascii() and character.isalnum():
            self._fail(f"\\{character} is not offered")
        return character

    def _literal(self, wanted: str) -> _Test:
        if self._fold and wanted.lower() != wanted.upper():
            folded = wanted.lower()
            return lambda character: character.lower() == folded
        return lambda character: character == wanted

    def _set(self) -> _Test:
        negate = self._peek() == "^"
        self._at += negate
        tests: list[_Test] = []
        while True:
            character = self._take("the closing ] of a character class")
            if character == "]" and tests:
                break
            tests.append(self._set_member(character))
        test: _Test = lambda c: any(one(c) for one in tests)  # noqa: E731
        return _negated(test) if negate else test

    def _set_member(self, character: str) -> _Test:
        if character == "[" and self._peek() == ":":
            name, found, _ = self._text[self._at + 1 :].partition(":]")
            if not found or name.lstrip("^") not in _POSIX:
                self._fail("an unknown [:class:]")
            self._at += len(name) + 3
            test = _POSIX[name.lstrip("^")]
            return _negated(test) if name.startswith("^") else test
        if character == "\\":
            escaped = self._take("the escaped character")
            if escaped.lower() in _CLASSES:
                return self._escaped_test(escaped)
            character = self._escaped_literal(escaped)
        if self._peek() == "-" and self._text[self._at + 1 : self._at + 2] not in ("", "]"):
            self._at += 1
            return self._range(character, self._take())
        return self._literal(character)

    def _range(self, low: str, high: str) -> _Test:
        if high == "\\":
            high = self._escaped_literal(self._take("the escaped character"))
        if high < low:
            self._fail(f"the range {low}-{high} is backwards")
        if self._fold:
            return lambda c: low <= c <= high or low <= c.lower() <= high or low <= c.upper() <= high
        return lambda c: low <= c <= high

    def _single(self, test: _Test) -> _Fragment:
        state, after = self._program.add(test), self._program.add()
        self._program.moves[state].append(after)
        return state, after

    def _anchor(self, kind: str) -> _Fragment:
        state, after = self._program.add(), self._program.add()
        self._program.anchors[state] = kind
        self._program.moves[state].append(after)
        return state, after


def _negated(test: _Test) -> _Test:
    return lambda character: not test(character)
