"""What a broker is told, from all the places where it can be told: flags over the environment over the file.

Every value is kept with where it comes from, so that `config show` can say so and an error can point there. What is
wrong is found here, before anything is started. `serve`, `config` and `doctor` call this; nobody else needs to.

Variables of settings are `WAYSTATION_SET_` and the setting's name in capitals, with underscores for its dots:
`WAYSTATION_SET_LOG_RETENTION_MS`. No setting has an underscore in its name, so there is no second way to read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from waystation.cli.server.listeners import STANDARD_LISTENERS, check_apart, check_mechanisms, parse_listener
from waystation.cli.server.options import OPTIONS, check_exposed, closest, nearest, pairs_of_listeners
from waystation.cli.terminal.arguments import parse_pairs
from waystation.cli.terminal.setting_units import plain
from waystation.config import BROKER_SETTINGS, UNUSED_SETTINGS, BrokerSettings, Source, render
from waystation.errors import Invalid
from waystation.station import ListenerPlan

PREFIX = "WAYSTATION_"
SET_PREFIX = "WAYSTATION_SET_"
CONFIG_VARIABLE = "WAYSTATION_CONFIG"
OF_CLIENTS = ("WAYSTATION_SERVER", "WAYSTATION_CONTEXT")
"""Variables that are not the broker's."""

SourceKind = Literal["default", "file", "environment", "flag"]
_NEAR = 0.75
"""How alike an unknown variable has to be to a known one to be taken for a mistake. Others may have variables that
begin like ours: in Kubernetes a service called `waystation` gives every container a WAYSTATION_PORT."""


class Chosen(msgspec.Struct, frozen=True):
    """A value, and where it comes from: `where` is `waystation.toml:3`, `WAYSTATION_DATA`, `--data`, or empty."""

    text: str
    kind: SourceKind
    where: str = ""


class Configuration(msgspec.Struct):
    """All that was said. What is not in it has its default."""

    options: dict[str, Chosen] = {}
    named: dict[str, Chosen] = {}  # further listeners
    settings: dict[str, Chosen] = {}
    doubts: list[str] = []  # what looks like a mistake and may be none

    def option(self, name: str) -> Chosen:
        if name == "listeners" and self.named:
            text = " ".join(f"{one}={chosen.text}" for one, chosen in self.named.items())
            *_, last = self.named.values()
            return Chosen(text, last.kind, last.where)
        return self.options.get(name) or Chosen(OPTIONS[name].default, "default")

    def text(self, name: str) -> str:
        """The option's value; empty where it has none."""
        return self.option(name).text

    def setting(self, name: str) -> Chosen:
        return self.settings.get(name) or Chosen(render(BROKER_SETTINGS[name].default), "default")

    def listeners(self) -> tuple[ListenerPlan, ...]:
        """All that are to be opened. Invalid if two of them would be the same, or if nobody said that others may reach
        one of them, and they could."""
        names = (*STANDARD_LISTENERS, *self.named)
        plans = tuple(plan for plan in map(self.listener, names) if plan is not None)
        check_apart(plans)
        return plans

    def listener(self, name: str) -> ListenerPlan | None:
        """None: it is off."""
        chosen = self.option(name) if name in STANDARD_LISTENERS else self.named[name]
        plan = parse_listener(name, chosen.text)
        if plan is None:
            return None
        if chosen.kind == "file":
            said = f'{chosen.where}: {name} = "{chosen.text}"'
        else:
            said = f"{chosen.where or f'--{name}'}{'=' if chosen.kind == 'environment' else ' '}{chosen.text}"
        try:
            check_mechanisms(plan, self.setting("sasl.enabled.mechanisms").text.split(","))
        except Invalid as error:
            raise Invalid(f"{said}: {error}") from None
        check_exposed(plan, said, insecure=self.text("insecure") == "true", closed=self._closed)
        return plan

    @property
    def _closed(self) -> bool:
        """Whether clients have to log in."""
        required = self.setting("auth.required").text
        if required == "true":
            return True
        if required == "false" or self.text("memory") == "true":
            return False
        from waystation.broker.open import has_users

        return has_users(self.text("data"))

    def broker_settings(self) -> BrokerSettings:
        sources: dict[str, Source] = {
            name: chosen.kind for name, chosen in self.settings.items() if chosen.kind != "default"
        }
        return BrokerSettings({name: chosen.text for name, chosen in self.settings.items()}, sources)


