"""What a folder of Parquet files holds of a replay, in a file of its own.

A file is complete when it stands here: it was written under a hidden name, synced, renamed,
and then the manifest was replaced as a whole. Readers of Parquet pass over names that begin
with "_" or ".".
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from ledger_client.replay.errors import TargetForeign
from metadata.replays import LaneMark, Sent

NAME = "_manifest.json"
TEMPORARY = ".manifest.json.tmp"


class File(msgspec.Struct, frozen=True):
    """A complete file; *total* and *chain* are the checksum of its messages."""

    name: str
    rows: int
    size: int
    total: int
    chain: int


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The files of one run, in the order of the replay, and how far it is behind them."""

    replay: str
    run: str
    files: list[File] = []
    whole: Sent
    bytes: int = 0
    reached: list[LaneMark]
    complete: bool = False


def load_manifest(folder: Path, topic: str) -> Manifest | None:
    """Return the manifest of a folder, None if there is none. Raises TargetForeign."""
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError) as wrong:
        raise TargetForeign(f"{path} is no manifest of a replay: {wrong}", topic=topic) from wrong


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, durably. Raises OSError."""
    temporary = folder / TEMPORARY
    with temporary.open("wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(manifest)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(folder / NAME)
    sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Make renamed files durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
