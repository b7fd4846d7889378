"""The base classes of blocking.py: calls of threads that do not run trio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from itertools import islice
from operator import length_hint
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack

import trio

from ledger_client.background import OneTaker
from ledger_client.client import Client
from ledger_client.errors import ClientClosed, Gap
from ledger_client.groups.consumer import GroupConsumer, at_hand, note_unseen, raise_unseen
from ledger_client.groups.options import ConsumerSettings, OnParts, TopicPartition
from ledger_client.ledgers.entries import Entry, EntryBatch
from ledger_client.ledgers.reader import Follower
from ledger_client.message_id import MessageId
from ledger_client.opening import Opening
from ledger_client.portal import Portal, PortalBlock, close_when_dropped, settled
from ledger_client.topics.messages import Message
from ledger_client.topics.producing.producer import Producer
from ledger_client.topics.producing.send_queue import QueuedSend, SendFields, SendQueue
from ledger_client.topics.reading.reader import (
    RecordBatches,
    TopicReader,
    check_pull,
    give_back,
    holds_batch,
    tick_before,
)
from ledger_client.topics.times import Timestamp

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
OpenT = TypeVar("OpenT", bound="BlockingOpened")


class Blocking(Generic[T]):
    """An object that lives in the thread of *portal*, with calls that wait for that thread."""

    def __init__(self, portal: Portal[object], inner: T) -> None:
        self._portal = portal
        self._inner = inner

    def _call(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call(work, *args, **kwargs)

    def _call_sync(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call_sync(work, *args, **kwargs)

    def _open(self, kind: Callable[[Portal[object], R], OpenT], opening: Opening[R]) -> OpenT:
        """Open something, until the end of ``with`` or close(), and return it as a *kind*."""
        held = opening.hold()
        block = PortalBlock(self._portal, held)
        opened = kind(self._portal, block.enter())
        opened._block = block
        close_when_dropped(opened, self._portal, held, opening._what)
        return opened

    def _iterate(self, items: AsyncIterator[R]) -> Iterator[R]:
        return BlockingItems(self._portal, items, self)


class BlockingOpened:
    """What is open until the end of ``with``, or until close()."""

    _block: PortalBlock[Any]
    _inner: Any

    def close(self) -> None:
        """Do what the method of ledger_client does. Harmless if it is closed, and in a fork."""
        self._close()

    def _close(self, **how: bool) -> None:
        self._block.close(partial(self._inner.close, **how))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._block.leave(error)


class BlockingConnection:
    """A client, which has the thread."""

    _portal: Portal[Any]
    _inner: Client

    def close(self) -> None:
        """Close what the client opened and is still open, then the connections and the thread.

        Harmless if it is closed. In a forked process it does nothing.

        Raises:
            LedgerError: as the first close() that fails, once all is closed.
        """
        self._leave(self._inner.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave(self._inner.close if error is None else self._inner._opened.cancel)

    def _leave(self, end: Callable[[], Awaitable[None]]) -> None:
        if self._portal.is_forked:
            return
        try:
            with suppress(ClientClosed):
                self._portal.call(end)
        finally:
            self._portal.close()


class BlockingItems(Generic[R]):
    """An iterator over items that come from trio's thread one by one.

    If the caller is interrupted when an item has come already, the next call returns it.

    *owner* is kept with it, because what is dropped is closed.
    """

    def __init__(self, portal: Portal[Any], items: AsyncIterator[R], owner: object) -> None:
        self._portal = portal
        self._items = items
        self._owner = owner
        self._fetched: list[R] = []
        self._taker = OneTaker("iterator")

    def __iter__(self) -> Iterator[R]:
        return self

    def __next__(self) -> R:
        with self._taker:
            if not self._fetched:
                try:
                    self._portal.call(self._fetch)
                except BaseException:
                    self._give_back()
                    raise
            if not self._fetched:
                raise StopIteration
            return self._fetched.pop()

    async def _fetch(self) -> None:
        with suppress(StopAsyncIteration):
            self._fetched.append(await anext(self._items))

    def _give_back(self) -> None:
        """Take rows back that have come: the reader's position must lie before them."""
        if self._fetched and isinstance(self._items, RecordBatches):
            self._fetched.clear()
            with suppress(RuntimeError):
                self._portal.call_sync(self._items.give_back)


class BlockingSends(Blocking[Producer]):
    """Sends of any number of threads; messages sent at the same time share batches."""

    def __init__(self, portal: Portal[object], inner: Producer) -> None:
        super().__init__(portal, inner)
        self._queue = SendQueue(inner, portal.post, portal.nursery)

    def _send(
        self, value: object, *, timeout_s: float | None, **fields: Unpack[SendFields]
    ) -> MessageId:
        self._portal.check_thread()
        result: Future[MessageId] = Future()
        send = QueuedSend(value, fields, settled(result), timeout_s)
        self._queue.put(send)
        try:
            return result.result()
        except BaseException:
            if not result.done():  # interrupted: it may be kept or not
                with suppress(RuntimeError):
                    self._portal.post(send.cancel)
            raise


