"""The bookkeeping of one partition: what may be committed, against a model that keeps everything."""

from __future__ import annotations

from typing import cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from waystation.message import Delivered, Message
from waystation.subscriptions.stream_share import StreamShare
from waystation.topics.reading import PartitionReader


class ShareMachine(RuleBasedStateMachine):
    """Offsets are delivered in order, with gaps, and become done in any order, one by one or up to somewhere."""

    @initialize(start=st.integers(0, 5))
    def begin(self, start: int) -> None:
        self.share = StreamShare(cast(PartitionReader, None), lambda share: None)
        self.share.begin(start, start)
        self.delivered: list[int] = []
        self.done: set[int] = set()
        self.tags: dict[int, int] = {}

    @rule(gaps=st.lists(st.integers(1, 3), min_size=1, max_size=5), passed=st.integers(0, 2))
    def deliver(self, gaps: list[int], passed: int) -> None:
        offset = self.share.position - 1
        offsets = [offset := offset + gap for gap in gaps]
        self.share.delivered([Delivered(o, 1, 0, Message(b""), "t", 0, o) for o in offsets])
        for o in offsets:
            self.share.tags[o] = self.tags[o] = 1000 + o
        self.delivered += offsets
        self.share.move(offset + 1 + passed)

    @property
    def outstanding(self) -> list[int]:
        return [offset for offset in self.delivered if offset not in self.done]

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def one_is_done(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(self.outstanding))
        del self.share.tags[offset], self.tags[offset]
        self.share.done(offset)
        self.done.add(offset)

    @rule(data=st.data())
    def all_before_are_done(self, data: st.DataObject) -> None:
        before = data.draw(st.integers(0, self.share.position))
        passed = {offset for offset in self.outstanding if offset < before}
        gone = self.share.done_before(before)
        assert sorted(gone) == sorted(self.tags.pop(offset) for offset in passed)
        self.done |= passed

    @invariant()
    def the_settled_offset_is_the_first_that_is_not_done(self) -> None:
        if hasattr(self, "share"):
            assert self.share.settled == min(self.outstanding, default=self.share.position)
            assert self.share.tags == self.tags

    @precondition(lambda self: self.outstanding)
    @rule(data=st.data())
    def what_would_be_settled(self, data: st.DataObject) -> None:
        wanted = set(data.draw(st.lists(st.sampled_from(self.outstanding), min_size=1, unique=True)))
        left = [offset for offset in self.outstanding if offset not in wanted]
        assert self.share.settled_with(wanted) == min(left, default=self.share.position)


ShareMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestShare = ShareMachine.TestCase
