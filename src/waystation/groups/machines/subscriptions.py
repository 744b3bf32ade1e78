"""From what members ask for (names, patterns) to the topics that exist.

Pure reading of a `TopicView`. A name that does not exist yet simply has no topic; when it appears, the group is told
(`ConsumerGroup.topics_changed`) and looks again.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from waystation.errors import InvalidPattern
from waystation.groups.machines.calls import TopicView
from waystation.groups.machines.consumer_member import ConsumerMember
from waystation.routing.matching.regex import Regex


class Subscriptions:
    """Compiled patterns of one group, kept while a member uses them."""

    def __init__(self, group_id: str) -> None:
        self._group_id = group_id
        self._patterns: dict[str, Regex] = {}

    def check(self, pattern: str, topics: TopicView) -> None:
        """Raises InvalidPattern if it does not compile, or is too costly for the names there are."""
        compiled = self._compiled(pattern)
        for name in topics.meant_by(self._group_id):
            compiled.matches(name)

    def names(self, members: Iterable[ConsumerMember], topics: TopicView) -> dict[str, frozenset[str]]:
        """Per member, the names of existing topics that it is subscribed to."""
        matched: dict[str, frozenset[str]] = {}
        resolved: dict[str, frozenset[str]] = {}
        for member in members:
            names = {name for name in member.topics if topics.partitions_of(name) is not None}
            if member.pattern is not None:
                if member.pattern not in matched:
                    matched[member.pattern] = self._matching(member.pattern, topics)
                names |= matched[member.pattern]
            resolved[member.member_id] = frozenset(names)
        self._patterns = {text: pattern for text, pattern in self._patterns.items() if text in matched}
        return resolved

    def _compiled(self, text: str) -> Regex:
        pattern = self._patterns.get(text)
        if pattern is None:
            pattern = self._patterns[text] = Regex(text)
        return pattern

    def _matching(self, text: str, topics: TopicView) -> frozenset[str]:
        pattern = self._compiled(text)
        found: set[str] = set()
        for name in topics.meant_by(self._group_id):
            try:
                if pattern.matches(name):
                    found.add(name)
            except InvalidPattern:
                continue  # accepted for the topics of then; too costly for this one, which is left out
        return frozenset(found)


def sizes(names: Iterable[str], topics: TopicView) -> dict[UUID, int]:
    """Partition counts by topic id."""
    found: dict[UUID, int] = {}
    for name in names:
        topic_id, count = topics.id_of(name), topics.partitions_of(name)
        if topic_id is not None and count is not None:
            found[topic_id] = count
    return found
