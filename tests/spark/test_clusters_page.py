"""The commands of "Run on a Spark cluster" run as they stand: spark-submit, a standalone cluster, Spark Connect.

Only addresses and folders are replaced. The Python that runs them has all that Waystation depends on, and not
Waystation: the command has to bring it. What cannot be run here, Kubernetes and YARN, is compared with what Spark has.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.docs.blocks import blocks, pointed_at
from tests.spark.cluster_kit import Cluster, cluster_environment, kill_all_of, spark_settings
from tests.spark.sink_kit import committed, connect, texts
from tests.support.ports import free_port
from tests.support.server import ROOT, Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytest.importorskip("pyspark", reason="pyspark is not installed; `pip install 'waystation[spark]'` brings it")

PAGE = ROOT / "docs" / "guide" / "spark-clusters.md"
COMMAND_S = 400
SHARED, MASTER, REMOTE = "/shared/checkpoints", "spark://127.0.0.1:7077", "sc://127.0.0.1:15002"
SECRET = "a-word-that-nobody-should-read"


class Desk:
    """A folder and an environment in which somebody types the page's commands."""

    def __init__(self, folder: Path, server: Server) -> None:
        import pyspark

        self.folder, self.server = folder, server
        self.python = folder / "python"
        self.packages = Path(pyspark.__file__).parent.parent
        self.environment = {name: text for name, text in cluster_environment().items() if name != "PYTHONPATH"}
        programs = (self.python / "bin", self.packages / "pyspark" / "bin", os.environ["PATH"])
        self.environment |= {
            "PATH": os.pathsep.join(map(str, programs)),
            "PYSPARK_PYTHON": str(self.python / "bin" / "python"),
            "SPARK_CONF_DIR": str(folder / "conf"),
            "SPARK_HOME": str(self.packages / "pyspark"),
            "SPARK_LOCAL_DIRS": str(folder / "local"),
            "SPARK_LOG_DIR": str(folder / "logs"),
            "SPARK_PID_DIR": str(folder / "pids"),
        }
        self.connect_port = free_port()
        self._make()

    def _make(self) -> None:
        _make_python(self.python, self.packages)
        (self.folder / "src").symlink_to(ROOT / "src")
        (self.folder / "conf").mkdir()
        settings = {name: text for name, text in spark_settings().items() if "PYTHONPATH" not in name}
        settings["spark.connect.grpc.binding.port"] = str(self.connect_port)
        (self.folder / "conf" / "spark-defaults.conf").write_text("".join(f"{n} {t}\n" for n, t in settings.items()))
        (job,) = [block.code for block in blocks(PAGE) if block.info == "py"]
        (self.folder / "copy_orders.py").write_text(job)
        with connect(self.server) as mq:
            mq.create_topic("orders", partitions=2)
            mq.create_topic("orders-upper", partitions=2)

    def publish(self, *rows: int) -> None:
        with connect(self.server) as mq:
            mq.publish_many("orders", [f"row {n}" for n in range(*rows)])

    def written(self) -> list[str]:
        return texts(committed(self.server, "orders-upper"))

    def type(self, words: str, master: str = MASTER, **more: str) -> str:
        """Runs the one block of the page that has these words, and says what it printed."""
        (code,) = [block.code for block in blocks(PAGE) if block.info == "sh" and words in block.code]
        code = pointed_at(code.replace(MASTER, master), self.server.addresses)
        code = code.replace(SHARED, str(self.folder)).replace(REMOTE, f"sc://127.0.0.1:{self.connect_port}")
        done = subprocess.run(
            ["bash", "-e", "-u", "-o", "pipefail", "-c", code],
            cwd=self.folder,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_S,
            check=False,
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, f"{code}\n{said[-4000:]}"
        return said


def _make_python(folder: Path, packages: Path) -> Path:
    """An environment with the packages of this one, but not those that are installed from a checkout; where to add."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = (folder / "lib").glob("python3*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return site


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Server(tmp_path / "broker") as server:
        desk = Desk(tmp_path, server)
        asked = [desk.environment["PYSPARK_PYTHON"], "-c", "import waystation"]
        has = subprocess.run(asked, env=desk.environment, cwd=desk.folder, capture_output=True, check=False)
        assert has.returncode != 0, "Waystation would be there whatever the command says"
        yield desk


@pytest.fixture
def environment(desk: Desk) -> Path:
    """`environment.tar.gz`, as venv-pack makes one: this one has the package, and a path to what it depends on."""
    site = _make_python(desk.folder / "packed", desk.packages)
    for name in ("waystation", "pyspark_waystation"):
        shutil.copytree(ROOT / "src" / name, site / name, ignore=shutil.ignore_patterns("__pycache__"))
    file = desk.folder / "environment.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        archive.add(desk.folder / "packed", ".")
    return desk.folder / "packed" / "bin" / "python"


@pytest.mark.timeout(900)
def test_spark_submit_brings_the_package_by_a_zip_file(desk: Desk) -> None:
    desk.publish(100)
    desk.type("python -m zipfile")
    assert desk.written() == sorted(f"ROW {n}" for n in range(100))


@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("environment")
def test_a_standalone_cluster_gets_the_package_by_a_zip_file_and_by_an_archive(desk: Desk) -> None:
    (start,) = [block.code for block in blocks(PAGE) if "deploy.worker.Worker" in block.code]
    assert "deploy.master.Master" in start, "what the cluster of this test is made of, too"
    nothing = {
        name: text for name, text in desk.environment.items() if name not in ("PYSPARK_PYTHON", "SPARK_CONF_DIR")
    }
    cluster = Cluster(desk.folder / "cluster", workers=1, environment=nothing)
    try:
        cluster.start()
        desk.publish(100)
        subprocess.run(
            [sys.executable, "-m", "zipfile", "-c", "waystation.zip", "src/waystation", "src/pyspark_waystation"],
            cwd=desk.folder,
            check=True,
        )
        desk.type("--master spark://127.0.0.1:7077 --py-files", cluster.url)
        assert desk.written() == sorted(f"ROW {n}" for n in range(100))
        desk.publish(100, 150)
        desk.type("--archives environment.tar.gz#environment \\\n  copy_orders.py", cluster.url)
        assert cluster.finished() == ["copy-orders", "copy-orders"]
    finally:
        cluster.close()
    assert desk.written() == sorted(f"ROW {n}" for n in range(150)), "the second job goes on where the first one was"


@pytest.mark.timeout(900)
def test_spark_connect_runs_the_same_job(desk: Desk, environment: Path) -> None:
    pytest.importorskip("grpc", reason="grpcio is not installed; `pip install 'waystation[spark-connect]'` brings it")
    desk.publish(100)
    path = f"{environment.parent}{os.pathsep}{desk.environment['PATH']}"
    try:
        desk.type("start-connect-server.sh", PYSPARK_PYTHON=str(environment), PATH=path)
    finally:
        for file in (desk.folder / "pids").glob("*.pid"):  # there is none where the page's last command has stopped it
            kill_all_of(int(file.read_text()))
    assert desk.written() == sorted(f"ROW {n}" for n in range(100))


# -- what is not run -----------------------------------------------------------------------------------------------

DECLARED_BY = (
    "org.apache.spark.deploy.k8s.Config$",
    "org.apache.spark.deploy.yarn.config.package$",
    "org.apache.spark.internal.config.package$",
    "org.apache.spark.internal.config.Network$",
    "org.apache.spark.sql.connect.config.Connect$",
    "org.apache.spark.sql.internal.SQLConf$",
    "org.apache.spark.sql.internal.StaticSQLConf$",
)
"""Spark knows a setting once the object that declares it is loaded."""

KUBERNETES_PREFIXES = (
    "DRIVER_VOLUMES",
    "EXECUTOR_VOLUMES",
    "DRIVER_SECRET_KEY_REF",
    "DRIVER_SECRETS",
    "EXECUTOR_SECRETS",
)
FREE_PREFIXES = ("spark.executorEnv.", "spark.yarn.appMasterEnv.", "spark.hadoop.")
"""Settings whose names somebody else chooses: variables, and Hadoop's own."""


def test_spark_knows_each_setting_of_the_page(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    for name in DECLARED_BY:
        jvm.java.lang.Class.forName(name, True, loader)
    kubernetes = jvm.org.apache.spark.deploy.k8s.Config
    prefixes = [getattr(kubernetes, f"KUBERNETES_{name}_PREFIX")() for name in KUBERNETES_PREFIXES]
    entries = jvm.org.apache.spark.internal.config.ConfigEntry
    sql = (
        jvm.java.lang.Class.forName("org.apache.spark.sql.internal.SQLConf$", True, loader)
        .getField("MODULE$")
        .get(None)
    )
    unlisted = {sql.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS().parent().key()}

    def is_known(name: str) -> bool:
        free = name.startswith((*prefixes, *FREE_PREFIXES))
        return free or name in unlisted or entries.findEntry(name) is not None

    found = set(re.findall(r"(?<![\w./-])spark\.[a-z][A-Za-z]*(?:\.[A-Za-z_]+)*", PAGE.read_text()))
    found -= {word for word in found if word.startswith(("spark.readStream", "spark.stop"))}
    assert len(found) > 15
    assert {name for name in found if not is_known(name)} == set()
    assert not is_known("spark.kubernetes.no.such.setting")


def test_spark_submit_knows_each_option_of_the_page() -> None:
    import pyspark

    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    helped = subprocess.run([submit, "--help"], env=cluster_environment(), capture_output=True, text=True, check=False)
    known = set(re.findall(r"--[a-z-]+", helped.stdout + helped.stderr))
    commands = re.findall(r"spark-submit (?:[^\n`]|\\\n)+", PAGE.read_text())
    used = {option for command in commands for option in re.findall(r"(?<!\S)--[a-z-]+", command)}
    assert {"--py-files", "--archives", "--deploy-mode", "--properties-file"} <= used
    assert used <= known


def test_no_log_and_no_plan_has_an_options_value(desk: Desk) -> None:
    """Such as a Kafka client's secrets, which stay in a job that comes from Spark's connector."""
    job = f"""
import sys
from waystation.spark.sessions import SessionSettings, open_session

spark = open_session(SessionSettings(master="local[1]", log_level="INFO"))
named = {{"servers": sys.argv[1], "topics": "orders", "kafka.client.secret": {SECRET!r}}}
rows = spark.read.format("waystation").options(**named).load()
rows.explain("formatted")
print(rows.count())
stream = spark.readStream.format("waystation").options(**named).option("startingOffsets", "earliest").load()
named = {{"servers": sys.argv[1], "topic": "orders-upper", "kafka.client.secret": {SECRET!r}}}
write = stream.select("value").writeStream.format("waystation").options(**named)
query = write.option("checkpointLocation", sys.argv[2]).trigger(availableNow=True).start()
query.awaitTermination()
query.explain(True)
print(query.lastProgress)
for option in ("kafka.sasl.jaas.config", "no.such.secret"):
    try:
        spark.read.format("waystation").options(servers=sys.argv[1], topics="orders").option(option, {SECRET!r}).load()
    except Exception as error:
        print(option, "is refused:", error)
"""
    desk.publish(10)
    done = subprocess.run(
        [sys.executable, "-c", job, desk.server.bootstrap, desk.folder / "checkpoint"],
        env={**cluster_environment(), "SPARK_CONF_DIR": desk.environment["SPARK_CONF_DIR"]},
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said[-4000:]
    assert said.count("is refused:") == 2
    assert len(desk.written()) == 10
    kept = (file.read_text(errors="replace") for file in (desk.folder / "checkpoint").rglob("*") if file.is_file())
    places = [said, desk.server.tail(), *kept]
    assert [text[max(0, text.find(SECRET) - 500) :][:1000] for text in places if SECRET in text] == []
