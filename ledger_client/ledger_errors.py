"""The errors of bookies and ledgers. errors.py draws them in the tree of all errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from metadata.errors import LedgerError, Retryable


class NotEnoughBookies(Retryable):
    """Fewer healthy, writable bookies are there than the ensemble needs, or on too few racks.

    Attributes:
        healthy: bookies that could be chosen.
        needed: bookies that the ensemble needs.
        read_only: live bookies that take no writes, as a rule because their disks are full.
        racks: racks that the copies of some entry could be on at most; `None` without racks_min.
        racks_needed: as Options.racks_min asks, at most the write quorum.
    """

    def __init__(
        self,
        *,
        healthy: int,
        needed: int,
        ledger_id: int | None = None,
        racks: int | None = None,
        racks_needed: int = 0,
        read_only: int = 0,
    ) -> None:
        text = f"{healthy} healthy, writable bookies, {needed} needed"
        hint = "start another, or ask for fewer copies"
        if read_only:
            text += f"; {read_only} more are read-only, as when a disk is full"
            hint = "make room, as `quire topic purge` does, start another, or ask for fewer copies"
        if racks is not None and healthy >= needed:
            text = f"copies of an entry would span {racks} of {racks_needed} racks needed"
            hint = "start a bookie on another rack, or lower racks_min"
        super().__init__(f"{text}: {hint}", ledger_id=ledger_id)
        self.healthy = healthy
        self.read_only = read_only
        self.needed = needed
        self.racks = racks
        self.racks_needed = racks_needed


class BookieUnavailable(Retryable):
    """A bookie cannot be reached, broke the connection or does not answer."""

    def __init__(self, bookie_id: str, reason: str) -> None:
        super().__init__(f"bookie {bookie_id}: {reason}")
        self.bookie_id = bookie_id
        self.reason = reason


class ReplicasUnavailable(Retryable):
    """The answers of a ledger's bookies leave open whether an entry exists, or where it ends.

    Attributes:
        entry_id: the entry that was neither found nor proved absent; -1 if a recovery could not
            fence the ledger.
        reasons: why a bookie did not serve it, by the bookie's id.
    """

    def __init__(
        self,
        *,
        ledger_id: int,
        entry_id: int,
        reasons: Mapping[str, str],
        told: str = "no replica served entry {}",
    ) -> None:
        why = ", ".join(f"{bookie_id}: {reason}" for bookie_id, reason in reasons.items())
        super().__init__(f"{told.format(entry_id)} ({why})", ledger_id=ledger_id)
        self.entry_id = entry_id
        self.reasons = dict(reasons)

    @classmethod
    def in_recovery(
        cls, *, ledger_id: int, entry_id: int, reasons: Mapping[str, str]
    ) -> ReplicasUnavailable:
        """The ledger stays fenced and in recovery; recover it again when more bookies answer."""
        which = "it cannot be fenced" if entry_id < 0 else "entry {} is undetermined"
        told = f"recovery is not complete, {which}"
        return cls(ledger_id=ledger_id, entry_id=entry_id, reasons=reasons, told=told)


class WriterFailed(LedgerError):
    """The writer takes no more entries. Acknowledged entries stay readable."""


class AckQuorumLost(WriterFailed):
    """Fewer of the writer's bookies are left than must acknowledge an entry."""

    def __init__(self, *, ledger_id: int, ack_quorum: int, lost: Mapping[str, str]) -> None:
        text = ", ".join(f"{bookie_id}: {reason}" for bookie_id, reason in lost.items())
        super().__init__(
            f"lost the ack quorum of {ack_quorum}; failed bookies: {text}", ledger_id=ledger_id
        )
        self.ack_quorum = ack_quorum
        self.lost = dict(lost)


class LedgerFenced(WriterFailed):
    """Another client recovers, or recovered, the ledger. Stop writing to it."""

    def __init__(self, ledger_id: int, reason: str = "fenced by another client") -> None:
        super().__init__(reason, ledger_id=ledger_id)


