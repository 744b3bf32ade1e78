"""`like`: SQL's `%` (any text) and `_` (any one character) over whole texts; a backslash takes their meaning away.

A backtracking matcher can be made to run for years by a pattern such as `%a%a%a%b`. This one never goes back: the
parts between the `%` are found one after the other, each as early as possible, which loses nothing, since a later `%`
takes whatever is in between. A part without `_` is found by `str.find`; one with `_` by shift-and, which keeps all
positions in the bits of one number. So the time is linear in the text. Pure.
"""

from __future__ import annotations

from collections.abc import Callable

_Part = list[str | None]  # characters; None is any one character
_Find = Callable[[str, int, int], int]  # (text, start, end) -> where the part ends, or -1


def compile_like(pattern: str) -> Callable[[str], bool]:
    """A test of whole texts."""
    parts = _split(pattern)
    if len(parts) == 1:
        only = parts[0]
        if None not in only:
            wanted = "".join(map(str, only))
            return lambda text: text == wanted
        return lambda text: len(text) == len(only) and _fits(only, text, 0)
    first, last = parts[0], parts[-1]
    finds = [_finder(part) for part in parts[1:-1] if part]
    least = sum(map(len, parts))

    def matches(text: str) -> bool:
        end = len(text) - len(last)
        if len(text) < least or not _fits(first, text, 0) or not _fits(last, text, end):
            return False
        at = len(first)
        for find in finds:
            at = find(text, at, end)
            if at < 0:
                return False
        return True

    return matches


def scans(pattern: str) -> bool:
    """Whether texts are gone through character by character, and not by `str.find`."""
    return any(None in part for part in _split(pattern)[1:-1])


def _split(pattern: str) -> list[_Part]:
    parts: list[_Part] = [[]]
    characters = iter(pattern)
    for character in characters:
        if character == "%":
            parts.append([])
        elif character == "_":
            parts[-1].append(None)
        elif character == "\\":
            parts[-1].append(next(characters, "\\"))
        else:
            parts[-1].append(character)
    return parts


def _fits(part: _Part, text: str, at: int) -> bool:
    return all(wanted is None or wanted == text[at + index] for index, wanted in enumerate(part))


def _finder(part: _Part) -> _Find:
    if None in part:
        return _shift_and(part)
    wanted = "".join(map(str, part))

    def find(text: str, start: int, end: int) -> int:
        at = text.find(wanted, start, end)
        return at if at < 0 else at + len(wanted)

    return find


def _shift_and(part: _Part) -> _Find:
    """Bit i of `alive`: the part's first i + 1 characters fit what was just read."""
    anywhere = sum(1 << index for index, wanted in enumerate(part) if wanted is None)
    masks = {wanted: anywhere for wanted in part if wanted is not None}
    for index, wanted in enumerate(part):
        if wanted is not None:
            masks[wanted] |= 1 << index
    done = 1 << (len(part) - 1)
    mask_of = masks.get

    def find(text: str, start: int, end: int) -> int:
        alive = 0
        for after, character in enumerate(text[start:end], start + 1):
            alive = (alive + alive + 1) & mask_of(character, anywhere)
            if alive >= done:  # the part's last bit is the highest there is
                return after
        return -1

    return find
