"""The end of a storm: recover what is open, wait for repair, and look at every copy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio
from history import HistoryFile, Replica
from replica_reading import Run, read_replica
from storm_roles import Lister
from witness import Witness

import ledger_client
from ledger_client import Client
from ledger_client.errors import EntryLost, NoSuchEntry, Retryable
from ledger_client.ledgers.catalogue import LedgerInfo
from ledger_client.wire.stores import open_store
from metadata.records import REPAIRS, UNDERREPLICATED, LedgerState
from metadata.store import MetadataStore

RECOVERY_LIMIT_S = 60.0
REPAIR_LIMIT_S = 90.0
POLL_S = 0.25


def is_any(_info: LedgerInfo) -> bool:
    """Have every ledger looked at."""
    return True


async def audit(url: str, path: Path, is_meant: Callable[[LedgerInfo], bool] = is_any) -> None:
    """Append to the history at *path* what is left of every ledger. All bookies serve.

    All are recovered and repaired; the entries of those that are meant are read.

    Raises:
        trio.TooSlowError: a ledger cannot be recovered, or repair does not end.
    """
    history = HistoryFile(path)
    witness = Witness(history, "audit")
    async with ledger_client.connect(url) as client, open_store(url) as store:
        with trio.fail_after(RECOVERY_LIMIT_S):
            await recover_all(client, witness)
        with trio.fail_after(REPAIR_LIMIT_S):
            await wait_until_repaired(store)
        await Lister(store, history).look()
        ledgers = [info async for info in client.ledgers.list() if is_meant(info)]
        for info in ledgers:
            witness.created(info)
            await read_back(client, witness, info)
        addresses = {each.bookie_id: each.address for each in await client.cluster.bookies()}
        async with trio.open_nursery() as nursery:
            for bookie, address in addresses.items():
                nursery.start_soon(tell_replicas, history, bookie, address, ledgers)
    history.close()


async def recover_all(client: Client, witness: Witness) -> None:
    """Recover every ledger, however often that has to be tried."""
    async for info in client.ledgers.list():
        if info.state is not LedgerState.CLOSED:
            await _recover(client, witness, info.ledger_id)


async def _recover(client: Client, witness: Witness, ledger_id: int) -> None:
    while True:
        try:
            witness.recovered(await client.ledgers.recover(ledger_id))
        except Retryable:
            await trio.sleep(POLL_S)
        else:
            return


async def wait_until_repaired(store: MetadataStore) -> None:
    """Return once no ledger is marked for repair and none is being repaired."""
    while True:
        if not await store.list(UNDERREPLICATED) and not await store.leases(REPAIRS):
            return
        await trio.sleep(POLL_S)


async def read_back(client: Client, witness: Witness, info: LedgerInfo) -> None:
    """Read a closed ledger as any reader would, up to the end that its record states."""
    async with client.ledgers.open(info.ledger_id) as reader:
        try:
            with witness.reading(info.ledger_id, 0, info.last_entry) as reading:
                async for batch in reader.read_batches(0, info.last_entry):
                    reading.read_batch(batch)
        except (NoSuchEntry, EntryLost) as gone:
            witness.absent(info.ledger_id, gone.entry_id)


async def tell_replicas(
    history: HistoryFile, bookie: str, address: str, ledgers: list[LedgerInfo]
) -> None:
    """Tell what *bookie* holds of each ledger that names it."""
    for info in ledgers:
        if runs := expected_runs(info, bookie):
            held = await read_replica(address, info.ledger_id, runs)
            history.add(Replica(ledger=info.ledger_id, bookie=bookie, entries=held))


def expected_runs(info: LedgerInfo, bookie: str) -> list[Run]:
    """Return the entries of which *bookie* should have a copy, as runs."""
    starts = [first for first, _ in info.bookies[1:]] + [info.last_entry + 1]
    runs: list[Run] = []
    for (first, bookies), end in zip(info.bookies, starts, strict=True):
        if bookie in bookies:
            runs += _runs_of(info, bookies.index(bookie), range(first, end))
    return runs


def _runs_of(info: LedgerInfo, index: int, entries: range) -> list[Run]:
    if info.write_quorum == info.ensemble_size:
        return [(entries[0], entries[-1])] if entries else []
    size, quorum = info.ensemble_size, info.write_quorum
    runs: list[Run] = []
    for entry in entries:
        if (index - entry) % size >= quorum:
            continue
        if runs and runs[-1][1] == entry - 1:
            runs[-1] = (runs[-1][0], entry)
        else:
            runs.append((entry, entry))
    return runs
