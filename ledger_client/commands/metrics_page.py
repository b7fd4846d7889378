"""The metrics of a command's client, at http://127.0.0.1:PORT/metrics while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIServer

import click
import trio

from metadata.outcome import CommandFailed

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

HOST = "127.0.0.1"

metrics_port = click.option(
    "--metrics-port",
    type=click.IntRange(-1, 65535),
    default=0,
    show_default=True,
    help="Serve /metrics on this port of 127.0.0.1 meanwhile; -1 picks a free one, 0 none.",
)


@asynccontextmanager
async def metrics_page(metrics: Callable[[], Collector], port: int) -> AsyncIterator[None]:
    """Serve the text that *metrics* returns, for the length of the block.

    Port 0 serves nothing, and -1 a free port, which is printed on standard error.
    A thread answers, so that scrapes never wait for the client.

    Raises:
        CommandFailed: the port is taken.
    """
    if not port:
        yield
        return
    from prometheus_client import CollectorRegistry, start_http_server  # rarely needed

    registry = CollectorRegistry()
    registry.register(metrics())
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
    """Stop the server; blocks for up to half a second."""
    server.shutdown()
    server.server_close()
