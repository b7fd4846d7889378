"""Opens the store that a URL names: a SQLite file, ZooKeeper, or one of a driver given.

sqlite:///absolute/path
zk://host:2181,host:2181/path      see metadata/zookeeper/url.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import trio

from metadata.address import is_loopback
from metadata.cluster_url import is_cluster_url, shown, without_password
from metadata.errors import BadAddress
from metadata.moving import MovableStore
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore
from metadata.zookeeper.url import is_zookeeper_url, parse_zookeeper_url

SQLITE_SCHEME = "sqlite://"
Driver = Callable[[str], AbstractAsyncContextManager[MetadataStore]]


@asynccontextmanager
async def open_store(
    url: str,
    *,
    drivers: Mapping[str, Driver] | None = None,
    create: bool = False,
    timeout_s: float | None = None,
) -> AsyncIterator[MetadataStore]:
    """Open the store that *url* names, and close it at the end of the context.

    A SQLite file is created if it does not exist; its folder must exist. A path in ZooKeeper
    becomes a store with *create* only, and if it does not exist or is empty. *drivers* open the
    URLs of other schemes: ledger_client.wire.stores has the one that calls bookies. *timeout_s* is
    the deadline of each call to ZooKeeper, by default store.py's.

    Raises:
        BadAddress: no driver takes this URL.
        AccessDenied: ZooKeeper refuses the login.
        MetadataBroken: the file or the path is not a metadata store.
        MetadataUnavailable: the file cannot be opened, or no ZooKeeper answers.
    """
    driver = (drivers or {}).get(url.partition("://")[0]) if "://" in url else None
    if driver is not None:
        async with driver(url) as store:
            yield store
        return
    async with open_movable(url, create=create, timeout_s=timeout_s) as store:
        yield store


@asynccontextmanager
async def open_movable(
    url: str, *, create: bool = False, timeout_s: float | None = None
) -> AsyncIterator[MovableStore]:
    """Open the store that *url* names itself, not through bookies. Raises as open_store()."""
    if is_zookeeper_url(url):
        # kazoo takes a while to load
        from metadata.zookeeper.store import TIMEOUT_S, open_zookeeper_store

        limit_s = TIMEOUT_S if timeout_s is None else timeout_s
        async with open_zookeeper_store(url, create=create, timeout_s=limit_s) as cluster:
            yield cluster
        return
    store = await SqliteStore.open(_path(url))
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


def check_url(url: str) -> None:
    """Raise BadAddress unless *url* names a store itself, not through bookies; opens nothing."""
    if is_zookeeper_url(url):
        parse_zookeeper_url(url)
    else:
        _path(url)


def takes_bookkeepers_clients(url: str) -> bool:
    """Return True if clients of BookKeeper may create ledgers in the store that *url* names."""
    return is_zookeeper_url(url)


def is_for_many_hosts(url: str) -> bool:
    """Return True if bookies on other hosts can reach the store that *url* names, too."""
    if not is_zookeeper_url(url):
        return False
    return any(not is_loopback(each.host) for each in parse_zookeeper_url(url).addresses)


def _path(url: str) -> Path:
    if is_cluster_url(url):
        raise BadAddress(
            f"{shown(url)} names bookies, and not the store of a cluster; expected "
            "zk://HOST:PORT/path or sqlite:///absolute/path"
        )
    path = url.removeprefix(SQLITE_SCHEME)
    if path == url:
        raise BadAddress(
            f"{without_password(url)!r} is not the URL of a cluster or a metadata store; "
            "write bookie://HOST:PORT, zk://HOST:PORT/path or sqlite:///absolute/path"
        )
    if not path.startswith("/"):
        raise BadAddress(f"{url!r} does not hold an absolute path; expected sqlite:///path")
    return Path(path)
