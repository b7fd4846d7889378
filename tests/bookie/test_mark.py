from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from bookie import mark as mark_module
from bookie.errors import BookieError
from bookie.mark import (
    FILE_NAME,
    format_mark,
    parse_mark,
    put_mark_aside,
    read_mark,
    write_mark,
)
from native.mark import Mark

MARK = Mark(
    journal_id=2,
    journal_offset=4096,
    log_id=1,
    next_log_id=2,
    log_end=8192,
    index_end=8256,
    table_end=137,
    table_id=1,
)


def test_the_file_is_the_documented_text() -> None:
    documented = (mark_module.__doc__ or "").split("\n\n")[2]
    lines = [line.strip() for line in documented.splitlines()]
    assert format_mark(MARK) == ("\n".join(lines) + "\n").encode()


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    assert read_mark(tmp_path) is None
    write_mark(tmp_path, MARK, None)
    later = msgspec.structs.replace(MARK, journal_offset=8192)
    write_mark(tmp_path, later, MARK)
    assert read_mark(tmp_path) == later
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]


def test_every_truncation_is_damage() -> None:
    data = format_mark(MARK)
    for size in range(len(data)):
        with pytest.raises(ValueError):
            parse_mark(data[:size])


def test_every_flipped_bit_is_damage() -> None:
    data = format_mark(MARK)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ValueError):
            parse_mark(bytes(flipped))


def test_anything_after_the_end_is_damage() -> None:
    for tail in (b"\n", b" ", b"\0", format_mark(MARK)):
        with pytest.raises(ValueError):
            parse_mark(format_mark(MARK) + tail)


def test_damage_names_the_file_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"quire lastMark 1\n")
    with pytest.raises(BookieError, match=f"{tmp_path}/lastMark.*bookie rebuild-index"):
        read_mark(tmp_path)


def test_a_mark_that_the_disk_cannot_read_is_named_and_put_aside(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).symlink_to("/proc/self/mem")  # nothing is at address 0
    with pytest.raises(BookieError, match=f"{tmp_path}/lastMark: the disk cannot.*rebuild-index"):
        read_mark(tmp_path)
    for _ in range(2):
        assert put_mark_aside(tmp_path) is None


@pytest.mark.parametrize(
    "older",
    [
        msgspec.structs.replace(MARK, journal_id=1, journal_offset=999_424),
        msgspec.structs.replace(MARK, journal_offset=0),
        msgspec.structs.replace(MARK, next_log_id=1),
    ],
)
def test_the_mark_never_moves_back(tmp_path: Path, older: Mark) -> None:
    write_mark(tmp_path, MARK, None)
    with pytest.raises(BookieError):
        write_mark(tmp_path, older, MARK)
    assert read_mark(tmp_path) == MARK


def test_a_crash_before_the_rename_leaves_the_previous_mark(tmp_path: Path) -> None:
    write_mark(tmp_path, MARK, None)
    (tmp_path / f"{FILE_NAME}.new").write_bytes(b"half")
    assert read_mark(tmp_path) == MARK
    write_mark(tmp_path, MARK, MARK)
    assert read_mark(tmp_path) == MARK
