"""``bookie standalone``: a cluster on this machine, until a signal."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click
import msgspec
import trio

from bookie.commands import options, parent
from bookie.commands.output import announce, log_line, table_lines
from bookie.config import load_config
from bookie.member import Running
from bookie.security import scheme_of
from bookie.standalone import LocalCluster, Plan, count_members
from metadata.urls import check_url


class ClusterStarted(msgspec.Struct):
    """Output of ``--json``, printed once all bookies serve."""

    ready: str
    process_id: int
    metadata: str
    bookies: list[Running]


@click.command()
@click.option(
    "--data",
    "folder",
    required=True,
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Folder of the cluster; created if missing, reused if it exists.",
)
@click.option(
    "--bookies",
    type=click.IntRange(1, 999),
    help="Number of bookies. [default: as many as DIR has, or 3]",
)
@click.option(
    "--racks",
    type=click.IntRange(0, 999),
    default=0,
    show_default=True,
    help="Try out racks: bookie-1 states rack r1, bookie-2 r2 and so on, up to this many, then r1 "
    "again. 0: they state none.",
)
@click.option(
    "--metadata",
    default="",
    metavar="URL",
    help="Metadata store of the cluster, such as zk://HOST:PORT/path. [default: DIR/metadata.db]",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=3181,
    show_default=True,
    help="Port of the first bookie; the others use the next ports. 0: any free ones.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(-1, 65535),
    default=0,
    show_default=True,
    help="The same for /metrics, /health, /ready, listed for Prometheus in DIR/targets.json; "
    "0: none, -1: any free ones.",
)
@click.option(
    "--restart/--no-restart",
    default=True,
    show_default=True,
    help="Restart a bookie that ended by itself, after one second.",
)
@click.option("--log-level", default="warning", show_default=True, help="Log level of each bookie.")
@options.config_file
@options.settings
@parent.stop_with_parent
@options.as_json
def standalone(
    *,
    folder: Path,
    bookies: int | None,
    racks: int,
    metadata: str,
    host: str,
    port: int,
    metrics_port: int,
    restart: bool,
    log_level: str,
    config_file: Path | None,
    settings: tuple[str, ...],
    stop_with_parent: bool,
    as_json: bool,
) -> None:
    """Run a cluster on this machine until SIGTERM or Ctrl-C.

    The metadata is one SQLite file, DIR/metadata.db, unless --metadata names another store.
    Each bookie is a process with its data in DIR/bookie-1, DIR/bookie-2 and so on. Start it
    again with the same DIR to continue with the same data; a bookie's port may differ.

    \b
    Try:   bookie standalone --data /tmp/quire &
           quire topic create shop/orders

    Prints "ready bookie://..." once all bookies serve, then a table of processes and
    folders. Logs of the bookies go to standard error. All bookies end with this process,
    even if it is killed. Exit code 0 after a stop, 1 if a bookie does not start, 2 if
    --metadata or a setting is wrong, 3 if the metadata store cannot be reached.
    """  # noqa: D301 - the backslash keeps lines
    if metadata:
        check_url(metadata)  # before any folder is made
    given = {"data_folder": str(folder), "log_level": log_level}
    config = load_config(config_file, options.overrides(settings, **given))
    words = [f"--set={setting}" for setting in settings] + ["--log-level", log_level]
    if config_file is not None:
        words += ["--config", str(config_file.absolute())]
    plan = Plan(
        folder=folder.absolute(),
        bookies=bookies or count_members(folder) or 3,
        host=host,
        port=port,
        metrics_port=metrics_port,
        metadata=metadata,
        racks=racks,
        options=words,
        restart=restart,
        stop_timeout_s=config.stop_timeout_s,
    )
    trio.run(_run, plan, stop_with_parent, as_json)


async def _run(plan: Plan, stop_with_parent: bool, as_json: bool) -> None:
    cluster = LocalCluster(plan, log=log_line)
    async with trio.open_nursery() as nursery:
        await nursery.start(_stop_on_signal, nursery.cancel_scope)
        if stop_with_parent and parent.is_watchable():
            nursery.start_soon(_stop_with_parent, nursery.cancel_scope)
        running = await nursery.start(cluster.run)
        _announce(plan, running, as_json)


def _announce(plan: Plan, running: list[Running], as_json: bool) -> None:
    url = f"{scheme_of(plan.folder)}://" + ",".join(each.address for each in running)
    if as_json:
        started = ClusterStarted(url, os.getpid(), plan.metadata_url, running)
        announce(msgspec.json.encode(started).decode())
        return
    announce(f"ready {url}")
    rows = [
        (each.bookie_id, each.process_id, each.address, each.metrics_port or None, each.folder)
        for each in running
    ]
    for line in table_lines(("bookie", "process", "address", "metrics", "folder"), rows):
        announce(line)


async def _stop_on_signal(
    scope: trio.CancelScope, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for _ in signals:
            scope.cancel()


async def _stop_with_parent(scope: trio.CancelScope) -> None:
    await parent.gone()
    scope.cancel()
