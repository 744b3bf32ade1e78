"""The dashboard's files: all that are in its folder under one name each, and nothing else of the machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.protocols.http.kit import Http
from tests.support.server import ROOT, Server
from waystation.errors import NotFound
from waystation.protocols.http.api.dashboard_files import FOLDER, TYPES, DashboardFiles

FILES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.suffix in TYPES)


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_served_under_its_name(name: str) -> None:
    reply = DashboardFiles().reply(name)
    assert (reply.status, reply.body) == (200, (FOLDER / name).read_bytes())


@pytest.mark.parametrize(
    "name",
    [
        "../request_dispatcher.py",
        "lib/../../token.py",
        "lib/../index.html",
        "./app.js",
        "lib//dom.js",
        "lib/./dom.js",
        "/etc/hosts.html",
        "nothing.js",
        "lib",
        "lib/dom.js\n",
        "\0.js",
        "",
    ],
)
def test_a_file_has_one_name_and_what_is_elsewhere_has_none(name: str) -> None:
    with pytest.raises(NotFound, match="no file"):
        DashboardFiles().reply(name)


def test_names_are_refused_over_http_as_well(http: Http) -> None:
    assert http("GET", "/ui/lib/dom.js").status == 200
    for path in ("/ui/lib/..%2findex.html", "/ui/..%2f..%2frequest_dispatcher.py", "/ui/.%2fapp.js"):
        assert http("GET", path, ok=False).status == 404


def test_the_dashboard_is_there_where_the_package_is_reached_by_a_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = tmp_path / "link"
    os.symlink(ROOT / "src", link)
    monkeypatch.setenv("PYTHONPATH", str(link))
    with Server(tmp_path / "server") as server:
        page = Http(server.addresses["http"])("GET", "/ui/app.js")
        assert page.body == (FOLDER / "app.js").read_bytes()
