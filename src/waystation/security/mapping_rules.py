"""Which user a client certificate stands for: Kafka's `ssl.principal.mapping.rules`.

    RULE:^CN=([^,]+),OU=ServiceUsers.*$/$1/L,DEFAULT

Rules are tried in order; the first whose expression matches the whole distinguished name gives the user's name, with
`$1` for what its first group matched, `L` for lower and `U` for upper case. `DEFAULT` is the distinguished name itself.
Pure.
"""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from waystation.errors import InvalidSetting

_RULE = re.compile(r"RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?)")
_REFERENCE = re.compile(r"\$(\d)")
_SHORT = {
    "commonName": "CN",
    "organizationalUnitName": "OU",
    "organizationName": "O",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "countryName": "C",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""RFC 2253's names; others have their own."""
_ESCAPED = re.compile(r'([,+"\\<>;])')


class MappingRule(msgspec.Struct, frozen=True):
    pattern: re.Pattern[str] | None  # None: DEFAULT
    replacement: str = ""
    case: Literal["", "L", "U"] = ""

    def apply(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        made = _REFERENCE.sub(lambda reference: _group(found, int(reference[1])), self.replacement)
        return made.lower() if self.case == "L" else made.upper() if self.case == "U" else made


def parse_rules(text: str, said: str = "ssl.principal.mapping.rules") -> tuple[MappingRule, ...]:
    """Raises InvalidSetting. `said`: what they are called where they were told."""
    rules = []
    rest = text.strip()
    while rest:
        if rest.startswith("DEFAULT"):
            rules.append(MappingRule(None))
            rest = rest.removeprefix("DEFAULT")
        else:
            found = _RULE.match(rest)
            if found is None:
                raise InvalidSetting(f"{said}: {rest[:60]!r} is neither DEFAULT nor RULE:PATTERN/REPLACEMENT/[LU]")
            rules.append(_rule(found, said))
            rest = rest[found.end() :]
        rest = rest.strip()
        if rest and not rest.startswith(","):
            raise InvalidSetting(f"{said}: a comma is missing before {rest[:60]!r}")
        rest = rest[1:].strip()
    return tuple(rules) or (MappingRule(None),)


def _rule(found: re.Match[str], said: str) -> MappingRule:
    pattern = found[1].replace("\\/", "/")
    try:
        return MappingRule(re.compile(pattern), found[2].replace("\\/", "/"), found[3])  # type: ignore[arg-type]
    except re.error as error:
        raise InvalidSetting(f"{said}: {pattern[:60]!r} is no regular expression: {error}") from None


def _group(found: re.Match[str], number: int) -> str:
    return (found[number] or "") if number <= len(found.groups()) else ""


def user_of(rules: tuple[MappingRule, ...], certificate: dict[str, Any]) -> str | None:
    """The user that a verified certificate (`ssl.SSLObject.getpeercert()`) stands for; None: nobody."""
    name = distinguished_name(certificate)
    if not name:
        return None
    for rule in rules:
        mapped = rule.apply(name)
        if mapped is not None:
            return mapped or None
    return None


def distinguished_name(certificate: dict[str, Any]) -> str:
    """The subject as RFC 2253 writes it, the most special part first."""
    parts = []
    for relative in reversed(certificate.get("subject", ())):
        parts.append("+".join(f"{_SHORT.get(key, key)}={_escaped(value)}" for key, value in relative))
    return ",".join(parts)


def _escaped(value: str) -> str:
    return _ESCAPED.sub(r"\\\1", value)
