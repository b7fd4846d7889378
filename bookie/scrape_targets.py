"""The metrics pages of a cluster's bookies, as a file that Prometheus re-reads by itself.

Its format is that of file_sd_configs: a list of groups, each with addresses and labels.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from bookie.durable import replace_file
from bookie.member import Running

TARGETS_NAME = "targets.json"


class TargetGroup(msgspec.Struct, frozen=True):
    """One page; its label *bookie* is the bookie's name."""

    targets: list[str]
    labels: dict[str, str]


def write_targets(folder: Path, running: Iterable[Running]) -> None:
    """Replace the file in *folder* by one with the pages of these bookies. Blocks.

    Raises:
        OSError: the file could not be written; it is unchanged.
    """
    groups = [
        TargetGroup(
            [f"{host_of(bookie.address)}:{bookie.metrics_port}"], {"bookie": bookie.bookie_id}
        )
        for bookie in running
        if bookie.metrics_port
    ]
    text = msgspec.json.format(msgspec.json.encode(groups)) + b"\n"
    replace_file(folder / TARGETS_NAME, text, mode=0o644)  # Prometheus is another user


def host_of(address: str) -> str:
    """Return the host of host:port; an IPv6 host stays in its brackets."""
    return address.rpartition(":")[0]
