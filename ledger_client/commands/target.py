"""The ledger that a command is to make, as the command line describes it."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import msgspec

from ledger_client import Client, LedgerWriter


class Quorums(msgspec.Struct, frozen=True):
    """The three sizes of a ledger."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A ledger to make in the cluster at the URL *cluster*."""

    cluster: str
    quorums: Quorums
    digest: str = "crc32c"
    password: str = ""
    ledger_id: int | None = None

    def create(self, client: Client) -> AbstractAsyncContextManager[LedgerWriter]:
        """Make the ledger; raises as Client.create_ledger."""
        return client.create_ledger(
            self.quorums.ensemble_size,
            self.quorums.write_quorum,
            self.quorums.ack_quorum,
            password=self.password.encode(),
            digest=self.digest,
            ledger_id=self.ledger_id,
        )


def fill_quorums(ensemble: int, write_quorum: int | None, ack_quorum: int | None) -> Quorums:
    """Return the sizes, with defaults for those that were left out."""
    write = ensemble if write_quorum is None else write_quorum
    return Quorums(ensemble, write, write // 2 + 1 if ack_quorum is None else ack_quorum)
