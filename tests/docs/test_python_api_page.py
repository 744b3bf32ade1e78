"""The reference of the Python API says what the docstrings say."""

from __future__ import annotations

import waystation
from tests.docs.python_api_page import CLASSES, FUNCTIONS, PAGE, page


def test_the_page_is_what_the_docstrings_make_of_it() -> None:
    assert PAGE.read_text() == page(), "write it again: python -m tests.docs.python_api_page"


def test_every_public_name_is_on_the_page() -> None:
    shown = {name for name, _ in CLASSES} | {name.rpartition(".")[2] for name, _ in FUNCTIONS}
    elsewhere = {"Priority", "MessageType", "WaystationError", "errors", "aio", "__version__"}
    assert set(waystation.__all__) - shown == elsewhere
