"""The driver and ZooKeepers that want TLS, a certificate or a login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from kazoo.client import KazooClient
from secured_zookeeper import (
    OTHER,
    OTHER_PASSWORD,
    PASSWORD,
    USER,
    SecuredZooKeeper,
    secured_zookeeper,
)

from metadata.errors import AccessDenied, MetadataUnavailable
from metadata.store import Put
from metadata.zookeeper.store import open_zookeeper_store
from metadata.zookeeper.url import PASSWORD_VARIABLE

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("zookeeper")]
AT_ONCE_S = 20.0
"""On a busy machine; far less than the store is given."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    """A ZooKeeper with TLS that lets nobody in without a login."""
    with secured_zookeeper(tmp_path_factory.mktemp("guarded"), login=True) as found:
        yield found


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredZooKeeper]:
    """A ZooKeeper with TLS that wants a certificate, and knows no logins."""
    with secured_zookeeper(tmp_path_factory.mktemp("certified"), clients=True) as found:
        yield found


async def test_a_login_works_with_and_without_tls(guarded: SecuredZooKeeper) -> None:
    login = f"password-file={guarded.password_file}"
    plain = f"zk://{USER}@{guarded.plain}/with-login?{login}"
    secure = f"zk+tls://{USER}@{guarded.secure}/with-login?{login}&ca={guarded.ca}"
    async with (
        open_zookeeper_store(plain, create=True) as one,
        open_zookeeper_store(secure) as two,
    ):
        session = await one.open_session("me", ttl_s=60)
        lease = await one.grant("l", session)
        await one.put("a", b"1")
        found = await two.get("a")
        assert found is not None and found.value == b"1"
        assert [each.epoch for each in await two.leases("")] == [lease.epoch]
        await two.keep_session(session)
        await two.transact([Put(f"k{number}", b"") for number in range(100)])
        assert len(await one.list("k")) == 100


async def test_all_nodes_of_a_login_are_its_own_unless_they_are_to_be_open(
    guarded: SecuredZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = f"password-file={guarded.password_file}"
    own = f"zk://{USER}@{guarded.plain}/own/nodes?{login}"
    free = f"zk://{USER}@{guarded.plain}/open-nodes?{login}&acl=open"
    for url in (own, free):
        async with open_zookeeper_store(url, create=True) as store:
            session = await store.open_session("me", ttl_s=60)
            await store.grant("l", session)
            await store.put("topics/shop/orders", b"1")
            await store.next_id("ledgers")
            await store.now_ms()
    found = await trio.to_thread.run_sync(_access_lists, guarded)
    assert {tuple(each) for path, each in found.items() if path.startswith("/own")} == {
        (f"sasl:{USER}:31",)
    }
    assert {tuple(each) for path, each in found.items() if path.startswith("/open-nodes/")} == {
        ("world:anyone:31",)
    }
    monkeypatch.setenv(PASSWORD_VARIABLE, OTHER_PASSWORD)
    with pytest.raises(AccessDenied, match="refuses access"):
        async with open_zookeeper_store(f"zk://{OTHER}@{guarded.plain}/own/nodes", create=True):
            pass
    with pytest.raises(AccessDenied, match="refuses"):
        async with open_zookeeper_store(f"zk://{OTHER}@{guarded.plain}/own/others", create=True):
            pass
    async with open_zookeeper_store(f"zk://{OTHER}@{guarded.plain}/open-nodes") as store:
        assert await store.get("topics/shop/orders") is not None
    assert await trio.to_thread.run_sync(_access_lists, guarded) == found


def _access_lists(zookeeper: SecuredZooKeeper) -> dict[str, list[str]]:
    """Return "scheme:id:permissions" of each durable node that the login may read."""
    client = KazooClient(
        hosts=zookeeper.plain,
        sasl_options={"mechanism": "DIGEST-MD5", "username": USER, "password": PASSWORD},
    )
    client.start()
    found = {}
    waiting = ["/own", "/open-nodes"]
    try:
        while waiting:
            path = waiting.pop()
            if not client.exists(path):
                continue
            lists, stat = client.get_acls(path)
            if not stat.ephemeralOwner:
                found[path] = [f"{each.id.scheme}:{each.id.id}:{each.perms}" for each in lists]
            waiting += [f"{path}/{name}" for name in client.get_children(path)]
    finally:
        client.stop()
        client.close()
    return {
        path: lists
        for path, lists in found.items()
        if not any(part in path for part in ("/slots", "/held/", "/sessions", "/log/"))
    }


async def test_what_is_refused_is_refused_at_once_and_says_why(
    guarded: SecuredZooKeeper, tmp_path: Path
) -> None:
    login = f"password-file={guarded.password_file}"
    wrong = tmp_path / "wrong"
    wrong.write_text("s3cret-and-wrong")
    host = f"localhost:{guarded.secure_port}"
    ca = f"ca={guarded.ca}"
    for url, why in (
        (f"zk://{USER}@{guarded.plain}/x?password-file={wrong}", f"refuses user '{USER}'"),
        (f"zk://nobody@{guarded.plain}/x?password-file={wrong}", "refuses user 'nobody'"),
        (f"zk://{guarded.plain}/x", "wants a login"),
        (f"zk+tls://{guarded.secure}/x?{ca}", "wants a login"),
        (f"zk+tls://{USER}@{guarded.secure}/x?{login}", "is not trusted"),
        (f"zk+tls://{USER}@{host}/x?{login}&{ca}", "Hostname mismatch"),
        (f"zk://{USER}@{guarded.secure}/x?{login}", "speaks TLS: write zk[+]tls://"),
    ):
        with trio.fail_after(AT_ONCE_S), pytest.raises(AccessDenied, match=why) as caught:
            async with open_zookeeper_store(url, create=True, timeout_s=30):
                pass
        assert "s3cret" not in str(caught.value)


async def test_a_login_where_there_are_none_is_refused_and_says_why(
    certified: SecuredZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
    why = rf"closes the connection whenever user '{USER}' logs in; has it logins"
    with trio.fail_after(AT_ONCE_S), pytest.raises(AccessDenied, match=why):
        async with open_zookeeper_store(f"zk://{USER}@{certified.plain}/x", timeout_s=30):
            pass


async def test_tls_at_a_port_without_it_ends_at_the_deadline_and_says_why(
    guarded: SecuredZooKeeper,
) -> None:
    url = f"zk+tls://{guarded.plain}/x?ca={guarded.ca}"
    with pytest.raises(MetadataUnavailable, match=r"in 2 s: .* does not speak TLS"):
        async with open_zookeeper_store(url, create=True, timeout_s=2):
            pass


async def test_a_zookeeper_may_want_a_certificate(
    certified: SecuredZooKeeper, guarded: SecuredZooKeeper
) -> None:
    bare = f"zk+tls://{certified.secure}/x?ca={certified.ca}"
    url = f"{bare}&cert={certified.certificate}&key={certified.key}&acl=creator"
    async with open_zookeeper_store(url, create=True) as store:
        await store.put("a", b"1")
    for refused, why in (
        (bare, "wants a certificate"),
        (f"{bare}&cert={guarded.certificate}&key={guarded.key}", "refuses the certificate"),
    ):
        with trio.fail_after(AT_ONCE_S), pytest.raises(AccessDenied, match=why):
            async with open_zookeeper_store(refused, timeout_s=30):
                pass


@pytest.mark.real_processes
async def test_a_login_that_zookeeper_refuses_later_is_tried_until_it_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with secured_zookeeper(tmp_path, login=True) as zookeeper:
        monkeypatch.setenv(PASSWORD_VARIABLE, PASSWORD)
        url = f"zk://{USER}@{zookeeper.plain}/x"
        async with open_zookeeper_store(url, create=True, timeout_s=2) as store:
            version = await store.put("a", b"1")
            jaas = tmp_path / "jaas.conf"
            right = jaas.read_text()
            for content in (right.replace(PASSWORD, "changed"), right):
                await trio.to_thread.run_sync(zookeeper.server.kill)
                jaas.write_text(content)
                zookeeper.server.start()
                await trio.to_thread.run_sync(zookeeper.server.wait)
                if content != right:
                    for _ in range(2):
                        with pytest.raises(MetadataUnavailable):
                            await store.get("a")
            with trio.fail_after(20):
                while True:
                    try:
                        await store.put("a", b"2", expected=version)
                        break
                    except MetadataUnavailable as lost:
                        assert not lost.outcome_unknown
