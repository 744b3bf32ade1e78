"""Filters by the book: a tree is evaluated and written as text in the plainest way there is."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any

ABSENT = object()


def evaluate(tree: Any, fields: dict[str, Any]) -> bool:
    match tree:
        case ("not", inner):
            return not evaluate(inner, fields)
        case ("and", parts):
            return all(evaluate(part, fields) for part in parts)
        case ("or", parts):
            return any(evaluate(part, fields) for part in parts)
        case ("exists", path):
            return look_up(path, fields) is not ABSENT
        case ("alone", path):
            return look_up(path, fields) is True
        case ("compare", sign, left, right):
            a, b = value_of(left, fields), value_of(right, fields)
            if right[0] == "constant":
                a = beside(a, b)
            if left[0] == "constant":
                b = beside(b, a)
            return compared(sign, a, b)
        case ("in", negated, value, constants):
            found = value_of(value, fields)
            return found is not ABSENT and any(equal(beside(found, one), one) for one in constants) != negated
        case ("member", negated, value, path):
            found, values = value_of(value, fields), look_up(path, fields)
            usable = found is not ABSENT and isinstance(values, list)
            return usable and any(equal(found, one) for one in values) != negated
        case ("like", negated, value, pattern):
            found = value_of(value, fields)
            return isinstance(found, str) and like(found, pattern) != negated
    raise ValueError(tree)


def like(text: str, pattern: str) -> bool:
    parts = {"%": ".*", "_": "."}
    regex = "".join(parts.get(char) or re.escape(char) for char in pattern)
    return re.fullmatch(regex, text, re.DOTALL) is not None


def beside(value: Any, constant: Any) -> Any:
    """Beside a number that stands in the filter, a text that JSON would read as a number is one."""
    if kind(constant) != "number" or not isinstance(value, str):
        return value
    try:
        found = json.loads(value)
    except ValueError:
        return value
    return found if kind(found) == "number" and value.strip() == value else value


def kind(value: Any) -> str:
    if value is ABSENT:
        return "absent"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else "other"


def equal(left: Any, right: Any) -> bool:
    return kind(left) == kind(right) and kind(left) not in ("absent", "other") and bool(left == right)


def compared(sign: str, left: Any, right: Any) -> bool:
    if left is ABSENT or right is ABSENT:
        return False
    if sign in ("=", "=="):
        return equal(left, right)
    if sign in ("!=", "<>"):
        return not equal(left, right)
    if kind(left) != kind(right) or kind(left) not in ("number", "text"):
        return False
    return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign])


def value_of(value: Any, fields: dict[str, Any]) -> Any:
    return look_up(value[1], fields) if value[0] == "field" else value[1]


def look_up(path: tuple[Any, ...], fields: Any) -> Any:
    for step in path:
        if type(fields) is not (dict if isinstance(step, str) else list):
            return ABSENT
        try:
            fields = fields[step]
        except LookupError:
            return ABSENT
    return fields


def render(tree: Any, dice: Random) -> str:
    """The tree as somebody could have written it."""

    def word(text: str) -> str:
        return dice.choice([text, text.upper()])

    def negation(negated: bool) -> str:
        return word("not ") if negated else ""

    match tree:
        case ("not", inner):
            return f"{word('not')} ({render(inner, dice)})"
        case ("and" | "or" as joint, parts):
            return f" {word(joint)} ".join(f"({render(part, dice)})" for part in parts)
        case ("exists", path):
            return f"{word('exists')} {field(path, dice)}"
        case ("alone", path):
            return field(path, dice)
        case ("compare", sign, left, right):
            space = dice.choice(["", " ", "\n"])
            return f"{value(left, dice)}{space}{sign}{space}{value(right, dice)}"
        case ("in", negated, one, constants):
            listed = ", ".join(constant(each, dice) for each in constants)
            return f"{value(one, dice)} {negation(negated)}{word('in')} ({listed})"
        case ("member", negated, one, path):
            return f"{value(one, dice)} {negation(negated)}{word('in')} {field(path, dice)}"
        case ("like", negated, one, pattern):
            return f"{value(one, dice)} {negation(negated)}{word('like')} {constant(pattern, dice)}"
    raise ValueError(tree)


def value(value: Any, dice: Random) -> str:
    return field(value[1], dice) if value[0] == "field" else constant(value[1], dice)


def field(path: tuple[str | int, ...], dice: Random) -> str:
    root, *steps = path
    text = str(root)
    if root == "json":
        text = dice.choice(["json", "payload"])
    if root == "headers" and len(steps) == 1 and dice.random() < 0.3:
        return f"header('{steps[0]}')"
    for step in steps:
        text += f"[{step}]" if isinstance(step, int) else dice.choice([f".{step}", f"['{step}']", f'."{step}"'])
    return text


def constant(value: Any, dice: Random) -> str:
    if isinstance(value, str):
        quote = dice.choice("'\"")
        return quote + value.replace(quote, quote * 2) + quote
    return (
        {True: "true", False: "false", None: "null"}[value]
        if value is None or value is True or value is False
        else repr(value)
    )
