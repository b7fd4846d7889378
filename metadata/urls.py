"""Which driver a URL means: ``sqlite:///absolute/path`` or ``bookie://host:port,...``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from metadata.address import Address
from metadata.cluster_url import is_cluster_url, parse_cluster_url, without_password
from metadata.errors import BadAddress
from metadata.remote import TIMEOUT_S, BookieStore
from metadata.sqlite import SqliteStore
from metadata.store import MetadataStore

SQLITE_SCHEME = "sqlite://"


@asynccontextmanager
async def open_store(url: str) -> AsyncIterator[MetadataStore]:
    """Open the store that *url* names, and close it at the end of the context.

    A SQLite file is made when it does not exist; its folder must. A bookie is first
    called when the store is first used.

    Raises:
        BadAddress: no driver takes this URL.
        BadStore: the file is not a metadata store.
        MetadataUnavailable: the file cannot be opened.
    """
    store = await _open(url)
    try:
        yield store
    finally:
        await store.aclose()


async def _open(url: str) -> MetadataStore:
    if is_cluster_url(url):
        return bookie_store(url)
    path = url.removeprefix(SQLITE_SCHEME)
    if path == url:
        raise BadAddress(
            f"{without_password(url)!r} is no metadata store; "
            "expected sqlite:///path or bookie://host"
        )
    if not path.startswith("/"):
        raise BadAddress(f"{url!r} does not hold an absolute path; expected sqlite:///path")
    return await SqliteStore.open(Path(path))


def bookie_store(url: str, *, timeout_s: float = TIMEOUT_S) -> BookieStore:
    """Return the store behind the bookies that *url* names; the caller closes it.

    Raises:
        BadAddress: it cannot be understood, or names files that cannot be used.
    """
    addresses, access = parse_cluster_url(url)
    open_stream = access.opener()

    async def open_address(address: Address) -> trio.abc.Stream:
        return await open_stream(address.host, address.port)

    return BookieStore(addresses, open_stream=open_address, timeout_s=timeout_s)
