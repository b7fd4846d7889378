"""Opens the store that a URL names: a SQLite file, ZooKeeper, or one of a driver given.

sqlite:///absolute/path
zk://host:2181,host:2181/path      see metadata/zookeeper/url.py
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import trio

from metadata.cluster_url import is_cluster_url, shown, without_password
from metadata.errors import BadAddress
from metadata.moving import MovableStore
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore
from metadata.zookeeper.url import is_zookeeper_url

SQLITE_SCHEME = "sqlite://"
Driver = Callable[[str], AbstractAsyncContextManager[MetadataStore]]


@asynccontextmanager
async def open_store(
    url: str, *, drivers: Mapping[str, Driver] | None = None, create: bool = False
) -> AsyncIterator[MetadataStore]:
    """Open the store that *url* names, and close it at the end of the context.

    A SQLite file is created if it does not exist; its folder must exist. A path in ZooKeeper
    becomes a store with *create* only, and if it does not exist or is empty. *drivers* open the
    URLs of other schemes: ledger_client.wire.stores has the one that calls bookies.

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
    async with open_movable(url, create=create) as store:
        yield store


@asynccontextmanager
async def open_movable(url: str, *, create: bool = False) -> AsyncIterator[MovableStore]:
    """Open the store that *url* names itself, not through bookies. Raises as open_store()."""
    if is_zookeeper_url(url):
        from metadata.zookeeper.store import open_zookeeper_store  # kazoo takes a while to load

        async with open_zookeeper_store(url, create=create) as cluster:
            yield cluster
        return
    store = await SqliteStore.open(_path(url))
    try:
        yield store
    finally:
        with trio.CancelScope(shield=True):
            await store.aclose()


def takes_bookkeepers_clients(url: str) -> bool:
    """Return True if clients of BookKeeper may create ledgers in the store that *url* names."""
    return is_zookeeper_url(url)


def _path(url: str) -> Path:
    if is_cluster_url(url):
        raise BadAddress(f"{shown(url)} is a cluster; expected sqlite:///path")
    path = url.removeprefix(SQLITE_SCHEME)
    if path == url:
        raise BadAddress(
            f"{without_password(url)!r} is not the URL of a cluster or a metadata store; "
            "write bookie://HOST:PORT, zk://HOST:PORT/path or sqlite:///absolute/path"
        )
    if not path.startswith("/"):
        raise BadAddress(f"{url!r} does not hold an absolute path; expected sqlite:///path")
    return Path(path)