class LedgerClosed(WriterFailed):
    """The ledger is sealed, by this writer or elsewhere, and takes no entry."""

    def __init__(self, ledger_id: int, last_entry: int | None = None) -> None:
        where = "" if last_entry is None else f" at entry {last_entry}"
        super().__init__(f"closed{where}", ledger_id=ledger_id)
        self.last_entry = last_entry


class OutcomeUnknown(LedgerError):
    """Entries were sent and not acknowledged: they may or may not be kept.

    The cause (``__cause__``) is the reason. Read the closed ledger to see which
    entries it holds.
    """

    def __init__(self, *, ledger_id: int, first_entry: int, last_entry: int, reason: str) -> None:
        which = (
            f"entry {first_entry}"
            if first_entry == last_entry
            else f"entries {first_entry} to {last_entry}"
        )
        super().__init__(f"outcome of {which} unknown: {reason}", ledger_id=ledger_id)
        self.first_entry = first_entry
        self.last_entry = last_entry


class LedgerExists(LedgerError):
    """A ledger of this id exists already."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__("exists already", ledger_id=ledger_id)


class NoSuchLedger(LedgerError):
    """There is no ledger of this id, or it was deleted."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__("no such ledger", ledger_id=ledger_id)


class NoSuchEntry(LedgerError):
    """The entry is past the last confirmed one, or no replica knows it."""

    def __init__(self, *, ledger_id: int, entry_id: int, last_confirmed: int) -> None:
        super().__init__(
            f"no entry {entry_id} (last confirmed: {last_confirmed})", ledger_id=ledger_id
        )
        self.entry_id = entry_id
        self.last_confirmed = last_confirmed


class EntryLost(LedgerError):
    """Every replica of the entry is missing or damaged."""

    def __init__(self, *, ledger_id: int, entry_id: int, reasons: Mapping[str, str]) -> None:
        text = ", ".join(f"{bookie_id}: {reason}" for bookie_id, reason in reasons.items())
        super().__init__(f"entry {entry_id} is lost ({text})", ledger_id=ledger_id)
        self.entry_id = entry_id
        self.reasons = dict(reasons)


class PayloadTooLarge(LedgerError):
    """An entry or a message is larger than a frame can carry. Nothing of the call was sent."""

    def __init__(
        self, message: str, *, size: int, size_max: int, ledger_id: int | None = None
    ) -> None:
        super().__init__(f"{message}; at most {size_max} bytes fit", ledger_id=ledger_id)
        self.size = size
        self.size_max = size_max

    @classmethod
    def entry(cls, *, ledger_id: int, size: int, size_max: int) -> PayloadTooLarge:
        """A payload is too large for an entry."""
        text = f"an entry of {size} bytes"
        return cls(text, size=size, size_max=size_max, ledger_id=ledger_id)

    @classmethod
    def message(cls, topic: str, *, size: int, size_max: int) -> PayloadTooLarge:
        """A message is too large with its key and headers."""
        text = f"topic {topic}: a message of {size} bytes with key and headers"
        return cls(text, size=size, size_max=size_max)


class WrongPassword(LedgerError):
    """The password given is not the one the ledger was created with."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__("wrong password", ledger_id=ledger_id)


class Busy(LedgerError):
    """Another task or thread is taking from the same reader; this call took nothing."""


class DrainRefused(LedgerError):
    """A bookie cannot be decommissioned as asked. Its copies stay.

    Attributes:
        bookie_id: the bookie.
        reason: "unknown", "not draining", "too few bookies" or "copies missing".
        ledgers: for "too few bookies", the ledgers whose ensembles would not fit.
    """

    def __init__(
        self, bookie_id: str, reason: str, message: str, *, ledgers: Sequence[int] = ()
    ) -> None:
        super().__init__(message)
        self.bookie_id = bookie_id
        self.reason = reason
        self.ledgers = list(ledgers)
