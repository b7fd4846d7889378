"""Which bookies serve now: the leases under ``bookies/``.

A registration that cannot be decoded is that of one bookie, and must not hide the others:
it is set aside and reported by name. Nobody knows its address, so to its peers that bookie
is away.
"""

from __future__ import annotations

import msgspec

from metadata.errors import BadRecord
from metadata.records import BOOKIES, BookieRecord, decode_bookie
from metadata.store import MetadataStore


class Registrations(msgspec.Struct, frozen=True):
    """The bookies that hold a lease.

    Attributes:
        bookies: what they say of themselves, by rising id.
        epochs: of each one's lease, by id; a bookie that restarted has another.
        unreadable: ids whose lease holds what is no registration, each with the reason.
    """

    bookies: list[BookieRecord]
    epochs: dict[str, int]
    unreadable: dict[str, str]


async def list_registrations(store: MetadataStore) -> Registrations:
    """Return the bookies that are registered now. Raises MetadataError."""
    found = Registrations([], {}, {})
    after = ""
    while leases := await store.leases(BOOKIES, after=after):
        for lease in leases:
            try:
                bookie = decode_bookie(lease.name, lease.value)
            except BadRecord as wrong:
                found.unreadable[lease.name.removeprefix(BOOKIES)] = str(wrong)
            else:
                found.bookies.append(bookie)
                found.epochs[bookie.bookie_id] = lease.epoch
        after = leases[-1].name
    return found
