"""`--beside DIR`: another version is measured by its own source tree, not by this one's."""

from pathlib import Path

from benchmarks.peers import Waystation


def test_a_checkouts_own_broker_is_run(tmp_path: Path) -> None:
    package = tmp_path / "src" / "waystation" / "cli"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package / "main.py").write_text("print('waystation of yesterday')\n")
    assert Waystation("yesterday", checkout=tmp_path).version().startswith("waystation of yesterday")
    assert "yesterday" not in Waystation().version()
