"""The grammar of filters: from tokens to one closure. Nothing is ever handed to Python to evaluate.

    either     = both {"or" both}
    both       = negation {"and" negation}
    negation   = "not" negation | condition
    condition  = "(" either ")" | "exists" field | value [tail]
    tail       = sign value | ["not"] "like" text | ["not"] "in" ( "(" constant {"," constant} ")" | field )
    value      = field | constant
    field      = NAME {"." NAME | "[" NUMBER "]" | "[" TEXT "]"} | "header" "(" TEXT ")"
    constant   = TEXT | NUMBER | "true" | "false" | "null"

Keywords may be written in capitals. `and` and `or` of any length become one flat closure each, so that the depth
of calls is bounded by the depth of parentheses, which is bounded here. Pure; for `filters` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from waystation.errors import near_matches
from waystation.routing.filtering import comparing
from waystation.routing.filtering.comparing import Constant, Test
from waystation.routing.filtering.like import scans
from waystation.routing.filtering.subject import FIELDS, ROOTS, Getter, Step, Subject, getter
from waystation.routing.filtering.tokens import KEYWORDS, Token, syntax_error, tokens_of

MAX_DEPTH = 50
"""Of parentheses and `not`: the parser recurses, and so does what it makes."""

MAX_SCANS = 10
"""Of conditions that go through a whole text or list at Python's own speed (`like` with a `_` between two `%`, `in` a
field). Each may cost 0.1 s for a message of a megabyte."""

_CONSTANTS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


class _Value:
    """One side of a comparison: a field, or a constant that is known now."""

    __slots__ = ("constant", "field")

    def __init__(self, field: Getter | None, constant: Constant = None) -> None:
        self.field = field
        self.constant = constant

    @property
    def get(self) -> Getter:
        constant = self.constant
        return self.field or (lambda subject: constant)


class Parser:
    """One text, read once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(tokens_of(text))
        self._next = 0
        self._depth = 0
        self._scans = 0

    def parse(self) -> Test:
        """Raises FilterSyntax."""
        test = self._either()
        if self._token.kind != "end":
            self._fail(f"'and', 'or' or the end should follow, not {_shown(self._token)}")
        return test

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._tokens[self._next]
        self._next += 1
        return token

    def _taken(self, kind: str, *texts: str) -> bool:
        """Whether the next token is one of these; then it is taken."""
        if self._token.kind == kind and self._token.text in texts:
            self._next += 1
            return True
        return False

    def _expect(self, sign: str, what: str) -> None:
        if not self._taken("sign", sign):
            self._fail(f"{what}, not {_shown(self._token)}")

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        raise syntax_error(what, self._text, self._token.at if at is None else at)

    # -- conditions -------------------------------------------------------------------------------------------------

    def _either(self) -> Test:
        return self._chain("or", self._both, any_of)

    def _both(self) -> Test:
        return self._chain("and", self._negation, all_of)

    def _chain(self, word: str, part: Callable[[], Test], joined: Callable[[tuple[Test, ...]], Test]) -> Test:
        tests = [part()]
        while self._taken("word", word):
            tests.append(part())
        return tests[0] if len(tests) == 1 else joined(tuple(tests))

    def _negation(self) -> Test:
        if self._token.kind != "word" or self._token.text != "not":
            return self._condition()
        self._deeper()
        self._take()
        test = self._negation()
        self._depth -= 1
        return lambda subject: not test(subject)

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._fail(f"more than {MAX_DEPTH} levels of parentheses and 'not'")

    def _condition(self) -> Test:
        token = self._token
        if token.kind == "sign" and token.text == "(":
            self._deeper()
            self._take()
            test = self._either()
            self._expect(")", "a closing parenthesis is missing; 'and', 'or' or ')' should follow")
            self._depth -= 1
            return test
        if self._taken("word", "exists"):
            return self._exists()
        return self._comparison()

    def _exists(self) -> Test:
        parenthesis = self._taken("sign", "(")
        if self._token.kind != "field":
            self._fail(f"'exists' asks for a field, not {_shown(self._token)}")
        field = self._field(self._take())
        if parenthesis:
            self._expect(")", "the closing parenthesis of 'exists' is missing")
        return comparing.exists(field)

    def _comparison(self) -> Test:
        left = self._value()
        token = self._token
        if token.kind == "sign" and token.text in comparing.SIGNS:
            self._take()
            return self._compared(token.text, left, self._value())
        negated = token.kind == "word" and token.text == "not" and self._taken("word", "not")
        if self._taken("word", "like"):
            return self._like(left, negated)
        if self._taken("word", "in"):
            return self._in(left, negated)
        if negated:
            self._fail(f"'in' or 'like' should follow, not {_shown(self._token)}")
        if left.field is not None:
            return comparing.true(left.field)
        if isinstance(left.constant, bool):
            return lambda subject: left.constant is True
        self._fail("a comparison should follow: =, !=, <, <=, >, >=, in or like")

    def _compared(self, sign: str, left: _Value, right: _Value) -> Test:
        if right.field is None and (left.field is not None or comparing.is_number(right.constant)):
            return comparing.compare_constant(sign, left.get, right.constant)
        if left.field is None:
            return comparing.compare_constant(comparing.FLIPPED.get(sign, sign), right.get, left.constant)
        return comparing.compare(sign, left.get, right.get)

    def _like(self, left: _Value, negated: bool) -> Test:
        token = self._token
        if token.kind != "text":
            self._fail(f"'like' asks for a text in quotes, not {_shown(token)}")
        self._take()
        if scans(str(token.value)):
            self._scan(token.at)
        return comparing.like(left.get, str(token.value), negated)

    def _scan(self, at: int) -> None:
        self._scans += 1
        if self._scans > MAX_SCANS:
            self._fail(f"more than {MAX_SCANS} conditions with 'like' (a '_' between two '%') or 'in' a field", at)

    def _in(self, left: _Value, negated: bool) -> Test:
        if self._token.kind == "field":
            self._scan(self._token.at)
            return comparing.member(left.get, self._field(self._take()), negated)
        self._expect("(", "'in' asks for a list in parentheses or a field")
        constants = [self._constant()]
        while self._taken("sign", ","):
            constants.append(self._constant())
        self._expect(")", "',' or ')' should follow")
        return comparing.among(left.get, constants, negated)

    # -- values -----------------------------------------------------------------------------------------------------

    def _value(self) -> _Value:
        token = self._token
        if token.kind == "field":
            return _Value(self._field(self._take()))
        return _Value(None, self._constant())

    def _constant(self) -> Constant:
        token = self._token
        if token.kind in ("text", "number"):
            return self._take().value
        if token.kind == "word" and token.text in _CONSTANTS:
            return _CONSTANTS[self._take().text]
        if token.kind == "field":
            self._fail(f"a text, a number, true, false or null belongs here; {token.text!r} would need quotes")
        self._fail(f"a value is missing before {_shown(token)}")

    def _field(self, token: Token) -> Getter:
        if token.text == "header" and not token.steps:
            return self._header_call()
        if token.text in ROOTS:
            return self._field_with_steps(token, token.steps)
        if token.text not in FIELDS:
            self._fail(self._unknown(token.text), token.at)
        if token.steps:
            self._fail(f"{token.text!r} is one value and has no fields", token.at)
        return getter(token.text, ())

    def _field_with_steps(self, token: Token, steps: tuple[Step, ...]) -> Getter:
        if token.text == "headers" and not (steps and isinstance(steps[0], str)):
            self._fail("which header? Write headers.NAME or headers['any name']", token.at)
        return getter(token.text, steps)

    def _header_call(self) -> Getter:
        self._expect("(", "header('name') is how it is written")
        token = self._token
        if token.kind != "text":
            self._fail(f"a header's name in quotes belongs here, not {_shown(token)}")
        self._take()
        self._expect(")", "the closing parenthesis of 'header' is missing")
        return getter("headers", (str(token.value),))

    @staticmethod
    def _unknown(name: str) -> str:
        near = near_matches(name, [*FIELDS, *ROOTS, *KEYWORDS])
        return (
            f"there is no field {name[:60]!r}{near or ';'} headers are headers.NAME, the payload's fields json.NAME,"
            " and text is written in quotes"
        )


def _shown(token: Token) -> str:
    return token.text if token.kind == "end" else repr(token.text[:40])


def all_of(tests: tuple[Test, ...]) -> Test:
    if len(tests) == 2:
        first, second = tests
        return lambda subject: first(subject) and second(subject)

    def every(subject: Subject) -> bool:
        for test in tests:  # noqa: SIM110 - a generator costs three times as much
            if not test(subject):
                return False
        return True

    return every


def any_of(tests: tuple[Test, ...]) -> Test:
    if len(tests) == 2:
        first, second = tests
        return lambda subject: first(subject) or second(subject)

    def some(subject: Subject) -> bool:
        for test in tests:  # noqa: SIM110 - a generator costs three times as much
            if test(subject):
                return True
        return False

    return some
