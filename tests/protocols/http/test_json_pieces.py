"""Long answers are made in pieces, a bounded one in each turn, and are the same bytes as if they were made at once."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any, cast

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from waystation.protocols.http import desk
from waystation.protocols.http.calls import SHORT_STEP_BYTES, STEP_BYTES
from waystation.protocols.http.connection import HttpConnection
from waystation.protocols.http.json_pieces import PIECE_CHARS, PIECE_MESSAGES, chars_of, json_pieces
from waystation.protocols.http.replies import END, encode_json, reply_bytes

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


class Rests:
    """A connection that counts how often others got their turn, and what it was told to hold."""

    def __init__(self, goes_after: int = 10_000, *, others_wait: bool = False) -> None:
        self.sizes: list[int] = []
        self.others_wait = others_wait
        self._goes_after = goes_after

    @property
    def gone(self) -> bool:
        return len(self.sizes) >= self._goes_after

    async def rest(self, size: int) -> None:
        self.sizes.append(size)


def made(answer: Any, rests: Rests) -> bytes:
    reply = asyncio.run(desk._made_in_turns(answer, 200, cast(HttpConnection, rests)))
    return b"".join(reply_bytes(reply, "now", keep_alive=True)).partition(b"\r\n\r\n")[2]


def test_others_get_a_turn_after_each_step_of_a_long_answer_and_what_is_held_is_counted() -> None:
    answer = {"messages": [{"payload": "\x00" * 900_000}] * 9}
    rests = Rests()
    assert made(answer, rests) == msgspec.json.encode(answer) + END
    whole = 9 * 900_000 * 6
    assert len(rests.sizes) >= whole // (STEP_BYTES + 6 * PIECE_CHARS) - 1
    assert rests.sizes[0] >= 9 * 900_000, "the text that is not made yet counts as well"
    assert rests.sizes == sorted(rests.sizes)


def test_while_others_wait_for_short_answers_the_steps_of_a_long_one_are_shorter() -> None:
    answer = {"messages": [{"payload": "x" * 900_000}] * 9}
    alone, beside = Rests(), Rests(others_wait=True)
    assert made(answer, alone) == made(answer, beside)
    steps = [later - before for before, later in pairwise(beside.sizes)]
    assert max(steps) <= SHORT_STEP_BYTES + PIECE_CHARS
    assert len(beside.sizes) > 1.5 * len(alone.sizes)


def test_an_ordinary_answer_is_made_in_one_turn() -> None:
    answer = {"messages": [{"payload": "x" * 100}] * 1_000}
    rests = Rests()
    assert made(answer, rests) == msgspec.json.encode(answer) + END
    assert rests.sizes == []


def test_nothing_more_is_made_for_a_client_that_has_gone() -> None:
    rests = Rests(goes_after=2)
    assert len(made({"messages": [{"payload": "\x00" * 900_000}] * 9}, rests)) < 4 * STEP_BYTES
    assert len(rests.sizes) == 2
