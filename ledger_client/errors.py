"""What can go wrong with a ledger, and what the caller should do next.

LedgerError
├── Retryable                nothing is wrong with the request; try again later
│   ├── NotEnoughBookies     fewer healthy bookies than the ensemble needs
│   ├── BookieUnavailable    one bookie cannot be reached or does not answer
│   ├── ReplicasUnavailable  no replica of the entry could be asked
│   ├── RecoveryIncomplete   too few bookies answer to tell where the ledger ends
│   └── MetadataUnavailable  the metadata store did not answer in time
├── WriterFailed             this writer takes no more entries; open a new ledger
│   ├── AckQuorumLost        too few of its bookies are left to acknowledge
│   ├── AppendTimeout        an entry was not acknowledged in time
│   ├── LedgerFenced         another client recovered the ledger; stop writing
│   │   └── LedgerReplaced   it was deleted, and another ledger has its id; stop writing
│   ├── EntryConflict        a bookie has another entry in its place; stop writing
│   └── LedgerClosed         the ledger is sealed; open a new one to append
├── OutcomeUnknown           the entries may or may not be in the ledger: read it
├── LedgerExists             the ledger id is taken
├── NoSuchLedger             there is no such ledger, or it was deleted
├── NoSuchEntry              the entry is past the end, or no replica knows it
├── EntryLost                every replica of the entry is missing or damaged
├── EntryTooLarge            the payload does not fit a frame
├── WrongPassword            the password is not the ledger's
├── InvalidQuorum            not 1 <= ack quorum <= write quorum <= ensemble
├── InvalidAddress           the cluster's address cannot be understood
├── AccessDenied             a bookie refuses the login, or its certificate is not trusted
└── MetadataBroken           metadata is damaged or refuses; a person must look

Every message is one line and names the ids, which are attributes too.
"""

from __future__ import annotations

from collections.abc import Mapping


class LedgerError(Exception):
    """Root of what this package raises."""

    def __init__(self, message: str, *, ledger_id: int | None = None) -> None:
        super().__init__(message if ledger_id is None else f"ledger {ledger_id}: {message}")
        self.ledger_id = ledger_id


class Retryable(LedgerError):
    """Nothing is wrong with the request. The same call may succeed later."""


class NotEnoughBookies(Retryable):
    """Fewer healthy, writable bookies are there than the ensemble needs."""

    def __init__(self, *, healthy: int, needed: int, ledger_id: int | None = None) -> None:
        told = f"{healthy} healthy bookies, {needed} needed"
        super().__init__(f"{told}: start another, or ask for fewer copies", ledger_id=ledger_id)
        self.healthy = healthy
        self.needed = needed


class BookieUnavailable(Retryable):
    """A bookie cannot be reached, broke the connection or does not answer."""

    def __init__(self, bookie_id: str, reason: str) -> None:
        super().__init__(f"bookie {bookie_id}: {reason}")
        self.bookie_id = bookie_id
        self.reason = reason


class ReplicasUnavailable(Retryable):
    """The entry was not found, and some of its replicas could not be asked."""

    def __init__(self, *, ledger_id: int, entry_id: int, reasons: Mapping[str, str]) -> None:
        told = ", ".join(f"{bookie_id}: {reason}" for bookie_id, reason in reasons.items())
        super().__init__(f"no replica served entry {entry_id} ({told})", ledger_id=ledger_id)
        self.entry_id = entry_id
        self.reasons = dict(reasons)


class RecoveryIncomplete(Retryable):
    """The ledger could not be closed: what its bookies told leaves its end open.

    It stays fenced and in recovery; recover it again when more of them answer.
    """

    def __init__(self, *, ledger_id: int, entry_id: int | None, reasons: Mapping[str, str]) -> None:
        """*entry_id*: the entry of which nobody knows whether it is there; None for all."""
        told = ", ".join(f"{bookie_id}: {reason}" for bookie_id, reason in reasons.items())
        which = "it cannot be fenced" if entry_id is None else f"entry {entry_id} is undetermined"
        super().__init__(f"recovery is not complete, {which} ({told})", ledger_id=ledger_id)
        self.entry_id = entry_id
        self.reasons = dict(reasons)


