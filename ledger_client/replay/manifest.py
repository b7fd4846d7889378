"""What a folder of Parquet files holds of a replay, in a file of its own.

A file is complete when it stands here: it was written under a hidden name, synced, renamed,
and then the manifest was replaced as a whole. Readers of Parquet pass over names that begin
with "_" or ".".

Nothing in a manifest is believed: --restart removes the files that it names. File *n* has one
possible name, that of file_name(n), and only a regular file counts as one.
"""

from __future__ import annotations

import os
import stat
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


def file_name(number: int) -> str:
    """Return the name of a replay's file, counted from 0."""
    return f"part-{number:05d}.parquet"


def load_manifest(folder: Path, topic: str) -> Manifest | None:
    """Return the manifest of a folder, None if there is none.

    Raises TargetForeign: it is damaged, or it names files that no replay makes.
    """
    path = folder / NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
        raise TargetForeign(f"{path} is no manifest of a replay: {wrong}", topic=topic) from wrong
    for number, file in enumerate(manifest.files):
        if file.name != file_name(number):
            told = f"{path} names {file.name!a}, and a replay's file {number} is"
            raise TargetForeign(f"{told} {file_name(number)}; choose another folder", topic=topic)
    return manifest


def remove_files(folder: Path, manifest: Manifest, topic: str) -> None:
    """Remove a run's files, then its manifest; also the file that it had not named yet.

    Raises:
        TargetForeign: something there is no regular file, such as a link. Nothing is removed.
        OSError: the folder cannot be changed.
    """
    following = file_name(len(manifest.files))
    paths = [folder / name for name in [*(file.name for file in manifest.files), following, NAME]]
    for path in paths:
        if not _is_plain(path):
            told = f"{path} is no regular file, and no replay made it; choose another folder"
            raise TargetForeign(told, topic=topic)
    for path in paths:
        path.unlink(missing_ok=True)


def _is_plain(path: Path) -> bool:
    """Whether it is a regular file, or not there."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def save_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest, durably. Raises OSError."""
    temporary = folder / TEMPORARY
    temporary.unlink(missing_ok=True)  # a link there would lead the bytes elsewhere
    with temporary.open("xb") as file:
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
