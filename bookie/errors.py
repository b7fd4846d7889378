"""What can go wrong with a bookie, and what its operator should do next.

BookieError
├── Refused to start     nothing was changed; repair what the message names
│   ├── BadMark          the lastMark file is damaged: bookie rebuild-index
│   ├── MarkMissing      there are data and no lastMark file: bookie rebuild-index
│   ├── JournalMissing   the journal file that the mark names is gone
│   └── FolderInUse      another process has the bookie's folder open
├── MarkBackwards        a checkpoint older than the one on disk; a bug, nothing was written
├── CallRefused          a CALL that this bookie cannot answer; told to its peer
└── PeerAtFault          ends one connection and nothing else
    ├── PeerStalled      a frame stayed unfinished, or nothing came for too long
    └── PeerNotReading   it did not take its responses in time

Settings and cookies have errors of their own below BookieError, in their modules.
A failure of the disk stays an OSError: the bookie ends with it.
"""

from __future__ import annotations

from pathlib import Path


class BookieError(Exception):
    """Root of what a bookie reports."""


class BadMark(BookieError):
    """The mark file is damaged, so nobody knows where replay must start."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}; run `bookie rebuild-index` on this bookie")
        self.path = path


class MarkMissing(BookieError):
    """The folders hold journals or entry logs, but no mark."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"{path}: missing, though there are journals or entry logs; "
            "restore it or run `bookie rebuild-index` on this bookie"
        )
        self.path = path


class JournalMissing(BookieError):
    """The journal file that the mark names is not there; its entries may be lost."""

    def __init__(self, folder: Path, journal_id: int) -> None:
        super().__init__(
            f"{folder}/{journal_id:016x}.journal: missing, though lastMark names it; "
            "restore it or run `bookie rebuild-index` on this bookie"
        )
        self.folder = folder
        self.journal_id = journal_id


class FolderInUse(BookieError):
    """Another process holds the lock of a bookie's folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"{folder}: in use by another process")
        self.folder = folder


class MarkBackwards(BookieError):
    """A mark older than the one on disk was to be written. Nothing was."""


class CallRefused(BookieError):
    """This bookie cannot answer the call."""


class PeerAtFault(BookieError):
    """A peer does not hold up its side; its connection is closed."""


class PeerStalled(PeerAtFault):
    """Nothing came within the time given."""


class PeerNotReading(PeerAtFault):
    """Responses were not taken within the time given."""


def cause_of(group: BaseExceptionGroup[BaseException]) -> Exception | None:
    """The first failure inside *group* that names a cause to an operator, if any."""
    for failure in group.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            inner = cause_of(failure)
            if inner is not None:
                return inner
        elif isinstance(failure, OSError | BookieError):
            return failure
    return None
