"""The store in etcd when etcd is killed, hangs, loses an answer, has lost its data, or wants to know who asks."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.cluster.relay import Mode, Relay
from tests.cluster.store_kit import Following
from tests.support.etcd import Etcd, need
from tests.support.waiting import wait_for
from waystation.catalog import ABSENT, CatalogChange, Compacted
from waystation.cluster.address import parse
from waystation.cluster.etcd import EtcdStore
from waystation.cluster.etcd.messages import EmptyResponse, EtcdMessage, encode
from waystation.errors import Invalid, NewerFormat, NotAllowed, RevisionConflict, StoreUnavailable, TooLarge


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    need()
    with Etcd(tmp_path / "etcd") as started:
        yield started


@pytest.fixture
def relays(etcd: Etcd) -> Iterator[list[Relay]]:
    """Two ways to the same etcd."""
    made = [Relay(etcd.port), Relay(etcd.port)]
    yield made
    for relay in made:
        relay.close()


def opened(url: str) -> closing[EtcdStore]:
    address = parse(url)
    return closing(wait_for(lambda: EtcdStore(address, "first"), "etcd answers", retry_on=(StoreUnavailable,)))


def through(*relays: Relay, timeout_s: float = 2) -> str:
    return f"etcd://{','.join(f'127.0.0.1:{relay.port}' for relay in relays)}/prod?timeout={timeout_s:g}"


def unavailable(call: Callable[[], object]) -> str:
    with pytest.raises(StoreUnavailable) as told:
        call()
    return str(told.value)


# -- etcd is away -----------------------------------------------------------------------------------------------------


def test_after_kill_9_everything_is_there_and_the_watch_goes_on(etcd: Etcd) -> None:
    with opened(etcd.url("prod")) as store:
        following = Following(store, store.revision())
        lease = store.grant(60)
        written = [store.write({"nodes/1": b"", "a": b"1"}, lease=lease)]
        following.reach(written[-1])
        etcd.kill()
        assert etcd.address in unavailable(lambda: store.write({"a": b"2"}))
        unavailable(store.read)
        unavailable(lambda: store.keep_alive(lease))
        etcd.start()
        written.append(wait_for(lambda: store.write({"a": b"3"}), "etcd is back", retry_on=(StoreUnavailable,)))
        assert store.keep_alive(lease)
        told = following.reach(written[-1])
        assert [update.revision for update in told] == written
        assert list(store.read().entries) == ["a", "nodes/1"]


def test_a_store_is_not_opened_while_etcd_is_away(etcd: Etcd) -> None:
    etcd.kill()
    assert etcd.address in unavailable(lambda: EtcdStore(parse(etcd.url("prod")), "first"))
    etcd.start()
    with opened(etcd.url("prod")) as store:
        assert store.cluster_id() == "first"


def test_an_etcd_that_hangs_is_not_waited_for_and_goes_on_when_it_does(etcd: Etcd) -> None:
    with opened(etcd.url("prod", "?timeout=1")) as store:
        following = Following(store, store.revision())
        etcd.pause()
        assert "nothing within 1 s" in unavailable(store.read)
        unavailable(lambda: store.write({"a": b"in doubt"}))
        etcd.resume()
        revision = wait_for(lambda: store.write({"b": b""}), "etcd goes on", retry_on=(StoreUnavailable,))
        changes = [update.changes for update in following.reach(revision)]
        assert (CatalogChange("b", b""),) in changes
        # What was in doubt is made once, or never, and perhaps later than what was answered.
        assert changes.count((CatalogChange("a", b"in doubt"),)) <= 1


# -- answers are lost -------------------------------------------------------------------------------------------------


def test_a_write_whose_answer_is_lost_is_told_as_in_doubt_and_was_made_once(relays: list[Relay]) -> None:
    with opened(through(*relays)) as store:
        following = Following(store, store.revision())
        relays[0].lose_answer_to(b"/v3/kv/txn")
        unavailable(lambda: store.write({"a": b"1"}, {"a": ABSENT}))
        following.reach(store.revision())
        assert [update.changes for update in following.take()] == [(CatalogChange("a", b"1"),)]
        with pytest.raises(RevisionConflict):
            store.write({"a": b"1"}, {"a": ABSENT})


def test_a_read_whose_answer_is_lost_is_asked_of_the_next_endpoint(relays: list[Relay]) -> None:
    with opened(through(*relays)) as store:
        store.write({"a": b"1"})
        for mode in (Mode.LOSE_ANSWERS, Mode.CUT):
            for relay in relays:
                relay.set(mode)
                entry = store.get("a")
                assert entry is not None
                assert store.keep_alive(store.grant(60))
                relay.set(Mode.PASS)


def test_a_write_goes_to_the_next_endpoint_if_the_first_cannot_be_reached(relays: list[Relay]) -> None:
    with opened(through(*relays)) as store:
        relays[0].close()
        revision = wait_for(lambda: store.write({"a": b"1"}), "the next endpoint", retry_on=(StoreUnavailable,))
        relays[1].cut()
        entry = store.get("a")
        assert entry is not None
        assert entry.revision == revision


def test_a_watch_moves_to_the_next_endpoint_when_its_own_is_cut_or_silent(relays: list[Relay]) -> None:
    """Silent without an end of the connection, as a machine that vanished."""
    with opened(through(*relays, timeout_s=1)) as store, opened(through(relays[1])) as other:
        following = Following(store, store.revision())
        following.reach(store.write({"a": b"0"}))
        relays[0].set(Mode.SILENT)
        revision = other.write({"a": b"1"})
        assert following.reach(revision)[-1].changes == (CatalogChange("a", b"1"),)
        relays[0].set(Mode.PASS)
        relays[1].cut()
        revision = wait_for(lambda: store.write({"a": b"2"}), "an endpoint answers", retry_on=(StoreUnavailable,))
        assert [update.changes for update in following.reach(revision)] == [
            (CatalogChange("a", b"%d" % n),) for n in range(3)
        ]


def test_an_answer_that_is_not_etcds_is_no_answer(tmp_path: Path) -> None:
    need()
    with Etcd(tmp_path / "etcd", options=["--enable-grpc-gateway=false"]) as etcd:
        assert "JSON gateway" in unavailable(lambda: EtcdStore(parse(etcd.url("prod")), "first"))


# -- etcd is another, or has gone back --------------------------------------------------------------------------------


def test_an_etcd_that_went_back_is_noticed_by_the_watch(etcd: Etcd) -> None:
    """A backup was restored: its revisions are lower than what the watch has seen, and it would be silent for long."""
    with opened(etcd.url("prod")) as store:
        store.write({"a": b"1"})
        etcd.stop()
        shutil.copytree(etcd.folder / "data", etcd.folder / "backup")
        etcd.start()
        for number in range(20):
            last = wait_for(
                lambda number=number: store.write({"a": b"%d" % number}),  # type: ignore[misc]
                "etcd is back",
                retry_on=(StoreUnavailable,),
            )
        following = Following(store, store.revision())
        following.reach(store.write({"a": b"last"}))
        etcd.kill()
        shutil.rmtree(etcd.folder / "data")
        shutil.copytree(etcd.folder / "backup", etcd.folder / "data")
        etcd.start()

        def noticed() -> bool:
            try:
                following.take()
            except Compacted:
                return True
            return False

        wait_for(noticed, "the watch is told to read everything again")
        snapshot = store.read()
        assert snapshot.revision < last
        again = Following(store, snapshot.revision)
        assert again.reach(store.write({"b": b""}))[-1].changes == (CatalogChange("b", b""),)


def test_clusters_share_an_etcd_and_do_not_see_each_other(etcd: Etcd) -> None:
    with opened(etcd.url("prod")) as prod, closing(EtcdStore(parse(etcd.url("test")), "second")) as test:
        assert (prod.cluster_id(), test.cluster_id()) == ("first", "second")
        following = Following(prod, prod.revision())
        for number in range(5):
            test.write({f"a/{number}": b""})
        assert prod.read().entries == {}
        assert following.reach(prod.write({"b": b""}))[0].changes == (CatalogChange("b", b""),)
        assert len(following.take()) == 1


def test_a_cluster_of_a_newer_format_is_refused_and_untouched(etcd: Etcd) -> None:
    with opened(etcd.url("prod")) as store:
        store.write({".cluster": b'{"id": "later", "format": 99}'})
        before = store.revision()
    with pytest.raises(NewerFormat, match="format 99"):
        EtcdStore(parse(etcd.url("prod")), "mine")
    with opened(etcd.url("other")) as other:
        assert other.revision() == before + 2  # its own two, of being opened and of asking


def test_a_write_that_is_too_large_for_etcd_is_refused_as_such(etcd: Etcd) -> None:
    with opened(etcd.url("prod")) as store:
        with pytest.raises(TooLarge, match="max-request-bytes"):
            store.write({"a": bytes(2_000_000)})
        store.write({"a": bytes(1_000_000)})


# -- who asks ---------------------------------------------------------------------------------------------------------


class User(EtcdMessage, frozen=True):
    name: str = ""
    password: str = ""
    user: str = ""
    role: str = ""


def need_password(etcd: Etcd, password: str) -> None:
    with opened(etcd.url("prod")) as store:
        for path, request in (
            ("user/add", User(name="root", password=password)),
            ("role/add", User(name="root")),
            ("user/grant", User(user="root", role="root")),
            ("user/add", User(name="nobody", password=password)),
            ("enable", User()),
        ):
            store._gateway.ask(f"/v3/auth/{path}", request, EmptyResponse, repeatable=True)


def test_a_user_of_etcd_is_let_in_and_stays_so_over_a_restart(etcd: Etcd, tmp_path: Path) -> None:
    need_password(etcd, "s:cret/")
    file = tmp_path / "password"
    file.write_text("s:cret/\n")
    url = etcd.url("prod", f"?password-file={file}", user="root@")
    with opened(etcd.url("prod", user="root:s%3Acret%2F@")) as store, opened(url) as by_file:
        following = Following(by_file, by_file.revision())
        following.reach(store.write({"a": b"1"}))
        etcd.kill()  # which forgets the tokens
        etcd.start()
        revision = wait_for(lambda: store.write({"a": b"2"}), "etcd is back", retry_on=(StoreUnavailable,))
        following.reach(revision)


def test_who_is_not_let_in_is_told_why(etcd: Etcd, tmp_path: Path) -> None:
    with opened(etcd.url("prod", user="any:thing@")) as store:  # nobody asks yet
        store.write({"a": b""})
    need_password(etcd, "secret")
    for user in ("", "root:wrong@", "nobody:secret@", "unknown:secret@"):
        with pytest.raises(NotAllowed, match="cluster's address") as told:
            EtcdStore(parse(etcd.url("prod", user=user)), "first")
        assert "secret" not in str(told.value)
    with pytest.raises(Invalid, match="none"):
        EtcdStore(parse(etcd.url("prod", f"?password-file={tmp_path / 'none'}", user="root@")), "first")


def certificates(folder: Path) -> None:
    """A certificate authority, and what it signed: for etcd, for the node."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    folder.mkdir()
    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test")
    for name in ("etcd", "node"):
        openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key", "-out", f"{name}.csr",
                "-subj", f"/CN={name}")  # fmt: skip
        (folder / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-extfile", "names")  # fmt: skip


def test_tls_with_a_certificate_of_the_node(tmp_path: Path) -> None:
    need()
    keys = tmp_path / "keys"
    certificates(keys)
    options = ["--cert-file", f"{keys}/etcd.pem", "--key-file", f"{keys}/etcd.key"]
    options += ["--trusted-ca-file", f"{keys}/ca.pem", "--client-cert-auth"]
    with Etcd(tmp_path / "etcd", options=options, scheme="https") as etcd:
        mine = f"?ca={keys}/ca.pem&cert={keys}/node.pem&key={keys}/node.key"
        with opened(etcd.url("prod", mine)) as store:
            following = Following(store, store.revision())
            for number in range(3):
                following.reach(store.write({"a": b"%d" % number}))
        for less in ("", "?tls=on", f"?ca={keys}/ca.pem"):
            unavailable(lambda less=less: EtcdStore(parse(etcd.url("prod", less)), "first"))  # type: ignore[misc]
        with pytest.raises(Invalid, match="ca, cert or key"):
            EtcdStore(parse(etcd.url("prod", f"?ca={keys}/none.pem")), "first")


def test_what_is_compared_is_always_spelled_out() -> None:
    from waystation.cluster.etcd.messages import Compare

    assert encode(Compare(b"k", 0)) == b'{"key":"aw==","mod_revision":0,"target":"MOD","result":"EQUAL"}'
