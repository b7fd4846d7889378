"""Everything that a bookie does for the cluster: lead, when elected, and repair.

Who leads looks after bookies and ledgers (audit.py) and topics (topics/keeping/housekeeping.py).
"""

from __future__ import annotations

import secrets
import time

import trio
from prometheus_client import CollectorRegistry

from ledger_client.observation.metrics import LeaderMetrics
from ledger_client.observation.observer import Observer
from ledger_client.repair.audit import Auditor
from ledger_client.repair.host import Host
from ledger_client.repair.restore import restore
from ledger_client.repair.settings import RepairOptions
from ledger_client.repair.worker import Worker
from ledger_client.topics.client import TopicClient
from ledger_client.topics.keeping.housekeeping import Housekeeper, HousekeepingOptions
from metadata.leadership import Leadership, Term
from metadata.records import COORDINATOR, Leader, encode_record
from metadata.store import MetadataStore

DEFAULT_HOUSEKEEPING = HousekeepingOptions()


async def run_roles(
    client: TopicClient,
    store: MetadataStore,
    host: Host,
    options: RepairOptions,
    *,
    housekeeping: HousekeepingOptions = DEFAULT_HOUSEKEEPING,
    registry: CollectorRegistry | None = None,
) -> None:
    """Lead when elected, repair what is marked, and end the host's limbo, until cancelled.

    While the metadata store is away nothing happens, and afterwards it goes on. What a leader
    sees of the cluster is told by *registry*.

    Raises:
        MetadataError, LedgerError: metadata are damaged; in an exception group.
    """
    owner = f"{host.bookie_id}/{secrets.token_hex(8)}"
    auditor = Auditor(client, store, options)
    observer = Observer(store, lost_after_s=options.lost_after_s)
    housekeeper = Housekeeper(client, housekeeping, figures=observer.topics)

    def value() -> bytes:
        return encode_record(Leader(host.bookie_id, host.address, time.time_ns() // 1_000_000))

    async def lead(term: Term) -> None:
        host.figures.leads = True
        try:
            async with trio.open_nursery() as works:
                works.start_soon(auditor.lead, term)
                works.start_soon(housekeeper.lead, term)
                works.start_soon(observer.lead)
        finally:
            host.figures.leads = False

    async with trio.open_nursery() as nursery:
        if registry is not None:
            nursery.start_soon(_tell, observer, registry)
        nursery.start_soon(Leadership(store, COORDINATOR, owner, value=value).run, lead)
        nursery.start_soon(Worker(client, store, owner, options, figures=host.figures).run)
        nursery.start_soon(restore, store, host, options)


async def _tell(observer: Observer, registry: CollectorRegistry) -> None:
    """Let the metrics tell what the leader sees, until cancelled."""
    collector = LeaderMetrics(observer)
    registry.register(collector)
    try:
        await trio.sleep_forever()
    finally:
        registry.unregister(collector)
