"""Which files a bookie has: journals, spares, ledger tables, entry logs, indexes."""

from __future__ import annotations

from pathlib import Path

import msgspec


class DataFile(msgspec.Struct, frozen=True):
    """One file. *size* in bytes, as the file system tells it."""

    id: int
    path: Path
    size: int


def list_files(folder: Path, suffix: str) -> list[DataFile]:
    """The files <id in hex>.<suffix> of *folder*, by id; none when it is missing. Blocks."""
    files = []
    for path in folder.glob(f"*.{suffix}"):
        try:
            files.append(DataFile(int(path.stem, 16), path, path.stat().st_size))
        except (ValueError, FileNotFoundError):
            continue  # not one of ours, or deleted by the running bookie meanwhile
    return sorted(files, key=lambda file: file.id)


def find_file(folder: Path, suffix: str, file_id: int) -> DataFile | None:
    """The file with this id, if there is one. Blocks."""
    return next((file for file in list_files(folder, suffix) if file.id == file_id), None)
