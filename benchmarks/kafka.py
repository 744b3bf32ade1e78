"""Apache Kafka as a peer: its jars from Maven's registry, one KRaft node, the settings its own distribution ships.

The jars are kept in the cache folder, outside the repository, and fetched once. Where they cannot be had (no Java, no
Maven, no registry) the peer is `Unavailable` and the run goes on without it. Called by `benchmarks.cli`.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.addresses import Address
from benchmarks.peers import Running, Unavailable, free_port, make_certificates, spawn

VERSION = "4.1.1"
FETCH_LIMIT_S = 600
CLUSTER_ID = "V2F5c3RhdGlvbkJlbmNoMQ"

POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>benchmark</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.24.3</version>
    </dependency>
  </dependencies>
</project>
"""

LOGGING = """rootLogger.level=warn
rootLogger.appenderRef.console.ref=console
appender.console.type=Console
appender.console.name=console
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=[%d] %p %m (%c)%n
"""

# One node needs replication factors of one; the rebalance delay would only make the group join slower.
SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listener}://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,{listener}:{listener}
inter.broker.listener.name={listener}
log.dirs={data}
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
"""

TLS_SETTINGS = """ssl.keystore.type=PEM
ssl.keystore.location={folder}/server.pem
ssl.truststore.type=PEM
ssl.truststore.location={folder}/ca.crt
"""


def fetch_jars(cache: Path) -> Path:
    """The folder of Kafka's jars: `KAFKA_HOME/libs` if that is set, else the cache, filled by Maven if it is empty."""
    if home := os.environ.get("KAFKA_HOME"):
        return Path(home, "libs")
    jars = cache / f"kafka-{VERSION}" / "libs"
    if any(jars.glob("kafka_2.13-*.jar")):
        return jars
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable("no `mvn` to fetch it with, and KAFKA_HOME is not set")
    jars.mkdir(parents=True, exist_ok=True)
    pom = jars.parent / "pom.xml"
    pom.write_text(POM)
    goal = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
    try:
        subprocess.run(
            [maven, "-q", "-B", "-f", str(pom), *goal], check=True, capture_output=True, timeout=FETCH_LIMIT_S
        )
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as problem:
        shutil.rmtree(jars, ignore_errors=True)  # half a set of jars would be taken for a whole one next time
        raise Unavailable("Maven's registry was not reached") from problem
    return jars


@dataclass
class Kafka:
    """Stock Apache Kafka with the heap and collector that `kafka-server-start.sh` sets."""

    cache: Path
    name: str = field(default="kafka", init=False)
    keeps: str = field(default="in the page cache", init=False)
    consumes: bool = field(default=True, init=False)
    durable: bool = field(default=True, init=False)
    listener: str = field(default="PLAINTEXT", init=False)

    def version(self) -> str:
        jar = next(fetch_jars(self.cache).glob("kafka_2.13-*.jar"))
        return f"Apache Kafka {jar.stem.removeprefix('kafka_2.13-')}"

    def java(self, folder: Path, heap: str, *arguments: str) -> list[str]:
        java = shutil.which("java")
        if java is None:
            raise Unavailable("no `java`")
        collector = ["-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35"]
        logging = f"-Dlog4j2.configurationFile={folder / 'log4j2.properties'}"
        classpath = ["-cp", f"{fetch_jars(self.cache)}/*"]
        return [java, f"-Xmx{heap}", f"-Xms{heap}", "-server", *collector, logging, *classpath, *arguments]

    def prepare(self, folder: Path) -> None:
        (folder / "log4j2.properties").write_text(LOGGING)
        self._write_settings(folder, free_port())
        if not any((folder / "data").glob("*")):
            tool = ["kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(folder / "server.properties")]
            subprocess.run(self.java(folder, "256M", *tool), check=True, capture_output=True)

    def _write_settings(self, folder: Path, port: int) -> None:
        text = SETTINGS.format(listener=self.listener, port=port, controller=free_port(), data=folder / "data")
        (folder / "server.properties").write_text(text + self.more_settings(folder))

    def more_settings(self, folder: Path) -> str:
        return ""

    def spawn(self, folder: Path, port: int) -> Running:
        self._write_settings(folder, port)
        return spawn(self.java(folder, "1G", "kafka.Kafka", str(folder / "server.properties")), folder, port)


@dataclass
class KafkaTls(Kafka):
    """The same with TLS, and a certificate of the kind that our broker has."""

    name: str = field(default="kafka-tls", init=False)
    listener: str = field(default="SSL", init=False)

    def prepare(self, folder: Path) -> None:
        make_certificates(folder)
        pair = (folder / name for name in ("server.key", "server.crt"))
        (folder / "server.pem").write_text("".join(file.read_text() for file in pair))
        super().prepare(folder)

    def more_settings(self, folder: Path) -> str:
        return TLS_SETTINGS.format(folder=folder)

    def spawn(self, folder: Path, port: int) -> Running:
        running = super().spawn(folder, port)
        running.bootstrap = str(Address("127.0.0.1", port, ca=str(folder / "ca.crt")))
        return running
