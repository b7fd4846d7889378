"""The lastMark file: the journal position where a restart begins its replay.

It is written after every flush, once entry log, index and ledger table are synced, and before older
journal files are deleted. It is text, for operators:

    quire lastMark 1
    journal_id 2
    journal_offset 4096
    log_id 1
    next_log_id 2
    log_end 8192
    index_end 8256
    table_end 137
    table_id 1
    crc32c 4a292107

The last line is the CRC32C of every byte before it, in 8 hex digits. A file is accepted
only if formatting the parsed mark gives the same bytes, so no flipped bit passes.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from bookie.durable import replace_file, settle_file, sync_folder
from bookie.errors import BookieError, unreadable
from native.digest import crc32c
from native.mark import Mark

FILE_NAME = "lastMark"
_ASIDE_NAME = "lastMark.aside"

_TITLE = "quire lastMark 1\n"
_SIZE_MAX = 1024


def read_mark(ledger_folder: Path) -> Mark | None:
    """Return the mark in *ledger_folder*, or None if there is no file. Blocks.

    Raises:
        BookieError: the file is damaged, or the disk cannot read it.
        OSError: it cannot be read for another reason.
    """
    return _read(ledger_folder / FILE_NAME)


def settle_mark(ledger_folder: Path) -> None:
    """Make the mark durable that read_mark will return. Call it before using that mark. Blocks.

    The previous process may have died between the rename and its sync. Then a power cut could
    bring the older mark back, after files that only this older mark needs were deleted.

    Raises:
        OSError: the disk failed.
    """
    settle_file(ledger_folder / FILE_NAME)


def _read(path: Path) -> Mark | None:
    try:
        with path.open("rb") as file:
            data = file.read(_SIZE_MAX)
    except FileNotFoundError:
        return None
    except OSError as cause:
        if error := unreadable(OSError(cause.errno, cause.strerror, str(path))):
            raise error from cause
        raise
    try:
        return parse_mark(data)
    except ValueError as cause:
        told = f"{path}: damaged ({cause}); run `bookie rebuild-index` on this bookie"
        raise BookieError(told) from cause


def write_mark(ledger_folder: Path, mark: Mark, previous: Mark | None) -> None:
    """Replace the mark; when this returns it is durable. Blocks for two syncs.

    A crash in the middle leaves the previous file.

    Raises:
        BookieError: *mark* is older than *previous*, the one on disk.
        OSError: the disk failed; either file may be there after a restart.
    """
    if previous is not None and _age(mark) < _age(previous):
        raise BookieError(f"{ledger_folder / FILE_NAME}: {mark} is older than {previous}")
    replace_file(ledger_folder / FILE_NAME, format_mark(mark))


def put_mark_aside(ledger_folder: Path) -> Mark | None:
    """Rename the mark, so that the bookie cannot start, and return it. Blocks for a sync.

    If there is no mark now, this returns the one that an earlier call put aside.

    Returns:
        The mark, or None if it is missing or damaged, or the disk cannot read it.
    """
    path, aside = ledger_folder / FILE_NAME, ledger_folder / _ASIDE_NAME
    if path.exists():
        path.replace(aside)
        sync_folder(ledger_folder)
    try:
        return _read(aside)
    except BookieError:
        return None


def drop_mark_aside(ledger_folder: Path) -> None:
    """Delete the mark that was put aside; call it once a new mark is written. Blocks."""
    (ledger_folder / _ASIDE_NAME).unlink(missing_ok=True)


def format_mark(mark: Mark) -> bytes:
    """Return the content of a mark file, including its checksum."""
    lines = [f"{name} {value}\n" for name, value in msgspec.structs.asdict(mark).items()]
    text = (_TITLE + "".join(lines)).encode()
    return text + f"crc32c {crc32c(text):08x}\n".encode()


def parse_mark(data: bytes) -> Mark:
    """Parse the content of a mark file.

    Raises:
        ValueError: *data* differs from the output of format_mark for the same mark.
    """
    words = [line.split(b" ") for line in data.split(b"\n")]
    names = Mark.__struct_fields__
    if len(words) != len(names) + 3 or any(len(pair) != 2 for pair in words[1:-2]):
        raise ValueError("not the right lines")
    mark = Mark(**{name: int(pair[1]) for name, pair in zip(names, words[1:-2], strict=True)})
    if format_mark(mark) != data:
        raise ValueError("the checksum is wrong")
    return mark


def _age(mark: Mark) -> tuple[int, int, int]:
    return mark.journal_id, mark.journal_offset, mark.next_log_id
