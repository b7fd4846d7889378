"""Options that several commands share, each written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bookie.config import BookieConfig, load_config

Command = Callable[..., Any]

cluster = click.option(
    "--cluster",
    envvar="QUIRE_CLUSTER",
    default="bookie://127.0.0.1:3181",
    show_default=True,
    metavar="URL",
    help="Any bookies of the cluster: bookie://HOST:PORT[,HOST:PORT...], with a login "
    "bookie://USER:PASSWORD@HOST:PORT, over TLS bookie+tls://...?ca=FILE. Also QUIRE_CLUSTER.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
config_file = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Settings as `bookie config` prints them. [default: none]",
)
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any other setting, over that of the file; may be given often.",
)
data_folder = click.option("--data", "data_folder", metavar="DIR", help="The bookie's folder.")
metadata = click.option(
    "--metadata", metavar="URL", help="Where ledger records live: sqlite:///absolute/path."
)
bookie_id = click.option(
    "--bookie-id", metavar="NAME", help="Its name for ever. [default: that in its cookie]"
)
log_level = click.option(
    "--log-level", metavar="LEVEL", help="debug, info, warning or error. [default: info]"
)


def bookie_of_folder(command: Command) -> Command:
    """Add the options that say which bookie on this machine is meant."""
    for option in (settings, metadata, data_folder, config_file):
        command = option(command)
    return command


def read_config(
    config_file: Path | None, settings: tuple[str, ...], **direct: object
) -> BookieConfig:
    """Put file, --set and direct options together; a later one of the three wins.

    Raises:
        ConfigError: a setting is wrong.
        click.UsageError: a --set is not KEY=VALUE.
    """
    return load_config(config_file, overrides(settings, **direct))


def overrides(settings: tuple[str, ...], **direct: object) -> dict[str, object]:
    """The settings that were given on the command line."""
    values: dict[str, object] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.UsageError(f"--set {setting!r} is not KEY=VALUE")
        values[key.strip()] = value.strip()
    return values | {key: value for key, value in direct.items() if value is not None}
