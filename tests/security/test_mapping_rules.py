"""Which user a certificate stands for, by Kafka's rules."""

from __future__ import annotations

import pytest

from waystation.errors import InvalidSetting
from waystation.security.mapping_rules import distinguished_name, parse_rules, user_of

CERTIFICATE = {
    "subject": (
        (("countryName", "DE"),),
        (("organizationName", "Example, Inc."),),
        (("organizationalUnitName", "ServiceUsers"),),
        (("commonName", "Kafka-Admin"),),
    )
}
NAME = "CN=Kafka-Admin,OU=ServiceUsers,O=Example\\, Inc.,C=DE"


def test_the_name_is_written_as_rfc_2253_does() -> None:
    assert distinguished_name(CERTIFICATE) == NAME


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("DEFAULT", NAME),
        ("", NAME),
        ("RULE:^CN=([^,]+),OU=ServiceUsers.*$/$1/", "Kafka-Admin"),
        ("RULE:^CN=([^,]+),OU=ServiceUsers.*$/$1/L", "kafka-admin"),
        ("RULE:^CN=([^,]+),OU=([^,]+).*$/$1@$2/U", "KAFKA-ADMIN@SERVICEUSERS"),
        ("RULE:^CN=(.*?),OU=Others.*$/$1/, RULE:.*C=(..)$/$1/ , DEFAULT", "DE"),
        ("RULE:^CN=nobody$/x/,DEFAULT", NAME),
        ("RULE:^CN=nobody$/x/", None),
        ("RULE:.*/a\\/b/", "a/b"),
    ],
)
def test_the_first_rule_that_matches_gives_the_name(rules: str, user: str | None) -> None:
    assert user_of(parse_rules(rules), CERTIFICATE) == user


def test_a_certificate_without_a_subject_stands_for_nobody() -> None:
    assert user_of(parse_rules("DEFAULT"), {}) is None


@pytest.mark.parametrize("rules", ["RULE:x", "RULE:(/x/", "DEFAULT DEFAULT", "nothing", "RULE:a/b/X"])
def test_what_is_no_rule_is_refused(rules: str) -> None:
    with pytest.raises(InvalidSetting, match="mapping"):
        parse_rules(rules)
