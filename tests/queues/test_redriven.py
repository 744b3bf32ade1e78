"""The names and origins of what groups of subscribers gave up: pure."""

from __future__ import annotations

from typing import Any

import pytest

from waystation.message import Delivered, Message
from waystation.queues.dead_letter_names import default_dead_letter, topics_and_groups
from waystation.queues.redriven import Origin, as_before, is_redrive_topic, origin_of, redrive_topic
from waystation.queues.settings import check_queue_name
from waystation.topics.topics import check_name

DEATH: dict[str, Any] = {"queue": "topic:orders.eu", "group": "billing", "partition": 2, "offset": 7}


def test_the_default_queue_is_named_after_topic_and_group() -> None:
    assert default_dead_letter("orders.eu", "billing") == "orders.eu.billing.dead"
    assert ("orders.eu", "billing") in topics_and_groups("orders.eu.billing.dead")
    assert list(topics_and_groups("orders.dead")) == []
    assert list(topics_and_groups("orders.eu.billing")) == []


@pytest.mark.parametrize("topic", ["t", "t" * 249])
@pytest.mark.parametrize("group", ["g" * 300, "ümlaut" * 100, "line\nbreak", "\x00", "\ud800", "g"])
def test_every_topic_and_group_have_a_queue_name_of_their_own(topic: str, group: str) -> None:
    name = default_dead_letter(topic, group)
    check_queue_name(name)
    assert name.endswith(".dead")
    assert name != default_dead_letter(topic, group + "2")


@pytest.mark.parametrize("group", ["billing", "with spaces/and:more", "g" * 1000, "\ud800"])
def test_every_group_has_a_redrive_topic_that_is_the_brokers_own(group: str) -> None:
    name = redrive_topic(group)
    check_name(name)
    assert is_redrive_topic(name)
    assert name.startswith("__")
    assert name != redrive_topic(group + "2")


def test_a_redriven_message_is_told_to_come_from_where_it_was() -> None:
    message = Message(b"x", headers={"x-death": [DEATH]})
    assert origin_of(message) == Origin("orders.eu", 2, 7, "billing")
    told = as_before(Delivered(3, 2, 1000, message, redrive_topic("billing"), 0, 0))
    assert (told.tag, told.deliveries, told.source, told.partition, told.offset) == (3, 2, "orders.eu", 2, 7)


@pytest.mark.parametrize(
    "death",
    [
        None,
        {},
        {"queue": "jobs"},
        {**DEATH, "queue": "jobs"},
        {**DEATH, "group": 7},
        {**DEATH, "partition": "x"},
        {**DEATH, "offset": None},
    ],
)
def test_what_died_in_a_queue_or_has_a_made_up_history_belongs_to_no_group(death: dict[str, Any] | None) -> None:
    assert origin_of(Message(b"x", headers={} if death is None else {"x-death": [death]})) is None
