"""Making writers: what all writers of a client share.

A connection counts acknowledgements for one writer of a ledger. So a second one, who
recovers the ledger, ends the first: it could not acknowledge anything any more.
"""

from __future__ import annotations

from weakref import WeakValueDictionary

import msgspec
import trio

from ledger_client.alarms import Alarms
from ledger_client.bookies import Bookies
from ledger_client.catalogue import Catalogue
from ledger_client.changes import CatalogueChanges, Changes
from ledger_client.creation import DIGESTS
from ledger_client.ensemble import Ensemble
from ledger_client.errors import LedgerFenced
from ledger_client.options import Options
from ledger_client.placement import Placement
from ledger_client.writer import LedgerWriter
from metadata.records import LedgerRecord
from native.digest import Digest
from native.frame import Flag
from native.link import Writer


class Writers:
    """Opens writers for ledgers whose records exist."""

    def __init__(
        self,
        *,
        catalogue: Catalogue,
        bookies: Bookies,
        placement: Placement,
        options: Options,
        nursery: trio.Nursery,
    ) -> None:
        self._catalogue = catalogue
        self._bookies = bookies
        self._placement = placement
        self._options = options
        # Before a recovered ledger is closed, readers must not hear of what was added again.
        self._quiet = msgspec.structs.replace(options, explicit_lac_s=0.0)
        self._nursery = nursery
        self._alarms = Alarms(nursery)
        self._open: WeakValueDictionary[int, LedgerWriter] = WeakValueDictionary()

    def open(
        self,
        record: LedgerRecord,
        *,
        changes: Changes | None = None,
        first_entry: int = 0,
        length: int = 0,
        flags: int = 0,
    ) -> LedgerWriter:
        """Return a writer that appends to the last fragment of *record*.

        Args:
            record: the ledger; somebody made sure that nobody else writes to it.
            changes: where changes of the ensemble go; by default into metadata.
            first_entry: id of the first entry to append.
            length: payload bytes of the entries before it.
            flags: what every ADD frame carries, as native.frame.Flag.
        """
        earlier = self._open.get(record.ledger_id)
        if earlier is not None and flags & Flag.RECOVERY:
            earlier.fail(LedgerFenced(record.ledger_id))
        token = self._bookies.new_token()
        digest = Digest(DIGESTS[record.digest], record.password_bytes)
        native = Writer(
            record.ledger_id,
            record.ensemble_size,
            record.write_quorum,
            record.ack_quorum,
            digest,
            first_entry=first_entry,
            length=length,
            token=token,
            flags=flags,
        )
        connections = [self._bookies.connection(b) for b in record.fragments[-1].bookies]
        writer = LedgerWriter(
            record,
            native=native,
            digest=digest,
            ensemble=Ensemble(record, connections, token=token),
            catalogue=self._catalogue,
            changes=changes
            or CatalogueChanges(self._catalogue, record.ledger_id, record.incarnation),
            bookies=self._bookies,
            placement=self._placement,
            options=self._quiet if flags & Flag.RECOVERY else self._options,
            nursery=self._nursery,
            alarms=self._alarms,
        )
        self._open[record.ledger_id] = writer
        return writer
