"""Errors of a bookie, and what its operator should do next.

BookieError              the message names what to repair; after one at the start nothing changed
├── ConfigError          a setting is wrong (config.py)
├── CookieRefused        a folder is not this bookie's, or metadata disagrees (cookie_file.py)
├── CallRefused          the bookie cannot answer a CALL; its peer gets the message
├── TooManyConnections   a connection is closed because there are too many (connection_limits.py)
└── PeerAtFault          ends one connection: a login failed, a frame stayed unfinished, or
                         responses were not read in time

A failure of the disk stays an OSError: the bookie ends with it.
"""

from __future__ import annotations

import errno
import os


class BookieError(Exception):
    """Root of this package's errors; the message says what to do."""


class CallRefused(BookieError):
    """This bookie cannot answer the call; the peer gets the message as a Failure."""


class PeerAtFault(BookieError):
    """A peer broke a rule or was too slow; only its connection is closed."""


def unreadable(cause: OSError, *, is_rebuild: bool = False) -> BookieError | None:
    """Return the error for a file that the disk could not read at a start, if *cause* names one.

    *is_rebuild*: in a rebuild, which is no way out of its own failure.
    """
    if cause.errno != errno.EIO or not cause.filename:
        return None
    told = (
        f"{cause.filename}: the disk cannot read it ({os.strerror(errno.EIO)}). Try again, as "
        "disks recover at times. Or copy the bookie's folders to another disk, with ddrescue for "
        "instance, and go on there."
    )
    rebuild = (
        " Or run `bookie rebuild-index`: it goes on without what cannot be read, and the bookie is "
        "in limbo then, until it has its entries from others."
    )
    return BookieError(told if is_rebuild else told + rebuild)


def cause_of(group: BaseExceptionGroup[BaseException]) -> Exception | None:
    """Return the first failure inside *group* that is for an operator, or None."""
    for failure in group.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            inner = cause_of(failure)
            if inner is not None:
                return inner
        elif isinstance(failure, OSError | BookieError):
            return failure
    return None
