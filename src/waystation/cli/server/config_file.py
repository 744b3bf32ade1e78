"""The file of `serve --config`: TOML with where to listen, where to keep data, and the broker's settings.

    data = "/var/lib/waystation"
    kafka = "127.0.0.1:9092"

    [listeners.external]
    protocol = "kafka"
    address = "127.0.0.1:9093"

    [broker]
    log.retention.ms = "7d"

A setting has its full dotted name, written with or without quotes, at the top or under [broker]. Everything is checked
before anything starts. All mistakes are found at once, each with its line and column; the nearest right name is offered
where a name is wrong.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from waystation.cli.server.listeners import STANDARD_LISTENERS, beside, check_name, of_table, parse_listener
from waystation.cli.server.options import OPTIONS, Option, check_exposed, nearest, pairs_of_listeners
from waystation.cli.terminal.setting_units import plain
from waystation.config import BROKER_SETTINGS, TOPIC_SETTINGS, broker_setting
from waystation.errors import Invalid
from waystation.toml_file import Path, TomlInvalid, TomlPlace, read_toml

HEADING = "broker"
LISTENERS = "listeners"
FILES = frozenset({"tls.certificate", "tls.key", "tls.client-ca", "sasl.oauthbearer.jwks.endpoint.url"})
"""Settings that name files."""
TWICE = (
    "; a name is there twice, or begins with another one, as waystation.flush.interval.ms with waystation.flush:"
    " then write it in quotes"
)


@dataclass(frozen=True, slots=True)
class Mistake:
    """What is wrong, and where. Line 0: with the file as a whole."""

    file: str
    line: int
    column: int
    text: str

    def __str__(self) -> str:
        place = f":{self.line}:{self.column}" if self.line else ""
        return f"{self.file}{place}: {self.text}"


@dataclass(frozen=True, slots=True)
class ConfigValue:
    """A value as the file has it, and the line of its key."""

    text: str
    line: int


@dataclass(slots=True)
class ConfigFile:
    """What the file says. `options` are those of `options.OPTIONS`, `listeners` the further ones, by name, `settings`
    those of the broker."""

    path: str
    options: dict[str, ConfigValue] = field(default_factory=dict)
    listeners: dict[str, ConfigValue] = field(default_factory=dict)
    settings: dict[str, ConfigValue] = field(default_factory=dict)
    mistakes: list[Mistake] = field(default_factory=list)


def read_config(path: str) -> ConfigFile:
    """The file, if all of it is right; else Invalid with the first mistake. Whether its addresses may be served is not
    asked here: the environment and the command line have a word in that."""
    config = check_config(path, addresses=False)
    if config.mistakes:
        first, *others = config.mistakes
        more = f" (and {len(others)} more; `waystation config check {path}` shows all)" if others else ""
        raise Invalid(f"{first}{more}")
    return config


def check_config(path: str, *, addresses: bool = True) -> ConfigFile:
    """The file with all its mistakes. Raises Invalid only if it cannot be read at all. `addresses`: an address that
    would not be served if there were nothing but the file is one of them."""
    config = ConfigFile(path)
    try:
        toml = read_toml(path)
    except OSError as error:
        raise Invalid(f"cannot read the config file {path}: {error.strerror}") from None
    except TomlInvalid as error:
        twice = TWICE if "overwrite" in str(error) else ""
        config.mistakes.append(Mistake(path, error.place.line, error.place.column, f"{error}{twice}"))
        return config
    checker = _Checker(config, toml.places)
    checker.take_all(toml.content)
    if addresses:
        checker.check_addresses()
    config.mistakes.sort(key=lambda mistake: (mistake.line, mistake.column))
    return config


class _Checker:
    """Takes the values of a file one by one; a wrong one is a mistake, and the next is looked at."""

    def __init__(self, config: ConfigFile, places: Mapping[Path, TomlPlace]) -> None:
        self._config = config
        self._places = places

    def take_all(self, content: Mapping[str, object]) -> None:
        tables = content.get(LISTENERS)
        if isinstance(tables, dict):
            content = {name: value for name, value in content.items() if name != LISTENERS}
        for path, value in _leaves(content, ()):
            place = self._places[path]
            try:
                self._take(_name_of(path), value, place.line)
            except Invalid as error:
                self._mistake(place, str(error))
        for name, table in tables.items() if isinstance(tables, dict) else ():
            place = self._places[LISTENERS, name]
            try:
                self._take_listener(name, table, place.line)
            except Invalid as error:
                self._mistake(place, f"listener {name!r}: {error}")

    def _take_listener(self, name: str, table: object, line: int) -> None:
        """One that is an option, too, is told once: by its address, or by its table."""
        check_name(name)
        if not isinstance(table, dict):
            raise Invalid(f"it is a table: [{LISTENERS}.{name}], with protocol and address")
        text = beside(of_table(name, table), self._folder)
        parse_listener(name, text)
        into = self._config.options if name in STANDARD_LISTENERS else self._config.listeners
        if name in into:
            raise Invalid(f"it is there already, in line {into[name].line}: delete one of the two")
        into[name] = ConfigValue(text, line)

    def _take(self, name: str, value: object, line: int) -> None:
        option = OPTIONS.get(name)
        if name == LISTENERS and isinstance(value, str):
            found = pairs_of_listeners(value.split())
            found = {one: beside(text, self._folder) for one, text in found.items()}
            self._config.listeners.update((one, ConfigValue(text, line)) for one, text in found.items())
        into = self._config.settings if option is None else self._config.options
        if name in into:
            raise Invalid(f"{name} is there already, in line {into[name].line}: delete one of the two")
        text = self._setting(name, value) if option is None else _option(option, value)
        into[name] = ConfigValue(beside(text, self._folder) if name in STANDARD_LISTENERS else text, line)

    def _setting(self, name: str, value: object) -> str:
        """A file that is named in [tls] is looked for beside this one."""
        text = _setting(name, value)
        if name not in FILES or not text or "://" in text:
            return text
        return os.path.join(self._folder, text)

    @property
    def _folder(self) -> str:
        return os.path.dirname(os.path.abspath(self._config.path))

    def check_addresses(self) -> None:
        """A file that is right but for an address that would not be served is not right."""
        options, settings = self._config.options, self._config.settings
        insecure = "insecure" in options and options["insecure"].text == "true"
        closed = "auth.required" in settings and settings["auth.required"].text == "true"
        given = {name: options[name] for name in STANDARD_LISTENERS if name in options} | self._config.listeners
        for name, one in given.items():
            plan = parse_listener(name, one.text)
            if plan is None:
                continue
            try:
                check_exposed(plan, f'{name} = "{one.text}"', insecure=insecure, closed=closed)
            except Invalid as error:
                self._mistake(TomlPlace(one.line, 1), str(error))

    def _mistake(self, place: TomlPlace, text: str) -> None:
        self._config.mistakes.append(Mistake(self._config.path, place.line, place.column, text))


def _leaves(table: Mapping[str, object], above: Path) -> Iterator[tuple[Path, object]]:
    """Where each value is, and the value; a table is looked into, an array is a value."""
    for key, value in table.items():
        path = (*above, key)
        if isinstance(value, dict) and value:
            yield from _leaves(value, path)
        elif not isinstance(value, dict) or path != (HEADING,):
            yield path, value


def _name_of(path: Path) -> str:
    """`[broker]` is a heading, not a part of the name."""
    parts = [str(part) for part in path]
    return ".".join(parts[1:] if parts[0] == HEADING and len(parts) > 1 else parts)


def _option(option: Option, value: object) -> str:
    if option.kind == "bool":
        if not isinstance(value, bool):
            raise Invalid(f"{option.name} has to be true or false, without quotes")
        return "true" if value else "false"
    if not isinstance(value, str):
        raise Invalid(f"{option.name} has to be a text in quotes")
    try:
        return option.check(value)
    except Invalid as error:
        raise Invalid(f"{option.name}: {error}") from None


def _setting(name: str, value: object) -> str:
    setting = broker_setting(name)
    if setting is None:
        raise Invalid(unknown(name))
    text = plain(name, _text_of(name, value))
    setting.parse(text)
    return text


def unknown(name: str) -> str:
    """The sentence for a name that is none, with the nearest one that is."""
    topics = TOPIC_SETTINGS.get(name)
    if topics is not None and topics.broker_name is not None:
        return f"{name} is a setting of a topic; the broker's default for topics is called {topics.broker_name!r}"
    if topics is not None:
        return f"{name} is a setting of a topic: `waystation topics alter TOPIC --set {name}=…`"
    hint = nearest(name, [*OPTIONS, *BROKER_SETTINGS]) or "; `waystation config show` lists all of them"
    return f"there is no setting {name!r}{hint}"


def _text_of(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise Invalid(f"{name} has to be a text, a number, true or false, or a list of texts")
