"""Command-line options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from bookie.config import BookieConfig, load_config
from metadata import cluster_options

Command = Callable[..., None]

cluster = cluster_options.cluster(
    default="bookie://127.0.0.1:3181",
    text=cluster_options.TEXT,
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
config_file = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="TOML file with settings; `bookie config` prints a sample.",
)
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any other setting; wins over the file. May be given several times.",
)
data_folder = click.option("--data", "data_folder", metavar="DIR", help="The bookie's folder.")
metadata = click.option(
    "--metadata",
    metavar="URL",
    help="Store of the ledger records: sqlite:///absolute/path or zk://HOST:PORT[,...]/path; with "
    "a login, zk://USER@HOST:PORT/path?password-file=FILE or QUIRE_ZOOKEEPER_PASSWORD; over TLS, "
    "zk+tls://...&ca=FILE.",
)
bookie_id = click.option(
    "--bookie-id", metavar="NAME", help="Its permanent name. [default: the name in its cookie]"
)
log_level = click.option(
    "--log-level", metavar="LEVEL", help="debug, info, warning or error. [default: info]"
)


def bookie_of_folder(command: Command) -> Command:
    """Add the options that select a bookie on this machine: --config, --data, --metadata, --set."""
    for option in (settings, metadata, data_folder, config_file):
        command = option(command)
    return command


def read_config(
    config_file: Path | None, settings: tuple[str, ...], **direct: object
) -> BookieConfig:
    """Merge file, --set and direct options; direct options win over --set, and that over the file.

    Raises:
        ConfigError: a setting is wrong.
        click.UsageError: a --set is not KEY=VALUE.
    """
    return load_config(config_file, overrides(settings, **direct))


def overrides(settings: tuple[str, ...], **direct: object) -> dict[str, object]:
    """Return the settings given on the command line; *direct* wins. None means not given."""
    values: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set {setting!r} is not KEY=VALUE")
        values[key.strip()] = value.strip()
    return values | {key: value for key, value in direct.items() if value is not None}
