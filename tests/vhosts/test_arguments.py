"""Queue arguments to settings and back."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waystation.queues.settings import QueueSettings, check_settings
from waystation.routing.namespace_names import NamespaceNames
from waystation.vhosts.arguments import COMPARED, arguments_of, check_same, inequivalent, settings_of, type_of
from waystation.wire.amqp.errors import AmqpError

PLAIN, SHOP = NamespaceNames("/"), NamespaceNames("shop")
TEXT = st.text(max_size=20)
ARGUMENTS: dict[str, st.SearchStrategy[Any]] = {
    "x-expires": st.integers(1, 10**9),
    "x-message-ttl": st.integers(1, 10**9),
    "x-dead-letter-exchange": TEXT,
    "x-max-length": st.integers(1, 10**9),
    "x-max-length-bytes": st.integers(1, 10**9),
    "x-max-priority": st.integers(1, 255),
    "x-overflow": st.sampled_from(["reject-publish", "reject-publish-dlx"]),
    "x-single-active-consumer": st.just(True),
    "x-delivery-limit": st.integers(0, 10**6),
    "x-consumer-timeout": st.integers(1, 10**9),
}
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | st.binary(max_size=20) | st.datetimes(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


@given(st.fixed_dictionaries({}, optional=ARGUMENTS), st.sampled_from([PLAIN, SHOP]))
def test_arguments_come_back_as_they_were(arguments: dict[str, Any], names: NamespaceNames) -> None:
    settings = settings_of(arguments, names, "queue 'q'")
    check_settings(settings)
    assert arguments_of(settings, names) == arguments
    check_same(settings, settings, arguments, names, "queue 'q'")


@given(st.dictionaries(st.sampled_from([*COMPARED, "x-queue-mode", "x-queue-version", "x-other"]), ANYTHING))
def test_any_arguments_make_settings_or_are_refused_with_406(arguments: dict[str, Any]) -> None:
    refusal: AmqpError | None = None
    try:
        check_settings(settings_of(arguments, PLAIN, "queue 'q'"))
    except AmqpError as error:
        refusal = error
    if refusal is not None:
        assert refusal.code == 406
        assert not refusal.hard
        assert "queue 'q'" in refusal.text


def test_what_a_policy_says_is_not_what_was_declared() -> None:
    declared = settings_of({"x-max-length": 10}, PLAIN, "queue 'q'")
    governed = QueueSettings(
        retry_base_ms=0,
        hold_ms=declared.hold_ms,
        max_length=5,
        ttl_ms=1000,
        overflow="drop-oldest",
        max_priority=0,
        queue_type="classic",
        policy="short",
        own=(("max_length", 10), ("ttl_ms", None)),
    )
    assert arguments_of(governed) == {"x-max-length": 10}


def test_a_queue_of_another_protocol_in_the_words_of_amqp() -> None:
    settings = QueueSettings(max_deliveries=4, dead_letter="dead", max_length=7, overflow="dead-letter")
    assert arguments_of(settings) == {
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "dead",
        "x-max-length": 7,
        "x-max-priority": 9,
        "x-overflow": "reject-publish-dlx",
        "x-delivery-limit": 3,
        "x-consumer-timeout": 30_000,
    }
    assert arguments_of(QueueSettings(max_priority=0, dead_letter="topic:dead")) == {"x-consumer-timeout": 30_000}


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (True, "bool"),
        (1, "signedint"),
        (-(2**31), "signedint"),
        (2**31, "long"),
        ("a", "longstr"),
        (b"a", "binary"),
        (bytearray(b"a"), "binary"),
        (1.5, "double"),
        (Decimal("1.5"), "decimal"),
        (datetime(2026, 1, 1, tzinfo=UTC), "timestamp"),
        ({}, "table"),
        ([], "array"),
        (None, "void"),
    ],
)
def test_types_have_the_names_that_rabbitmq_has_for_them(value: object, name: str) -> None:
    assert type_of(value) == name


def test_large_numbers_are_told_apart_by_their_type() -> None:
    text = inequivalent("x-max-length-bytes", "queue 'q' in vhost '/'", 2**40, None).text
    assert text.endswith("received the value '1099511627776' of type 'long' but current is none")
