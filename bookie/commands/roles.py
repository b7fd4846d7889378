"""What ``bookie run`` hosts for its cluster: leading when elected, and repair.

Here bookie and ledger client meet. The client works on the bookie's own metadata store and
lives as long as the roles do. This module is imported by a bookie that hosts roles only, so
that no other command waits for the client to load.
"""

from __future__ import annotations

import math

from bookie.config import BookieConfig
from bookie.host import Host, Roles
from bookie.security import read_security
from ledger_client.background import Background
from ledger_client.repair.roles import run_roles
from ledger_client.repair.settings import RepairOptions
from ledger_client.topics.client import TopicClient
from metadata.store import MetadataStore


def roles_of(config: BookieConfig, store: MetadataStore) -> Roles:
    """Return the roles that a bookie with these settings hosts."""
    options = RepairOptions(
        lost_after_s=config.lost_after_s,
        open_grace_s=config.open_grace_s,
        repair_rate=config.repair_rate_max or math.inf,
    )

    open_stream = read_security(config).access.opener()

    async def run(host: Host) -> None:
        async with Background() as nursery:
            client = TopicClient(store, nursery, open_stream=open_stream)
            await run_roles(client, store, host, options, registry=host.registry)

    return run
