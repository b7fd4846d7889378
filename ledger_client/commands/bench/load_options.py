"""Options of several benchmarks, and the type of their rates and times."""

from __future__ import annotations

import math
from pathlib import Path

import click

from ledger_client.commands.options import SizeParam
from metadata import cluster_options


class FiniteRange(click.FloatRange):
    """A FloatRange without infinity, and without NaN, which no bound excludes."""

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a finite number within the bounds."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


folder = click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    show_default="the system's temporary folder",
    help="Folder for temporary files, on the disk to measure.",
)
floor_size = click.option(
    "--floor-bytes",
    "floor_size",
    type=SizeParam(),
    default="512MiB",
    show_default=True,
    help="Bytes to write and read when measuring the disk itself.",
)
measured_cluster = cluster_options.given_cluster(
    text="Cluster to measure; by default a temporary one. QUIRE_CLUSTER does not set it."
)
bookies = click.option(
    "--bookies",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Bookies of the temporary cluster.",
)
entry_size = click.option(
    "--entry-size",
    type=SizeParam(lowest=1),
    default="1KiB",
    show_default=True,
    help="Bytes of each payload.",
)
message_size = click.option(
    "--message-size",
    type=SizeParam(),
    default="100",
    show_default=True,
    help="Bytes of each value.",
)
partitions = click.option(
    "--partitions",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Partitions of the topic.",
)
message_batch = click.option(
    "--batch",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    metavar="COUNT",
    help="Messages in each batch.",
)
compression = click.option(
    "--compression",
    type=click.Choice(["none", "zstd", "lz4"]),
    default="none",
    help="Compression of batches.",
)
send_rate = click.option(
    "--rate",
    type=FiniteRange(1),
    default=1000.0,
    show_default=True,
    help="Messages a second of the sends at a fixed rate.",
)
send_seconds = click.option(
    "--rate-seconds",
    "rate_s",
    type=FiniteRange(0),
    default=5.0,
    show_default=True,
    help="Duration of the sends at a fixed rate.",
)
