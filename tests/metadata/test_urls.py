from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from memory_store import MemoryStore

from ledger_client.wire import stores
from ledger_client.wire.stores import timeout_of_calls_s
from metadata.errors import BadAddress, MetadataUnavailable
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore
from metadata.urls import (
    check_url,
    is_for_many_hosts,
    open_store,
    takes_bookkeepers_clients,
)


async def test_a_sqlite_url_opens_a_file_and_closes_it(path: Path) -> None:
    async with open_store(f"sqlite://{path}") as store:
        assert isinstance(store, SqliteStore)
        await store.put("a", b"1")
    with pytest.raises(MetadataUnavailable):
        await store.get("a")


async def test_an_error_inside_comes_out_as_it_is(path: Path) -> None:
    with pytest.raises(KeyError):
        async with open_store(f"sqlite://{path}"):
            raise KeyError


async def test_a_driver_opens_the_urls_of_its_scheme(path: Path) -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def driver(url: str) -> AsyncIterator[MetadataStore]:
        opened.append(url)
        yield MemoryStore()

    async with open_store("zk://a", drivers={"zk": driver}) as store:
        assert isinstance(store, MemoryStore)
    with pytest.raises(BadAddress):
        async with open_store("bookie://a:1", drivers={"zk": driver}):
            pass
    async with open_store(f"sqlite://{path}", drivers={"zk": driver}) as store:
        assert isinstance(store, SqliteStore)
    assert opened == ["zk://a"]


@pytest.mark.parametrize(
    "url", ["", "metadata.db", "/metadata.db", "sqlite://metadata.db", "zk://", "bookie://"]
)
async def test_any_other_url_is_refused(url: str) -> None:
    with pytest.raises(BadAddress):
        async with open_store(url):
            pass


def test_clients_of_bookkeeper_create_ledgers_in_zookeeper_with_and_without_tls() -> None:
    """There a bookie believes in no ledger that the metadata does not know, whatever its id."""
    assert takes_bookkeepers_clients("zk://a:2181/ledgers")
    assert takes_bookkeepers_clients("zk+tls://a:2281/ledgers")
    assert not takes_bookkeepers_clients("sqlite:///var/lib/quire/metadata.db")


@pytest.mark.parametrize("url", ["foo", "bookie://a:1", "sqlite://rel.db", "zk:///q", "zk://a/#"])
def test_a_url_that_no_store_has_is_told_before_anything_is_opened(url: str) -> None:
    with pytest.raises(BadAddress):
        check_url(url)


def test_a_url_of_a_store_is_checked_without_opening_it(tmp_path: Path) -> None:
    for url in (f"sqlite://{tmp_path}/metadata.db", "zk://nobody:1,nobody:2/quire"):
        check_url(url)
    assert list(tmp_path.iterdir()) == []


async def test_a_shorter_deadline_counts_for_zookeeper(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    @asynccontextmanager
    async def opened(_url: str, *, create: bool, timeout_s: float) -> AsyncIterator[MemoryStore]:
        assert not create
        limits.append(timeout_s)
        yield MemoryStore()

    monkeypatch.setattr("metadata.zookeeper.store.open_zookeeper_store", opened)
    for limit_s in (None, 2.0):
        async with open_store("zk://a/x", timeout_s=limit_s):
            pass
    token = timeout_of_calls_s.set(3.0)
    async with stores.open_store("zk://a/x"):
        pass
    timeout_of_calls_s.reset(token)
    assert limits == [10.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("url", "is_shared"),
    [
        ("sqlite:///a", False),
        ("zk://127.0.0.1:2181/a", False),
        ("zk://localhost,[::1]:2181/a", False),
        ("zk://localhost,zk2/a", True),
        ("zk+tls://10.0.0.1:2281/a", True),
    ],
)
def test_a_store_on_loopback_is_for_one_host(url: str, is_shared: bool) -> None:
    assert is_for_many_hosts(url) == is_shared
