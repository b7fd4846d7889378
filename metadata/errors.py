"""Errors of the metadata store, and what the caller should do next.

MetadataError             of this class itself: a bookie failed at a call, see the message
├── VersionConflict       the key was changed first; read it again and decide
├── LeaseHeld             another owner holds the lease; wait until it is over
├── LeaseLost             the lease is over or was granted again; stop acting on it
├── SessionOver           all leases of the session are over; open another one
├── NotLeader             ask the bookie that leads, which it names
├── BadGroup *            the request does not suit the group: correct it; nothing was changed
├── TimeRefused *         the cluster's time cannot be reset so; nothing was changed
├── BadRecord             a record or message cannot be decoded; an operator must look
├── MetadataUnavailable * the store did not answer in time; try again later. With
│                         outcome_unknown a change may have been made: read first
├── MetadataBroken *      the store is damaged, or a key, value or count is beyond its limits
├── BadAddress *          a URL or address cannot be parsed
└── AccessDenied *        a bookie refuses the login, or its certificate is not trusted: correct
                          the user, the password or the certificates of the URL

Attributes are plain values, so an error crosses the wire complete.

Those with a star reach users of the client as they are. So they belong to LedgerError, too, the
tree of ledger_client/errors.py, and its root is defined here.
"""

from __future__ import annotations

Attribute = str | int | float | bool | None


class LedgerError(Exception):
    """Root of the errors that the client raises; `ledger_id` is `None` if no ledger is meant."""

    ledger_id: int | None = None

    def __init__(self, message: str, *, ledger_id: int | None = None) -> None:
        super().__init__(message if ledger_id is None else f"ledger {ledger_id}: {message}")
        if ledger_id is not None:
            self.ledger_id = ledger_id


class Retryable(LedgerError):
    """Nothing is wrong with the request. The same call may succeed later."""


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
    """The lease is held by another owner, for *expires_in_s* more unless its session is kept."""

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


class SessionOver(MetadataError):
    """The session was not kept for its time to live, or was ended; so its leases are over."""

    def __init__(self, *, owner: str, epoch: int) -> None:
        super().__init__(f"the session of {owner} with epoch {epoch} is over")
        self.owner = owner
        self.epoch = epoch


class MetadataUnavailable(MetadataError, Retryable):
    """The metadata store could not be reached or did not answer in time."""

    def __init__(
        self, message: str, *, outcome_unknown: bool = False, ledger_id: int | None = None
    ) -> None:
        """With *outcome_unknown*, the change may have been made, or may be made later."""
        super().__init__(message)
        self.outcome_unknown = outcome_unknown
        if ledger_id is not None:
            self.ledger_id = ledger_id


class NotLeader(MetadataError):
    """The bookie does not lead; *address* is that of the leader, "" if nobody leads now."""

    def __init__(self, *, bookie_id: str = "", address: str = "") -> None:
        where = f"bookie {bookie_id} at {address} leads" if address else "no bookie leads now"
        super().__init__(where)
        self.bookie_id = bookie_id
        self.address = address


class BadGroup(MetadataError, LedgerError):
    """A request does not suit the group, or its members; nothing was changed."""


class TimeRefused(MetadataError, LedgerError):
    """The cluster's time cannot be reset so: it moves forward only, by 24 h at most."""


class BadRecord(MetadataError):
    """Bytes are not a valid record or message."""


class MetadataBroken(MetadataError, LedgerError):
    """The store is foreign, damaged or of a newer version, or a request is beyond its limits.

    A retry changes nothing: a person must look. A request beyond the limits changed nothing.
    """


class BadAddress(MetadataError, LedgerError):
    """The URL of the cluster, or an address, cannot be understood, or names no bookie's port."""


class AccessDenied(MetadataError, LedgerError):
    """A bookie refuses the login, or its certificate is not trusted: correct the cluster's URL."""


def _version(version: int) -> str:
    return f"version {version}" if version else "no such key"
