"""The Java client, through Kafka's own command line tools: an extra that runs where KAFKA_HOME names their jars.

The protocol is defined by what this client does, so a surprise here weighs more than one elsewhere.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients import kit
from tests.clients.stage import NewTopicCall
from tests.support.names import unique
from tests.support.waiting import DEADLINE_S

Tool = Callable[..., str]
TOOLS = "org.apache.kafka.tools"


@pytest.fixture(scope="module")
def tool(bootstrap: str) -> Tool:
    """Run one of the tools and return what it prints."""
    home = os.environ.get("KAFKA_HOME")
    java = shutil.which("java")
    if not home or java is None:
        pytest.skip("KAFKA_HOME (a folder with libs/*.jar) is not set, or java is not installed")
    jars = str(Path(home) / "libs" / "*")

    def call(name: str, *arguments: str, stdin: str = "", server: str = "--bootstrap-server") -> str:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        command = [java, "-Xmx128M", "-XX:TieredStopAtLevel=1", quiet, "-cp", jars, f"{TOOLS}.{name}"]
        address = bootstrap if server == "--bootstrap-server" else f"bootstrap.servers={bootstrap}"
        command += [server, address, *arguments]
        done = subprocess.run(command, input=stdin.encode(), capture_output=True, timeout=2 * DEADLINE_S, check=False)
        assert done.returncode == 0, f"{name}: {done.stdout.decode()} {done.stderr.decode()}"
        return done.stdout.decode()

    return call


def test_topics_tool_creates_describes_and_deletes(tool: Tool) -> None:
    topic = unique("java")
    create = ("--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=5000000")
    assert f"Created topic {topic}" in tool("TopicCommand", *create)
    told = tool("TopicCommand", "--describe", "--topic", topic)
    assert "PartitionCount: 3" in told
    assert "retention.ms=5000000" in told
    tool("TopicCommand", "--delete", "--topic", topic)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_console_producer_and_consumer_pass_lines(
    tool: Tool, new_topic: NewTopicCall, group: str, protocol: str
) -> None:
    topic = new_topic()
    tool("ConsoleProducer", "--topic", topic, "--compression-codec", "zstd", stdin="one\ntwo\nthree\n")
    options = ("--from-beginning", "--max-messages", "3", "--group", group, "--timeout-ms", "20000")
    setting = ("--consumer-property", f"group.protocol={protocol}")
    got = tool("consumer.ConsoleConsumer", "--topic", topic, *options, *setting)
    assert got.split() == ["one", "two", "three"]
    told = tool("consumer.group.ConsumerGroupCommand", "--describe", "--group", group)
    (row,) = [line.split() for line in told.splitlines() if topic in line]
    assert row[row.index(topic) + 1 : row.index(topic) + 5] == ["0", "3", "3", "0"]


def test_offsets_and_transactions_tools_answer(tool: Tool, bootstrap: str, new_topic: NewTopicCall) -> None:
    topic, name = new_topic(), unique("java-tx")
    client = kit.producer(bootstrap, {"transactional.id": name})
    client.init_transactions(DEADLINE_S)
    client.begin_transaction()
    client.produce(topic, b"open")
    kit.flush(client)
    assert f"{topic}:0:1" in tool("GetOffsetShell", "--topic", topic)
    assert "Ongoing" in tool("TransactionsCommand", "describe", "--transactional-id", name)
    client.commit_transaction(DEADLINE_S)


def test_java_producer_commits_with_an_epoch_per_transaction(
    tool: Tool, bootstrap: str, new_topic: NewTopicCall
) -> None:
    """The newest transaction protocol (KIP-890), which of all clients here only the Java one speaks."""
    topic, name = new_topic(3), unique("java-tx")
    load = ("--topic", topic, "--num-records", "3000", "--record-size", "50", "--throughput", "3000")
    transactions = ("--transactional-id", name, "--transaction-duration-ms", "50")
    tool("ProducerPerformance", *load, *transactions, server="--producer-props")
    told = tool("TransactionsCommand", "describe", "--transactional-id", name)
    row = next(line.split() for line in told.splitlines() if name in line)
    assert row[row.index(name) + 3] == "CompleteCommit"
    assert int(row[row.index(name) + 2]) > 3  # the producer's epoch went up with every transaction
    assert len(kit.read_all(bootstrap, topic, {"isolation.level": "read_committed"})) == 3000
