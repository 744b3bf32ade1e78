"""Which topics a subscriber wants: names and patterns, compiled once, asked for every topic that comes along.

Internal topics are never selected, whatever the pattern. Pure; for live and stream subscriptions.
"""

from __future__ import annotations

from collections.abc import Sequence

from waystation.errors import Invalid
from waystation.routing.matching.patterns import NamePattern, Pattern, Syntax, compile_pattern
from waystation.topics.topics import Topic, Topics

MAX_PATTERNS = 1_000
"""In one subscription. Each topic that is made is held against all of them."""


class Selection:
    """See the module. `names` are wanted as they are, `patterns` are asked."""

    __slots__ = ("names", "patterns", "texts")

    def __init__(self, texts: Sequence[str], syntax: Syntax) -> None:
        if not texts:
            raise Invalid("topics: a subscription needs at least one name or pattern")
        if len(texts) > MAX_PATTERNS:
            raise Invalid(f"topics: {len(texts)} names and patterns are too many, the limit is {MAX_PATTERNS}")
        compiled = [compile_pattern(text, syntax) for text in texts]
        self.texts = tuple(texts)
        self.names = frozenset(pattern.text for pattern in compiled if isinstance(pattern, NamePattern))
        self.patterns: tuple[Pattern, ...] = tuple(
            pattern for pattern in compiled if not isinstance(pattern, NamePattern)
        )

    def wants(self, topic: Topic) -> bool:
        if topic.internal:
            return False
        name = topic.name
        return name in self.names or any(pattern.matches(name) for pattern in self.patterns)

    def matching(self, topics: Topics) -> list[Topic]:
        """The topics there are now."""
        if self.patterns:
            return [topic for topic in topics if self.wants(topic)]
        found = (topics.find(name) for name in sorted(self.names))
        return [topic for topic in found if topic is not None and not topic.internal]
