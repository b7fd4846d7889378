"""The roles that ``bookie run`` hosts for its cluster: leader, if elected, and repair.

Bookie and ledger client meet in this module. The client uses the bookie's own metadata store
and lives as long as the roles do. Only a bookie that hosts roles imports this module, so that
no other command waits for the client to load.
"""

from __future__ import annotations

import math

from bookie.config import BookieConfig
from bookie.host import Host, Roles
from bookie.security import read_security
from ledger_client.background import Background
from ledger_client.cluster.repair.host import RepairOptions
from ledger_client.cluster.roles import run_roles
from ledger_client.topics.context import TopicContext
from ledger_client.wire.streams import opener
from metadata.store import MetadataStore


def roles_of(config: BookieConfig, store: MetadataStore) -> Roles:
    """Return the roles that a bookie with these settings hosts."""
    options = RepairOptions(
        lost_after_s=config.lost_after_s,
        open_grace_s=config.open_grace_s,
        repair_rate=config.repair_rate_max or math.inf,
    )

    open_stream = opener(read_security(config).access)

    async def run(host: Host) -> None:
        async with Background() as nursery:
            context = TopicContext(store, nursery, open_stream=open_stream)
            await run_roles(context, store, host, options, registry=host.registry)

    return run
