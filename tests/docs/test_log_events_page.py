"""The reference of log events has every event of the tree, with its level, text and fields."""

from __future__ import annotations

from tests.docs.log_events_page import PAGE, page


def test_the_page_is_what_the_code_logs() -> None:
    text = PAGE.read_text()
    assert page(text) == text, "run `python -m tests.docs.log_events_page`"
