"""List the files of a bookie: journals, spares, ledger tables, entry logs, indexes."""

from __future__ import annotations

from pathlib import Path

import msgspec


class DataFile(msgspec.Struct, frozen=True):
    """One file; *size* is its apparent size in bytes, as stat() reports it."""

    id: int
    path: Path
    size: int


def list_files(folder: Path, suffix: str) -> list[DataFile]:
    """Return the files <id in hex>.<suffix> of *folder*, sorted by id. Blocks.

    The list is empty if the folder is missing.
    """
    files = []
    for path in folder.glob(f"*.{suffix}"):
        try:
            files.append(DataFile(int(path.stem, 16), path, path.stat().st_size))
        except (ValueError, FileNotFoundError):
            continue  # not our file, or the running bookie deleted it meanwhile
    return sorted(files, key=lambda file: file.id)


def find_file(folder: Path, suffix: str, file_id: int) -> DataFile | None:
    """Return the file with this id, or None if there is none. Blocks."""
    return next((file for file in list_files(folder, suffix) if file.id == file_id), None)
