"""The file of `serve --config`: TOML with where to listen, where to keep data, and the broker's settings.

    data = "/var/lib/waystation"
    kafka = "127.0.0.1:9092"

    [broker]
    log.retention.ms = 86400000

A setting has its full dotted name, written with or without quotes, at the top or under [broker]. Everything is
checked against the settings that exist before anything starts; an error names the file and the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from waystation.config import BrokerSettings
from waystation.errors import Invalid

ADDRESSES = ("kafka", "amqp", "http")
_TEXTS = ("data", *ADDRESSES, "log-level", "ready-file")


@dataclass(slots=True)
class ConfigFile:
    """What the file says. `texts` has those of `data`, the doors' addresses, `log-level` and `ready-file` it names."""

    texts: dict[str, str] = field(default_factory=dict)
    insecure: bool = False
    settings: dict[str, str] = field(default_factory=dict)


def read_config(path: str) -> ConfigFile:
    import tomllib

    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except tomllib.TOMLDecodeError as error:
        raise Invalid(f"{path} is not valid TOML: {error}") from None
    except UnicodeDecodeError:
        raise Invalid(f"{path} is not valid TOML: it is not UTF-8 text") from None
    except OSError as error:
        raise Invalid(f"cannot read the config file {path}: {error.strerror}") from None
    config = ConfigFile()
    for name, value in _flat(content):
        try:
            _take(config, name, value)
        except Invalid as error:
            raise Invalid(f"{path}: {error}") from None
    return config


def _flat(table: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    """Dotted names and their values; `[broker]` is a heading, not a part of the name."""
    for key, value in table.items():
        name = f"{above}{key}"
        if isinstance(value, dict):
            yield from _flat(value, "" if name == "broker" else f"{name}.")
        else:
            yield name, value


def _take(config: ConfigFile, name: str, value: object) -> None:
    if name in _TEXTS:
        if not isinstance(value, str):
            raise Invalid(f"{name} has to be a text in quotes")
        config.texts[name] = value
    elif name == "insecure":
        if not isinstance(value, bool):
            raise Invalid("insecure has to be true or false")
        config.insecure = value
    else:
        text = _text_of(name, value)
        BrokerSettings.check(name, text)
        config.settings[name] = text


def _text_of(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise Invalid(f"{name} has to be a text, a number, true or false, or a list of texts")
