"""``bookie`` in this process, over the files of a bookie that was filled and killed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import v2
from engines import Bookie

import bookie.command_line
from bookie.commands.outcome import conclude
from bookie.mark import write_mark
from native.digest import Digest
from native.store import scan_log

LEDGER = 5
ENTRIES = 30
FLUSHED = 20


class CommandOutput(NamedTuple):
    """The output and exit code of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> list[dict[str, object]]:
        return [msgspec.json.decode(line) for line in self.out.splitlines()]


class Command:
    """Runs ``bookie`` as a shell would, without a process of its own."""

    def __init__(self, capture: pytest.CaptureFixture[str]) -> None:
        self._capture = capture

    def __call__(self, *words: str | Path | int) -> CommandOutput:
        code = conclude(bookie.command_line.bookie, [str(word) for word in words])
        out, err = self._capture.readouterr()
        return CommandOutput(code, out, err)


def stored(entry_id: int) -> bytes:
    header = b"".join(map(v2.int64, (LEDGER, entry_id, entry_id - 1, 5 * entry_id + 5)))
    payload = b"hello"
    return header + Digest().compute(header, payload) + payload


def frames(first: int, end: int) -> bytes:
    bodies = (v2.KEY + stored(entry_id) for entry_id in range(first, end))
    return b"".join(v2.frame(v2.ADD, body) for body in bodies)


def fill(folder: Path) -> None:
    """Fill a bookie's folder: entries in a log, later ones in the journal only."""
    filled = Bookie(folder)
    filled.send(frames(0, FLUSHED))
    filled.engine.commit()
    filled.checkpoint()
    filled.send(frames(FLUSHED, ENTRIES))
    filled.engine.fence(LEDGER, v2.KEY)
    filled.engine.commit()
    filled.close()
    assert filled.mark is not None
    write_mark(filled.ledger_folder, filled.mark, None)


def damage(path: Path, entry_id: int) -> int:
    """Flip a bit of the entry's record; return the record's offset."""
    record = next(each for each in scan_log(path) if getattr(each, "entry_id", -1) == entry_id)
    content = bytearray(path.read_bytes())
    content[record.offset + 20] ^= 1
    path.write_bytes(content)
    return record.offset
