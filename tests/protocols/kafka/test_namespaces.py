"""Names of a namespace in requests and answers: every API's, there and back; and what members tell each other."""

from __future__ import annotations

import re
import struct
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.index import schema_name_map
from kio.static.constants import EntityType

from tests.protocols.kafka import frames
from waystation.broker.access.types import NamespaceNames, Regex
from waystation.errors import InvalidPattern
from waystation.groups.machines.classic_member import assigned_partitions, read_subscription, write_assignment
from waystation.protocols.kafka.apis import APIS
from waystation.protocols.kafka.requests import member_metadata
from waystation.protocols.kafka.requests.namespaces import inward, outward, translated

SHOP = NamespaceNames("shop")
CASES = [
    (api.name, version)
    for api in APIS.values()
    for version in range(api.min_version, api.max_version + 1)
    if api.name not in ("produce", "fetch")
]


def sample(name: str, version: int, kind: Any) -> Any:
    path, _, class_name = schema_name_map[name][version][kind].partition(":")
    return frames.sample(getattr(import_module(path), class_name))


@pytest.mark.parametrize(("name", "version"), CASES, ids=lambda value: str(value))
def test_names_come_back_as_they_were(name: str, version: int) -> None:
    for kind in (EntityType.request, EntityType.response):
        entity = sample(name, version, kind)
        there = translated(name, entity, inward(SHOP))
        assert translated(name, there, outward(SHOP)) == entity


def test_every_field_that_names_something_is_translated() -> None:
    changed = {
        name: repr(translated(name, sample(name, version, EntityType.request), inward(SHOP))) for name, version in CASES
    }
    without = {name for name, text in changed.items() if "shop." not in text and "shop/" not in text}
    assert without - UNSURE == {
        "alter_client_quotas", "alter_user_scram_credentials", "api_versions", "create_acls",
        "create_delegation_token", "delete_acls", "describe_acls", "describe_client_quotas", "describe_cluster",
        "describe_delegation_token", "describe_quorum", "describe_user_scram_credentials",
        "expire_delegation_token", "list_config_resources", "list_groups", "renew_delegation_token",
        "sasl_authenticate", "sasl_handshake", "unregister_broker", "update_features",
    }  # fmt: skip


UNSURE = {"describe_configs", "alter_configs", "incremental_alter_configs"}
"""They are translated where they name a topic or a group, which the sample may not."""


def test_an_empty_name_stays_empty() -> None:
    way = inward(SHOP)
    assert (way.topic(""), way.named(""), way.topic_regex("")) == ("", "", "")


@pytest.mark.parametrize(
    ("pattern", "inside"),
    [("^paid.*", "paid-1"), ("(^paid.*)|(^late)", "late"), ("paid|late", "late"), (r"a\^b?", r"a^")],
)
def test_patterns_are_about_names_inside(pattern: str, inside: str) -> None:
    compiled = re.compile(inward(SHOP).topic_regex(pattern))
    assert compiled.fullmatch(f"shop.{inside}")
    assert not compiled.fullmatch(inside)
    assert not compiled.fullmatch(f"other.{inside}")


@pytest.mark.parametrize("pattern", [")|(?:.*", "a)|(b", "(", "[", ".*)|(?:.*"])
def test_what_is_no_pattern_by_itself_is_none_inside(pattern: str) -> None:
    """It would match what is outside."""
    for translate in (inward(SHOP).topic_regex, inward(SHOP).named_regex):
        with pytest.raises(InvalidPattern):
            Regex(translate(pattern))


# -- between members ---------------------------------------------------------------------------------------------------

NAMES = st.text("abc-", min_size=1, max_size=8)


def subscribed(version: int, topics: list[str], owned: dict[str, list[int]], own: bytes) -> bytes:
    parts = [struct.pack(">hi", version, len(topics))]
    parts += [struct.pack(">h", len(name)) + name.encode() for name in topics]
    parts.append(struct.pack(">i", len(own)) + own)
    if version >= 1:
        parts.append(write_assignment(version, owned)[2:-4])
    if version >= 2:
        parts.append(struct.pack(">i", 5))
    return b"".join(parts)


@given(
    st.integers(0, 3),
    st.lists(NAMES, max_size=3),
    st.dictionaries(NAMES, st.lists(st.integers(0, 9), max_size=3, unique=True), max_size=3),
    st.binary(max_size=5),
)
def test_what_members_say_has_full_names_for_the_broker_and_comes_back(
    version: int, topics: list[str], owned: dict[str, list[int]], own: bytes
) -> None:
    data = subscribed(version, topics, owned, own)
    there = member_metadata.subscription(data, SHOP.topic)
    found = read_subscription(there)
    assert found is not None
    assert found.topics == {f"shop.{name}" for name in topics}
    if version >= 1:
        assert {name for name, _ in found.owned} == {f"shop.{name}" for name in owned}
    assert member_metadata.subscription(there, SHOP.local_topic) == data
    given_out = write_assignment(version, owned)
    full = member_metadata.assignment(given_out, SHOP.topic)
    assert [name for name, _ in assigned_partitions(full) or []] == [f"shop.{name}" for name in sorted(owned)]
    assert member_metadata.assignment(full, SHOP.local_topic) == given_out


@given(st.binary(max_size=60))
def test_other_bytes_do_no_harm(data: bytes) -> None:
    member_metadata.subscription(data, SHOP.topic)
    member_metadata.assignment(data, SHOP.topic)