class MetadataUnavailable(Retryable):
    """The metadata store could not be reached or did not answer in time."""


class WriterFailed(LedgerError):
    """The writer takes no more entries. What it acknowledged stays readable."""


class AckQuorumLost(WriterFailed):
    """Fewer of the writer's bookies are left than must acknowledge an entry."""

    def __init__(self, *, ledger_id: int, ack_quorum: int, lost: Mapping[str, str]) -> None:
        told = ", ".join(f"{bookie_id}: {reason}" for bookie_id, reason in lost.items())
        super().__init__(
            f"lost the ack quorum of {ack_quorum}; failed bookies: {told}", ledger_id=ledger_id
        )
        self.ack_quorum = ack_quorum
        self.lost = dict(lost)


class AppendTimeout(WriterFailed):
    """An entry was sent and not acknowledged within the time allowed."""

    def __init__(self, *, ledger_id: int, entry_id: int, waited_s: float) -> None:
        super().__init__(
            f"entry {entry_id} was not acknowledged within {waited_s:g} s", ledger_id=ledger_id
        )
        self.entry_id = entry_id
        self.waited_s = waited_s


class LedgerFenced(WriterFailed):
    """Another client recovers, or recovered, the ledger. Stop writing to it."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__("fenced by another client", ledger_id=ledger_id)


class LedgerReplaced(LedgerFenced):
    """The ledger was deleted, and another ledger has its id now. Stop writing to it."""

    def __init__(self, ledger_id: int) -> None:
        WriterFailed.__init__(self, "deleted, and its id is another's", ledger_id=ledger_id)


class EntryConflict(WriterFailed):
    """A bookie has an entry of the same id with other bytes, and keeps it.

    Somebody else writes, or wrote, under the id of this ledger. Open a new ledger.
    """

    def __init__(self, ledger_id: int) -> None:
        super().__init__("a bookie has another entry in the place of one", ledger_id=ledger_id)


class LedgerClosed(WriterFailed):
    """The ledger is sealed, by this writer or elsewhere, and takes no entry."""

    def __init__(self, ledger_id: int, last_entry: int | None = None) -> None:
        where = "" if last_entry is None else f" at entry {last_entry}"
        super().__init__(f"closed{where}", ledger_id=ledger_id)
        self.last_entry = last_entry


class OutcomeUnknown(LedgerError):
    """Entries were sent and not acknowledged: they may or may not be kept.

    The cause (``__cause__``) tells why. Reading the closed ledger tells which
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
        told = ", ".join(f"{bookie_id}: {reason}" for bookie_id, reason in reasons.items())
        super().__init__(f"entry {entry_id} is lost ({told})", ledger_id=ledger_id)
        self.entry_id = entry_id
        self.reasons = dict(reasons)


class EntryTooLarge(LedgerError):
    """A payload is larger than a frame can carry. Nothing was sent."""

    def __init__(self, *, ledger_id: int, size: int, size_max: int) -> None:
        super().__init__(
            f"an entry of {size} bytes; at most {size_max} bytes fit", ledger_id=ledger_id
        )
        self.size = size
        self.size_max = size_max


class WrongPassword(LedgerError):
    """The password given is not the one the ledger was created with."""

    def __init__(self, ledger_id: int) -> None:
        super().__init__("wrong password", ledger_id=ledger_id)


class InvalidQuorum(LedgerError):
    """Quorums must satisfy 1 <= ack quorum <= write quorum <= ensemble <= 64."""

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        super().__init__(
            f"ensemble size {ensemble_size}, write quorum {write_quorum}, ack quorum "
            f"{ack_quorum}: must be 1 <= ack <= write <= ensemble <= 64"
        )
        self.ensemble_size = ensemble_size
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum


class InvalidAddress(LedgerError):
    """The address of the cluster cannot be understood."""


class AccessDenied(LedgerError):
    """A bookie refuses the login, or its certificate is not trusted: mend the cluster's URL."""


class MetadataBroken(LedgerError):
    """The metadata store holds what it should not, or refuses the request."""
