"""Which driver a URL means: ``sqlite:///absolute/path`` or ``bookie://host:port,...``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from metadata.address import BOOKIE_SCHEME, parse_cluster
from metadata.errors import BadAddress
from metadata.remote import BookieStore
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
    if url.startswith(BOOKIE_SCHEME):
        return BookieStore(parse_cluster(url))
    path = url.removeprefix(SQLITE_SCHEME)
    if path == url:
        raise BadAddress(f"{url!r} is no metadata store; expected sqlite:///path or bookie://host")
    if not path.startswith("/"):
        raise BadAddress(f"{url!r} does not hold an absolute path; expected sqlite:///path")
    return await SqliteStore.open(Path(path))
