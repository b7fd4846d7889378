from __future__ import annotations

import hashlib
import io
from pathlib import Path

import msgspec
import pytest

from metadata.archive import FORMAT, Archive, ArchiveHeader, KeyLine, Spool, private_file
from metadata.errors import BadRecord

VALUES = {"bin": b"\xff\x00", "empty": b"", "ledgers/1": b'{"a":"\xc3\xa4"}'}


def header(**changed: int | str) -> ArchiveHeader:
    plain = ArchiveHeader(keys=len(VALUES), counters={"ledgers": 7}, time_ms=5, revision=9)
    return msgspec.structs.replace(plain, **changed)


def archive(**changed: int | str) -> bytes:
    spool, to = Spool(io.BytesIO()), io.BytesIO()
    for key, value in VALUES.items():
        spool.add(KeyLine.of(key, value))
    spool.finish(header(**changed), to)
    return to.getvalue()


def read(data: bytes) -> dict[str, bytes]:
    return {line.key: line.content for line in Archive(io.BytesIO(data), "it").lines()}


def signed(lines: list[bytes]) -> bytes:
    """Return *lines* with the end that fits them."""
    data = b"".join(line + b"\n" for line in lines)
    end = {"type": "end", "lines": len(lines), "sha256": hashlib.sha256(data).hexdigest()}
    return data + msgspec.json.encode(end) + b"\n"


def test_an_archive_holds_what_was_put_into_it() -> None:
    found = Archive(io.BytesIO(archive()), "it")
    assert found.header == header()
    assert {line.key: line.content for line in found.lines()} == VALUES
    assert {line.key: line.content for line in found.lines()} == VALUES


def test_its_lines_are_json_that_people_can_read() -> None:
    first, *lines, end = map(msgspec.json.decode, archive().splitlines())
    assert (first["type"], first["format"], first["keys"]) == ("header", FORMAT, 3)
    assert lines[0] == {"type": "key", "key": "bin", "value": "/wA=", "encoding": "base64"}
    assert msgspec.json.decode(lines[2]["value"]) == {"a": "ä"}
    assert (end["type"], end["lines"]) == ("end", 4)


def test_every_truncation_is_refused() -> None:
    data = archive()
    for size in range(len(data)):
        with pytest.raises(BadRecord, match=r"it is refused at line \d"):
            read(data[:size])


def test_every_wrong_bit_is_refused() -> None:
    data = archive()
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(BadRecord, match=r"it is refused at line \d"):
            read(bytes(wrong))


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([b'{"type":"key","key":"a","value":""}'], "does not begin with the header"),
        ([b'{"type":"key","key":"b","value":""}', b'{"type":"key","key":"a","value":""}'], "not g"),
        ([b'{"type":"key","key":"","value":""}'] * 2, "is empty"),
        ([b'{"type":"key","key":"a","value":"?","encoding":"base64"}'] * 2, "line 2"),
        ([b'{"type":"key","key":"a","value":""}', b"{}"], "line 3"),
        ([b"[" * 100_000], "line 2"),
    ],
)
def test_a_line_that_breaks_a_rule_is_refused(lines: list[bytes], reason: str) -> None:
    first = [msgspec.json.encode(header(keys=2))] if "begin" not in reason else []
    with pytest.raises(BadRecord, match=reason):
        read(signed([*first, *lines]))


def test_an_archive_of_a_newer_format_is_refused() -> None:
    with pytest.raises(BadRecord, match="it has format 2"):
        read(archive(format=2))


def test_more_after_the_end_is_refused() -> None:
    with pytest.raises(BadRecord, match="goes on after its end"):
        read(archive() + b"\n")


def test_a_line_without_end_takes_no_more_memory_than_the_longest() -> None:
    with pytest.raises(BadRecord, match="too long"):
        read(archive().splitlines()[0] + b"\n" + b"x" * (20 << 20))


def test_a_file_that_changes_between_two_readings_is_refused() -> None:
    file = io.BytesIO(archive())
    found = Archive(file, "it")
    other = Spool(io.BytesIO())
    for key in VALUES:
        other.add(KeyLine.of(key, b"other"))
    file.seek(0)
    other.finish(header(), file)
    file.truncate()
    with pytest.raises(BadRecord, match="was changed while it was read"):
        list(found.lines())


# --- the file ------------------------------------------------------------------------------


def test_a_file_appears_whole_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "house"
    with private_file(path) as file:
        file.write(b"half")
        assert not path.exists()
        file.write(b" and whole")
    assert path.read_bytes() == b"half and whole"
    assert path.stat().st_mode & 0o777 == 0o600


def test_after_a_failure_the_former_file_is_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "house"
    path.write_bytes(b"former")
    with pytest.raises(OSError, match="disk"), private_file(path) as file:
        file.write(b"new")
        raise OSError(28, "the disk is full")
    assert path.read_bytes() == b"former"
    assert list(tmp_path.iterdir()) == [path]


def test_what_is_no_file_is_not_replaced() -> None:
    with pytest.raises(FileExistsError, match="no regular file"), private_file(Path("/dev/null")):
        pass
    assert Path("/dev/null").is_char_device()
