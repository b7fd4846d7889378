"""From a cluster's address to a connected client."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from ledger_client.background import Background
from ledger_client.client import DEFAULT_OPTIONS
from ledger_client.connection import OpenStream
from ledger_client.errors import InvalidAddress, MetadataBroken, MetadataUnavailable
from ledger_client.options import Options
from ledger_client.topics.client import TopicClient
from metadata import errors as metadata_errors
from metadata.cluster_url import is_cluster_url, parse_cluster_url
from metadata.urls import open_store


@asynccontextmanager
async def connect(
    url: str,
    *,
    options: Options = DEFAULT_OPTIONS,
    open_stream: OpenStream = trio.open_tcp_stream,
) -> AsyncIterator[TopicClient]:
    """Connect to a cluster.

    Nothing is sent before it is needed, so an unreachable cluster is noticed by
    the first call.

    Args:
        url: "bookie://host:port,host:port" (any live bookies; others are found
            through them), with TLS and a login as metadata/cluster_url.py says, or
            "sqlite:///path" of the metadata on this host.
        options: deadlines and bounds.
        open_stream: how to reach a host and port, below TLS and login; for tests.

    Raises:
        InvalidAddress: *url* cannot be understood.
        MetadataUnavailable: the SQLite file cannot be opened.
    """
    stores = open_store(url)
    try:
        reach = _opener(url, open_stream)
        store = await stores.__aenter__()
    except metadata_errors.BadAddress as wrong:
        raise InvalidAddress(str(wrong)) from wrong
    except metadata_errors.MetadataUnavailable as wrong:
        raise MetadataUnavailable(f"metadata: {wrong}") from wrong
    except metadata_errors.MetadataError as wrong:
        raise MetadataBroken(f"metadata: {wrong}") from wrong
    try:
        async with Background() as nursery:
            yield TopicClient(store, nursery, options=options, open_stream=reach)
    finally:
        with trio.CancelScope(shield=True):
            await stores.__aexit__(None, None, None)


def _opener(url: str, open_stream: OpenStream) -> OpenStream:
    """Return how bookies are reached; who knows only the metadata's file calls as nobody."""
    if not is_cluster_url(url):
        return open_stream
    return parse_cluster_url(url).access.opener(open_stream)
