"""The bookies that serve now: the leases under ``bookies/``.

A registration that cannot be decoded must not hide the other bookies, so it is set aside and
reported by name. Its address is unknown, so clients treat that bookie as down.
"""

from __future__ import annotations

import msgspec

from metadata.errors import BadRecord
from metadata.records import BOOKIES, BookieRecord, decode_bookie
from metadata.store import MetadataStore, leases_under


class Registrations(msgspec.Struct, frozen=True):
    """The bookies that hold a lease.

    Attributes:
        bookies: their records, by rising id.
        epochs: of their leases, by id; a restart changes it.
        owners: of their leases, by id, also of the unreadable ones.
        unreadable: ids whose registration cannot be decoded, each with the reason.
    """

    bookies: list[BookieRecord]
    epochs: dict[str, int]
    owners: dict[str, str]
    unreadable: dict[str, str]


async def list_registrations(store: MetadataStore) -> Registrations:
    """Return the bookies that are registered now. Raises MetadataError."""
    found = Registrations([], {}, {}, {})
    for lease in await leases_under(store, BOOKIES):
        found.owners[lease.name.removeprefix(BOOKIES)] = lease.owner
        try:
            bookie = decode_bookie(lease.name, lease.value)
        except BadRecord as wrong:
            found.unreadable[lease.name.removeprefix(BOOKIES)] = str(wrong)
        else:
            found.bookies.append(bookie)
            found.epochs[bookie.bookie_id] = lease.epoch
    return found
