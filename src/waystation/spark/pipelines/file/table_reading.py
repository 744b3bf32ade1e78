"""One table of a pipeline file, asked key by key; what does not fit is noted with its line, and reading goes on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from waystation.errors import near_matches
from waystation.spark.pipelines.file.problems import FileProblem
from waystation.toml_file import Path, TomlFile


class TableReader:
    """A table, where it stands, and the list that takes what is wrong."""

    def __init__(
        self, values: Mapping[str, Any], path: Path, what: str, toml: TomlFile, problems: list[FileProblem]
    ) -> None:
        self._values = values
        self._path = path
        self._what = what
        self._toml = toml
        self._problems = problems

    def problem(self, key: str | Path, text: str) -> None:
        """Notes a mistake at a key; an empty path means the table itself."""
        path = (*self._path, key) if isinstance(key, str) else (*self._path, *key)
        self._problems.append(FileProblem(self._toml.line(path), text))

    def value(self, key: str) -> Any:
        return self._values.get(key)

    def names(self) -> list[str]:
        """All keys."""
        return list(self._values)

    def given(self, known: Iterable[str]) -> dict[str, Any]:
        """Those of the known keys that are there."""
        return {key: self._values[key] for key in known if key in self._values}

    def text(self, key: str, *, needed: bool = False) -> str | None:
        value = self._values.get(key)
        if value is None:
            if needed:
                self.problem((), f"{self._what} needs `{key}`")
            return None
        if not isinstance(value, str) or not value.strip():
            self.problem(key, f"{key} has to be a text, and is {_spell(value)}")
            return None
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """One text or a list of texts."""
        value = self._values.get(key)
        if value is None:
            return ()
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) and item.strip() for item in values):
            self.problem(key, f"{key} has to be a text or a list of texts, and is {_spell(value)}")
            return ()
        return tuple(item.strip() for item in values)

    def flag(self, key: str) -> bool | None:
        value = self._values.get(key)
        if value is not None and not isinstance(value, bool):
            self.problem(key, f"{key} has to be true or false, and is {_spell(value)}")
            return None
        return value

    def number(self, key: str) -> int | None:
        value = self._values.get(key)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            self.problem(key, f"{key} has to be a whole number from 1 on, and is {_spell(value)}")
            return None
        return value

    def word(self, key: str, words: tuple[str, ...]) -> str | None:
        """One of a few words."""
        value = self.text(key)
        if value is not None and value not in words:
            near = near_matches(value, words) or f": it is one of {', '.join(words)}"
            self.problem(key, f"{key} cannot be {value!r}{near}")
            return None
        return value

    def options(self, key: str) -> dict[str, str]:
        """A table of plain values, as texts. Dotted names may be written with or without quotes."""
        value = self._values.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.problem(key, f"{key} has to be a table, and is {_spell(value)}")
            return {}
        return dict(self._flat(value, (), key))

    def _flat(self, table: dict[str, Any], above: tuple[str, ...], key: str) -> Iterable[tuple[str, str]]:
        for name, value in table.items():
            path = (*above, name)
            if isinstance(value, dict):
                yield from self._flat(value, path, key)
            elif isinstance(value, bool):
                yield ".".join(path), str(value).lower()
            elif isinstance(value, str | int | float):
                yield ".".join(path), str(value)
            else:
                self.problem((key, *path), f"{'.'.join(path)} has to be a text, a number or a boolean")

    def table(self, key: str, what: str) -> TableReader | None:
        value = self._values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.problem(key, f"{key} has to be a table, and is {_spell(value)}")
            return None
        return TableReader(value, (*self._path, key), what, self._toml, self._problems)

    def tables(self, key: str) -> list[tuple[str, TableReader]]:
        """The tables in a table, by name."""
        value = self._values.get(key)
        if value is None:
            return []
        if not isinstance(value, dict):
            self.problem(key, f"write [{key}.NAME], with a name of your choice, in single brackets")
            return []
        found = []
        for name, inner in value.items():
            path = (*self._path, key, name)
            if isinstance(inner, dict):
                found.append((name, TableReader(inner, path, f"[{key}.{name}]", self._toml, self._problems)))
            else:
                self.problem((key, name), f"write [{key}.NAME], with a name of your choice: {name} is not a table")
        return found

    def one_of(self, kinds: Mapping[str, str]) -> str | None:
        """Which of these keys is there: exactly one has to be."""
        there = [key for key in kinds if key in self._values]
        if len(there) == 1:
            return there[0]
        if there:
            self.problem(there[1], f"{self._what} has {' and '.join(there)}: leave one of them")
        elif not any(near_matches(key, kinds) for key in self._values if isinstance(key, str)):
            self.problem((), f"{self._what} needs one of {', '.join(kinds)}")
        return None

    def knows_all(self, known: Mapping[str, str]) -> bool:
        """Whether no key is unknown: one that is misspelt is not missing."""
        return self._values.keys() <= known.keys()

    def refuse_others(self, known: Mapping[str, str]) -> None:
        """Notes every key that is not known, with the nearest one that is."""
        for key in self._values:
            if key not in known:
                near = near_matches(key, known) or f"; it knows {', '.join(known)}"
                self.problem(key, f"{self._what} has no key {key!r}{near}")


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "empty" if not value.strip() else repr(value)
    names = {dict: "a table", list: "a list", int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")
