"""Where keys are in a TOML file: everything that `tomllib` finds has a place, and the key stands there."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path as FilePath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.toml_file import Path, TomlFile, TomlInvalid, TomlPlace, read_toml

DOCUMENT = '''# a comment with = and [brackets]
top = "a # b" # "x"
"quoted.key" = 'it''s'
a . b . "c d" = 1
dates = 1979-05-27 07:32:00
long = """
not = "a key"
[neither]
\\"""
""" # behind
literal = \'\'\'
'' no = 1 \'\'\'\'\'
many = [ # one
  {x = 1, y.z = [{w = "}"}]},
  [],
  "]",
]
empty = {}
[table."sub.table"] # here
key = -1.5e3
[[list]]
one = 1
[[list]]
two = 2
[list.below]
three = 3
[[list.inner]]
four = 4
'''.replace("'it''s'", "'its'")


def key_paths(value: object, above: Path = ()) -> Iterator[Path]:
    """Every key that `tomllib` found, however deep."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield (*above, key)
            yield from key_paths(inner, (*above, key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from key_paths(inner, (*above, number))


def test_the_places_in_a_document_with_everything() -> None:
    places = TomlFile(DOCUMENT).places
    assert set(places) == set(key_paths(tomllib.loads(DOCUMENT)))
    lines = DOCUMENT.split("\n")
    assert places["top",] == TomlPlace(2, 1)
    assert places["a", "b", "c d"] == TomlPlace(4, 1)
    assert lines[places["many", 0, "y", "z"].line - 1][places["many", 0, "y", "z"].column - 1 :].startswith("y.z")
    assert lines[places["list", 1, "below", "three"].line - 1] == "three = 3"
    assert places["table", "sub.table"] == TomlPlace(lines.index('[table."sub.table"] # here') + 1, 2)


# -- any document ------------------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b-c", "1", "log", "x.y", "", "é", 'q"q', "tab\t", "#", "[z]", "="])
SPACES = st.sampled_from(["", " ", "\t", "  "])
BETWEEN = st.sampled_from(["", "\n", "# k = 1\n", "   \n", "\t# [t]\n"])


def spelled_key(name: str, literal: bool) -> str:
    if name and all(c.isascii() and (c.isalnum() or c in "-_") for c in name):
        return name
    if literal and "'" not in name and "\t" not in name:
        return f"'{name}'"
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"').replace("\t", "\\t") + '"'


@st.composite
def keys(draw: st.DrawFn) -> str:
    parts = draw(st.lists(NAMES, min_size=1, max_size=3))
    dot = draw(SPACES) + "." + draw(SPACES)
    literal = draw(st.booleans())
    return dot.join(spelled_key(part, literal) for part in parts)


SCALARS = st.sampled_from(
    ["1", "-0.5", "true", "inf", "1979-05-27 07:32:00", "07:32:00", '"t"', "'l'", '""', "''", r'"\"] # \\"', "'a = b'",
     '"""x\n[y]\n"" ""z"""""', "'''\n# \"\n'''''", '"""\\\n  e"""', '"}"', "0xFF"]
)  # fmt: skip


