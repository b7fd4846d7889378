r"""Archives: a store's contents as a file, to move them to another store or to keep them.

Lines of JSON, each ended by a newline, which `jq` can read:

    {"type":"header","format":1,"program":"1.0","cluster":"5f…","keys":2,"counters":{…},…}
    {"type":"key","key":"ledgers/00000000000000000001","value":"{\"ledger_id\":1,…}"}
    {"type":"key","key":"other","value":"/wA=","encoding":"base64"}
    {"type":"end","lines":3,"sha256":"…"}

A value is text if it is UTF-8. Keys rise by code point. The last line counts the lines before it,
and has the SHA-256 of their bytes; it is compared byte by byte. So a file that was cut off
anywhere, or has one wrong bit, is refused. Values hold the passwords of ledgers, so files are
readable by their owner only.

An archive is read twice: once to check all of it before anything is done, and once to use it.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, BinaryIO, Literal, NoReturn

import msgspec

from metadata.errors import BadRecord, MetadataBroken
from metadata.store import VALUE_SIZE_MAX, check_key

FORMAT = 1
LINE_SIZE_MAX = 8 * VALUE_SIZE_MAX
"""A character of a value takes 6 bytes at most, as in \\u0000."""
CHUNK_SIZE = 1 << 20
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ArchiveHeader(msgspec.Struct, frozen=True, kw_only=True, tag="header", tag_field="type"):
    """The first line. *counters*, *time_ms* and *revision* are metadata.moving.Floors.

    Attributes:
        format: version of this format.
        program: version of the program that wrote it.
        cluster: id of the cluster, "" if it never had a bookie.
        consistent: everything is of one moment.
        leases: how many were live, 0 of a stopped cluster.
        keys: how many lines follow.
    """

    format: int = FORMAT
    program: str = ""
    cluster: str = ""
    consistent: bool = True
    leases: Count = 0
    keys: Count
    counters: dict[str, Count]
    time_ms: Count
    revision: Count


class KeyLine(msgspec.Struct, frozen=True, tag="key", tag_field="type", omit_defaults=True):
    """A key with its value."""

    key: str
    value: str
    encoding: Literal["text", "base64"] = "text"

    @classmethod
    def of(cls, key: str, value: bytes) -> KeyLine:
        """Return the line of a key."""
        try:
            return cls(key, value.decode())
        except UnicodeDecodeError:
            return cls(key, b64encode(value).decode(), "base64")

    @property
    def content(self) -> bytes:
        """The value. Raises ValueError if it is not base64."""
        if self.encoding == "text":
            return self.value.encode()
        return b64decode(self.value, validate=True)


class ArchiveEnd(msgspec.Struct, frozen=True, tag="end", tag_field="type"):
    """The last line: how many there are before it, and the SHA-256 of their bytes."""

    lines: Count
    sha256: str


Line = ArchiveHeader | KeyLine | ArchiveEnd
_LINES: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


class Spool:
    """The lines of keys on their way into an archive, whose header is known at the end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.count = 0

    def add(self, line: KeyLine) -> None:
        """Append a key. Raises OSError."""
        self._file.write(msgspec.json.encode(line) + b"\n")
        self.count += 1

    def finish(self, header: ArchiveHeader, to: BinaryIO) -> str:
        """Write the whole archive and return its digest. Raises OSError."""
        digest = hashlib.sha256()
        first = msgspec.json.encode(header) + b"\n"
        digest.update(first)
        to.write(first)
        self._file.seek(0)
        while chunk := self._file.read(CHUNK_SIZE):
            digest.update(chunk)
            to.write(chunk)
        end = ArchiveEnd(self.count + 1, digest.hexdigest())
        to.write(msgspec.json.encode(end) + b"\n")
        to.flush()
        return end.sha256


class Archive:
    """An archive that was read once and found whole.

    Attributes:
        name: of its file, for people.
        digest: identifies it.
    """

    def __init__(self, file: BinaryIO, name: str) -> None:
        """Read all of *file*, from its beginning.

        Raises:
            BadRecord: it is no archive, or not whole.
            OSError: it cannot be read.
        """
        self._file = file
        self.name = name
        self._number = 0
        file.seek(0)
        self.header = self._read_header()
        self.digest = ""
        for _line in self.lines():
            pass

    def lines(self) -> Iterator[KeyLine]:
        """Yield the keys, in order. Raises BadRecord and OSError, the first before the last key."""
        self._file.seek(0)
        self._number = 0
        digest = hashlib.sha256()
        raw = self._read()
        before: KeyLine | None = None
        for _ in range(self.header.keys):
            digest.update(raw)
            raw = self._read()
            line = self._parse(raw)
            if not isinstance(line, KeyLine):
                self._refuse("another kind of line was expected")
            self._check(line, "" if before is None else before.key)
            if before is not None:
                yield before
            before = line
        digest.update(raw)
        self._check_end(digest.hexdigest())
        if before is not None:
            yield before

    def _read_header(self) -> ArchiveHeader:
        header = self._parse(self._read())
        if not isinstance(header, ArchiveHeader):
            self._refuse("it does not begin with the header of an archive")
        if header.format != FORMAT:
            self._refuse(f"it has format {header.format}, and this program reads {FORMAT}")
        return header

    def _read(self) -> bytes:
        self._number += 1
        line = self._file.readline(LINE_SIZE_MAX + 1)
        if not line.endswith(b"\n"):
            self._refuse("it is too long" if len(line) > LINE_SIZE_MAX else "the file is cut off")
        return line

    def _parse(self, line: bytes) -> Line:
        try:
            return _LINES.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as wrong:
            self._refuse(str(wrong), wrong)

    def _check(self, line: KeyLine, before: str) -> None:
        try:
            check_key(line.key)
            size = len(line.content)
        except (MetadataBroken, ValueError) as wrong:
            self._refuse(str(wrong), wrong)
        if size > VALUE_SIZE_MAX:
            self._refuse(f"a value of {size} bytes; at most {VALUE_SIZE_MAX} are allowed")
        if line.key <= before:
            self._refuse("its key is not greater than the one before")

    def _check_end(self, sha256: str) -> None:
        """Check that the file ends with the line that it must end with."""
        found = self._read()
        expected = msgspec.json.encode(ArchiveEnd(self.header.keys + 1, sha256)) + b"\n"
        if found != expected:
            is_end = isinstance(self._parse(found), ArchiveEnd)
            self._refuse("the checksum is wrong" if is_end else "there are more keys than counted")
        if self._file.read(1):
            self._refuse("the file goes on after its end")
        if self.digest not in ("", sha256):
            self._refuse("the file was changed while it was read")
        self.digest = sha256

    def _refuse(self, reason: str, cause: BaseException | None = None) -> NoReturn:
        where = f"{self.name} is refused at line {self._number}"
        raise BadRecord(f"{where}: {reason}") from cause


@contextmanager
def private_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that appears as *path*, whole and on disk, at the end of the block.

    It is readable by its owner only. After an error there is nothing new at *path*.

    Raises:
        OSError: it cannot be written, or something else than a file is at *path*.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        raise FileExistsError(17, "is no regular file; - stands for standard output", str(path))
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(target)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
