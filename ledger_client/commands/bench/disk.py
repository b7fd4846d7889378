"""``quire bench disk``: the floor by itself."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import msgspec

from ledger_client.commands import options
from ledger_client.commands.bench.floor import Floor, measure_floor
from ledger_client.commands.size import Size


@click.command()
@options.folder
@click.option("--bytes", "size", type=Size(), default="1GiB", show_default=True)
@options.as_json
def disk(folder: Path | None, size: int, as_json: bool) -> None:
    """Measure what the disk does with a journal's pattern of writes.

    Aligned writes past the page cache into a zero-filled file, one fdatasync for each
    group; then one read in order.
    """
    floor = measure_floor(folder or Path(tempfile.gettempdir()), size)
    click.echo(msgspec.json.encode(floor).decode() if as_json else describe(floor))


def describe(floor: Floor) -> str:
    """Return the floor as a table."""
    rows = [f"{'write + fdatasync of':<22}{'MB/s':>10}{'p50 ms':>10}{'p99 ms':>10}{'p99.9 ms':>10}"]
    for group in [floor.sync, *floor.groups]:
        at = group.latency
        rows.append(
            f"{group.group_size >> 10:>18} KiB{group.mb_per_s:>10.1f}"
            f"{at.p50_ms:>10.3f}{at.p99_ms:>10.3f}{at.p999_ms:>10.3f}"
        )
    rows.append(f"{'read in order, cold':<22}{floor.read_mb_per_s:>10.1f}")
    if not floor.direct:
        rows.append("this file system has no O_DIRECT; the figures include the page cache")
    return "\n".join(rows)
