"""The roles of a bookie besides storing entries: it repairs, and leads when elected.

The leader hands out timestamps (metadata/time/), coordinates groups (metadata/groups/), audits
bookies and ledgers (repair/audit.py), looks after topics (housekeeping.py), and publishes metrics
of the whole cluster (observer.py, metrics.py).
"""

from __future__ import annotations

import logging
import secrets
import time

import msgspec
import trio
from prometheus_client import CollectorRegistry

from ledger_client.cluster.group_figures import GroupObserver
from ledger_client.cluster.housekeeping import Housekeeper, HousekeepingOptions
from ledger_client.cluster.metrics import LeaderMetrics
from ledger_client.cluster.observer import Observer
from ledger_client.cluster.repair.audit import Auditor
from ledger_client.cluster.repair.host import RepairHost, RepairOptions
from ledger_client.cluster.repair.marks import add_mark, read_mark, size_on
from ledger_client.cluster.repair.survey import Census
from ledger_client.cluster.repair.worker import Worker
from ledger_client.cluster.ticking import TickService
from ledger_client.errors import LedgerError
from ledger_client.ledgers.records import new_mark
from ledger_client.topics.context import TopicContext
from metadata.errors import MetadataError
from metadata.leadership import Leadership, Term, holder
from metadata.listings import ledger_records
from metadata.records import COORDINATOR, Leader, bookie_lease, decode_bookie, encode_record
from metadata.store import MetadataStore

DEFAULT_HOUSEKEEPING = HousekeepingOptions()


async def run_roles(
    context: TopicContext,
    store: MetadataStore,
    host: RepairHost,
    options: RepairOptions,
    *,
    housekeeping: HousekeepingOptions = DEFAULT_HOUSEKEEPING,
    registry: CollectorRegistry | None = None,
) -> None:
    """Repair marked ledgers, end the host's limbo, and lead when elected, until cancelled.

    Work pauses while the metadata store is unavailable. While this bookie leads, *registry*
    has the metrics of the cluster.

    Raises:
        MetadataError, LedgerError: metadata is damaged. It comes in an exception group.
    """
    owner = f"{host.bookie_id}/{secrets.token_hex(8)}"
    census = Census(store, lost_after_s=options.lost_after_s)
    auditor = Auditor(context.ledgers, store, options, census=census)
    observer = Observer(store, lost_after_s=options.lost_after_s, census=census)
    groups = GroupObserver(context, observer.groups, host.coordinator.counts)
    housekeeper = Housekeeper(context, housekeeping, figures=observer.topics)
    ticks = TickService(context, host.timekeeper, figures=observer.ticks)

    def value() -> bytes:
        return encode_record(Leader(host.bookie_id, host.address, time.time_ns() // 1_000_000))

    async def lead(term: Term) -> None:
        host.figures.leads = True
        try:
            async with trio.open_nursery() as works:
                works.start_soon(auditor.lead, term)
                works.start_soon(housekeeper.lead, term)
                works.start_soon(observer.lead)
                works.start_soon(groups.lead)
                works.start_soon(host.coordinator.lead, term)
                works.start_soon(host.timekeeper.lead, term)
                works.start_soon(ticks.lead, term)
        finally:
            host.figures.leads = False

    async with trio.open_nursery() as nursery:
        if registry is not None:
            nursery.start_soon(_publish, observer, registry)
        nursery.start_soon(Leadership(store, COORDINATOR, owner, value=value).run, lead)
        nursery.start_soon(Worker(context.ledgers, store, owner, options, figures=host.figures).run)
        nursery.start_soon(restore, store, host, options)


async def _publish(observer: Observer, registry: CollectorRegistry) -> None:
    """Add the observer's metrics to *registry*, until cancelled."""
    collector = LeaderMetrics(observer)
    registry.register(collector)
    try:
        await trio.sleep_forever()
    finally:
        registry.unregister(collector)


# --- The end of limbo -------------------------------------------------------------------
# A bookie that may have lost entries marks all ledgers that name it. Workers fill its gaps from
# the other replicas and remove the marks, or note in them that this bookie is whole, while others
# are not. Once none is left that may mean it, the bookie holds everything it should, and may deny
# an entry again.


_log = logging.getLogger(__name__)


async def restore(store: MetadataStore, host: RepairHost, options: RepairOptions) -> None:
    """Whenever *host* is in limbo, get its ledgers repaired and end limbo, until cancelled.

    Raises:
        OSError: the host's disk failed.
    """
    while True:
        if host.limbo:
            try:
                await _restore(store, host, options.poll_s)
            except (MetadataError, LedgerError) as failure:
                _log.warning("limbo continues: %s", failure)
        await trio.sleep(options.poll_s)


async def _restore(store: MetadataStore, host: RepairHost, poll_s: float) -> None:
    doubts = host.doubts
    if not await _is_published(store, host.bookie_id):
        return  # until then, workers would take an open ledger that names it for sound
    for ledger_id in await _mark_all(store, host.bookie_id):
        while await _may_lack(store, ledger_id, host.bookie_id):
            if host.doubts != doubts:
                return  # a new reason for limbo came up: start over
            await trio.sleep(poll_s)
    if await host.leave_limbo(doubts=doubts):
        _log.warning("limbo of %s is over: it has all of its entries", host.bookie_id)


async def _may_lack(store: MetadataStore, ledger_id: int, bookie_id: str) -> bool:
    """Return True while it is not certain that the bookie has all that it should of a ledger."""
    mark = await read_mark(store, ledger_id)
    return mark is not None and bookie_id not in mark.content.whole


async def _is_published(store: MetadataStore, bookie_id: str) -> bool:
    """Return True once the bookie's lease shows that it is in limbo."""
    name = bookie_lease(bookie_id)
    lease = await holder(store, name)
    return lease is not None and decode_bookie(name, lease.value).limbo


async def _mark_all(store: MetadataStore, bookie_id: str) -> list[int]:
    """Mark every ledger that names the bookie, anew even if marked; return their ids."""
    ledger_ids: list[int] = []
    async for record in ledger_records(store):
        if any(bookie_id in fragment.bookies for fragment in record.fragments):
            mark = new_mark(record.ledger_id, "limbo", [bookie_id], [])
            mark = msgspec.structs.replace(mark, size=size_on(record, {bookie_id}))
            await add_mark(store, mark, anew=True)
            ledger_ids.append(record.ledger_id)
    return ledger_ids
