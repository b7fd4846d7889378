"""What can go wrong with metadata, and what the caller should do next.

MetadataError
├── VersionConflict       somebody changed the key first; read it again and decide
├── LeaseHeld             another owner holds the lease; wait until it is over
├── LeaseLost             the lease is over or was granted again; stop acting on it
├── MetadataUnavailable   the store did not answer in time; try again later. With
│                         outcome_unknown a change may have been made: read first
├── BadRequest            a key, value or count is outside the limits of the store
├── BadRecord             bytes are not what they should be; a person must look
├── BadStore              the file is not a metadata store that this version can use
├── BadAddress            a URL or address cannot be parsed
├── AccessDenied          a bookie refuses the caller, or the caller the bookie's certificate:
│                         mend the user, the password or the certificates of the URL
└── CallFailed            a bookie answered with a failure that is not one of these

Every attribute is a plain value, so that an error crosses the wire whole.
"""

from __future__ import annotations

Attribute = str | int | float | bool | None


class MetadataError(Exception):
    """Root of what this package raises; *message* is one line for people."""

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
        """With *outcome_unknown*, the change may have been made or may still be."""
        super().__init__(message)
        self.outcome_unknown = outcome_unknown


class BadRequest(MetadataError):
    """A key, value, count or time is outside what a store takes; nothing was done."""


class BadRecord(MetadataError):
    """Bytes are not the record or the message that they should be."""


class BadStore(MetadataError):
    """The file is foreign, damaged, or written by a newer version."""

    def __init__(self, message: str, *, path: str) -> None:
        super().__init__(message)
        self.path = path


class BadAddress(MetadataError):
    """The URL or address does not have the form that it should have."""


class AccessDenied(MetadataError):
    """A bookie refuses who calls, or is not trusted by who calls; asking again changes nothing."""


class CallFailed(MetadataError):
    """A bookie could not do what it was asked; *kind* names its error."""

    def __init__(
        self, message: str, *, kind: str, attributes: dict[str, Attribute] | None = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.attributes = attributes or {}


def _version(version: int) -> str:
    return f"version {version}" if version else "no such key"
