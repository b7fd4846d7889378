"""Cut a stream of bytes into entries, and join entries to the same bytes again.

Two ways, both exact whatever the bytes are:

* lines: an entry is a line with its ending, so that joining is nothing but
  writing one after the other. CRLF, empty lines and a last line without an
  ending all come back as they were.
* framed: each record has its size in front, 4 bytes, big-endian. The size is
  not part of the entry.

A splitter holds at most one unfinished record, and one that would be larger
than an entry can be is refused before it is gathered.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Protocol

from ledger_client.commands.errors import RecordCut, RecordTooLarge

SIZE_BYTES = 4


class Splitter(Protocol):
    """Takes bytes as they come, gives whole records."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that *data* completes.

        Raises:
            RecordTooLarge: one has more than the limit's bytes.
        """

    def finish(self) -> list[bytes]:
        """Return what is left at the end of the stream.

        Raises:
            RecordCut: it is no whole record.
        """


class Lines:
    """Splits at LF, which stays with its line."""

    def __init__(
        self, size_max: int, remedy: str = "cut it up, or send records with --framed"
    ) -> None:
        """*remedy* is what to do about a line of more than *size_max* bytes."""
        self._size_max = size_max
        self._remedy = remedy
        self._rest = bytearray()
        self._count = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that *data* completes, endings included."""
        end = data.rfind(b"\n") + 1
        lines: list[bytes] = []
        if end:
            lines = io.BytesIO(b"".join((self._rest, memoryview(data)[:end]))).readlines()
            self._rest.clear()
        self._rest += memoryview(data)[end:]
        self._refuse_past_limit(lines)
        self._count += len(lines)
        return lines

    def finish(self) -> list[bytes]:
        """Return the last line if it has no ending."""
        return [bytes(self._rest)] if self._rest else []

    def _refuse_past_limit(self, lines: list[bytes]) -> None:
        for index, line in enumerate((*lines, self._rest)):
            if len(line) > self._size_max:
                raise RecordTooLarge(
                    f"line {self._count + index + 1} is larger than an entry can be "
                    f"({self._size_max} bytes); {self._remedy}"
                )


class Frames:
    """Splits at the sizes in front of the records."""

    def __init__(self, size_max: int) -> None:
        self._size_max = size_max
        self._rest = b""
        self._count = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the records that *data* completes, without their sizes."""
        held = self._rest + data
        records: list[bytes] = []
        start = 0
        while start + SIZE_BYTES <= len(held):
            size = int.from_bytes(held[start : start + SIZE_BYTES], "big")
            if size > self._size_max:
                raise RecordTooLarge(
                    f"record {self._count + len(records) + 1} says {size} bytes, an entry has at "
                    f"most {self._size_max}; is the input framed?"
                )
            end = start + SIZE_BYTES + size
            if end > len(held):
                break
            records.append(held[start + SIZE_BYTES : end])
            start = end
        self._rest = held[start:]
        self._count += len(records)
        return records

    def finish(self) -> list[bytes]:
        """Return nothing: a stream of whole records leaves nothing over."""
        if self._rest:
            raise RecordCut(f"the input ends within record {self._count + 1}; is it framed?")
        return []


def join_framed(payloads: Sequence[bytes]) -> bytes:
    """Return the *payloads* as framed records."""
    return b"".join(
        part for payload in payloads for part in (len(payload).to_bytes(SIZE_BYTES, "big"), payload)
    )
