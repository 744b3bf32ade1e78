"""Kerberos: contexts for clients that log in by GSSAPI, from the broker's keytab, by the `gssapi` package
(`pip install 'waystation[kerberos]'`), which is MIT's library or Heimdal's.

The keytab is read for each login, so that another one counts at once. What a ticket is for has to be the service that
the settings name, whatever else is in the keytab. Any thread: nothing is shared but the terms.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from waystation.errors import InvalidSetting
from waystation.security.kerberos_names import KerberosRule, user_of_principal
from waystation.security.sasl.gssapi import GssContext, GssFailed

MAX_TOKEN_BYTES = 64 * 1024
"""Of a client: a ticket with the groups of a large directory has some ten thousand."""


class KerberosTerms(msgspec.Struct, frozen=True):
    keytab: str
    service: str = "kafka"
    rules: tuple[KerberosRule, ...] = ()


class Kerberos:
    """One per broker that has a keytab."""

    def __init__(self, terms: KerberosTerms) -> None:
        try:
            import gssapi
        except ImportError as error:
            raise InvalidSetting(
                f"waystation.kerberos.keytab: {error.name or error} is not installed;"
                " pip install 'waystation[kerberos]'"
            ) from error
        if not os.access(terms.keytab, os.R_OK):
            raise InvalidSetting(f"waystation.kerberos.keytab: {terms.keytab} cannot be read")
        self._gssapi: Any = gssapi
        self._terms = terms

    def begin(self) -> GssContext:
        """For one login. Raises GssFailed if the keytab cannot be used."""
        return _Context(self._gssapi, self._terms)

    def user(self, context: GssContext) -> str | GssFailed:
        """Whom the client's principal stands for."""
        if not isinstance(context, _Context):
            raise TypeError("a context that was made elsewhere")
        primary, _, rest = context.service.partition("/")
        if primary != self._terms.service:
            return GssFailed(f"the ticket is for {context.service}, not for {self._terms.service}")
        principal = context.initiator
        name = user_of_principal(self._terms.rules, principal, rest.rpartition("@")[2])
        return name or GssFailed(f"{principal} stands for no user by sasl.kerberos.principal.to.local.rules")


class _Context:
    """Of one login."""

    def __init__(self, gssapi: Any, terms: KerberosTerms) -> None:
        self._error: type[Exception] = gssapi.exceptions.GSSError
        try:
            mine = gssapi.Credentials(usage="accept", store={"keytab": f"FILE:{terms.keytab}"})
            self._context: Any = gssapi.SecurityContext(creds=mine, usage="accept")
        except self._error as error:
            raise GssFailed(f"the keytab {terms.keytab} cannot be used: {error}") from error

    def step(self, token: bytes) -> bytes:
        if not 0 < len(token) <= MAX_TOKEN_BYTES:
            raise GssFailed(f"a token of {len(token)} bytes")
        try:
            return bytes(self._context.step(token) or b"")
        except self._error as error:
            raise GssFailed(str(error)) from error

    @property
    def complete(self) -> bool:
        return bool(self._context.complete)

    def wrap(self, data: bytes) -> bytes:
        try:
            return bytes(self._context.wrap(data, False).message)
        except self._error as error:
            raise GssFailed(str(error)) from error

    def unwrap(self, data: bytes) -> bytes:
        try:
            return bytes(self._context.unwrap(data).message)
        except self._error as error:
            raise GssFailed(str(error)) from error

    @property
    def initiator(self) -> str:
        return str(self._context.initiator_name)

    @property
    def service(self) -> str:
        """What the ticket is for: `PRIMARY/HOST@REALM`."""
        return str(self._context.target_name)
