"""Share groups with the Java client, through Kafka's own tools: an extra, run where KAFKA_HOME names their jars."""

from __future__ import annotations

from confluent_kafka.admin import AdminClient

from tests.clients import kit
from tests.clients.share_kit import from_the_beginning
from tests.clients.stage import NewTopicCall
from tests.clients.test_java_tools import Tool
from tests.clients.test_java_tools import tool as tool

CONSUMER, GROUPS = "consumer.ConsoleShareConsumer", "consumer.group.ShareGroupCommand"


def test_console_share_consumers_share_and_the_groups_tool_tells(
    tool: Tool, bootstrap: str, admin: AdminClient, new_topic: NewTopicCall, group: str
) -> None:
    topic = new_topic()
    from_the_beginning(admin, group)
    kit.produce(bootstrap, topic, kit.numbered(10))
    common = ("--topic", topic, "--group", group, "--timeout-ms", "20000", "--property", "print.delivery=true")
    first = tool(CONSUMER, *common, "--max-messages", "4")
    assert first.split() == [word for n in range(4) for word in ("Delivery:1", f"{n:06}")]
    second = tool(CONSUMER, *common, "--max-messages", "6", "--reject")
    assert second.split() == [word for n in range(4, 10) for word in ("Delivery:2", f"{n:06}")]
    assert group in tool(GROUPS, "--list").split()
    (row,) = [line.split() for line in tool(GROUPS, "--describe", "--group", group).splitlines() if topic in line]
    assert row[:4] == [group, topic, "0", "10"]
    tool(GROUPS, "--delete-offsets", "--group", group, "--topic", topic)
    tool(GROUPS, "--delete", "--group", group)
    assert group not in tool(GROUPS, "--list").split()
