"""Many wildcard patterns, asked all at once: which of them match this name?

A trie over words, in which `*` and `#` are words too. A name is read word by word with all the nodes that are still
possible kept together, each once: the child of that word, the child `*`, the child `#` (entered without reading a
word), and every `#` node again (it may take one word more). So the work for a name depends on its length and on the
patterns that begin like it, never on how many others there are; and no pattern makes it exponential, since a node is
never looked at twice for one word.

A name matches as in `patterns`, but a word such as `a*` is an ordinary word here, as in AMQP. Pure; anyone may use it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from waystation.routing.matching.patterns import words_of

V = TypeVar("V", bound=Hashable)


class IndexNode(Generic[V]):
    """The patterns that begin with the words on the way here."""

    __slots__ = ("children", "loops", "values")

    def __init__(self, loops: bool) -> None:
        self.loops = loops
        """Its word is `#`."""
        self.children: dict[str, IndexNode[V]] = {}
        self.values: dict[V, None] = {}
        """Of the patterns that end here."""

    @property
    def empty(self) -> bool:
        return not self.children and not self.values


class PatternIndex(Generic[V]):
    """Values by pattern. The same value under the same pattern is there once."""

    def __init__(self) -> None:
        self._root: IndexNode[V] = IndexNode(loops=False)
        self._count = 0

    def __len__(self) -> int:
        """How many (pattern, value) pairs there are."""
        return self._count

    def add(self, pattern: str, value: V) -> bool:
        """Whether it is new."""
        node = self._root
        for word in words_of(pattern):
            child = node.children.get(word)
            if child is None:
                child = node.children[word] = IndexNode(loops=word == "#")
            node = child
        if value in node.values:
            return False
        node.values[value] = None
        self._count += 1
        return True

    def remove(self, pattern: str, value: V) -> bool:
        """Whether it was there. What only it needed goes with it."""
        way: list[tuple[IndexNode[V], str]] = []
        node = self._root
        for word in words_of(pattern):
            child = node.children.get(word)
            if child is None:
                return False
            way.append((node, word))
            node = child
        if value not in node.values:
            return False
        del node.values[value]
        self._count -= 1
        for parent, word in reversed(way):
            if not parent.children[word].empty:
                break
            del parent.children[word]
        return True

    def lookup(self, name: str) -> dict[V, None]:
        """The values of all patterns that match, each once."""
        nodes = self.begin()
        for word in words_of(name):
            nodes = step(nodes, word)
        found: dict[V, None] = {}
        for node in nodes:
            found.update(node.values)
        return found

    def begin(self) -> list[IndexNode[V]]:
        """The nodes that are possible before the first word. After the last word, the possible ones are the answer."""
        return _with_loops([self._root])


def step(nodes: list[IndexNode[V]], word: str) -> list[IndexNode[V]]:
    """The nodes that are possible after one more word. Looks at each of `nodes` once and at none besides."""
    reached: list[IndexNode[V]] = []
    for node in nodes:
        if node.loops:
            reached.append(node)
        children = node.children
        if children:
            # A name may hold the words `*` and `#`; those of patterns are entered by their own rules.
            child = children.get(word)
            if child is not None and word != "*" and word != "#":
                reached.append(child)
            child = children.get("*")
            if child is not None:
                reached.append(child)
    return _with_loops(reached)


def _with_loops(nodes: list[IndexNode[V]]) -> list[IndexNode[V]]:
    """The nodes, each once, and the `#` nodes that are reached from them without a word."""
    seen = dict.fromkeys(nodes)
    todo: Iterable[IndexNode[V]] = seen
    while loops := [loop for node in todo if (loop := node.children.get("#")) is not None and loop not in seen]:
        seen.update(dict.fromkeys(loops))
        todo = loops
    return list(seen)
