"""JSON of long answers in pieces: the same bytes as if they were made at once, and each of them short."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from waystation.protocols.http.transport.json_pieces import PIECE_CHARS, PIECE_MESSAGES, chars_of, json_pieces
from waystation.protocols.http.transport.replies import encode_json

LONG = '\x00ä\U0001f600"\\x' * PIECE_CHARS
short = st.fixed_dictionaries(
    {"id": st.text(max_size=5), "payload": st.text(max_size=20)},
    optional={"headers": st.dictionaries(st.text(), st.integers())},
)
long = st.builds(lambda cut, rest: {"id": "a", "payload": LONG[cut:], **rest}, st.integers(0, 9), short)
messages = st.lists(short | long, max_size=6)
answers = st.one_of(
    messages,
    short,
    long,
    st.fixed_dictionaries({"messages": messages}, optional={"next_offset": st.integers(0, 9)}),
    st.none(),
)


@given(answers)
def test_the_pieces_are_the_same_bytes(answer: Any) -> None:
    assert b"".join(json_pieces(answer)) == encode_json(answer)


def test_a_text_that_has_to_be_escaped_is_cut() -> None:
    pieces = list(json_pieces({"messages": [{"payload": "\x00" * (10 * PIECE_CHARS)}] * 3}))
    assert max(map(len, pieces)) == 6 * PIECE_CHARS
    assert len([piece for piece in pieces if len(piece) > 100]) == 30


def test_many_short_messages_are_cut_by_count_and_by_size() -> None:
    many = list(json_pieces({"messages": [{"payload": "x"}] * (3 * PIECE_MESSAGES)}))
    assert max(piece.count(b"payload") for piece in many) == PIECE_MESSAGES
    wide = list(json_pieces({"messages": [{"payload": "x" * (PIECE_CHARS // 4)}] * 20}))
    assert max(map(len, wide)) < 2 * PIECE_CHARS


def test_an_ordinary_answer_with_messages_is_a_handful_of_pieces() -> None:
    answer = {"messages": [{"payload": "x" * 100}] * 100}
    assert len(list(json_pieces(answer))) <= 5
    assert chars_of(answer) == 10_000
