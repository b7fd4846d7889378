"""The options of a client, with units and edge values; and the types that options have."""

from __future__ import annotations

import math
from functools import cache
from numbers import Integral, Real
from types import NoneType
from typing import get_args, get_type_hints

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines and bounds of a client. Seconds end in ``_s``, sizes are bytes."""

    connect_timeout_s: float = 2.0
    """For reaching a bookie: name lookup and TCP handshake."""
    request_timeout_s: float = 10.0
    """For one answer of one bookie to a read."""
    send_timeout_s: float = 10.0
    """For a bookie to take the next MiB; a peer that stopped reading is dropped."""
    append_timeout_s: float = 30.0
    """From sending an entry to its acknowledgement; then the writer fails."""
    read_timeout_s: float = 10.0
    """For a read while no replica can be reached; then Retryable is raised."""
    close_timeout_s: float = 30.0
    """For closing a ledger: its pending entries, then the metadata."""
    metadata_timeout_s: float = 10.0
    """For one operation of the metadata store."""
    speculative_s: float = 2.0
    """Without an answer for so long, the next replica is asked too; doubles each time."""
    explicit_lac_s: float = 0.01
    """A writer idle for this long sends its last confirmed entry to the bookies; 0: never."""
    poll_s: float = 2.0
    """How long one long poll of a follower is parked at a bookie."""
    slow_bookie_s: float = 2.0
    """A bookie whose queue stays full for so long is given up if the quorum can spare it."""
    bookie_timeout_s: float = 2.0
    """A bookie that acknowledges nothing for so long, although entries wait, is given up."""
    replace_timeout_s: float = 10.0
    """Without an ack quorum and without a bookie to replace one, a writer fails after this."""
    quarantine_s: float = 5.0
    """A bookie that failed is not chosen for so long; doubles each time it fails again soon."""
    quarantine_max_s: float = 60.0
    """The longest quarantine; after as long without a failure, all is forgiven."""
    racks_min: int = 1
    """Copies of an entry must be on so many racks, at most as many as there are copies, or no
    ledger is created and no bookie replaced; 1: they are on as many as possible, without fail."""
    reconnect_delay_s: float = 0.05
    """Before the second attempt to reach a bookie; doubles up to reconnect_delay_max_s."""
    reconnect_delay_max_s: float = 2.0
    """The longest pause between two attempts to reach a bookie."""
    bytes_in_flight_max: int = 16 * 1024 * 1024
    """Payload bytes of one writer sent and not confirmed; append waits above."""
    queue_size_max: int = 32 * 1024 * 1024
    """Bytes not yet sent to one bookie; writers wait above."""
    read_batch_size: int = 2 * 1024 * 1024
    """Payload bytes that one batch read asks for; at most 2 MiB are used."""
    reads_in_flight: int = 4
    """Batches of one sequential read that are asked for ahead of the caller."""


DEFAULT_OPTIONS = Options()


# --- types of options -------------------------------------------------------------------

_ACCEPTED: dict[type, tuple[type, ...]] = {
    int: (Integral,),
    float: (Real,),
    bool: (bool,),
    str: (str,),
    NoneType: (NoneType,),
}
_NAMES = {int: "an int", float: "a number", bool: "True or False", str: "a str", NoneType: "None"}


def wrong_type(options: msgspec.Struct) -> str | None:
    """Return what is wrong with the first option of another type than declared, or that is NaN.

    Options that take more than numbers, text and None are not looked at.
    """
    for name, kinds in _simple(type(options)).items():
        value = getattr(options, name)
        accepted = tuple(each for kind in kinds for each in _ACCEPTED[kind])
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(_NAMES[kind] for kind in kinds)
            return f"{name} takes {wanted}, not {value!r} ({type(value).__name__})"
        if isinstance(value, float) and math.isnan(value):
            return f"{name} takes a number, not nan"
    return None


def check_timeout(timeout_s: object, name: str = "timeout_s") -> None:
    """Raise ValueError unless *timeout_s*, the argument *name*, is a number of seconds."""
    if not (isinstance(timeout_s, Real) and float(timeout_s) >= 0):
        raise ValueError(f"{name} takes seconds, 0 or more, not {timeout_s!r}")


def check_function(value: object, name: str) -> None:
    """Raise TypeError unless *value*, the option *name*, is a function or None."""
    if not (value is None or callable(value)):
        kind = type(value).__name__
        raise TypeError(f"{name} takes a function of one argument, or None, not {value!r} ({kind})")


@cache
def _simple(options: type[msgspec.Struct]) -> dict[str, tuple[type, ...]]:
    """Return the types of the options that take numbers, text and None only."""
    found = {}
    for name, hint in get_type_hints(options).items():
        kinds = get_args(hint) or (hint,)
        if set(kinds) <= set(_ACCEPTED):
            found[name] = kinds
    return found
