"""The metrics of a command's client, at http://127.0.0.1:PORT/metrics while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from wsgiref.simple_server import WSGIServer

import click
import trio

from ledger_client import Client
from ledger_client.commands.errors import CommandFailed

HOST = "127.0.0.1"

metrics_port = click.option(
    "--metrics-port",
    type=click.IntRange(-1, 65535),
    default=0,
    show_default=True,
    help="Port of /metrics while it runs, here on 127.0.0.1. 0: none, -1: any free one.",
)


@asynccontextmanager
async def metrics_page(client: Client, port: int) -> AsyncIterator[None]:
    """Serve what *client* counts for the block; 0: nowhere, -1: at a port that is told on stderr.

    A thread answers, so that a scrape waits for nothing that the client does.

    Raises:
        CommandFailed: the port is taken.
    """
    if not port:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server  # seldom wanted

    registry = CollectorRegistry()
    registry.register(client.metrics)
    try:
        server, _ = start_http_server(max(port, 0), HOST, registry)
    except OSError as cause:
        raise CommandFailed(f"no metrics at {HOST}:{port}: {cause.strerror}") from cause
    if port < 0:
        click.echo(f"metrics at http://{HOST}:{server.server_port}/metrics", err=True)
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(_stop, server)


def _stop(server: WSGIServer) -> None:
    """Takes up to half a second."""
    server.shutdown()
    server.server_close()
