"""What `quire scrub --repair` does where some ledger cannot be repaired."""

from __future__ import annotations

from leases import grant
from memory_cluster import memory_cluster
from trio.testing import MockClock

from ledger_client.client import Client
from ledger_client.cluster.operations.scrubbing import choose_ledgers, scrub as scrub_here, summary
from ledger_client.commands.scrub import _mend_all
from metadata.records import ledger_key, repair_lease

ENTRIES = 20


async def write(client: Client) -> int:
    async with client.ledgers.create(3, 3, 3) as ledger:
        await ledger.append_many([b"payload %d" % number for number in range(ENTRIES)])
    return ledger.id


async def test_a_ledger_that_cannot_be_repaired_keeps_no_other_one_as_it_is(
    autojump_clock: MockClock,
) -> None:
    async with memory_cluster(3) as cluster, cluster.client() as client:
        ids = busy, deleted, last, whole = [await write(client) for _ in range(4)]
        for ledger_id in ids[:3]:
            del cluster.bookies["b2"].entries(ledger_id)[7]
        chosen = await choose_ledgers(client._context.ledgers)
        found = await scrub_here(client._context.ledgers, chosen, lambda _part: None)
        await grant(cluster.store, repair_lease(busy), "b7/x", ttl_s=1000)
        del cluster.store.values[ledger_key(deleted)]
        repaired = await _mend_all(client, chosen, found)
        assert repaired.whole == [last]
        (failed,) = repaired.failed
        assert (failed.ledger_id, failed.why) == (busy, "b7/x repairs or moves it; try again later")
        assert [each.ledger_id for each in summary(found).faulty] == [busy]
        assert {each.ledger_id for each in found if each.whole} == {last, whole}