class BlockingMessages(Blocking[TopicReader]):
    """An iterator of messages, which are brought from trio's thread by the batch.

    They are kept here already in that thread: if the caller is interrupted at this moment, the
    next call finds them.
    """

    _ready: Iterator[Message] = iter(())

    def __init__(self, portal: Portal[object], inner: TopicReader) -> None:
        super().__init__(portal, inner)
        self._taker = OneTaker("reader")

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        for message in self._ready:
            return message
        with self._taker:
            while self._portal.call(self._fetch):
                for message in self._ready:
                    return message
                # Another thread took them, or had them taken back, as for position().
        raise StopIteration

    def _next_messages(
        self, messages_max: int | None = None, *, wait_s: float | None = None
    ) -> list[Message]:
        check_pull(messages_max, wait_s)
        fetch = partial(self._fetch, messages_max, wait_s)
        with self._taker:
            while not (here := list(islice(self._ready, messages_max))):
                if not self._portal.call(fetch):
                    return []
            return here

    async def _fetch(self, messages_max: int | None = None, wait_s: float | None = None) -> bool:
        messages = await self._inner.next_messages(messages_max, wait_s=wait_s)
        self._ready = iter(messages)
        return bool(messages)

    def _call(self, work: Callable[P, Awaitable[R]], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call(self._run, partial(work, *args, **kwargs))

    async def _run(self, work: Callable[[], Awaitable[R]]) -> R:
        """Do *work*, and forget what another task had fetched meanwhile if it was a seek()."""
        self._give_back()  # in one step with the work: nothing is fetched in between
        result = await work()
        if not holds_batch(self._inner):
            self._ready = iter(())
        return result

    def _call_sync(self, work: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return self._portal.call_sync(self._run_sync, partial(work, *args, **kwargs))

    def _run_sync(self, work: Callable[[], R]) -> R:
        self._give_back()
        return work()

    def _give_back(self) -> None:
        """Give back what was not returned yet. Takes it first: a thread may return it meanwhile."""
        ready, self._ready = self._ready, iter(())
        give_back(self._inner, len(list(ready)))

    @property
    def _tick(self) -> Timestamp:
        return tick_before(self._inner, length_hint(self._ready))


class BlockingConsumption(Blocking[GroupConsumer]):
    """An iterator of messages: asking for one means that the last is done.

    Those that have arrived are taken here, without a call into trio's thread, which sees how many
    are left. What comes while the caller is interrupted is taken back, as nobody has seen it.
    """

    _at_hand: Iterator[Message] = iter(())

    def __iter__(self) -> Iterator[Message]:
        return self

    def __next__(self) -> Message:
        for message in self._at_hand:
            return message
        message = self._seen(self._inner.__anext__)
        self._at_hand = at_hand(self._inner)
        return message

    def _poll(self, *, wait_s: float, messages_max: int) -> list[Message]:
        self._at_hand = iter(())  # the next one asks in trio's thread: these are consumed then
        return self._seen(partial(self._inner.poll, wait_s=wait_s, messages_max=messages_max))

    def _poll_batches(self, *, wait_s: float, messages_max: int) -> list[pa.RecordBatch]:
        self._at_hand = iter(())
        poll = partial(self._inner.poll_batches, wait_s=wait_s, messages_max=messages_max)
        return self._seen(poll)

    def _seen(self, ask: Callable[[], Awaitable[R]]) -> R:
        came, gaps = list[R](), list[Gap]()
        raise_unseen(self._inner)

        async def bring() -> None:
            try:
                came.append(await ask())
            except Gap as gap:
                gaps.append(gap)
                raise

        try:
            self._portal.call(bring)
        except Gap:
            raise
        except BaseException:
            for gap in gaps:
                note_unseen(self._inner, gap)
            if came:
                with suppress(RuntimeError):
                    self._call_sync(self._inner.take_back)
            raise
        return came[0]


def in_worker(settings: ConsumerSettings) -> ConsumerSettings:
    """Return *settings* with functions that are called in a worker thread, not in trio's.

    They may call the consumer. One that takes longer than the consumer may wait is left behind.
    """
    settings = settings.copy()
    if (on_assigned := settings.get("on_assigned")) is not None:
        settings["on_assigned"] = _in_worker(on_assigned)
    if (on_revoked := settings.get("on_revoked")) is not None:
        settings["on_revoked"] = _in_worker(on_revoked)
    return settings


def _in_worker(function: OnParts) -> OnParts:
    async def call(parts: Sequence[TopicPartition]) -> None:
        await trio.to_thread.run_sync(function, parts, abandon_on_cancel=True)

    return call


class BlockingEntries(Blocking[Follower]):
    """An iterator of entries, brought from trio's thread by the batch as BlockingMessages.

    *owner* is kept with it, because what is dropped is closed.
    """

    _ready: Iterator[Entry] = iter(())
    _fetched: EntryBatch | None = None

    def __init__(self, portal: Portal[object], inner: Follower, owner: object) -> None:
        super().__init__(portal, inner)
        self._owner = owner
        self._taker = OneTaker("follower")

    @property
    def _position(self) -> int:
        fetched = self._fetched
        return self._inner.position if fetched is None else fetched.first_entry

    def __iter__(self) -> Iterator[Entry]:
        return self

    def __next__(self) -> Entry:
        for entry in self._ready:
            return entry
        batch = self._next_batch()
        if batch is None:
            raise StopIteration
        self._ready = iter(batch)
        return next(self._ready)

    def _next_batch(self) -> EntryBatch | None:
        with self._taker:
            if self._fetched is None:
                self._portal.call(self._fetch)
            batch, self._fetched = self._fetched, None
            return batch

    async def _fetch(self) -> None:
        self._fetched = await self._inner.next_batch()
