"""Ledgers laid out by hand on bookies in memory, for those who repair them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio
from memory_bookie import MemoryLedger
from memory_cluster import MemoryCluster

from ledger_client import Client
from ledger_client.cluster.repair.host import RepairFigures, RepairOptions
from ledger_client.cluster.repair.marks import add_mark
from ledger_client.cluster.repair.worker import Worker
from ledger_client.ledgers.records import Reason, new_mark
from metadata.records import (
    DamagedRun,
    Fragment,
    LedgerRecord,
    LedgerState,
    UnderReplicated,
    decode_underreplicated,
    encode_record,
    ledger_key,
    underreplicated_key,
)
from native.digest import Digest
from native.frame import Opcode
from native.link import add_frame

ADD_HEADER_SIZE = 28
QUICK = RepairOptions(lost_after_s=0.0, open_grace_s=5.0, repair_rate=1e9, poll_s=0.5)
Runs = list[tuple[int, int]]


def stored(ledger_id: int, entry_id: int, size: int, *, lac: int = -1) -> bytes:
    payload = b"%d:%d." % (ledger_id, entry_id)
    payload = payload.ljust(size, b".")
    frame = add_frame(Digest(), ledger_id, entry_id, lac, size * (entry_id + 1), payload)
    return frame[ADD_HEADER_SIZE:]


def lay_out(
    cluster: MemoryCluster,
    fragments: list[tuple[int, str]],
    held: Mapping[str, Runs],
    *,
    ledger_id: int = 1,
    last: int = 9,
    size: int = 100,
    write_quorum: int | None = None,
    state: LedgerState = LedgerState.CLOSED,
) -> int:
    """Make a ledger with fragments such as (0, "b1 b2 b3"); return its id."""
    lists = [Fragment(first, names.split()) for first, names in fragments]
    ensemble_size = len(lists[0].bookies)
    closed = state is LedgerState.CLOSED
    record = LedgerRecord(
        ledger_id,
        ensemble_size,
        write_quorum or ensemble_size,
        (write_quorum or ensemble_size) // 2 + 1,
        state,
        lists,
        last_entry=last if closed else -1,
        length=size * (last + 1) if closed else 0,
    )
    cluster.store.change(ledger_key(ledger_id), encode_record(record))
    for name, runs in held.items():
        ledger = cluster.bookies[name].ledgers[ledger_id] = MemoryLedger()
        ledger.key = Digest().master_key
        for entry_id in (e for first, end in runs for e in range(first, end + 1)):
            lac = entry_id - 1
            ledger.entries[entry_id] = stored(ledger_id, entry_id, size, lac=lac)
            ledger.raise_lac(lac)
    return ledger_id


def lose(cluster: MemoryCluster, *names: str) -> None:
    """End the bookies and their leases."""
    for name in names:
        cluster.kill(name)
        cluster.store.bookies.pop(name, None)


async def mark(
    cluster: MemoryCluster,
    ledger_id: int = 1,
    reason: Reason = "check",
    damaged: list[DamagedRun] | None = None,
    bookies: Sequence[str] = (),
) -> None:
    await add_mark(cluster.store, new_mark(ledger_id, reason, bookies, damaged or []))


def mark_of(cluster: MemoryCluster, ledger_id: int = 1) -> UnderReplicated | None:
    key = underreplicated_key(ledger_id)
    found = cluster.store.values.get(key)
    return None if found is None else decode_underreplicated(key, found.value)


async def unmarked(cluster: MemoryCluster, ledger_id: int = 1, *, within_s: float = 60.0) -> None:
    """Wait until the ledger has no mark."""
    with trio.fail_after(within_s):
        async with cluster.store.watch(underreplicated_key(ledger_id)) as hints:
            while mark_of(cluster, ledger_id) is not None:
                await hints.receive()


def adds(cluster: MemoryCluster, name: str) -> int:
    """The number of adds that the bookie received."""
    return sum(r.opcode == Opcode.ADD for r in cluster.bookies[name].requests)


def worker(
    cluster: MemoryCluster,
    client: Client,
    options: RepairOptions = QUICK,
    *,
    owner: str = "w1",
    figures: RepairFigures | None = None,
) -> Worker:
    return Worker(
        client._context.ledgers,
        cluster.store,
        owner,
        options,
        figures=figures,
        chance=cluster.chance,
    )


def check_whole(cluster: MemoryCluster, ledger_id: int = 1) -> None:
    """Assert that every listed bookie holds its share, the same bytes everywhere."""
    record = cluster.record(ledger_id)
    assert record.state is LedgerState.CLOSED
    starts = [fragment.first_entry for fragment in record.fragments] + [record.last_entry + 1]
    for fragment, start, end in zip(record.fragments, starts, starts[1:], strict=False):
        assert not set(fragment.bookies) & cluster.down
        for entry_id in range(start, end):
            places = [(entry_id + i) % record.ensemble_size for i in range(record.write_quorum)]
            copies = {
                cluster.bookies[fragment.bookies[at]].entries(ledger_id).get(entry_id)
                for at in places
            }
            assert len(copies) == 1, (entry_id, fragment)
            assert None not in copies, (entry_id, fragment)
