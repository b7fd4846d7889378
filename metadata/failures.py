"""Errors as replies: a bookie turns an exception into a Failure, and the client turns it back.

The kind is the name of the exception's class, and the attributes are its own. A kind that is not
of this package becomes a MetadataError with the message alone.
"""

from __future__ import annotations

from metadata import errors
from metadata.calls import Failure
from metadata.errors import Attribute, BadRecord, MetadataError

_FROM_MESSAGE = (errors.MetadataUnavailable,)
_FROM_ATTRIBUTES = (
    errors.VersionConflict,
    errors.LeaseHeld,
    errors.LeaseLost,
    errors.SessionOver,
    errors.NotLeader,
)
_PLAIN = (
    errors.BadGroup,
    errors.TimeRefused,
    errors.BadRecord,
    errors.MetadataBroken,
    errors.BadAddress,
    errors.AccessDenied,
)
_KINDS: dict[str, type[MetadataError]] = {
    kind.__name__: kind for kind in (*_FROM_MESSAGE, *_FROM_ATTRIBUTES, *_PLAIN)
}


def failure_of(error: MetadataError) -> Failure:
    """Return *error* as a reply, with all its attributes."""
    attributes: dict[str, Attribute] = {
        name: value for name, value in vars(error).items() if name != "message"
    }
    return Failure(type(error).__name__, error.message, attributes)


def error_of(failure: Failure) -> MetadataError:
    """Return the exception that *failure* was made from.

    That is BadRecord if its attributes do not fit its kind, because the peer is at fault.
    """
    kind = _KINDS.get(failure.kind)
    if kind is None:
        return MetadataError(failure.message)
    attributes = failure.attributes
    try:
        if kind in _FROM_ATTRIBUTES:
            return kind(**attributes)  # type: ignore[arg-type]  # checked by the call
        if kind in _FROM_MESSAGE:
            return kind(failure.message, **attributes)  # type: ignore[arg-type]
        return kind(failure.message)
    except (TypeError, ValueError) as wrong:
        return BadRecord(f"a failure of kind {failure.kind} has wrong attributes: {wrong}")
