"""Which user a Kerberos principal stands for: Kafka's `sasl.kerberos.principal.to.local.rules`.

    RULE:[2:$1@$0](^worker@EXAMPLE\\.COM$)s/@.*//,RULE:[1:$1](.*)/L,DEFAULT

A principal is `PRIMARY[/INSTANCE]@REALM`. Rules are tried in order. `[N:FORMAT]` is about principals of N parts, of
which FORMAT makes a text: `$0` is the realm, `$1` the primary, `$2` the instance. Where `(PATTERN)` matches the whole
text, or is not there, `s/FROM/TO/` is done with it (`g`: as often as it is found), `L` makes it lower and `U` upper
case, and it is the user's name. `DEFAULT` is the primary, of principals in the broker's own realm. Where no rule fits,
nobody logs in.

Pure. The expressions are the administrator's, not a client's.
"""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from waystation.errors import InvalidSetting

_RULE = re.compile(
    r"RULE:\[([12]):([^\]]*)\](?:\(((?:[^()]|\([^()]*\))*)\))?(?:s/((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/(g?))?(?:/?([LU]))?"
)
_PRINCIPAL = re.compile(r"([^/@\\]+)(?:/([^/@\\]+))?@([^/@\\]+)")
_PLACE = re.compile(r"\$([0-9])")
_GROUP = re.compile(r"\$(\d)")


_CASES: dict[str | None, Literal["", "L", "U"]] = {None: "", "L": "L", "U": "U"}


class KerberosRule(msgspec.Struct, frozen=True):
    """One rule; `parts` 0: DEFAULT."""

    parts: int = 0
    shape: str = ""
    pattern: re.Pattern[str] | None = None
    source: re.Pattern[str] | None = None
    target: str = ""
    everywhere: bool = False
    case: Literal["", "L", "U"] = ""

    def apply(self, parts: tuple[str, ...], realm: str, own_realm: str) -> str | None:
        """The user; None: the rule is not about such a principal."""
        if not self.parts:
            return parts[0] if realm == own_realm else None
        if len(parts) != self.parts:
            return None
        places = (realm, *parts)
        text = _PLACE.sub(lambda found: places[int(found[1])] if int(found[1]) < len(places) else "", self.shape)
        if self.pattern is not None and self.pattern.fullmatch(text) is None:
            return None
        if self.source is not None:
            text = self.source.sub(self.target, text, count=0 if self.everywhere else 1)
        return text.lower() if self.case == "L" else text.upper() if self.case == "U" else text


def parse_kerberos_rules(text: str) -> tuple[KerberosRule, ...]:
    """Raises InvalidSetting."""
    rules: list[KerberosRule] = []
    rest = text.strip()
    while rest:
        found = _RULE.match(rest)
        if rest.startswith("DEFAULT"):
            rules.append(KerberosRule())
            rest = rest.removeprefix("DEFAULT")
        elif found is None:
            raise _wrong(rest)
        else:
            rules.append(_rule(found, rest))
            rest = rest[found.end() :]
        rest = rest.lstrip()
        if rest and not rest.startswith(","):
            raise _wrong(rest)
        rest = rest[1:].lstrip()
    return tuple(rules)


def _rule(found: re.Match[str], rest: str) -> KerberosRule:
    parts, shape, pattern, source, target, everywhere, case = found.groups()
    try:
        return KerberosRule(
            int(parts),
            shape,
            None if pattern is None else re.compile(pattern),
            None if source is None else re.compile(source),
            _GROUP.sub(r"\\\1", (target or "")),
            bool(everywhere),
            _CASES[case],
        )
    except re.error as error:
        raise InvalidSetting(f"sasl.kerberos.principal.to.local.rules: {rest[:80]!r}: {error}") from None


def _wrong(rest: str) -> InvalidSetting:
    return InvalidSetting(
        f"sasl.kerberos.principal.to.local.rules: {rest[:80]!r} is no rule;"
        " write RULE:[1:$1](PATTERN)s/FROM/TO/ or DEFAULT"
    )


def user_of_principal(rules: tuple[KerberosRule, ...], principal: str, own_realm: str) -> str | None:
    """None: it stands for nobody."""
    found = _PRINCIPAL.fullmatch(principal)
    if found is None:
        return None
    parts = tuple(part for part in (found[1], found[2]) if part is not None)
    for rule in rules:
        name = rule.apply(parts, found[3], own_realm)
        if name:
            return name if not re.search(r"[/@\x00-\x1f]", name) and len(name) <= 128 else None
    return None
