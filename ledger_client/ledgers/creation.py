"""Creating a ledger: check the arguments, choose bookies, write the record."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Literal, cast

import msgspec

from ledger_client.errors import LedgerError, LedgerExists, NoSuchLedger
from ledger_client.ledgers.catalogue import Catalogue
from ledger_client.ledgers.entries import DIGESTS
from ledger_client.ledgers.placement import Placement
from metadata.records import (
    ENSEMBLE_SIZE_MAX,
    Fragment,
    LedgerRecord,
    LedgerState,
    encode_password,
)

LEDGER_ID_MAX = (1 << 63) - 1
DigestName = Literal["crc32", "hmac", "crc32c", "dummy"]


class LedgerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of Ledgers.create, not checked until check()."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    password: bytes = b""
    digest: str = "crc32c"
    custom: Mapping[str, str] = {}
    ledger_id: int | None = None

    def check(self) -> None:
        """Raise LedgerError or ValueError if no such ledger can exist."""
        sizes = (1, self.ack_quorum, self.write_quorum, self.ensemble_size, ENSEMBLE_SIZE_MAX)
        if list(sizes) != sorted(sizes):
            raise LedgerError(
                f"ensemble size {self.ensemble_size}, write quorum {self.write_quorum}, ack quorum "
                f"{self.ack_quorum}: must be 1 <= ack <= write <= ensemble <= {ENSEMBLE_SIZE_MAX}"
            )
        if self.ledger_id is not None and not 0 <= self.ledger_id <= LEDGER_ID_MAX:
            raise ValueError(f"ledger id {self.ledger_id} is not between 0 and 2**63 - 1")
        if self.digest not in DIGESTS:
            raise ValueError(f"digest {self.digest!r} is none of {', '.join(DIGESTS)}")


async def create_record(
    plan: LedgerPlan, *, catalogue: Catalogue, placement: Placement
) -> LedgerRecord:
    """Store the record of a new, open ledger on bookies that can be reached.

    Raises:
        NotEnoughBookies: fewer than ensemble_size take writes and answer.
        LedgerExists: the id is taken.
        MetadataUnavailable: the store did not answer in time.
    """
    record = await new_record(plan, catalogue=catalogue, placement=placement)
    await catalogue.create(record)
    return record


async def new_record(
    plan: LedgerPlan, *, catalogue: Catalogue, placement: Placement
) -> LedgerRecord:
    """Return the record of a new ledger without storing it.

    Raises as create_record().
    """
    plan.check()
    if plan.ledger_id is not None:
        await _check_free(plan.ledger_id, catalogue)
    await catalogue.refresh_clock()
    ensemble = await placement.new_ensemble(plan.ensemble_size)
    ledger_id = await catalogue.new_id() if plan.ledger_id is None else plan.ledger_id
    return LedgerRecord(
        ledger_id=ledger_id,
        ensemble_size=plan.ensemble_size,
        write_quorum=plan.write_quorum,
        ack_quorum=plan.ack_quorum,
        state=LedgerState.OPEN,
        fragments=[Fragment(0, ensemble)],
        digest=cast(DigestName, plan.digest),
        password=encode_password(plan.password),
        created_ms=catalogue.clock.now_ms(),
        custom=dict(plan.custom),
        incarnation=_new_incarnation(),
    )


def _new_incarnation() -> int:
    """Return 63 random bits, never 0: that means a ledger without an incarnation."""
    return int.from_bytes(secrets.token_bytes(8), "big") >> 1 or 1


async def _check_free(ledger_id: int, catalogue: Catalogue) -> None:
    """Raise LedgerExists before any bookie is contacted; create() decides in the end."""
    try:
        await catalogue.get(ledger_id)
    except NoSuchLedger:
        return
    raise LedgerExists(ledger_id)
