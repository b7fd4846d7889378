"""The metadata store of a command: a SQLite file, ZooKeeper, or a cluster's through its bookies.

The client has the driver for a cluster. It takes a quarter of a second to load, so it is loaded
only for a cluster's URL.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from metadata import urls
from metadata.cluster_url import is_cluster_url
from metadata.store import MetadataStore


def open_store(url: str, *, create: bool = False) -> AbstractAsyncContextManager[MetadataStore]:
    """Open the store that *url* names, as metadata.urls.open_store does."""
    if is_cluster_url(url):
        from ledger_client.wire import stores

        return stores.open_store(url)
    return urls.open_store(url, create=create)