def gather(
    environment: Mapping[str, str],
    *,
    file: str | None = None,
    flags: Mapping[str, str | None] | None = None,
    settings: Iterable[str] = (),
) -> Configuration:
    """Everything together. `flags` are options by name (None: not given), `settings` the texts of `--set`."""
    made = Configuration()
    path = file if file is not None else environment.get(CONFIG_VARIABLE) or None
    if path is not None:
        _from_file(made, path)
    _from_environment(made, environment)
    for name, text in (flags or {}).items():
        if name == "listeners" and text is not None:
            _name(made, text, "flag", "--listeners")
        elif text is not None:
            made.options[name] = Chosen(_checked(f"--{name}", name, text), "flag", f"--{name}")
    for name, text in parse_pairs(settings, "--set"):
        value = plain(name, text)
        BrokerSettings.check(name, value)
        made.settings[name] = Chosen(value, "flag", "--set")
    return made


def variable_of(setting: str) -> str:
    """The variable of a setting."""
    return SET_PREFIX + setting.upper().replace(".", "_").replace("-", "_")


def _from_file(made: Configuration, path: str) -> None:
    from waystation.cli.server.config_file import read_config

    config = read_config(path)
    parts = ((config.options, made.options), (config.listeners, made.named), (config.settings, made.settings))
    for found, into in parts:
        into.update((name, Chosen(given.text, "file", f"{path}:{given.line}")) for name, given in found.items())


def _from_environment(made: Configuration, environment: Mapping[str, str]) -> None:
    ours = {name: text for name, text in environment.items() if name.startswith(PREFIX)}
    if not ours:
        return
    options = {option.variable: option.name for option in OPTIONS.values()}
    settings = {variable_of(name): name for name in BROKER_SETTINGS | UNUSED_SETTINGS}
    for variable, text in sorted(ours.items()):
        if not text and (variable in options or variable in settings):
            # How scripts and unit files take a variable back. A secret that is not there is empty, too: it must not
            # turn off the token that the file asks for.
            continue
        if variable == OPTIONS["listeners"].variable:
            _name(made, text, "environment", variable)
        elif variable in options:
            name = options[variable]
            made.options[name] = Chosen(_checked(variable, name, text), "environment", variable)
        elif variable in settings:
            name = settings[variable]
            made.settings[name] = Chosen(_parsed(variable, name, text), "environment", variable)
        elif variable.startswith(SET_PREFIX):
            raise Invalid(f"{variable}: there is no such setting{nearest(variable, settings)}")
        elif variable not in (*OF_CLIENTS, CONFIG_VARIABLE):
            near = closest(variable.removeprefix(PREFIX), (name.removeprefix(PREFIX) for name in options), _NEAR)
            if near is not None:
                made.doubts.append(f"{variable} means nothing here; did you mean {PREFIX}{near}?")


def _name(made: Configuration, text: str, kind: SourceKind, where: str) -> None:
    """Further listeners; one of a name that is there already takes its place."""
    try:
        found = pairs_of_listeners(text.split())
    except Invalid as error:
        raise Invalid(f"{where}: {error}") from None
    for name, value in found.items():
        (made.options if name in STANDARD_LISTENERS else made.named)[name] = Chosen(value, kind, where)


def _checked(said: str, name: str, text: str) -> str:
    try:
        return OPTIONS[name].check(text)
    except Invalid as error:
        raise Invalid(f"{said}: {error}") from None


def _parsed(variable: str, name: str, text: str) -> str:
    try:
        value = plain(name, text)
        BrokerSettings.check(name, value)
    except Invalid as error:
        raise Invalid(f"{variable}: {error}") from None
    return value
