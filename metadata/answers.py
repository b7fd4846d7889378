"""The bookie's side of metadata calls: a request in, a reply or a Failure out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from metadata import calls
from metadata.calls import Done, Granted, MetadataReply, MetadataRequest
from metadata.errors import MetadataError
from metadata.failures import failure_of
from metadata.store import Delete, MetadataStore, Put


class MetadataCalls:
    """Answers metadata requests from *store*, each as one call of MetadataStore."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._handlers: dict[type, Callable[[Any], Awaitable[MetadataReply]]] = {
            calls.Get: self._get,
            Put: self._put,
            Delete: self._delete,
            calls.Transact: self._transact,
            calls.ListKeys: self._list,
            calls.NextId: self._next_id,
            calls.Grant: self._grant,
            calls.Renew: self._renew,
            calls.Release: self._release,
            calls.ListLeases: self._leases,
            calls.ReadClock: self._now,
            calls.WatchSince: self._changes,
        }

    async def answer(self, request: MetadataRequest) -> MetadataReply:
        """Return the reply to *request*; a MetadataError becomes a Failure.

        WatchSince takes up to its wait_ms, so answer each request in its own task.
        """
        try:
            return await self._handlers[type(request)](request)
        except MetadataError as error:
            return failure_of(error)

    async def _get(self, request: calls.Get) -> MetadataReply:
        found = await self._store.get(request.key)
        return calls.Missing() if found is None else calls.Found(*found)

    async def _put(self, request: Put) -> MetadataReply:
        version = await self._store.put(request.key, request.value, expected=request.expected)
        return Done([version])

    async def _delete(self, request: Delete) -> MetadataReply:
        await self._store.delete(request.key, expected=request.expected)
        return Done()

    async def _transact(self, request: calls.Transact) -> MetadataReply:
        return Done(await self._store.transact(request.ops))

    async def _list(self, request: calls.ListKeys) -> MetadataReply:
        page = await self._store.list(request.prefix, after=request.after, limit=request.limit)
        return calls.KeyPage([calls.KeyItem(key, *found) for key, found in page])

    async def _next_id(self, request: calls.NextId) -> MetadataReply:
        return Done([await self._store.next_id(request.counter, request.count)])

    async def _grant(self, request: calls.Grant) -> MetadataReply:
        return Granted(
            await self._store.grant(
                request.name, request.owner, ttl_s=request.ttl_s, value=request.value
            )
        )

    async def _renew(self, request: calls.Renew) -> MetadataReply:
        return Granted(await self._store.renew(request.lease, value=request.value))

    async def _release(self, request: calls.Release) -> MetadataReply:
        await self._store.release(request.lease)
        return Done()

    async def _leases(self, request: calls.ListLeases) -> MetadataReply:
        return calls.LeasePage(await self._store.leases(request.prefix, after=request.after))

    async def _now(self, _request: calls.ReadClock) -> MetadataReply:
        return calls.StoreTime(await self._store.now_ms())

    async def _changes(self, request: calls.WatchSince) -> MetadataReply:
        return await self._store.changes(
            request.prefix, since=request.revision, wait_s=request.wait_ms / 1000
        )