@st.composite
def inline_tables(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    pairs = draw(st.lists(st.tuples(keys(), inner), max_size=3))
    pad = draw(SPACES)
    return "{" + pad + f"{pad},{pad}".join(f"{key}{pad}={pad}{value}" for key, value in pairs) + pad + "}"


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    gap = draw(st.sampled_from(["", " ", "\n", " # ]\n  ", "\r\n"]))
    more = draw(st.booleans())
    items = draw(st.lists(inner, max_size=3))
    comma = "," + gap if items and more else ""
    return "[" + gap + f"{gap},{gap}".join(items) + gap + comma + "]"


VALUES = st.recursive(SCALARS, lambda inner: arrays(inner) | inline_tables(inner), max_leaves=6)


@st.composite
def lines(draw: st.DrawFn) -> str:
    pad = draw(SPACES)
    kind = draw(st.sampled_from(["pair", "pair", "pair", "table", "tables"]))
    if kind == "pair":
        text = f"{draw(keys())}{pad}={pad}{draw(VALUES)}"
    elif kind == "table":
        text = f"[{pad}{draw(keys())}{pad}]"
    else:
        text = f"[[{pad}{draw(keys())}{pad}]]"
    return pad + text + draw(st.sampled_from(["", " ", " # end", "\t#\"'"])) + "\n" + draw(BETWEEN)


@given(st.lists(lines(), max_size=8))
def test_every_key_that_tomllib_finds_has_a_place_where_it_stands(made: list[str]) -> None:
    text = ""
    for line in made:  # a line that the ones before do not allow (a key that is there) is left out
        try:
            tomllib.loads(text + line)
        except tomllib.TOMLDecodeError:
            continue
        text += line
    text = text.replace("\r\n", "\n")
    places = TomlFile(text).places
    assert set(places) == set(key_paths(tomllib.loads(text)))
    rows = text.split("\n")
    for path, place in places.items():
        assert stands_at(rows[place.line - 1][place.column - 1 :], path), (path, place)


def stands_at(text: str, path: Path) -> bool:
    """Whether some beginning of the text is a key whose last part, or a part of whose, is the last of the path."""
    for end in range(1, len(text) + 1):
        try:
            inner: object = tomllib.loads(f"{text[:end]} = 1")
        except tomllib.TOMLDecodeError:
            continue
        names = []
        while isinstance(inner, dict):
            ((name, inner),) = inner.items()
            names.append(name)
        if path[-1] == names[-1]:
            return True
    return False


@pytest.mark.parametrize("text", ["", "\n", "# nothing", "a=1", "[a]"])
def test_small_documents(text: str) -> None:
    assert set(TomlFile(text).places) == set(key_paths(tomllib.loads(text)))


# -- lines -------------------------------------------------------------------------------------------------------------


def test_lines_of_everything_that_toml_can_say() -> None:
    text = """\
# a comment with [brackets] and = signs
a = 1
"quoted key" = 'x'  # [not.a.table]
b.c = [1,
  2, # two
  { d = 'e' }]
f = \"""
first
second = 3
\"""
when = 2026-03-01 12:00:00
[t]
g = { h = "]", i = { j = 1 } }
[[many]]
k = 1
[[many]]
k = 2
[many.inner]
l = '''a'''
"""
    toml = TomlFile(text)
    expected = {
        ("a",): 2,
        ("quoted key",): 3,
        ("b", "c"): 4,
        ("b", "c", 1): 5,
        ("b", "c", 2, "d"): 6,
        ("f",): 7,
        ("when",): 11,
        ("t", "g", "i", "j"): 13,
        ("many", 0, "k"): 15,
        ("many", 1, "k"): 17,
        ("many", 1, "inner", "l"): 19,
        ("t", "missing"): 12,
    }
    assert {path: toml.line(path) for path in expected} == expected
    assert toml.line_within(("f",), 2) == 9


@given(st.lists(st.text(alphabet="ab\"'\\[]{}=#,. \n", max_size=12), max_size=6))
def test_lines_are_found_behind_any_text(texts: list[str]) -> None:
    quoted = ['"' + t.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"' for t in texts]
    text = "".join(f"k{number} = {value}\n" for number, value in enumerate(quoted)) + "last = 1\n"
    assert TomlFile(text).line(("last",)) == len(texts) + 1


def test_a_table_is_where_its_own_heading_is() -> None:
    assert TomlFile("[a.b]\nc = 1\n[a]\nd = 1\n").line(("a", "missing")) == 3


def test_places_do_not_depend_on_how_lines_end() -> None:
    text = 'a = 1\nb = """\nx\ny"""\n[c]\nd = [1,\n2]\n'
    for toml in (TomlFile(text), TomlFile(text.replace("\n", "\r\n"))):
        assert toml.places["c", "d"] == TomlPlace(6, 1)
        assert (toml.line(("c", "d", 1)), toml.line_within(("b",), 2)) == (7, 4)


@pytest.mark.parametrize(
    ("data", "place"),
    [
        (b"a = 1\nb = ?", TomlPlace(2, 5)),
        (b"a = 1\r\nb = [", TomlPlace(2, 6)),
        (b"a = 1\n\nb = '\xff'", TomlPlace(3, 1)),
        (b"a = 1\na = 2\n", TomlPlace(2, 6)),
    ],
)
def test_what_is_not_toml_is_told_with_its_place(tmp_path: FilePath, data: bytes, place: TomlPlace) -> None:
    (tmp_path / "x.toml").write_bytes(data)
    with pytest.raises(TomlInvalid, match=r"^not valid TOML: ") as raised:
        read_toml(tmp_path / "x.toml")
    assert raised.value.place == place
