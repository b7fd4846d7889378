"""Leases with a session of their own, as rivals and dead processes hold them in tests."""

from __future__ import annotations

from metadata.store import Lease, MetadataStore, StoreSession


async def grant(
    store: MetadataStore, name: str, owner: str, *, ttl_s: float, value: bytes = b""
) -> Lease:
    """Take a lease that lives *ttl_s* seconds unless keep() is called."""
    session = await store.open_session(owner, ttl_s=ttl_s)
    try:
        return await store.grant(name, session, value=value)
    except BaseException:
        await store.end_session(session)
        raise


async def keep(store: MetadataStore, lease: Lease, *, ttl_s: float) -> None:
    """Let the lease live for *ttl_s* from now on. Raises SessionOver."""
    await store.keep_session(StoreSession(lease.owner, lease.session, ttl_s))


async def end_leases(store: MetadataStore, prefix: str) -> None:
    """End all leases under *prefix*. Their holders hear nothing of it, as if they were paused."""
    for lease in await store.leases(prefix):
        await store.release(lease)
