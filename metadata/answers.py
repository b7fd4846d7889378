"""Answers to metadata calls: a bookie makes them from its store, a client takes them apart.

An error is a Failure on the wire: the bookie turns an exception into one, and the client turns it
back. Its kind is the name of the exception's class, and the attributes are its own. A kind that is
not of the package metadata becomes a MetadataError with the message alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from metadata import calls, errors
from metadata.calls import Done, Failure, Granted, MetadataReply, MetadataRequest, Reply
from metadata.errors import Attribute, BadRecord, MetadataError
from metadata.store import Delete, MetadataStore, Put

T = TypeVar("T")


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


# --- errors ------------------------------------------------------------------------------

_FROM_MESSAGE = (errors.MetadataUnavailable,)
_FROM_ATTRIBUTES = (errors.VersionConflict, errors.LeaseHeld, errors.LeaseLost)
_PLAIN = (
    errors.BadRequest,
    errors.BadRecord,
    errors.MetadataBroken,
    errors.BadAddress,
    errors.AccessDenied,
)
_KINDS: dict[str, type[MetadataError]] = {
    kind.__name__: kind for kind in (*_FROM_MESSAGE, *_FROM_ATTRIBUTES, *_PLAIN)
}


def failure_of(error: MetadataError) -> Failure:
    """Return *error* as a reply, with all its attributes."""
    attributes: dict[str, Attribute] = {
        name: value for name, value in vars(error).items() if name != "message"
    }
    return Failure(type(error).__name__, error.message, attributes)


def error_of(failure: Failure) -> MetadataError:
    """Return the exception that *failure* was made from.

    That is BadRecord if its attributes do not fit its kind, because the peer is at fault.
    """
    kind = _KINDS.get(failure.kind)
    if kind is None:
        return MetadataError(failure.message)
    attributes = failure.attributes
    try:
        if kind in _FROM_ATTRIBUTES:
            return kind(**attributes)  # type: ignore[arg-type]  # checked by the call
        if kind in _FROM_MESSAGE:
            return kind(failure.message, **attributes)  # type: ignore[arg-type]
        return kind(failure.message)
    except (TypeError, ValueError) as wrong:
        return BadRecord(f"a failure of kind {failure.kind} has wrong attributes: {wrong}")


def expect(reply: Reply, kind: type[T]) -> T:
    """Return *reply* if it is a *kind*.

    Raises:
        MetadataError: the reply is a Failure, of this error.
        BadRecord: the reply is of another kind.
    """
    if isinstance(reply, kind):
        return reply
    if isinstance(reply, Failure):
        raise error_of(reply)
    raise BadRecord(f"the bookie answered {type(reply).__name__}, not {kind.__name__}")
