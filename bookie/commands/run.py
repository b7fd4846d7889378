"""``bookie run``: one bookie in the foreground, until a signal."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import click
import msgspec
import trio

from bookie.commands import options, parent
from bookie.commands.output import announce
from bookie.commands.stores import open_store
from bookie.config import BookieConfig
from bookie.cookie_file import is_new
from bookie.daemon import Ready, check_place, run_bookie, wait_until_alone
from bookie.host import Roles
from bookie.lock import hold_folders
from bookie.security import scheme_of
from metadata.outcome import Exit
from metadata.store import MetadataStore
from metadata.urls import check_url

_log = logging.getLogger("bookie")


class BookieStarted(msgspec.Struct):
    """Output of ``--json``, printed once the bookie serves."""

    ready: str
    bookie_id: str
    address: str
    metrics_port: int
    process_id: int


@click.command()
@options.config_file
@options.data_folder
@click.option("--host", metavar="ADDRESS", help="Address to listen on. [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0: any free one. [default: 3181]")
@options.metadata
@options.bookie_id
@click.option("--rack", metavar="NAME", help="Rack: copies of an entry are spread over racks.")
@click.option(
    "--metrics-port",
    type=int,
    help="Port for /metrics, /health and /ready; 0: none, -1: any free one. [default: 0]",
)
@options.log_level
@options.settings
@parent.stop_with_parent
@options.as_json
def run(
    *,
    config_file: Path | None,
    settings: tuple[str, ...],
    stop_with_parent: bool,
    as_json: bool,
    **direct: str | int | None,
) -> None:
    """Run one bookie until SIGTERM or Ctrl-C.

    \b
    A single bookie:      bookie run --data /var/lib/quire
    Of many, one host:    bookie run --data DIR --metadata sqlite:///shared/metadata.db
    Of many hosts:        bookie run --data DIR --host ADDRESS --metadata zk://HOST:2181/quire
    Three on a laptop:    bookie standalone --data DIR

    Prints "ready bookie://HOST:PORT" once it serves; logs go to standard error. A stop
    flushes the memtable and ends the bookie's registration. Exit code 0 after a stop; 1 if
    the bookie cannot start, or its disk fails or hangs; 2 if a setting is wrong; 3 if its
    metadata store cannot be reached.
    """  # noqa: D301 - the backslash keeps lines
    config = options.read_config(config_file, settings, **direct)
    check_url(config.metadata)  # before any folder is made
    logging.basicConfig(
        stream=sys.stderr,
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    trio.run(_run, config, stop_with_parent, as_json)


async def _run(config: BookieConfig, stop_with_parent: bool, as_json: bool) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signal, nursery.cancel_scope, config.stop_timeout_s)
        if stop_with_parent and parent.is_watchable():
            nursery.start_soon(_stop_with_parent, nursery.cancel_scope, config.stop_timeout_s)
        await _serve(config, as_json)


async def _serve(config: BookieConfig, as_json: bool) -> None:
    with hold_folders(config):
        # Data belong to a cluster: a path without one is a mistake, and stays as it is.
        create = await is_new(config)
        address = await check_place(config) if create else ""
        async with (
            open_store(config.metadata, create=create) as store,
            trio.open_nursery() as nursery,
        ):
            if create:
                await wait_until_alone(config, store, config.bookie_id, address)
            serve = partial(run_bookie, roles=_roles(config, store), give_up=_end_stalled)
            ready = await nursery.start(serve, config, store)
            _announce(ready, scheme_of(Path(config.data_folder)), as_json)


def _roles(config: BookieConfig, store: MetadataStore) -> Roles | None:
    if not config.autorecovery:
        return None
    # Loading the client takes a while, and other commands do without it.
    from bookie.commands.roles import roles_of

    return roles_of(config, store)


def _announce(ready: Ready, scheme: str, as_json: bool) -> None:
    url = f"{scheme}://{ready.address}"
    if as_json:
        started = BookieStarted(
            url, ready.bookie_id, ready.address, ready.metrics_port, os.getpid()
        )
        announce(msgspec.json.encode(started).decode())
    else:
        announce(f"ready {url}")


async def _stop_on_signal(
    scope: trio.CancelScope,
    timeout_s: float,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            _log.info("stopping on %s", signal.Signals(number).name)
            _give_up_after(timeout_s)
            scope.cancel()


async def _stop_with_parent(scope: trio.CancelScope, timeout_s: float) -> None:
    await parent.gone()
    _log.info("stopping with the parent process")
    _give_up_after(timeout_s)
    scope.cancel()


def _end_stalled(failure: OSError) -> None:
    """End the process at once, without waiting for the thread that hangs on the disk."""
    _log.error("%s", failure.strerror)
    os._exit(Exit.FAILED)


def _give_up_after(timeout_s: float) -> None:
    """Kill the process if it is still running after *timeout_s*.

    This uses a thread, since the event loop itself may hang.
    """
    timer = threading.Timer(timeout_s, _give_up, [timeout_s])
    timer.daemon = True
    timer.start()


def _give_up(timeout_s: float) -> None:
    _log.error("not stopped in %g s; what is not flushed is replayed at the next start", timeout_s)
    os._exit(Exit.FAILED)
