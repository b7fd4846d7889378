"""Errors of the metadata store, and what the caller should do next.

MetadataError             of this class itself: a bookie failed at a call, see the message
├── VersionConflict       the key was changed first; read it again and decide
├── LeaseHeld             another owner holds the lease; wait until it is over
├── LeaseLost             the lease is over or was granted again; stop acting on it
├── MetadataUnavailable   the store did not answer in time; try again later. With
│                         outcome_unknown a change may have been made: read first
├── BadRequest            a key, value or count is outside the limits of the store
├── BadRecord             a record or message cannot be decoded; an operator must look
├── BadStore              the file is not a metadata store that this version can use
├── BadAddress            a URL or address cannot be parsed
└── AccessDenied          a bookie refuses the login, or its certificate is not trusted: correct
                          the user, the password or the certificates of the URL

Attributes are plain values, so an error crosses the wire complete.
"""

from __future__ import annotations

Attribute = str | int | float | bool | None


class MetadataError(Exception):
    """Root of this package's errors; *message* is one line for people."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class VersionConflict(MetadataError):
    """A key does not have the version that was expected; nothing was changed."""

    def __init__(self, *, key: str, expected: int, found: int) -> None:
        """*expected* and *found* are versions; 0 means that the key does not exist."""
        super().__init__(f"{key}: expected {_version(expected)}, found {_version(found)}")
        self.key = key
        self.expected = expected
        self.found = found


class LeaseHeld(MetadataError):
    """The lease is held by another owner, for *expires_in_s* more unless renewed."""

    def __init__(self, *, name: str, owner: str, expires_in_s: float) -> None:
        super().__init__(f"lease {name} is held by {owner} for {expires_in_s:.3f} s more")
        self.name = name
        self.owner = owner
        self.expires_in_s = expires_in_s


class LeaseLost(MetadataError):
    """The lease with this epoch is over: expired, released, or granted again."""

    def __init__(self, *, name: str, owner: str, epoch: int) -> None:
        super().__init__(f"lease {name} of {owner} with epoch {epoch} is over")
        self.name = name
        self.owner = owner
        self.epoch = epoch


class MetadataUnavailable(MetadataError):
    """The store did not answer, or not in time."""

    def __init__(self, message: str, *, outcome_unknown: bool = False) -> None:
        """With *outcome_unknown*, the change may have been made, or may be made later."""
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class BadRequest(MetadataError):
    """A key, value, count or time is beyond the store's limits; nothing was done."""


class BadRecord(MetadataError):
    """Bytes are not a valid record or message."""


class BadStore(MetadataError):
    """The file is foreign, damaged, or written by a newer version."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class BadAddress(MetadataError):
    """A URL or address is malformed."""


class AccessDenied(MetadataError):
    """A bookie refuses the login, or its certificate is not trusted; a retry changes nothing."""


def _version(version: int) -> str:
    return f"version {version}" if version else "no such key"
